"""Parallel sentences: WMT16 Romanian to English (graphmax paper, sec. 4), for sequence-to-sequence models."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Required

import numpy as np
import torch

from lit_ctg.core.batch import Batch
from lit_ctg.data.corpus import CorpusDataModule
from lit_ctg.data.document import Document
from lit_ctg.data.loader import ResumableLoader
from lit_ctg.data.packing import PackedCorpus, digest
from lit_ctg.data.source import Row, column_names, find_optional, read_lines, read_records
from lit_ctg.data.split import check_fractions, tail_documents
from lit_ctg.errors import UserError
from lit_ctg.limits import Fraction

_FILES = {
    "train": ("train", "europarl", "corpus"),
    "val": ("valid", "validation", "val", "dev", "newsdev2016"),
    "test": ("test", "newstest2016"),
}
_HUB_SPLIT = {"train": "train", "val": "validation", "test": "test"}
_RECORDS = (".jsonl", ".csv", ".parquet")


class TranslationBatch(Batch):
    """A batch of sentence pairs; the other keys hold the target.

    Attributes:
        source_ids_BS: long, the source sentence and <eos>.
        mask_source_BS: bool, False where there is padding.
    """

    source_ids_BS: Required[torch.Tensor]
    mask_source_BS: Required[torch.Tensor]


class PairBatches(torch.utils.data.Dataset[Batch]):
    """Batches of sentence pairs, padded to their longest, for a sequence-to-sequence model.

    A batch has ``source_ids_BS``, ``mask_source_BS`` (S positions: the source sentence and ``<eos>``), ``input_ids_BT``
    (``<bos>`` and the target), ``target_ids_BT`` (the target and ``<eos>``), ``mask_input_BT`` and ``mask_target_BT``.

    Args:
        packed, split: the packed corpus; its splits are ``<split>.source`` and ``<split>.target``.
        specials: ids of <pad>, <bos> and <eos>.
        batch_size: pairs B.
        maximum: maximum S and T; longer sentences are truncated.
        shuffle_seed: redraw the order of pairs each epoch from this seed; ``None`` keeps the order of the text.
    """

    def __init__(
        self,
        packed: PackedCorpus,
        split: str,
        *,
        specials: tuple[int, int, int],
        batch_size: int,
        maximum: int,
        shuffle_seed: int | None = None,
    ) -> None:
        self.packed, self.split, self.batch_size, self.maximum = packed, split, batch_size, maximum
        self.pad, self.bos, self.eos = specials
        self.shuffle_seed = shuffle_seed
        self.pairs = packed.meta["splits"][f"{split}.source"]["documents"]
        if self.pairs == 0:
            raise UserError(f"split '{split}' has no sentence pair: give more text or another val_fraction")

    def __len__(self) -> int:
        return -(-self.pairs // self.batch_size)

    def __getitem__(self, key: tuple[int, int]) -> TranslationBatch:
        epoch, index = key
        order_N = np.arange(self.pairs)
        if self.shuffle_seed is not None:
            order_N = np.random.default_rng([self.shuffle_seed, epoch]).permutation(self.pairs)
        chosen = order_N[index * self.batch_size : (index + 1) * self.batch_size].tolist()
        sides = {
            side: [self.packed.document(f"{self.split}.{side}", n)[: self.maximum - 1].tolist() for n in chosen]
            for side in ("source", "target")
        }
        source_BS, mask_BS = self._pad([[*ids, self.eos] for ids in sides["source"]])
        input_BT, mask_input_BT = self._pad([[self.bos, *ids] for ids in sides["target"]])
        target_BT, mask_target_BT = self._pad([[*ids, self.eos] for ids in sides["target"]])
        return {
            "source_ids_BS": source_BS, "mask_source_BS": mask_BS, "input_ids_BT": input_BT, "target_ids_BT": target_BT,
            "mask_input_BT": mask_input_BT, "mask_target_BT": mask_target_BT,
        }  # fmt: skip

    def _pad(self, rows: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        width = max(map(len, rows))
        ids_BT = torch.tensor([row + [self.pad] * (width - len(row)) for row in rows])
        length_B = torch.tensor([len(row) for row in rows])
        return ids_BT, torch.arange(width) < length_B[:, None]


class TranslationDataModule(CorpusDataModule):
    """Sentence pairs; both sides share one vocabulary.

    A folder holds line-aligned files (``train.ro`` and ``train.en``, ``newsdev2016.ro`` and ``.en``) or rows with a
    column for each language. If it has only one pair of files, its last parts are validation and test; if it lacks the
    validation split alone, that is the last part of training; if it has no test split, the validation split is used. A
    pair whose source sentence is in an evaluation split is not trained on.

    Args:
        source_language, target_language: suffixes and columns, e.g. ro and en.
        val_fraction, test_fraction: shares that are cut from a folder's only pair of files, or from training.
        options: see ``CorpusDataModule``; ``length`` is the maximum sentence, ``batch_size`` counts pairs, ``batching``
            and ``by_source`` do not apply.
    """

    name = "translation"
    stored = "parallel"
    sides = ("source", "target")

    def __init__(
        self,
        *,
        source_language: str,
        target_language: str,
        val_fraction: Fraction,
        test_fraction: Fraction,
        **options: Any,
    ) -> None:
        super().__init__(batching="chunks", **options)
        self.languages = {"source": source_language, "target": target_language}
        self.val_fraction, self.test_fraction = check_fractions(val_fraction, test_fraction)
        self.splits = tuple(f"{split}.{side}" for split in ("test", "val", "train") for side in self.sides)
        self.vocabulary_splits = tuple(f"{split}.{side}" for split in self.vocabulary_splits for side in self.sides)

    def options(self) -> dict[str, Any]:
        return {"languages": self.languages, "fractions": [self.val_fraction, self._test_share()]}

    def _test_share(self) -> float:
        """Return the share that is cut for testing: none where a folder has only training and test files."""
        own = self.source == "local" and self._local("val") is None and self._local("train") and self._local("test")
        return 0.0 if own else self.test_fraction

    def packing(self) -> dict[str, Any]:
        return {**super().packing(), "shared": True}

    def documents(self, split: str) -> Iterator[Document]:
        name, side = split.split(".")
        pairs = self.pairs(name)
        if self.max_documents is not None and name == "train" and self.source != "sample":
            pairs = itertools.islice(pairs, self.max_documents)
        for pair in pairs:
            text = pair.text if side == "source" else pair.meta["target"]
            yield Document(text, pair.source if side == "source" else self.languages[side])

    def pairs(self, name: str) -> Iterator[Document]:
        """Yield the pairs of a split (text and ``meta["target"]``) that are not in an earlier split."""
        readers = {"sample": self.sample_documents, "local": self.local_documents, "hub": self.hub_documents}
        read = readers[self.source]
        earlier = {"train": ("test", "val"), "val": ("test",), "test": ()}[name]
        held = {digest(pair) for split in earlier for pair in read(split)}
        return (pair for pair in read(name) if pair.text.strip() and digest(pair) not in held)

    def sample_documents(self, split: str) -> Iterator[Document]:
        for pair in self.sample(split, cut=False):
            yield Document(pair.meta["es"], "es", {"target": pair.text})

    def _local(self, split: str) -> list[Path] | None:
        """Return [source file, target file] or [file of rows] of a split, ``None`` when the folder has none."""
        source, target = self.languages.values()
        for stem in _FILES[split]:
            one, other = (find_optional(self.root, (f"{stem}.{code}",), suffixes=("",)) for code in (source, target))
            if one is not None and other is not None:
                return [one, other]
            if one is not None or other is not None:
                missing = target if one else source
                raise UserError(f"{self.root} has {stem}.{source if one else target} but no {stem}.{missing}: "
                                "add the other side")  # fmt: skip
            rows = find_optional(self.root, (stem,), suffixes=_RECORDS)
            if rows is not None:
                return [rows]
        return None

    def _only(self) -> list[Path]:
        """Return the only pair of files of a folder; ``UserError`` if there is none."""
        found = [files for files in map(self._local, ("train", "val", "test")) if files]
        if not found:
            source, target = self.languages.values()
            raise UserError(
                f"data.root={self.root} holds no parallel text: give train.{source} and train.{target} (also packed), "
                f"or train.jsonl with columns {source} and {target}; or use data.source=sample"
            )
        return found[0]

    def local_files(self) -> list[Path]:
        if self._local("train") is None:
            return self._only()
        return [path for split in ("train", "val", "test") for path in self._local(split) or []]

    def local_documents(self, split: str) -> Iterator[Document]:
        train, val, own = self._local("train"), self._local("val"), self._local(split)
        if train is not None and own is not None and (split != "train" or val is not None):
            return self._read(own)
        if train is not None and split == "test" and val is not None:
            return iter(())
        # a split without files is cut from the end
        only = train or self._only()
        return tail_documents(functools.partial(self._read, only), split, self.val_fraction, self._test_share())

    def _read(self, files: list[Path]) -> Iterator[Document]:
        source, target = self.languages.values()
        if len(files) == 1:
            for row in _rows(files[0], source, target):
                yield Document(row.text(source).strip() + "\n", source, {"target": row.text(target).strip() + "\n"})
            return
        for number, (left, right) in enumerate(itertools.zip_longest(*map(read_lines, files)), start=1):
            if left is None or right is None:
                short = files[0] if left is None else files[1]
                raise UserError(f"{short} ends before line {number} of the other side: the files are not aligned")
            yield Document(left.strip() + "\n", source, {"target": right.strip() + "\n"})

    def hub_pattern(self, split: str) -> str:
        return f"{self.languages['source']}-{self.languages['target']}/{_HUB_SPLIT[split.split('.')[0]]}-*.parquet"

    def hub_documents(self, split: str) -> Iterator[Document]:
        return itertools.chain.from_iterable(self._read([path]) for path in self.hub_files(split))

    def pair_batches(self, split: str, shuffle: bool) -> PairBatches:
        """Return the batches of a split; ``UserError`` if the tokenizer lacks a special token."""
        packed, words = self.prepare(), self.tokenizer
        pad_id, bos_id, eos_id = words.pad_id, words.bos_id, words.eos_id
        # T5 and Marian have no <bos>: a pretrained model has its own decoder start
        if words.kind == "huggingface" and bos_id is None:
            bos_id = pad_id
        # byte-level BPE has one special token; padding is masked, so any id will do
        if words.unknown_id is None and pad_id is None:
            pad_id = eos_id
        if pad_id is None or bos_id is None or eos_id is None:
            missing = "<pad>" if pad_id is None else "<bos>" if bos_id is None else "<eos>"
            raise UserError(f"translation needs {missing}: add it to data.tokenizer.specials")
        return PairBatches(
            packed, split, specials=(pad_id, bos_id, eos_id), batch_size=self.batch_size, maximum=self.length,
            shuffle_seed=self.seed if shuffle else None,
        )  # fmt: skip

    def train_dataloader(self) -> ResumableLoader:
        return self._pairs("train", self.shuffle, seed=self.seed, even=True)

    def val_dataloader(self) -> ResumableLoader:
        return self._pairs("val", False)

    def test_dataloader(self) -> ResumableLoader:
        tested = "test" if self.prepare().meta["splits"]["test.source"]["documents"] else "val"
        return self._pairs(tested, False)

    def _pairs(self, split: str, shuffle: bool, **order: Any) -> ResumableLoader:
        """Return the loader of a split, whose batches the training processes share."""
        options: dict[str, Any] = order | self._place()
        return ResumableLoader(self.pair_batches(split, shuffle), num_workers=self.num_workers, **options)


def _rows(path: Path, source: str, target: str) -> Iterator[Row]:
    """Yield rows with both languages; WMT's parquet has them inside a column ``translation``."""
    if "translation" in column_names(path):
        for row in read_records(path, ["translation"]):
            both = row["translation"]
            missing = [code for code in (source, target) if not isinstance(both, dict) or both.get(code) is None]
            if missing:
                raise UserError(f"{row.where}: its 'translation' has no '{missing[0]}': give both languages")
            yield Row(both, row.where)
    else:
        yield from read_records(path, [source, target])

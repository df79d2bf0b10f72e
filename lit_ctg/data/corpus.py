"""What all text corpora have in common: a source, a tokenizer, a packed cache and the loaders that read it."""

from __future__ import annotations

import abc
import functools
import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from lightning import LightningDataModule

from lit_ctg.core.batch import Fingerprint, checksum
from lit_ctg.data.batching import (
    SHORTEST,
    ConsecutiveBatches,
    PackedBatches,
    RandomWindows,
    StreamBatches,
    WholeBatches,
)
from lit_ctg.data.document import Document
from lit_ctg.data.hub import ALTERNATIVES, HubFiles
from lit_ctg.data.loader import ResumableLoader, process_place
from lit_ctg.data.packing import PackedCorpus, Progress, ensure_packed, identity_key
from lit_ctg.data.sample_text import sample_documents, sample_file
from lit_ctg.data.source import file_checksum
from lit_ctg.data.tokenizer import Tokenizer
from lit_ctg.errors import UserError, refuse
from lit_ctg.files import cache_root as cache_folder
from lit_ctg.limits import Checked, Choice, Count, SampleSize, Source, Whole

BATCHING = ("chunks", "whole_batches", "windows", "windows_everywhere", "equal_windows", "streams")
_WINDOWS = ("windows", "windows_everywhere")
# words of an evaluation split of the sample, at least
_SAMPLE_EVALUATION = 1000


class CorpusDataModule(Checked, LightningDataModule, abc.ABC):
    """Base of the text data modules.

    Args:
        source: sample (stored text), local (a folder) or hub.
        tokenizer: its vocabulary is built on the training split.
        batching: chunks (consecutive), whole_batches (consecutive; in training across sources and dropping what does
        not fill a batch, see ``WholeBatches``), windows (random places in training), windows_everywhere (random
        places in evaluation too, others after every epoch: an estimate, not the whole split), equal_windows (random
        places in training, every source equally often) or streams (truncated back-propagation).
        length: positions T of a row.
        batch_size: rows B.
        seed: of the order or the places of batches.
        steps_per_epoch: batches in an epoch of windows; of equal_windows by default as many as hold the text's tokens.
        repository, revision: of source=hub, the dataset and its commit (40 hex digits).
        cache_root: folder for downloads and packed text; LIT_CTG_CACHE or ~/.cache/lit_ctg by default.
        shuffle: draw a new order of the training chunks each epoch.
        by_source: batches hold one source and its ``control_code_B``.
        documents: batches say which document each target is in (``document_BT``).
        document_end: put ``<eos>`` after every document.
        max_documents: read at most this many documents of a training split that is not a sample.
        sample_size: words of the training split of source=sample; evaluation splits have a tenth of it each.
        sample_seed: which part of the sample text; not the seed of a run, so that all runs see the same corpus.
        vocabulary_splits: the splits a vocabulary is built on.
        vary_length: cut the training streams into stretches of differing length, anew in every epoch
            (``StreamBatches``).
        evaluation_streams: streams of validation and test text, by default ``batch_size``; every one begins without a
            state and without the text before it.

    Attributes:
        sources: names of the sources in the order of their control codes (after ``setup``).
    """

    name: str
    # its sample text
    stored: str
    columns: Sequence[str] = ()
    # share of each source that is tested on; with 0, testing reads the validation part. Corpora with splits keep 1
    test_fraction: float = 1.0
    # evaluation first: a document found there is left out of later splits
    splits: Sequence[str] = ("test", "val", "train")

    def __init__(
        self,
        *,
        source: Source,
        tokenizer: Tokenizer,
        batching: Annotated[str, Choice(BATCHING)],
        length: Count,
        batch_size: Count,
        seed: Whole,
        steps_per_epoch: Count | None = None,
        root: str | Path | None = None,
        repository: str | None = None,
        revision: str | None = None,
        cache_root: str | Path | None = None,
        shuffle: bool = False,
        by_source: bool = False,
        documents: bool = False,
        document_end: bool = False,
        max_documents: Count | None = None,
        sample_size: SampleSize = 200_000,
        sample_seed: Whole = 0,
        vocabulary_splits: Sequence[Literal["train", "val", "test"]] = ("train",),
        num_workers: Whole = 0,
        vary_length: bool = False,
        evaluation_streams: Count | None = None,
    ) -> None:
        super().__init__()
        streams = batching == "streams"
        refuse({
            "steps_per_epoch=<batches of an epoch>": batching in _WINDOWS and not steps_per_epoch,
            "vary_length=false": vary_length and not streams,
            f"length={4 * SHORTEST} or more with vary_length=true": vary_length and length < 4 * SHORTEST,
            "evaluation_streams=null": evaluation_streams is not None and not streams,
            "by_source=false": streams and by_source,
        }, f"data.batching={batching} needs data.")  # fmt: skip
        self.source, self.tokenizer, self.batching = source, tokenizer, batching
        self.length, self.batch_size, self.seed, self.steps_per_epoch = length, batch_size, seed, steps_per_epoch
        self.root, self.cache_root = root, cache_folder(cache_root)
        self.repository, self.revision = repository, revision
        self.shuffle, self.by_source, self.with_documents = shuffle, by_source, documents
        self.document_end, self.max_documents = document_end, max_documents
        self.sample_size, self.sample_seed = sample_size, sample_seed
        self.vocabulary_splits: tuple[str, ...] = tuple(vocabulary_splits)
        self.num_workers, self.vary_length, self.evaluation_streams = num_workers, vary_length, evaluation_streams
        self.packed: PackedCorpus | None = None
        # called with (file, bytes so far, bytes in total) while the hub is read
        self.fetching: Callable[[str, int, int | None], None] | None = None

    # what a corpus must define

    @abc.abstractmethod
    def options(self) -> dict[str, Any]:
        """Return the settings that change the text as plain values: part of the cache's key."""

    @abc.abstractmethod
    def sample_documents(self, split: str) -> Iterator[Document]:
        """Yield the documents of a split (train, val, test) of the sample."""

    def sample(self, split: str, sources: Sequence[str | None] = (None,), **options: Any) -> Iterator[Document]:
        """Yield the documents of the sample text ``stored``, one source after the other, in equal shares.

        Args:
            sources: some of those of the text; None for all, as they lie.
        """
        size = self.sample_size if split == "train" else max(self.sample_size // 10, _SAMPLE_EVALUATION)
        options |= {"size": max(size // len(sources), 100), "seed": self.sample_seed}
        for source in sources if split != "test" or self.test_fraction != 0 else ():
            yield from sample_documents(self.stored, split, source=source, **options)

    @abc.abstractmethod
    def local_files(self) -> list[Path]:
        """Return every file of ``root`` that is read, for the checksum; ``UserError`` if one is missing."""

    @abc.abstractmethod
    def local_documents(self, split: str) -> Iterator[Document]:
        """Yield the documents of a split from ``root``."""

    def hub_pattern(self, split: str) -> str:
        """Return which files of the repository hold a split; ``UserError`` if the corpus is on no hub."""
        raise UserError(f"data={self.name} is on no hub that may be fetched from: {ALTERNATIVES}")

    def hub_files(self, split: str) -> list[Path]:
        pattern = self.hub_pattern(split)
        hub = HubFiles(self.repository or "", self.revision, root=self.cache_root)
        return hub.fetch(pattern, progress=self.fetching)

    def hub_checksum(self) -> str:
        """Fetch missing files and return a text that identifies all of them."""
        patterns = [self.hub_pattern(split) for split in self.splits]
        for split in self.splits:
            self.hub_files(split)
        return HubFiles(self.repository or "", self.revision, root=self.cache_root).checksum(patterns)

    def hub_documents(self, split: str) -> Iterator[Document]:
        raise NotImplementedError(f"{type(self).__name__} has a hub_pattern: define hub_documents too")

    # the path from text to batches

    def documents(self, split: str) -> Iterator[Document]:
        """Yield the documents of a split from the chosen source."""
        readers = {"sample": self.sample_documents, "local": self.local_documents, "hub": self.hub_documents}
        found = (document for document in readers[self.source](split) if document.text.strip())
        if self.max_documents is not None and split.startswith("train") and self.source != "sample":
            return itertools.islice(found, self.max_documents)
        return found

    def checksum(self) -> str:
        """Return a text that identifies the chosen source's content."""
        if self.source == "sample":
            return f"sample {file_checksum(sample_file(self.stored))} {self.sample_seed} {self.sample_size}"
        if self.source == "local":
            return "local " + " ".join(file_checksum(path) for path in self.local_files())
        return "hub " + self.hub_checksum()

    def identity(self) -> dict[str, Any]:
        """Return what a packed corpus depends on."""
        # their names say the format, and in some corpora the source
        files = {"files": [path.name for path in self.local_files()]} if self.source == "local" else {}
        return {
            **files,
            "name": self.name,
            "corpus": hashlib.sha256(self.checksum().encode()).hexdigest(),
            "tokenizer": self.tokenizer.fingerprint(),
            "options": self.options(),
            "document_end": self.document_end,
            "max_documents": self.max_documents,
            "vocabulary_splits": list(self.vocabulary_splits),
            "special_tokens": "not from texts",  # corpora packed before could hold them
        }

    def prepare(self, progress: Progress | None = None) -> PackedCorpus:
        """Return the packed corpus, creating it if it is not in the cache.

        Args:
            progress: called with (current step, documents so far).
        """
        if self.packed is None:
            identity = self.identity()
            folder = self.cache_root / "packed" / f"{self.name}-{identity_key(identity)}"
            readers = {split: functools.partial(self.documents, split) for split in self.splits}
            self.packed = ensure_packed(folder, readers, self.tokenizer, identity, **self.packing(), progress=progress)
        return self.packed

    def packing(self) -> dict[str, Any]:
        options = {"end_documents": self.document_end, "columns": self.columns}
        return options | {"vocabulary_splits": self.vocabulary_splits}

    def prepare_data(self) -> None:
        self.prepare()

    def setup(self, stage: str | None = None) -> None:
        self.prepare()

    @property
    def vocabulary(self) -> Tokenizer:
        """The tokenizer with its vocabulary; prepares the corpus if that has not happened yet."""
        self.prepare()
        return self.tokenizer

    def fingerprint(self) -> Fingerprint:
        """Return the checksums of ids and vocabulary from the packed corpus (created if it is not in the cache)."""
        return {"text": self.prepare().checksum(), "vocabulary": checksum(self.vocabulary.tokens)}

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the sources; the control code of a source is its index here."""
        return self.prepare().sources

    def batches(self, split: str) -> PackedBatches:
        """Return the batches of a split; evaluation covers every token once (except with windows_everywhere)."""
        packed, train, way = self.prepare(), split == "train", self.batching
        options: dict[str, Any] = {"length": self.length, "batch_size": self.batch_size}
        options["documents"] = self.with_documents
        if way == "streams":
            options["batch_size"] = self.batch_size if train else self.evaluation_streams or self.batch_size
            vary = self.vary_length and train
            return StreamBatches(packed, split, vary=vary, seed=self.seed, **options, **self._place())
        if way == "whole_batches" and train:
            return WholeBatches(packed, split, **options)
        options["by_source"] = self.by_source
        if way == "windows_everywhere" or (train and way in ("windows", "equal_windows")):
            equal = way == "equal_windows"
            return RandomWindows(packed, split, steps=self.steps_per_epoch, seed=self.seed, equal=equal, **options)
        return ConsecutiveBatches(packed, split, **options)

    def _place(self) -> dict[str, int]:
        """Return the rank of this training process and their number."""
        return process_place(self.trainer)

    def _loader(self, split: str, **order: Any) -> ResumableLoader:
        # streams are distributed over the processes by row, everything else by batch
        place: dict[str, Any] = {} if self.batching == "streams" else self._place()
        return ResumableLoader(self.batches(split), num_workers=self.num_workers, **order, **place)

    def train_dataloader(self) -> ResumableLoader:
        shuffle = self.shuffle and self.batching in ("chunks", "whole_batches")
        return self._loader("train", seed=self.seed, shuffle=shuffle, even=True)

    def val_dataloader(self) -> ResumableLoader:
        return self._loader("val")

    def test_dataloader(self) -> ResumableLoader:
        return self._loader("val" if self.test_fraction == 0 else "test")

    def predict_dataloader(self) -> ResumableLoader:
        return self.test_dataloader()

"""What all corpora share, on a corpus of two lines: keys, splits, batching by configuration, the option files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lit_ctg.config import compose
from lit_ctg.data.corpus import CorpusDataModule
from lit_ctg.data.document import Document
from lit_ctg.data.packing import digest
from lit_ctg.data.tokenizer import WordTokenizer
from lit_ctg.errors import UserError
from lit_ctg.run.build import build_datamodule


class Tiny(CorpusDataModule):
    name = "tiny"
    stored = "scripts"

    def options(self) -> dict[str, Any]:
        return {}

    def sample_documents(self, split: str) -> Iterator[Document]:
        for source in ("a", "b"):
            for number in range({"train": 12, "val": 3, "test": 3}[split]):
                yield Document(f"{source} {split} {number} of many\n", source)
        yield Document(" \n", "b")

    def local_files(self) -> list[Path]:
        return [Path(self.root) / "text"]

    def local_documents(self, split: str) -> Iterator[Document]:
        yield from self.sample_documents(split)

    def hub_documents(self, split: str) -> Iterator[Document]:
        return iter(())


def tiny(tmp_path: Path, **changes: Any) -> Tiny:
    options: dict[str, Any] = {"source": "sample", "tokenizer": WordTokenizer(), "batching": "chunks", "length": 6,
                               "batch_size": 2, "seed": 3, "cache_root": tmp_path}  # fmt: skip
    return Tiny(**{**options, **changes})


def test_evaluation_reads_every_token_once_whatever_the_batching(tmp_path: Path) -> None:
    for options in ({}, {"batching": "windows", "steps_per_epoch": 4}, {"batching": "streams"}, {"by_source": True}):
        data = tiny(tmp_path, **options)
        for loader, split in ((data.val_dataloader(), "val"), (data.test_dataloader(), "test")):
            targets = sum(int(batch["mask_target_BT"].sum()) for batch in loader)
            firsts = 2 if options.get("by_source") else 1
            assert targets == data.packed.meta["splits"][split]["tokens"] - firsts, options
    assert len(tiny(tmp_path, batching="windows", steps_per_epoch=4).train_dataloader()) == 4


def test_windows_everywhere_are_random_places_of_the_evaluation_splits_drawn_from_the_seed(tmp_path: Path) -> None:
    def places(seed: int) -> list[list[int]]:
        data = tiny(tmp_path, batching="windows_everywhere", steps_per_epoch=5, length=3, seed=seed)
        return [batch["input_ids_BT"].flatten().tolist() for batch in data.val_dataloader()]

    first = [batch["input_ids_BT"].flatten().tolist() for batch in tiny(tmp_path, length=3).val_dataloader()][:5]
    assert len(places(3)) == 5 and places(3) == places(3)
    assert places(3) != places(4) and places(3) != first
    loader = tiny(tmp_path, batching="windows_everywhere", steps_per_epoch=5, length=3, seed=3).val_dataloader()
    loader.set_epoch(1)
    # as the authors draw them; a new trainer (lit-ctg evaluate) begins with those of epoch 0
    assert [batch["input_ids_BT"].flatten().tolist() for batch in loader] != places(3)


def test_blank_documents_are_none(tmp_path: Path) -> None:
    assert tiny(tmp_path).prepare().meta["splits"]["train"]["documents"] == 24


def test_shuffled_chunks_are_the_same_chunks(tmp_path: Path) -> None:
    plain = [batch["input_ids_BT"] for batch in tiny(tmp_path).train_dataloader()]
    mixed = [batch["input_ids_BT"] for batch in tiny(tmp_path, shuffle=True).train_dataloader()]
    key = lambda ids_BT: ids_BT.flatten().tolist()  # noqa: E731
    assert list(map(key, plain)) != list(map(key, mixed)) and sorted(map(key, plain)) == sorted(map(key, mixed))
    again = [batch["input_ids_BT"] for batch in tiny(tmp_path, shuffle=True).train_dataloader()]
    assert all(torch.equal(a, b) for a, b in zip(mixed, again, strict=True))


def test_the_key_changes_with_what_changes_the_ids_only(tmp_path: Path) -> None:
    def folder(**changes: Any) -> Path:
        return tiny(tmp_path, **changes).prepare().folder

    plain = folder()
    assert plain == folder(seed=9, length=3, batch_size=5, shuffle=True)
    different = [folder(tokenizer=WordTokenizer(lower=True)), folder(sample_seed=1), folder(document_end=True),
                 folder(vocabulary_splits=("train", "val"))]  # fmt: skip
    assert len({plain, *different}) == 5
    (tmp_path / "text").write_text("one")
    local = folder(source="local", root=tmp_path)
    (tmp_path / "text").write_text("two")
    assert folder(source="local", root=tmp_path) != local != plain


def test_fewer_documents_on_request(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("one")
    data = tiny(tmp_path, source="local", root=tmp_path, max_documents=5)
    assert [data.prepare().meta["splits"][split]["documents"] for split in ("train", "val")] == [5, 6]


def test_a_corpus_without_a_hub_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data=tiny is on no hub.*data\.source=local.*data\.source=sample"):
        tiny(tmp_path, source="hub").prepare()


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"batching": "windows"}, "steps_per_epoch"),
        ({"batching": "windows_everywhere"}, "steps_per_epoch"),
        ({"vary_length": True}, "vary_length"),
        ({"batching": "streams", "vary_length": True}, "length"),
        ({"evaluation_streams": 2}, "evaluation_streams"),
        ({"batching": "streams", "by_source": True}, "by_source"),
        ({"batching": "stream"}, "did you mean 'streams'"),
        ({"vocabulary_splits": ("train", "valid")}, "did you mean 'val'"),
    ],
)
def test_settings_that_clash_are_named(tmp_path: Path, options: dict[str, Any], key: str) -> None:
    with pytest.raises(UserError, match=key):
        tiny(tmp_path, **options)


@pytest.mark.parametrize("regime", ["corrected", "as_published"])
@pytest.mark.parametrize("name", ["wikitext", "gutenberg", "reviews", "scripts", "translation"])
def test_every_option_file_builds_a_corpus_without_leaks(name: str, regime: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("LIT_CTG_CACHE", str(tmp_path))
    data = build_datamodule(compose([f"data={name}", f"regime={regime}", "size=smoke"], experiment=False))
    data.prepare_data()
    data.setup("fit")
    batch = next(iter(data.train_dataloader()))
    assert batch["input_ids_BT"].shape == batch["target_ids_BT"].shape == batch["mask_target_BT"].shape
    assert int(batch["input_ids_BT"].max()) < len(data.vocabulary)
    assert len(list(data.val_dataloader())) and len(list(data.test_dataloader()))
    held: set[bytes] = set()
    for split in data.splits:
        texts = {digest(document) for document in data.documents(split)}
        if split.endswith("target"):
            continue  # two sentences may have one translation
        assert not texts & held, f"{split} shares a document with another split"
        held |= texts


@pytest.mark.parametrize("tokenizer", ["word", "spacy", "bpe"])
def test_every_tokenizer_option_fits_every_corpus(tokenizer: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("LIT_CTG_CACHE", str(tmp_path))
    data = build_datamodule(compose(["data=scripts", f"data/tokenizer={tokenizer}", "size=smoke"], experiment=False))
    assert data.tokenizer.kind == tokenizer and len(data.vocabulary) > 250

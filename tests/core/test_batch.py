"""Every corpus offers the protocol; its fingerprint is the same twice and changes with its text or its vocabulary."""

from __future__ import annotations

from pathlib import Path

import pytest

from lit_ctg.config import compose
from lit_ctg.core.batch import Corpus, Fingerprint, checksum
from lit_ctg.run.build import build_datamodule

# data= options, and what changes the text and perhaps not the vocabulary
CORPORA = {
    "clause": "data.train_size=65",
    "clause_coupled": "data.train_size=65",
    "increment": "data.seed=1",
    "gutenberg": "data.sample_size=2100",
    "reviews": "data.sample_size=2100",
    "scripts": "data.sample_size=2100",
    "translation": "data.sample_size=2100",
    "wikipedia": "data.sample_size=2100",
    "wikitext": "data.sample_size=2100",
}
SMALL = ("data.sample_size=2000", "data.train_size=64")


def fingerprint(*words: str) -> Fingerprint:
    datamodule = build_datamodule(compose(["size=smoke", *words], experiment=False))
    assert isinstance(datamodule, Corpus)
    found = datamodule.fingerprint()
    assert set(datamodule.splits) and len(datamodule.vocabulary) == len(datamodule.vocabulary.tokens)
    return found


@pytest.mark.parametrize("name", CORPORA)
def test_a_fingerprint_stands_for_the_text(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIT_CTG_CACHE", str(tmp_path / "a"))
    change = CORPORA[name]
    words = [f"data={name}", *(word for word in SMALL if word.partition("=")[0] == change.partition("=")[0])]
    first = fingerprint(*words)
    assert sorted(first) == ["text", "vocabulary"] and all(len(digest) == 64 for digest in first.values())
    # packed anew, by another process or on another machine
    monkeypatch.setenv("LIT_CTG_CACHE", str(tmp_path / "b"))
    assert fingerprint(*words) == first
    assert fingerprint(*words, change)["text"] != first["text"]


def test_one_word_changed_in_a_local_text(tmp_path: Path) -> None:
    def of(text: str) -> Fingerprint:
        (tmp_path / "train.txt").write_text(text)
        for split in ("valid", "test"):
            (tmp_path / f"{split}.txt").write_text(f"the {split} text\n")
        local = (
            "data=wikitext",
            "data.source=local",
            f"data.root={tmp_path}",
            f"+data.cache_root={tmp_path / 'cache'}",
        )
        return fingerprint(*local)

    first = of("one two two one\n")
    assert of("one two two one\n") == first
    # as many words of each kind, so the same vocabulary
    order = of("two one one two\n")
    assert order["vocabulary"] == first["vocabulary"] and order["text"] != first["text"]
    # as many words and the same ids: only the vocabulary tells
    word = of("uno two two uno\n")
    assert word["text"] == order["text"] and word["vocabulary"] != first["vocabulary"]


def test_checksum_is_of_the_value() -> None:
    assert checksum({"a": 1, "b": ["x"]}) == checksum({"b": ["x"], "a": 1}) != checksum({"a": 1, "b": ["y"]})
    assert checksum(("\ud800",)) == checksum(["\ud800"])

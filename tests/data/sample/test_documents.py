"""What every sample corpus promises: repeatable, split-proof, of the size asked for, and cleanly written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache

import pytest

from lit_ctg.data.document import Document
from lit_ctg.data.sample import encyclopedia, reviews
from lit_ctg.papers.control_code.sample import books, scripts
from lit_ctg.papers.graphmax.sample import parallel

Generator = Callable[[str, int, int], Iterator[Document]]
GENERATORS: dict[str, Generator] = {
    "encyclopedia": encyclopedia.documents,
    "encyclopedia_plain": lambda split, seed, size: encyclopedia.documents(split, seed, size, tokenised=False),
    "books": books.documents,
    "reviews": reviews.documents,
    "scripts": scripts.documents,
    "parallel": parallel.documents,
}
SPLITS = ("train", "validation", "test")
# spelled with a vowel and spoken with a consonant, or the reverse (checked apart from the grammar's own rule)
_SPOKEN_CONSONANT = re.compile(r"(?:uni[a-z]|use|usu|eu|one\b|once\b|util)", re.IGNORECASE)
_SPOKEN_VOWEL = re.compile(r"(?:hour|honest|honou?r\b|heir|8|11\b|18\b|MRI|X-ray|X @-@)")


@cache
def sample(name: str, split: str, seed: int = 0, size: int = 20_000) -> tuple[Document, ...]:
    return tuple(GENERATORS[name](split, seed, size))


@pytest.mark.parametrize("name", GENERATORS)
def test_the_same_seed_gives_the_same_documents_and_another_seed_others(name: str) -> None:
    first = list(GENERATORS[name]("train", 3, 4000))
    assert first == list(GENERATORS[name]("train", 3, 4000))
    assert first != list(GENERATORS[name]("train", 4, 4000))


@pytest.mark.long
def test_string_hash_randomisation_changes_nothing() -> None:
    code = (
        "from lit_ctg.data.sample import encyclopedia; "
        "from lit_ctg.papers.control_code.sample import books; from zlib import crc32\n"
        "docs = [*encyclopedia.documents('train', 0, 3000), *books.documents('train', 0, 3000)]\n"
        "print(crc32(''.join(d.text for d in docs).encode()))"
    )
    sums = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(sums) == 1


@pytest.mark.long
@pytest.mark.parametrize("name", GENERATORS)
def test_no_document_is_in_two_splits_whatever_the_seeds(name: str) -> None:
    texts = {split: {document.text for seed in (0, 1) for document in sample(name, split, seed)} for split in SPLITS}
    assert not texts["train"] & texts["validation"]
    assert not texts["train"] & texts["test"]
    assert not texts["validation"] & texts["test"]
    assert all(texts.values())


def test_no_article_title_is_in_two_splits() -> None:
    titles = {split: {document.meta["title"] for document in sample("encyclopedia", split)} for split in SPLITS}
    assert not titles["train"] & titles["validation"]
    assert not titles["train"] & titles["test"]
    assert not titles["validation"] & titles["test"]


@pytest.mark.parametrize("size", [1_000, 5_000, 60_000])
@pytest.mark.parametrize("name", GENERATORS)
def test_sizes_are_met_within_a_tenth(name: str, size: int) -> None:
    tokens = sum(len(document.text.split()) for document in GENERATORS[name]("train", 0, size))
    assert abs(tokens - size) <= size / 10


@pytest.mark.parametrize("name", GENERATORS)
def test_documents_are_lines_without_unfilled_slots_or_double_blanks(name: str) -> None:
    for document in sample(name, "train"):
        assert document.text.endswith("\n")
        assert document.source
        assert not re.search(r"[{}|]|@a |  ", document.text), document.text
        if not name.startswith("encyclopedia") or "plain" in name:
            assert not re.search(r" [.,;:?!](?!\.)", document.text), document.text


@pytest.mark.parametrize("name", ["encyclopedia", "encyclopedia_plain", "books", "reviews", "scripts"])
def test_a_and_an_fit_the_word_after_them(name: str) -> None:
    seen = 0
    for document in sample(name, "train"):
        if document.meta.get("language") == "es":
            continue
        for article, word in re.findall(r"\b([Aa]n?) (?:\" )?[\"'(]?(\w[^\s.,;]*(?: @-@)?)", document.text):
            vowel = word[0].lower() in "aeiou"
            if _SPOKEN_CONSONANT.match(word):
                vowel = False
            if _SPOKEN_VOWEL.match(word):
                vowel = True
            assert (article.lower() == "an") == vowel, f"{article} {word}"
            seen += 1
    assert seen > 200


@pytest.mark.parametrize("name", GENERATORS)
def test_bad_arguments_are_named(name: str) -> None:
    with pytest.raises(ValueError, match="size"):
        list(GENERATORS[name]("train", 0, 0))
    with pytest.raises(ValueError, match="unknown split 'dev'"):
        list(GENERATORS[name]("dev", 0, 100))

"""The library: seven sources, each told apart by its words, chapters in order."""

from __future__ import annotations

from collections import Counter

import pytest

from lit_ctg.papers.control_code.sample.book.epic_verse import roman
from lit_ctg.papers.control_code.sample.books import BOOKS, ENGLISH, LANGUAGES, documents


def test_there_are_six_english_books_and_one_spanish() -> None:
    assert len(ENGLISH) == 6
    assert [book.language for name, book in BOOKS.items() if name not in ENGLISH] == ["es"]
    assert {BOOKS[name].language for name in LANGUAGES} == {"en", "es"}


def test_books_share_the_size_evenly_and_keep_the_order_asked_for() -> None:
    chosen = ["sea_log", "stage_play", "cuaderno"]
    found = list(documents("train", 0, 9000, books=chosen))
    assert list(dict.fromkeys(document.source for document in found)) == chosen
    tokens = Counter(dict.fromkeys(chosen, 0))
    for document in found:
        tokens[document.source] += len(document.text.split())
    assert all(2700 <= count <= 3300 for count in tokens.values())
    with pytest.raises(KeyError, match="cookbook"):
        list(documents("train", 0, 900, books=["cookbook"]))


def test_chapters_continue() -> None:
    chapters = list(documents("train", 0, 5000, books=["sea_log"]))
    assert [document.meta["chapter"] for document in chapters] == list(range(1, len(chapters) + 1))
    assert chapters[1].text.startswith("LOG OF THE BRIG PATIENCE. WEEK 2.")


def test_the_source_can_be_told_from_the_words_of_a_new_chapter() -> None:
    """Naive Bayes over word counts, add-one smoothing: the styles differ, so a control code has something to say."""
    from math import log

    train = {name: Counter() for name in BOOKS}
    for document in documents("train", 0, 70_000):
        train[document.source].update(document.text.lower().split())
    types = len(set().union(*train.values()))
    right = total = 0
    for document in documents("validation", 0, 14_000):
        words = document.text.lower().split()[20:60]
        scores = {
            name: sum(log((counts[word] + 1) / (counts.total() + types)) for word in words)
            for name, counts in train.items()
        }
        right += max(scores, key=scores.get) == document.source
        total += 1
    assert total >= 20
    assert right / total > 0.9


def test_english_books_share_words_so_that_a_source_is_not_given_away_by_any_one() -> None:
    words = {name: set() for name in ENGLISH}
    for document in documents("train", 0, 60_000, books=ENGLISH):
        words[document.source].update(document.text.lower().split())
    common = set.intersection(*words.values())
    assert {"the", "and", "of", "a", "in"} <= common


def test_spanish_contracts_and_keeps_its_accents() -> None:
    text = "".join(document.text for document in documents("train", 0, 30_000, books=["cuaderno"]))
    assert " de el " not in text and " a el " not in text
    assert " del " in text and " al " in text
    assert "¿" in text and "—" in text


def test_roman_numerals() -> None:
    assert [roman(number) for number in (1, 4, 9, 14, 40, 99, 399)] == ["I", "IV", "IX", "XIV", "XL", "XCIX", "CCCXCIX"]

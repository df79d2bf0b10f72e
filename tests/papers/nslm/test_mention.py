"""Numbers and places in running text."""

from __future__ import annotations

import pytest

from lit_ctg.papers.nslm.corpus import gazetteer, split_as_wikitext
from lit_ctg.papers.nslm.mention import Numbers, Places, joined


@pytest.mark.parametrize(
    ("text", "digits", "words"),
    [
        ("in 1914 it began", True, True),
        ("1,234.5 km", True, True),
        ("rose by .5", True, True),
        ("twelve men", False, True),
        ("Seventeen men and millions of mice", False, True),
        ("one of them", False, False),
        ("often seventh heaven", False, False),
        ("a B52 and C4", False, False),
        ("the 1960s", False, False),
        ("", False, False),
    ],
)
def test_a_number_is_digits_or_a_word(text: str, digits: bool, words: bool) -> None:
    assert Numbers()(text) is digits
    assert Numbers(words=True)(text) is words


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("He went to Paris.", True),
        ("born in New York, he", True),
        ("the state of Ohio", True),
        ("Guinea-Bissau won", True),
        ("he saw paris", False),
        ("Parisian cafés", False),
        ("Indiana-like", False),
        ("Neo-Paris fell", False),
        ("the McParis", False),
        ("nothing here", False),
    ],
)
def test_a_place_is_a_name_with_its_capital(text: str, found: bool) -> None:
    assert Places()(text) is found


def test_names_are_written_as_text_writes_them() -> None:
    for name in ("Guinea-Bissau", "N'Djamena", "Baltimore (city), East", "New York"):
        assert joined(split_as_wikitext(name)) == name
    assert not Places()("He came from Ulm.") and Places(minimum_population=100_000)("He came from Ulm.")
    places = Places()
    missed = [name for name in gazetteer(500_000) if name[:1].isupper() and not places(f"in {joined(name)} .")]
    assert not missed

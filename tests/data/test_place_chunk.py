"""Places: names become one token, the table knows where they lie."""

from __future__ import annotations

import math

import pytest

from lit_ctg.data.place_chunk import chunk_places, gazetteer, split_as_wikitext


@pytest.mark.parametrize(
    ("text", "chunked"),
    [
        ("He left New York City for Los Angeles .", "He left New_York_City for Los_Angeles ."),
        ("in New Hampshire and North Carolina", "in New_Hampshire and North_Carolina"),
        ("from United States to Paris", "from United_States to Paris"),
        ("the new york times", "the new york times"),
        ("West Virginia Virginia", "West_Virginia Virginia"),
        ("Los Angelesque", "Los Angelesque"),
        ("San\nFrancisco", "San\nFrancisco"),
    ],
)
def test_multi_word_names_become_one_token(text: str, chunked: str) -> None:
    assert chunk_places(text, 500_000) == chunked


def test_names_are_split_as_the_text_is() -> None:
    assert split_as_wikitext("Guinea-Bissau") == "Guinea @-@ Bissau"
    assert split_as_wikitext("Xi'an") == "Xi 'an"
    assert chunk_places("in Guinea @-@ Bissau .", 500_000) == "in Guinea_@-@_Bissau ."


def test_the_table_knows_kinds_and_positions() -> None:
    places = gazetteer(500_000)
    kinds = {"Paris": "city", "Texas": "state", "France": "country", "New York City": "city", "Singapore": "city"}
    assert {name: places[name].kind for name in kinds} == kinds
    assert places["New York City"].token == "New_York_City"
    assert all(place.population > 500_000 for place in places.values() if place.kind == "city")
    assert sum(place.kind == "state" for place in places.values()) >= 49
    assert math.dist((places["Paris"].latitude, places["Paris"].longitude), (48.86, 2.35)) < 0.1
    assert math.dist((places["Texas"].latitude, places["Texas"].longitude), (31, -98)) < 3
    # countries across the date line keep their place
    assert 0 < places["Russia"].longitude < 120 and places["Fiji"].longitude > 170
    assert len(gazetteer(5_000_000)) < len(places)

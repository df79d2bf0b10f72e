"""Which tokens are members, and what they measure."""

from __future__ import annotations

import math

import pytest

from lit_ctg.errors import UserError
from lit_ctg.papers.nslm.recogniser import ListRecogniser, PatternRecogniser, PlaceRecogniser, number_value

OPTIONS = {"name": "x", "metrics": ["value"], "densities": ["gaussian"]}


@pytest.mark.parametrize(
    ("token", "value"),
    [("1987", 1987), ("1,234.5", 1234.5), (".25", 0.25), ("1st", None), ("–", None), ("1990s", None)],
)
def test_number_value(token: str, value: float | None) -> None:
    assert number_value(token) == value


def test_pattern_matches_whole_tokens() -> None:
    year = PatternRecogniser(pattern=r"1\d{3}|20\d{2}", **OPTIONS)
    assert year.attributes("1987") == (1987.0,)
    assert year.attributes("19870") is None and year.attributes("1,987") is None
    word = PatternRecogniser(pattern="[a-z]+", **OPTIONS)
    assert math.isnan(word.attributes("bake")[0])


def test_lists_carry_numbers() -> None:
    verbs = ListRecogniser(members={"mix": 1, "bake": [2]}, **OPTIONS)
    assert (verbs.attributes("mix"), verbs.attributes("bake"), verbs.attributes("eat")) == ((1.0,), (2.0,), None)


def test_places_have_coordinates() -> None:
    city = PlaceRecogniser(kind="city", minimum_population=500_000, **OPTIONS)
    latitude, longitude = city.attributes("Paris")
    assert abs(latitude - 48.85) < 0.1 and abs(longitude - 2.35) < 0.1
    assert city.attributes("New_York_City") is not None and city.attributes("France") is None


def test_bad_classes_are_named() -> None:
    with pytest.raises(UserError, match=r"'x'.*regular expression"):
        PatternRecogniser(pattern="(", **OPTIONS)
    with pytest.raises(UserError, match="did you mean 'city'"):
        PlaceRecogniser(kind="citty", minimum_population=500_000, **OPTIONS)
    with pytest.raises(UserError, match="as many numbers"):
        ListRecogniser(members={"a": 1, "b": [1, 2]}, **OPTIONS)

"""Figures: conversions by hand, calendars that stay near, WikiText tokens."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from statistics import median

import pytest

from lit_ctg.data.sample.number import (
    Calendar,
    Walk,
    convert,
    fahrenheit,
    round_number,
    rounded,
    significant_digits,
    wikitext_tokens,
)


@pytest.mark.parametrize(
    ("number", "unit", "expected"),
    [
        ("12", "miles", ("19", "km")),  # 19.31
        ("120", "miles", ("190", "km")),  # 193.1: 120 has two digits that carry
        ("125", "miles", ("201", "km")),  # 201.2
        ("60", "cm", ("24", "in")),  # 23.62
        ("6", "kg", ("13", "lb")),  # 13.23
        ("15", "mm", ("0.59", "in")),  # 0.5906
        ("1,200", "metres", ("3,900", "ft")),  # 3937.0
        ("3.5", "inches", ("8.9", "cm")),  # 8.89
        ("5", "pounds", ("2.3", "kg")),  # 2.268
    ],
)
def test_conversions_worked_by_hand(number: str, unit: str, expected: tuple[str, str]) -> None:
    assert convert(number, unit) == expected


@pytest.mark.parametrize(
    ("celsius", "expected"), [(0, "32"), (100, "212"), (37, "99"), (-4, "25"), (-40, "-40"), (25, "77")]
)
def test_fahrenheit(celsius: int, expected: str) -> None:
    assert fahrenheit(celsius) == expected


def test_significant_digits_and_rounding() -> None:
    assert [significant_digits(text) for text in ("1,200", "12", "3.50", "0.05", "100")] == [2, 2, 3, 1, 1]
    assert [rounded(value, 2) for value in (1234.5, 0.0321, 99.6, 9.96, 5.0)] == ["1,200", "0.032", "100", "10", "5.0"]


def test_round_numbers_are_round_and_inside_the_bounds() -> None:
    rng = Random(0)
    for _ in range(500):
        number = round_number(rng, 200, 90000)
        assert 200 <= number <= 90000
        assert significant_digits(str(number)) <= 2
    with pytest.raises(ValueError, match="no round figure"):
        round_number(rng, 61, 62)


def test_years_stay_near_the_last_year_and_inside_the_bounds() -> None:
    steps = []
    for seed in range(20):
        calendar = Calendar(Random(seed), 1800, 1990, day_first=True)
        last = calendar.current
        for _ in range(60):
            year = calendar.year()
            assert 1800 <= year <= 1990
            steps.append(abs(year - last))
            last = year
    assert median(steps) <= 2
    assert max(steps) >= 10


def test_dates_and_spans() -> None:
    calendar = Calendar(Random(5), 1900, 1950, day_first=False)
    month, day, year = calendar.date().split()
    assert month.isalpha() and 1 <= int(day.rstrip(",")) <= 31 and 1900 <= int(year) <= 1950
    start, end = map(int, calendar.span().split("–"))
    assert start < end == calendar.current


def test_a_walk_moves_in_small_steps() -> None:
    walk = Walk(Random(1), 10, 500, 1)
    values = [float(walk.next()) for _ in range(200)]
    assert all(1.0 <= value <= 50.0 for value in values)
    assert max(abs(a - b) for a, b in pairwise(values)) <= 6.2
    assert max(values) - min(values) > 10


def test_wikitext_tokens() -> None:
    line = 'By 1914–1918, 1,234,567 well-known "men" rose 3.5% (or $2.5 million) at 30 °C: the city\'s end.'
    assert wikitext_tokens(line) == (
        'By 1914 – 1918 , 1 @,@ 234 @,@ 567 well @-@ known " men " rose 3 @.@ 5 % ( or $ 2 @.@ 5 million ) at 30 ° C : '
        "the city 's end ."
    )

from __future__ import annotations

import math

import pytest

from lit_ctg.errors import UserError
from lit_ctg.results.verdict import (
    DIRECTION_ONLY,
    IMPOSSIBLE,
    LABELS,
    NOT_REPRODUCED,
    REPRODUCED,
    RULES,
    Tolerance,
    beyond_bound,
    find_sign,
    judge_claim,
    judge_value,
)

FIVE_PERCENT = Tolerance(relative=0.05)


@pytest.mark.parametrize(
    ("printed", "ours", "interval", "reference", "label"),
    [
        (2.0, 2.05, None, None, REPRODUCED),  # within 5%
        (2.0, 2.5, (1.9, 3.1), None, REPRODUCED),  # inside the interval
        (2.0, 2.5, (2.3, 2.7), None, NOT_REPRODUCED),
        (2.0, 2.5, (1.9, 4.0), None, NOT_REPRODUCED),  # reaches farther than half the printed number
        (2.0, 2.5, None, None, NOT_REPRODUCED),
        (2.0, 2.5, (2.3, 2.7), 1.0, DIRECTION_ONLY),  # both above the reference
        (2.0, 2.5, (2.3, 2.7), 2.2, NOT_REPRODUCED),  # on either side of it
        (0.9, 0.7, (0.4, 0.85), 0.5, NOT_REPRODUCED),  # our interval holds the reference
        (0.9, 0.7, None, 0.5, DIRECTION_ONLY),
        (2.0, math.nan, None, 1.0, NOT_REPRODUCED),
        (2.0, math.inf, None, 1.0, NOT_REPRODUCED),
    ],
)
def test_single_numbers(printed, ours, interval, reference, label) -> None:
    assert judge_value(printed, ours, interval, FIVE_PERCENT, reference).label == label


@pytest.mark.parametrize(
    ("claim", "printed", "ours", "interval", "label"),
    [
        ("less", -0.10, -0.10, (-0.15, -0.05), REPRODUCED),
        ("less", -0.10, -0.50, (-0.60, -0.40), DIRECTION_ONLY),  # the sign, not the size
        ("less", -0.10, -0.10, (-0.30, 0.10), NOT_REPRODUCED),  # right mean, but it spans 0
        ("less", -0.10, 0.16, (0.01, 0.31), NOT_REPRODUCED),
        ("greater", 30.0, 29.0, (20.0, 38.0), REPRODUCED),
        ("greater", 30.0, -29.0, (-38.0, -20.0), NOT_REPRODUCED),
        ("less", -0.10, -0.10, None, DIRECTION_ONLY),  # one or two seeds
        ("less", -0.10, 0.0, None, NOT_REPRODUCED),
        ("less", -0.10, math.nan, None, NOT_REPRODUCED),
    ],
)
def test_claims(claim, printed, ours, interval, label) -> None:
    assert judge_claim(claim, printed, ours, interval, FIVE_PERCENT).label == label


def test_bounds_are_strict() -> None:
    below = beyond_bound(2.249, 2.672, None)
    assert below is not None
    assert (below.label, below.reason) == (IMPOSSIBLE, "below the floor 2.672")
    assert beyond_bound(2.672, 2.672, None) is None
    above = beyond_bound(5.1, None, 5.0)
    assert above is not None and above.label == IMPOSSIBLE
    assert beyond_bound(5.0, 1.0, 5.0) is None


def test_equal_rates_survive_rounding() -> None:
    third = sum([0.1] * 3) / 3
    assert judge_value(0.1, third, (third, third), Tolerance(absolute=0.0)).label == REPRODUCED


def test_tolerance_is_relative_to_the_printed_number() -> None:
    assert Tolerance(relative=0.1).allows(-10.0, -9.0)
    assert not Tolerance(relative=0.1).allows(-9.0, -10.0)
    assert Tolerance(absolute=0.5).allows(0.0, -0.5)
    with pytest.raises(UserError, match="either"):
        Tolerance()
    with pytest.raises(UserError, match="either"):
        Tolerance(relative=0.1, absolute=0.1)


def test_findings() -> None:
    assert find_sign((-2.0, -1.0)) == "lower"
    assert find_sign((1.0, 2.0)) == "higher"
    assert find_sign((-1.0, 2.0)) == "no difference shown"
    assert find_sign(None) == "too few seeds"


def test_the_printed_rules_name_every_verdict() -> None:
    assert all(f"{label}:" in RULES for label in LABELS)

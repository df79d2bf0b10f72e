"""Distinct-n against counting by hand."""

from __future__ import annotations

import math

import pytest

from lit_ctg.papers.idea_gate.distinct_n import DistinctN, distinct


def test_counts_by_hand() -> None:
    found = ["to", "be", "or", "not", "to", "be"]
    assert distinct(found, 1) == pytest.approx(4 / 6)
    assert distinct(found, 2) == pytest.approx(4 / 5)
    assert distinct(found, 6) == 1.0
    assert math.isnan(distinct(found, 7))


def test_repetition_lowers_it_and_sameness_of_samples_does_not() -> None:
    loop, fresh = DistinctN(order=2), DistinctN(order=2)
    loop.update([["a", "b"] * 5])
    fresh.update([list("abcdef")] * 2)
    assert float(loop.compute()) == pytest.approx(2 / 9) and float(fresh.compute()) == 1.0

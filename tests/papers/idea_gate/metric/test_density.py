"""Density by hand, and what the printed densities say about the number of samples behind them."""

from __future__ import annotations

from pathlib import Path

import pytest
from lit_ctg.papers.idea_gate.density import Density

from lit_ctg.results.spec import read_printed

ROOT = Path(__file__).resolve().parents[4]


def test_density_counts_different_terms_for_a_hundred_tokens() -> None:
    metric = Density(terms={"acid", "salt"})
    metric.update([["acid", "acid", "salt", "x"], ["x"], []], [50, 100, 0])
    # 2 terms in 50 tokens, none in 100; a sample without tokens is left out
    assert (metric.result().value, metric.result().n) == (pytest.approx((4.0 + 0.0) / 2), 2)


def means_of_counts(samples: int) -> set[str]:
    """Every mean of whole numbers over so many samples, below 10, as printed with two decimals."""
    return {f"{total / samples:.2f}" for total in range(10 * samples)}


def test_the_printed_densities_are_means_of_20_counts_rather_than_of_60() -> None:
    """Audit 2: with 100 tokens a sample, density is a mean of whole numbers, and all eight are multiples of 1/20.

    Means of 60 counts would all happen to be so with probability (1/3)^8.
    """
    printed = read_printed(ROOT / "experiments" / "idea_gate" / "numbers.csv")
    densities = {f"{number.value:.2f}" for (_, _, column), number in printed.items() if column.endswith("_density")}
    assert len(densities) == 8
    assert densities <= means_of_counts(20)
    by_60 = sorted(means_of_counts(60))
    share = sum(value in means_of_counts(20) for value in by_60) / len(by_60)
    assert share == pytest.approx(1 / 3, abs=0.01) and share**8 < 2e-4


def test_the_printed_relative_stickiness_follows_from_the_rounded_shares() -> None:
    printed = read_printed(ROOT / "experiments" / "idea_gate" / "numbers.csv")
    for domain in ("finance", "war", "chemistry", "hardware"):
        base, gated, relative = (
            printed["1", domain, column].value
            for column in ("baseline_stickiness", "gated_stickiness", "relative_stickiness")
        )
        assert 100 * (gated / base - 1) == pytest.approx(relative, abs=0.6)
    # what the rounding of 0.8% and 1.2% leaves open: from a third to two thirds more
    lowest, highest = 0.0115 / 0.0085, 0.0125 / 0.0075
    assert lowest == pytest.approx(1.353, abs=0.001) and highest == pytest.approx(1.667, abs=0.001)

"""A thousand papers whose truth is known: how often the rule is wrong, and how often it says anything.

A paper prints one number of one run, and claims one difference from one pair of runs. We run it with n seeds. "Wrong"
is ``reproduced`` where the true means lie farther apart than the margin, ``not reproduced`` where they do not,
``supported`` where the true difference is 0 or on the other side, ``contradicted`` where it is at least what is
claimed.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from lit_ctg.results.verdict import (
    CONTRADICTED,
    NOT_REPRODUCED,
    REPRODUCED,
    SUPPORTED,
    Margin,
    judge_claim,
    judge_number,
    mean_interval,
    next_interval,
    next_rate,
)

PAPERS = 1000
MARGIN = Margin(relative=0.1)


def numbers(seeds: int, spread: float, true_shift: np.ndarray, rng: np.random.Generator) -> Counter[str]:
    """Judge papers whose true mean is 1 and ours ``1 + true_shift``, runs of both spreading by ``spread``."""
    found: Counter[str] = Counter()
    for shift in true_shift:
        printed = rng.normal(1.0, spread)
        ours = rng.normal(1.0 + shift, spread, seeds)
        found[judge_number(float(printed), next_interval(ours.tolist()), MARGIN).label] += 1
    return found


def claims(
    seeds: int, spread: float, true_effect: np.ndarray, claimed: float, rng: np.random.Generator
) -> Counter[str]:
    """Judge papers that claim ``claimed`` above 0 where the truth is ``true_effect``."""
    found: Counter[str] = Counter()
    for effect in true_effect:
        differences = rng.normal(effect, spread, seeds)
        found[judge_claim("greater", mean_interval(differences.tolist()), effect=claimed).label] += 1
    return found


@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("spread", [0.005, 0.02, 0.05])
def test_numbers_are_rarely_judged_wrong(seeds: int, spread: float) -> None:
    rng = np.random.default_rng([seeds, int(1000 * spread)])
    # the truth anywhere from equal to three margins away, and the two places where the rule has it hardest
    shifts = {
        "apart": rng.choice([-1, 1], PAPERS) * rng.uniform(0.1, 0.3, PAPERS),
        "just apart": rng.choice([-1, 1], PAPERS) * 0.1001,
        "near": rng.choice([-1, 1], PAPERS) * rng.uniform(0.0, 0.1, PAPERS),
        "just near": rng.choice([-1, 1], PAPERS) * 0.0999,
    }
    for name, shift in shifts.items():
        found = numbers(seeds, spread, shift, rng)
        wrong = REPRODUCED if "apart" in name else NOT_REPRODUCED
        assert found[wrong] < 0.05 * PAPERS, (name, found)


@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("spread", [0.01, 0.05, 0.2])
def test_claims_are_rarely_judged_wrong(seeds: int, spread: float) -> None:
    rng = np.random.default_rng([seeds, int(1000 * spread)])
    claimed = 0.1
    none = claims(seeds, spread, -rng.uniform(0.0, 0.2, PAPERS), claimed, rng)
    zero = claims(seeds, spread, np.zeros(PAPERS), claimed, rng)
    true = claims(seeds, spread, rng.uniform(claimed, 3 * claimed, PAPERS), claimed, rng)
    exact = claims(seeds, spread, np.full(PAPERS, claimed), claimed, rng)
    assert none[SUPPORTED] < 0.05 * PAPERS and zero[SUPPORTED] < 0.05 * PAPERS
    assert true[CONTRADICTED] < 0.05 * PAPERS and exact[CONTRADICTED] < 0.05 * PAPERS


@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("claim", ["equal", "not_less", "not_greater"])
def test_claims_of_no_difference_are_rarely_judged_wrong(seeds: int, claim: str) -> None:
    """Hardest just beyond the margin, where there is a difference, and just within it, where there is none."""
    rng = np.random.default_rng([seeds, len(claim)])
    side = {"equal": rng.choice([-1, 1], PAPERS), "not_less": -np.ones(PAPERS), "not_greater": np.ones(PAPERS)}[claim]
    for spread in (0.02, 0.05, 0.2):
        for truth, wrong in ((0.1001, SUPPORTED), (0.0999, CONTRADICTED)):
            found: Counter[str] = Counter()
            for sign in side:
                interval = mean_interval(rng.normal(sign * truth, spread, seeds).tolist())
                found[judge_claim(claim, interval, margin=0.1).label] += 1
            assert found[wrong] < 0.05 * PAPERS, (spread, truth, found)


@pytest.mark.parametrize("count", [3, 4, 12])
def test_averages_over_cells_are_rarely_judged_wrong(count: int) -> None:
    """Cells that differ, three seeds each, no difference on average: one value a cell, not one a seed."""
    rng = np.random.default_rng(count)
    by_cell: Counter[str] = Counter()
    by_seed: Counter[str] = Counter()
    for _ in range(PAPERS):
        cell_C = rng.normal(0.0, 0.1, count)
        value_CS = cell_C[:, None] + rng.normal(0.0, 0.02, (count, 3))
        for found, values in ((by_cell, value_CS.mean(1)), (by_seed, value_CS.ravel())):
            found[judge_claim("greater", mean_interval(values.tolist()), effect=0.3).label] += 1
    assert by_cell[SUPPORTED] < 0.05 * PAPERS
    assert by_seed[SUPPORTED] > 0.05 * PAPERS, "why seeds are no draws of cells"


def test_rates_are_rarely_judged_wrong() -> None:
    rng = np.random.default_rng(7)
    margin, found = Margin(absolute=0.1), {"near": Counter(), "apart": Counter()}
    for name, shift in (("near", 0.0999), ("apart", 0.1001)):
        for _ in range(PAPERS):
            rate = rng.uniform(0.2, 0.8)
            other = rate + shift if rate < 0.5 else rate - shift
            printed = rng.binomial(200, rate) / 200
            ours = (rng.binomial(200, other, 5) / 200).tolist()
            found[name][judge_number(printed, next_rate(ours, [200] * 5, 200), margin).label] += 1
    assert found["near"][NOT_REPRODUCED] < 0.05 * PAPERS and found["apart"][REPRODUCED] < 0.05 * PAPERS


# share of 1,000 papers that get the right verdict: (seeds, spread) -> of equal numbers, where the spread is that of
# runs, and of a true claim, where it is that of the paired differences
POWER = {
    (3, 0.01): (0.96, 1.0),
    (5, 0.01): (1.0, 1.0),
    (3, 0.02): (0.50, 0.97),
    (5, 0.02): (0.85, 1.0),
    (10, 0.02): (0.97, 1.0),
    (3, 0.05): (0.08, 0.46),
    (5, 0.05): (0.06, 0.90),
    (10, 0.05): (0.06, 1.0),
}


@pytest.mark.parametrize(("seeds", "spread"), POWER)
def test_power_is_what_the_page_says(seeds: int, spread: float) -> None:
    """docs/verdicts.md has these numbers: margin 10% of the number, a claimed difference of 0.1 that is true."""
    rng = np.random.default_rng(11)
    equal = numbers(seeds, spread, np.zeros(PAPERS), rng)[REPRODUCED] / PAPERS
    true = claims(seeds, spread, np.full(PAPERS, 0.1), 0.1, rng)[SUPPORTED] / PAPERS
    assert (equal, true) == pytest.approx(POWER[seeds, spread], abs=0.02)


# the same of a true claim about two arms whose runs have nothing in common but their spread
POWER_OF_ARMS = {(3, 0.02): 0.85, (3, 0.05): 0.29, (5, 0.05): 0.66, (10, 0.05): 0.98}


@pytest.mark.parametrize(("seeds", "spread"), POWER_OF_ARMS)
def test_power_is_less_where_pairs_share_nothing(seeds: int, spread: float) -> None:
    """Differences of two such arms spread by the root of 2 more than the runs of either; the page says so."""
    rng = np.random.default_rng(12)
    found: Counter[str] = Counter()
    for _ in range(PAPERS):
        differences = rng.normal(1.1, spread, seeds) - rng.normal(1.0, spread, seeds)
        found[judge_claim("greater", mean_interval(differences.tolist()), effect=0.1).label] += 1
    share = found[SUPPORTED] / PAPERS
    assert share == pytest.approx(POWER_OF_ARMS[seeds, spread], abs=0.04)
    assert share < POWER[seeds, spread][1] - 0.015, "less than with differences of that spread"

from __future__ import annotations

import ast
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import lit_ctg.statistics
from lit_ctg.statistics import (
    coefficient_of_variation,
    exp_or_inf,
    newcombe_interval,
    paired_t_interval,
    prediction_interval,
    rate_prediction_interval,
    ratio_interval,
    sign_test,
    summarize,
    t_interval,
    unbiasing_c4,
    wilson_interval,
)


def test_torch_is_not_imported():
    tree = ast.parse(Path(lit_ctg.statistics.__file__).read_text())
    roots = {
        name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([a.name for a in node.names] if isinstance(node, ast.Import) else [node.module])
    }
    assert roots <= {"__future__", "collections", "dataclasses", "functools", "math", "numpy", "scipy"}


# --- rates ---


@pytest.mark.parametrize("trials", [1, 2, 7, 200, 10_000])
def test_wilson_against_scipy(trials):
    for successes in {0, 1, trials // 3, trials // 2, trials - 1, trials}:
        expected = stats.binomtest(successes, trials).proportion_ci(0.95, method="wilson")
        got = wilson_interval(successes, trials)
        assert got == pytest.approx((expected.low, expected.high), abs=1e-12)
        assert 0 <= got[0] <= successes / trials <= got[1] <= 1


def test_wilson_edges():
    assert wilson_interval(0, 0) is None
    assert wilson_interval(0, 9)[0] == 0.0 and wilson_interval(9, 9)[1] == 1.0
    for bad in [(-1, 3), (4, 3), (0, -1)]:
        with pytest.raises(ValueError, match="cannot be"):
            wilson_interval(*bad)


# Newcombe 1998, Table II, method 10
@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ((56, 70, 48, 80), (0.0524, 0.3339)),
        ((9, 10, 3, 10), (0.1705, 0.8090)),
        ((10, 10, 0, 20), (0.6791, 1.0000)),
        ((10, 10, 0, 10), (0.6075, 1.0000)),
    ],
)
def test_newcombe_against_the_printed_examples(counts, expected):
    assert newcombe_interval(*counts) == pytest.approx(expected, abs=5.1e-5)


def test_newcombe_turns_its_sign_with_the_sides():
    low, high = newcombe_interval(30, 100, 55, 90)
    assert newcombe_interval(55, 90, 30, 100) == pytest.approx((-high, -low), abs=1e-15)
    assert newcombe_interval(1, 2, 0, 0) is None and newcombe_interval(0, 0, 1, 2) is None


# --- seeds ---


def test_t_interval_against_scipy():
    values = [2.231, 2.121, 1.963, 2.4, 1.9]
    expected = stats.t.interval(0.95, 4, loc=np.mean(values), scale=stats.sem(values))
    assert t_interval(values) == pytest.approx(expected, rel=1e-12)


def test_one_seed_has_no_interval():
    assert t_interval([2.0]) is None and t_interval([]) is None
    assert paired_t_interval([2.0], [1.0]) is None


def test_summarize():
    summary = summarize([1.0, 2.0, 6.0])
    assert (summary.mean, summary.n) == (3.0, 3)
    assert summary.sd == pytest.approx(math.sqrt(7)) and summary.ci95 == t_interval([1.0, 2.0, 6.0])
    single = summarize([4.0])
    assert single.mean == 4.0 and math.isnan(single.sd) and single.ci95 is None
    with pytest.raises(ValueError, match="no value"):
        summarize([])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_values_that_are_no_numbers_are_refused(bad):
    for call in (t_interval, summarize, lambda v: paired_t_interval(v, [0.0, 0.0]), lambda v: sign_test(v, [0.0, 0.0])):
        with pytest.raises(ValueError, match="finite"):
            call([1.0, bad])


def test_pairs_must_match():
    for call in (paired_t_interval, sign_test):
        with pytest.raises(ValueError, match="equally many, got 2 and 3"):
            call([1.0, 2.0], [1.0, 2.0, 3.0])


def test_paired_t_uses_the_differences():
    # seeds differ far more than the pairs do: only a paired interval sees the effect
    rng = np.random.default_rng(0)
    base = rng.normal(0, 10, 8)
    ours = base + 1 + rng.normal(0, 0.1, 8)
    low, high = paired_t_interval(ours, base)
    assert 0 < low < high < 2 and t_interval(ours)[0] < t_interval(base)[1]
    statistic = stats.ttest_rel(ours, base).confidence_interval(0.95)
    assert (low, high) == pytest.approx((statistic.low, statistic.high), rel=1e-12)


# --- exact test ---


def test_sign_test_against_the_binomial():
    assert sign_test([1, 2, 3, 4, 5], [0, 0, 0, 0, 0]) == pytest.approx(2 / 32)
    assert sign_test([1, 2, -3, 0], [0, 0, 0, 0]) == pytest.approx(1.0)
    assert sign_test([1.0, 1.0], [1.0, 1.0]) == 1.0


# --- corpus ratios ---


def sums(totals, counts):
    t, c = np.asarray(totals, float), np.asarray(counts, float)
    return {
        "total": t.sum(), "count": c.sum(), "total_sq": (t * t).sum(), "cross": (t * c).sum(),
        "count_sq": (c * c).sum(), "rows": int((c > 0).sum()),
    }  # fmt: skip


def test_ratio_interval_of_equal_counts_is_the_t_interval():
    values = [1.0, 4.0, 2.0, 8.0]
    assert ratio_interval(**sums(values, [1, 1, 1, 1])) == pytest.approx(t_interval(values), rel=1e-12)


def test_ratio_interval_coverage():
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(400):
        counts = rng.integers(9, 18, 80)
        totals = counts * 1.3 + rng.normal(0, 2, 80)
        low, high = ratio_interval(**sums(totals, counts))
        hits += low <= 1.3 <= high
    assert 0.92 <= hits / 400 <= 0.98


def test_ratio_interval_edges():
    assert ratio_interval(**sums([3.0], [2])) is None
    assert ratio_interval(**sums([0.0, 0.0], [0, 0])) is None
    assert ratio_interval(**sums([3.0, math.inf], [2, 1])) is None
    counts = [1, 3, 7, 2]  # every row agrees: no width, and no root of the -1.4e-14 that rounding leaves
    assert ratio_interval(**sums([1.3 * count for count in counts], counts)) == pytest.approx((1.3, 1.3), abs=1e-6)


# --- one more value ---


def test_prediction_interval_by_hand():
    """1, 2, 3: mean 2, s 1, t(2) = 4.3027, so 2 +- 4.3027 sqrt(4/3)."""
    assert prediction_interval([1.0, 2.0, 3.0]) == pytest.approx((2 - 4.96835, 2 + 4.96835), abs=1e-4)
    assert prediction_interval([1.0]) is None
    with pytest.raises(ValueError, match="finite"):
        prediction_interval([1.0, math.nan])


def test_prediction_intervals_hold_one_more_value_as_often_as_they_say():
    rng = np.random.default_rng(3)
    draws = rng.normal(5.0, 2.0, (4000, 6))
    held = [
        low <= row[5] <= high
        for row in draws
        if (found := prediction_interval(row[:5].tolist()))
        for low, high in [found]
    ]
    assert np.mean(held) == pytest.approx(0.95, abs=0.01)


@pytest.mark.parametrize("rate", [0.02, 0.3, 0.5, 0.98])
def test_rate_prediction_intervals_hold_the_next_rate(rate):
    rng = np.random.default_rng(5)
    held = []
    for hits, more in zip(rng.binomial(200, rate, 1500), rng.binomial(100, rate, 1500), strict=True):
        low, high = rate_prediction_interval(int(hits), 200, 100)
        held.append(low <= more / 100 <= high)
    assert 0.94 <= np.mean(held) <= 1.0


@pytest.mark.parametrize(("hits", "trials", "new"), [(2, 5, 300), (0, 10, 40), (10, 10, 40), (1, 4, 100)])
def test_rate_prediction_cuts_equal_tails_of_the_beta_binomial_with_jeffreys_prior(hits, trials, new):
    def beta(a, b):
        return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)

    a, b = hits + 0.5, trials - hits + 0.5
    chance = [math.comb(new, k) * math.exp(beta(k + a, new - k + b) - beta(a, b)) for k in range(new + 1)]
    assert math.fsum(chance) == pytest.approx(1.0)
    low, high = (next(k for k in range(new + 1) if math.fsum(chance[: k + 1]) >= share) for share in (0.025, 0.975))
    assert rate_prediction_interval(hits, trials, new) == (low / new, high / new)


def test_rate_prediction_keeps_a_width_at_the_ends():
    low, high = rate_prediction_interval(50, 50, 50)
    assert low < 1.0 == high
    low, high = rate_prediction_interval(0, 50, 50)
    assert low == 0.0 < high
    assert rate_prediction_interval(0, 0, 50) is None and rate_prediction_interval(1, 2, 0) is None
    with pytest.raises(ValueError, match="cannot be"):
        rate_prediction_interval(3, 2, 10)


# --- repeatability ---


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        # Belz, Popovic and Mille (2022), Table 4: BLEU and SARI of seven, five, six and four reproductions
        ([84.51, 84.50, 87.46, 85.60, 84.20, 86.61, 86.20], 1.562),
        ([30.65, 30.65, 29.13, 30.65, 29.96], 2.487),
        ([87.50, 80.75, 89.36, 88.10, 89.64, 88.80], 4.176),
        ([31.11, 30.28, 31.11, 29.12], 3.572),
    ],
)
def test_coefficient_of_variation_is_the_published_one(values, expected):
    assert coefficient_of_variation(values) == pytest.approx(expected, abs=5e-4)


def test_coefficient_of_variation_needs_two_values_above_zero():
    assert coefficient_of_variation([1.0]) is None and coefficient_of_variation([-1.0, 1.0]) is None
    assert coefficient_of_variation([]) is None and coefficient_of_variation([2.0, 2.0]) == 0.0


def test_c4_unbiases_the_standard_deviation():
    rng = np.random.default_rng(9)
    for n, expected in ((2, 0.797885), (5, 0.939986), (10, 0.972659)):  # from a table
        assert unbiasing_c4(n) == pytest.approx(expected, abs=1e-6)
        assert rng.normal(size=(20_000, n)).std(axis=1, ddof=1).mean() == pytest.approx(expected, abs=0.01)
    with pytest.raises(ValueError, match="two values"):
        unbiasing_c4(1)


def test_a_perplexity_beyond_every_float_is_infinite() -> None:
    assert exp_or_inf(2.0) == math.exp(2.0) and exp_or_inf(-1e9) == 0.0
    assert exp_or_inf(710.0) == exp_or_inf(math.inf) == math.inf and math.isnan(exp_or_inf(math.nan))

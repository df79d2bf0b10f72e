"""The rules one by one: for each a case that passes and one that must not (docs/verdicts.md)."""

from __future__ import annotations

import math
import statistics

import pytest

from lit_ctg.results.verdict import (
    ANY,
    CLAIM_LABELS,
    CONTRADICTED,
    IMPOSSIBLE,
    LABELS,
    NOT_REPRODUCED,
    NUMBER_LABELS,
    REPRODUCED,
    RULES,
    SUPPORTED,
    UNDECIDED,
    UNTRAINED,
    Domain,
    Margin,
    Verdict,
    as_untrained,
    beyond_bound,
    domain_of,
    find_sign,
    judge_claim,
    judge_number,
    mean_interval,
    mean_of,
    mean_rate,
    next_interval,
    next_rate,
    repeatability,
)
from lit_ctg.statistics import rate_prediction_interval, wilson_interval

FIVE_PERCENT = Margin(relative=0.05)


def test_an_exact_number_within_the_margin_is_too_close_to_call() -> None:
    for claim, sign in (("less", -1), ("greater", 1)):
        for ours, label in ((3.0, UNDECIDED), (-3.0, UNDECIDED), (5.0, UNDECIDED)):
            assert judge_claim(claim, (ours, ours), margin=5.0).label == label
        assert judge_claim(claim, (6.0 * sign, 6.0 * sign), margin=5.0).label == SUPPORTED
        assert judge_claim(claim, (-6.0 * sign, -6.0 * sign), margin=5.0).label == CONTRADICTED
        # with an interval, the margin says nothing of a side; without a margin, an exact number decides
        assert judge_claim(claim, (2.0 * sign, 3.0 * sign), margin=5.0).label == SUPPORTED
        assert judge_claim(claim, (3.0 * sign, 3.0 * sign)).label == SUPPORTED


@pytest.mark.parametrize(
    ("printed", "interval", "label"),
    [
        (2.0, (1.95, 2.05), REPRODUCED),  # wholly within 5%
        (2.0, (2.02, 2.06), REPRODUCED),  # beside the printed number, but near enough
        (2.0, (1.9, 2.1), REPRODUCED),  # the margin's own ends
        (2.0, (1.89, 2.05), UNDECIDED),  # reaches beyond
        (2.0, (1.0, 3.0), UNDECIDED),  # holds it, and nearly everything else: a wide interval is not rewarded
        (2.0, (2.05, 2.5), UNDECIDED),  # across the end of the margin
        (2.0, (2.2, 2.5), NOT_REPRODUCED),
        (2.0, (1.0, 1.8), NOT_REPRODUCED),
        (2.0, None, UNDECIDED),  # one or two seeds
        (0.0, (0.0, 0.0), REPRODUCED),
        (2.0, (math.nan, math.nan), NOT_REPRODUCED),
        (-4.0, (-4.1, -3.9), REPRODUCED),
        (0.0, (-1e-9, 1e-9), REPRODUCED),  # rounding in the last bits, here the whole margin; its ends belong to it
        (0.0, (1e-9, 2e-9), UNDECIDED),
        (0.0, (-2e-9, -1e-9), UNDECIDED),
    ],
)
def test_numbers(printed, interval, label) -> None:
    assert judge_number(printed, interval, FIVE_PERCENT).label == label


def test_rounding_grows_with_the_number() -> None:
    assert judge_number(1e6, (1e6 + 5e-4, 1e6 + 5e-4), Margin(absolute=0.0)).label == REPRODUCED
    assert judge_number(1e6, (1e6 + 2e-3, 1e6 + 2e-3), Margin(absolute=0.0)).label == NOT_REPRODUCED


@pytest.mark.parametrize(
    ("printed", "interval", "wide"),
    [
        (2.0, (1.0, 3.0), True),
        (2.0, (2.05, 2.2), False),
        (0.0, (0.0, 2 * (0.1 + 1e-9)), False),  # exactly as wide
    ],
)
def test_an_undecided_number_says_why(printed, interval, wide) -> None:
    verdict = judge_number(printed, interval, Margin(absolute=0.1))
    assert verdict.label == UNDECIDED
    assert verdict.reason.endswith("wider than the margin" if wide else "across the margin's end")


def test_more_seeds_do_not_make_an_equal_number_fail() -> None:
    """The interval of the mean would exclude a printed single run in the end, that of one more run does not."""
    few, many = [1.9, 2.0, 2.1, 2.05, 1.95], [1.9, 2.0, 2.1, 2.05, 1.95] * 40
    printed = 2.08
    for values in (few, many):
        low, high = next_interval(values)
        assert low < printed < high
    assert judge_number(printed, next_interval(many), Margin(absolute=0.35)).label == REPRODUCED
    assert judge_number(printed, next_interval(many), Margin(absolute=0.05)).label == UNDECIDED


@pytest.mark.parametrize(
    ("claim", "interval", "effect", "label"),
    [
        ("less", (-0.15, -0.05), 0.10, SUPPORTED),
        ("less", (-0.60, -0.40), 0.10, SUPPORTED),  # more than printed
        ("less", (-0.06, -0.01), 0.10, SUPPORTED),  # the sign holds, the size is smaller: told in the reason
        ("less", (-0.30, 0.10), 0.10, UNDECIDED),  # holds 0 and what is claimed
        ("less", (-0.05, 0.02), 0.10, CONTRADICTED),  # excludes what is claimed
        ("less", (0.01, 0.31), 0.10, CONTRADICTED),  # the other side
        ("greater", (20.0, 38.0), 30.0, SUPPORTED),
        ("greater", (-38.0, -20.0), 30.0, CONTRADICTED),
        ("greater", (-1.0, 2.0), 30.0, CONTRADICTED),
        ("greater", (-1.0, 40.0), 30.0, UNDECIDED),
        ("greater", (-1.0, 30.0), 30.0, UNDECIDED),  # the printed size is its end, so not excluded
        ("greater", (-1.0, 2.0), None, UNDECIDED),  # a sentence without a size has no size to exclude
        ("greater", (0.1, 2.0), None, SUPPORTED),
        ("greater", (-2.0, -0.1), None, CONTRADICTED),
        ("less", (0.0, 0.0), None, UNDECIDED),
        ("less", None, 0.10, UNDECIDED),
        ("less", (-math.inf, math.inf), 0.1, UNDECIDED),
    ],
)
def test_claims_of_a_side(claim, interval, effect, label) -> None:
    assert judge_claim(claim, interval, effect=effect).label == label


def test_less_than_what_would_matter_contradicts_whatever_its_sign() -> None:
    assert judge_claim("greater", (0.001, 0.005), effect=0.02).label == SUPPORTED
    assert "size" in judge_claim("greater", (0.001, 0.005), effect=0.02).reason
    # the sign of a size is the claim's
    assert "size" in judge_claim("less", (-0.005, -0.001), effect=-0.02).reason
    assert judge_claim("less", (-0.05, -0.001), effect=-0.02).reason == "excludes 0"
    assert judge_claim("greater", (0.001, 0.005), effect=0.02, meaningful=True).label == CONTRADICTED
    assert judge_claim("greater", (0.001, 0.05), effect=0.02, meaningful=True).label == SUPPORTED


@pytest.mark.parametrize(
    ("claim", "interval", "label"),
    [
        ("equal", (-0.05, 0.09), SUPPORTED),
        ("equal", (-0.05, 0.11), UNDECIDED),  # wider than the margin: no difference shown is not no difference
        ("equal", (-0.1, 0.1), SUPPORTED),  # the ends belong to the margin
        ("equal", (-5.0, 5.0), UNDECIDED),
        ("equal", (0.02, 0.09), SUPPORTED),  # a difference, but one that does not matter
        ("equal", (0.11, 0.2), CONTRADICTED),
        ("equal", (0.1, 0.2), UNDECIDED),  # an end on the margin is not beyond it
        ("equal", (-0.2, -0.1), UNDECIDED),
        ("equal", (-0.3, -0.2), CONTRADICTED),
        ("not_less", (-0.1, 4.0), SUPPORTED),
        ("not_less", (-0.2, 4.0), UNDECIDED),
        ("not_less", (-0.5, -0.2), CONTRADICTED),
        ("not_less", (-0.5, -0.1), UNDECIDED),
        ("not_greater", (-4.0, 0.1), SUPPORTED),
        ("not_greater", (0.2, 0.5), CONTRADICTED),
    ],
)
def test_claims_of_no_difference(claim, interval, label) -> None:
    assert judge_claim(claim, interval, margin=0.1).label == label


def test_a_number_without_spread_is_no_interval() -> None:
    assert judge_claim("equal", (0.05, 0.05), margin=0.1).reason.startswith("our number")
    assert judge_claim("equal", (0.05, 0.06), margin=0.1).reason.startswith("the interval")


def test_what_an_untrained_model_gets_as_well_is_told() -> None:
    good, bad = Verdict(REPRODUCED, "x"), Verdict(NOT_REPRODUCED, "x")
    assert as_untrained(good, good).label == UNTRAINED
    claim = Verdict(SUPPORTED, "x")
    assert as_untrained(claim, claim).label == UNTRAINED and as_untrained(claim, good) is claim
    assert as_untrained(good, bad) is good and as_untrained(good, None) is good and as_untrained(bad, bad) is bad


def test_bounds_are_strict() -> None:
    below = beyond_bound(2.249, 2.672, None)
    assert below is not None
    assert (below.label, below.reason) == (IMPOSSIBLE, "below the floor 2.672")
    assert beyond_bound(2.672, 2.672, None) is None
    above = beyond_bound(5.1, None, 5.0)
    assert above is not None and above.label == IMPOSSIBLE
    assert beyond_bound(5.0, 1.0, 5.0) is None


def test_margins() -> None:
    assert Margin(relative=0.1).size(-10.0) == pytest.approx(1.0)
    assert Margin(absolute=0.5).size(7.0) == 0.5


def test_findings() -> None:
    assert find_sign((-2.0, -1.0)) == "lower"
    assert find_sign((1.0, 2.0)) == "higher"
    for interval in ((-1.0, 2.0), (0.0, 2.0), (-1.0, 0.0)):
        assert find_sign(interval) == "no difference shown"
    assert find_sign(None) == "too few seeds"
    for value in (math.nan, math.inf, -math.inf):
        assert find_sign((value, value)) == "not finite"


def test_the_printed_rules_name_every_verdict() -> None:
    assert all(label in RULES for label in LABELS if label != "not run")
    assert set(NUMBER_LABELS) | set(CLAIM_LABELS) == set(LABELS)


# --- intervals ------------------------------------------------------------------------------------------------------


def test_a_rate_s_hits_are_whole_numbers() -> None:
    """0.29 of 100 is 28.999999999999996 in floating point."""
    assert (
        next_rate([0.29], [100], 50) == rate_prediction_interval(29, 100, 50) != rate_prediction_interval(28, 100, 50)
    )


def test_a_rate_of_n_has_its_own_sampling_error() -> None:
    """1,000 of 1,000 leaves room for a run of 200; few seeds that differ leave more than sampling does."""
    low, high = next_rate([1.0] * 5, [200] * 5, 200)
    assert (low, high) == (0.995, 1.0)
    pooled = next_rate([0.55, 0.65], [200, 200], 200)
    seeds = next_rate([0.5, 0.6, 0.7], [200] * 3, 200)
    assert pooled[1] - pooled[0] < 0.2 < seeds[1] - seeds[0]
    assert next_rate([0.6], [0], 200) is None


def test_texts_of_one_model_are_no_further_draws_of_models() -> None:
    """Three seeds that differ widely: Wilson's interval of their 600 texts leaves all of them out."""
    values, trials = [0.2, 0.5, 0.8], [200] * 3
    low, high = mean_rate(values, trials)
    # Student's would be below 0 and above 1
    assert (low, high) == (0.0, 1.0)
    assert mean_rate([0.4, 0.5, 0.6], trials) == pytest.approx((0.2516, 0.7484), abs=1e-4)
    assert mean_rate([0.5] * 3, trials) == wilson_interval(300, 600), "seeds alike: sampling alone"
    assert mean_rate([0.2, 0.8], [200] * 2) == wilson_interval(200, 400), "two seeds say little of their spread"
    assert mean_rate([0.29], [100]) == wilson_interval(29, 100)
    assert mean_rate([0.6], [0]) is None


def test_a_change_in_percent_cannot_lose_more_than_everything() -> None:
    """Values of relative stickiness as recorded: Student's plain interval ends below -100."""
    values = [-95.0, -60.0, -14.0]
    domain = domain_of("share of content words", "higher", "percent_change")
    plain, own = next_interval(values), next_interval(values, domain)
    assert plain[0] < -100 < own[0] < own[1]


# Student's t for four degrees of freedom, from a table
T4 = 2.776445


@pytest.mark.parametrize(
    ("unit", "direction", "combine", "expected"),
    [
        ("perplexity", "lower", None, (1.0, math.inf, True)),
        ("perplexity a word", "lower", None, (1.0, math.inf, True)),
        ("perplexity", "lower", "difference", (-math.inf, math.inf, False)),
        ("perplexity", "lower", "percent_change", (-100.0, math.inf, True, 100.0, False, True)),
        ("perplexity", "lower", "ratio", (0.0, math.inf, True, 0.0, False, True)),
        ("truth value", "higher", "difference", (-1.0, 1.0, False, 0.0, True)),
        ("s/token", "lower", None, (0.0, math.inf, True)),
        ("rate", "higher", None, (0.0, 1.0, False)),
        ("share of content words", "higher", None, (0.0, 1.0, False)),
        ("rate", "higher", "difference", (-1.0, 1.0, False)),
        ("rate difference", "higher", None, (-math.inf, math.inf, False)),
        ("rate", "higher", "sum", (0.0, math.inf, False)),
        ("rate", "higher", "mean", (0.0, 1.0, False)),
        ("BLEU", "higher", None, (0.0, 100.0, False)),
        ("BLEU, 0 to 1", "higher", None, (0.0, 1.0, False)),
        ("km", "lower", None, (0.0, math.inf, False)),
        ("nats", "lower", None, (0.0, math.inf, False)),
        ("nats", "higher", None, (-math.inf, math.inf, False)),
        ("", "none", None, (-math.inf, math.inf, False)),
    ],
)
def test_domains_by_unit(unit, direction, combine, expected) -> None:
    assert domain_of(unit, direction, combine) == Domain(*expected)


def test_the_log_interval_is_the_delta_methods() -> None:
    """Var(log mean) = Var(mean) / mean^2, written out; near Student's where the spread is small."""
    values = [100.0, 300.0, 500.0, 200.0, 400.0]
    mean = sum(values) / 5
    error = math.sqrt(sum((v - mean) ** 2 for v in values) / 4 / 5)
    low, high = mean_interval(values, domain_of("perplexity"))
    assert math.log(low) == pytest.approx(math.log(mean) - T4 * error / mean, abs=1e-6)
    assert math.log(high) == pytest.approx(math.log(mean) + T4 * error / mean, abs=1e-6)
    near = [100.0, 100.1, 99.9, 100.2, 99.8]
    assert mean_interval(near, domain_of("perplexity")) == pytest.approx(mean_interval(near), abs=1e-3)


def test_the_log_interval_of_one_more_value_and_its_scale() -> None:
    values = [100.0, 300.0, 500.0, 200.0, 400.0]
    ratio = domain_of("ratio")
    low, high = next_interval(values, ratio)
    factor = math.exp(T4 * statistics.stdev(values) * math.sqrt(1 + 1 / 5) / 300.0)
    assert (low, high) == pytest.approx((300.0 / factor, 300.0 * factor), rel=1e-5)
    for interval in (mean_interval, next_interval):
        whole, small = interval(values, ratio), interval([value / 1000 for value in values], ratio)
        assert small == pytest.approx((whole[0] / 1000, whole[1] / 1000))


def test_a_printed_difference_is_held_against_one_more_difference() -> None:
    """The mean of many pairs may exclude it while every third pair is as large."""
    mean, one = (-4.2, 1.3), (-16.0, 15.0)
    assert judge_claim("less", mean, effect=-4.3).label == CONTRADICTED
    assert judge_claim("less", mean, another=one, effect=-4.3).label == UNDECIDED
    assert judge_claim("greater", (-1.3, 4.2), another=(-15.0, 16.0), effect=4.3).label == UNDECIDED
    excluded = judge_claim("less", mean, another=one, effect=-17.0)
    assert excluded.label == CONTRADICTED and "one more difference" in excluded.reason
    # the other side, the claimed side and the smallest difference that would matter are matters of the mean
    assert judge_claim("less", (0.1, 1.3), another=one, effect=-4.3).label == CONTRADICTED
    # the side that the claim is about
    assert judge_claim("less", (-1.0, 9.0), another=(-5.0, 15.0), effect=-10.0).label == CONTRADICTED
    assert judge_claim("greater", (-9.0, 1.0), another=(-15.0, 5.0), effect=10.0).label == CONTRADICTED
    assert judge_claim("greater", (-1.0, 9.0), another=(-5.0, 15.0), effect=10.0).label == UNDECIDED
    assert judge_claim("less", (-4.2, -0.1), another=one, effect=-4.3).label == SUPPORTED
    assert judge_claim("less", mean, another=one, effect=-4.3, meaningful=True).label == CONTRADICTED


def test_quotients_are_taken_in_logs_and_do_not_depend_on_which_run_is_on_top() -> None:
    """The arithmetic mean of a / b and that of b / a both exceed 1 where a and b are alike."""
    values = [0.5, 2.0, 1.0, 4.0, 0.25]
    ratio, percent = domain_of("nats", "lower", "ratio"), domain_of("nats", "lower", "percent_change")
    logs = [math.log(value) for value in values]
    assert mean_of(values, ratio) == pytest.approx(1.0) and statistics.fmean(values) > 1.5
    half = T4 * statistics.stdev(logs) / math.sqrt(5)
    assert mean_interval(values, ratio) == pytest.approx((math.exp(-half), math.exp(half)), rel=1e-5)
    for interval in (mean_interval, next_interval):
        low, high = interval(values, ratio)
        assert interval([1 / value for value in values], ratio) == pytest.approx((1 / high, 1 / low))
        # a change in percent is a ratio, less 100
        changes = [100 * value - 100 for value in values]
        assert interval(changes, percent) == pytest.approx((100 * low - 100, 100 * high - 100))
        assert mean_of(changes, percent) == pytest.approx(0.0, abs=1e-9)
    # nothing is left of a quotient of 0 in logs
    assert mean_of([0.0, 1.0], ratio) == 0.5 and mean_interval([0.0, 1.0, 2.0], ratio) is not None
    assert mean_of([-100.0, 0.0], percent) == -50.0
    assert math.isnan(mean_of([math.nan, 1.0], ratio)) and mean_of([math.inf, 1.0], ratio) == math.inf


@pytest.mark.parametrize("unit", ["perplexity", "rate", "km", "ratio", "BLEU"])
def test_intervals_stay_in_the_domain_and_hold_the_mean(unit) -> None:
    domain = domain_of(unit)
    for values in ([1.0, 1.0, 1.0], [0.97, 1.0], [1.0, 1e9], [0.0, 1.0], [2284.0, 13.0, 9000.0]):
        interval = mean_interval(values, domain)
        assert interval[0] - 1e-9 <= statistics.fmean(values) <= interval[1] + 1e-9
        if min(values) >= domain.low and max(values) <= domain.high:
            assert domain.low <= interval[0] and interval[1] <= domain.high


def test_values_outside_the_domain_get_the_plain_interval() -> None:
    values = [-2.0, 1.0, 4.0]
    assert mean_interval(values, domain_of("perplexity")) == mean_interval(values, ANY)
    assert mean_interval([3.0], Domain()) is None
    with pytest.raises(ValueError, match="finite"):
        mean_interval([1.0, math.nan])


def test_values_that_are_all_at_the_end_of_a_log_scale_have_no_factor() -> None:
    assert next_interval([0.0, 0.0, 0.0], Domain(0.0, log=True)) == (0.0, 0.0)


# --- repeatability --------------------------------------------------------------------------------------------------


def test_repeatability_counts_from_the_end_of_the_scale() -> None:
    rate, perplexity = domain_of("rate"), domain_of("perplexity")
    assert repeatability([0.4, 0.5, 0.6], rate) == pytest.approx(repeatability([1.4, 1.5, 1.6], perplexity))
    assert repeatability([0.5, 0.5], rate) == 0.0
    assert repeatability([0.4, 0.5], rate, 0.9) > repeatability([0.4, 0.5], rate)
    assert repeatability([-1.0, 1.0], ANY) is None, "no end, no scale"
    assert repeatability([0.5], rate) is None and repeatability([0.5, math.nan], rate) is None

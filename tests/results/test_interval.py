from __future__ import annotations

import math
import statistics

import pytest

from lit_ctg.results.verdict import ANY, Domain, domain_of, mean_interval

# Student's t for four degrees of freedom, from a table
T4 = 2.776445


@pytest.mark.parametrize(
    ("unit", "direction", "combine", "expected"),
    [
        ("perplexity", "lower", None, (1.0, math.inf, True)),
        ("perplexity a word", "lower", None, (1.0, math.inf, True)),
        ("perplexity", "lower", "difference", (-math.inf, math.inf, False)),
        ("perplexity", "lower", "percent_change", (-100.0, math.inf, False)),
        ("perplexity", "lower", "ratio", (0.0, math.inf, True)),
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
def test_domains(unit, direction, combine, expected) -> None:
    domain = domain_of(unit, direction, combine)
    assert (domain.low, domain.high, domain.log) == expected


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

"""Intervals, an exact test and repeatability of rates, seeds and corpus ratios (numpy and scipy only, no torch).

Every function takes plain numbers and returns plain numbers. An interval is ``(low, high)`` at 95%, and ``None``
where the data cannot give one (no trial, one seed), so that a hole stays visible. NaN and infinity are refused by a
``ValueError``. ``scipy.stats`` takes longer to import than most commands run, so only what needs it imports it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

Interval = tuple[float, float]


def wilson_interval(successes: int, trials: int) -> Interval | None:
    """Wilson score interval of a rate, without continuity correction (Wilson 1927); ``None`` without trials.

    Unlike the normal interval it stays in [0, 1] and keeps a width at 0 of n and n of n.

    Raises:
        ValueError: a count is negative, there are more successes than trials.
    """
    _check_counts(successes, trials)
    if trials == 0:
        return None
    from scipy.special import ndtri

    z = float(ndtri(0.975))
    rate = successes / trials
    centre = (rate + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * math.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials))
    # at 0 and 1 the exact bound is the rate itself; rounding must not move it off the rate
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == trials else min(1.0, centre + half)
    return low, high


def newcombe_interval(successes: int, trials: int, base_successes: int, base_trials: int) -> Interval | None:
    """Interval of the difference of two independent rates, ``successes/trials - base_successes/base_trials``.

    Newcombe (1998), method 10: the two Wilson intervals combined. ``None`` when either side has no trial.
    """
    ours = wilson_interval(successes, trials)
    base = wilson_interval(base_successes, base_trials)
    if ours is None or base is None:
        return None
    rate, base_rate = successes / trials, base_successes / base_trials
    difference = rate - base_rate
    low = difference - math.hypot(rate - ours[0], base[1] - base_rate)
    high = difference + math.hypot(ours[1] - rate, base_rate - base[0])
    return low, high


def t_interval(values: Sequence[float]) -> Interval | None:
    """Student t interval of the mean of independent values (one per seed); ``None`` for fewer than two."""
    data = _finite(values)
    if data.size < 2:
        return None
    half = t_quantile(data.size - 1) * float(data.std(ddof=1)) / math.sqrt(data.size)
    mean = float(data.mean())
    return mean - half, mean + half


def prediction_interval(values: Sequence[float]) -> Interval | None:
    """Interval for one more independent value: ``mean +- t s sqrt(1 + 1/n)``; ``None`` below two values.

    For normal values its coverage is exact. Unlike the interval of the mean it does not shrink to nothing: with more
    seeds it approaches the spread of single runs, with which a number printed from one run must be compared.
    """
    data = _finite(values)
    if data.size < 2:
        return None
    half = t_quantile(data.size - 1) * float(data.std(ddof=1)) * math.sqrt(1 + 1 / data.size)
    mean = float(data.mean())
    return mean - half, mean + half


def rate_prediction_interval(successes: int, trials: int, new_trials: int) -> Interval | None:
    """Interval of the rate that ``new_trials`` more trials will show, given ``successes`` of ``trials``.

    Beta-binomial with Jeffreys' prior Beta(1/2, 1/2), equal tails; at 0 of n and n of n it keeps a width. ``None``
    without trials on either side.

    Raises:
        ValueError: impossible counts.
    """
    _check_counts(successes, trials)
    if trials == 0 or new_trials <= 0:
        return None
    from scipy import stats

    counts = np.arange(new_trials + 1)
    shares = stats.betabinom.pmf(counts, new_trials, successes + 0.5, trials - successes + 0.5).cumsum()
    low, high = np.searchsorted(shares, [0.025, 0.975])
    return float(low) / new_trials, float(min(high, new_trials)) / new_trials


def unbiasing_c4(n: int) -> float:
    """Return ``c4(n) = sqrt(2 / (n - 1)) Gamma(n / 2) / Gamma((n - 1) / 2)``: E[s] = c4 sigma for normal values.

    Raises:
        ValueError: fewer than two values.
    """
    if n < 2:
        raise ValueError(f"c4 needs two values or more, got {n}")
    return math.sqrt(2 / (n - 1)) * math.exp(math.lgamma(n / 2) - math.lgamma((n - 1) / 2))


def coefficient_of_variation(values: Sequence[float]) -> float | None:
    """CV*, the repeatability of quantified reproducibility assessment: ``(1 + 1/(4n)) 100 (s / c4(n)) / |mean|``.

    Belz, Popovic and Mille, Quantified Reproducibility Assessment of NLP Results (ACL 2022), in percent. Values must be
    on a scale that starts at 0: shift them first. ``None`` below two values and where the mean is not above 0.
    """
    data = _finite(values)
    mean = float(data.mean()) if data.size else 0.0
    if data.size < 2 or mean <= 0:
        return None
    deviation = float(data.std(ddof=1)) / unbiasing_c4(int(data.size))
    return (1 + 1 / (4 * data.size)) * 100.0 * deviation / mean


def paired_t_interval(ours: Sequence[float], base: Sequence[float]) -> Interval | None:
    """Student t interval of the mean of ``ours[i] - base[i]``, pairs sharing a seed; ``None`` below two pairs."""
    return t_interval(_differences(ours, base).tolist())


def sign_test(ours: Sequence[float], base: Sequence[float]) -> float:
    """Exact two-sided sign test of paired values: the p-value; ties are dropped, 1.0 when nothing is left."""
    differences = _differences(ours, base)
    wins, losses = int((differences > 0).sum()), int((differences < 0).sum())
    if wins + losses == 0:
        return 1.0
    from scipy import stats

    return float(stats.binomtest(wins, wins + losses, 0.5).pvalue)


def ratio_interval(
    *,
    total: float,
    count: float,
    total_sq: float,
    cross: float,
    count_sq: float,
    rows: int,
) -> Interval | None:
    """Interval of a corpus ratio ``total / count`` whose independent units are rows (sentences).

    Delta method for a ratio of sums, from sums alone. Row i adds t_i to the total and c_i to the count; the arguments
    are sum t, sum c, sum t^2, sum t c, sum c^2 and the number of rows with c_i > 0:
    var = rows / (rows - 1) * sum (t_i - r c_i)^2 / count^2, r = total / count, with Student's quantile at rows - 1.
    ``None`` below two rows or when a sum is not finite.
    """
    if rows < 2 or count <= 0 or not all(map(math.isfinite, (total, total_sq, cross))):
        return None
    ratio = total / count
    # the three terms cancel; rounding may leave a tiny negative number when all rows agree
    residual = max(0.0, total_sq - 2 * ratio * cross + ratio * ratio * count_sq)
    half = t_quantile(rows - 1) * math.sqrt(rows / (rows - 1) * residual) / count
    return ratio - half, ratio + half


def interval_of_rows(total_R: ArrayLike, count_R: ArrayLike) -> Interval | None:
    """Interval of a corpus ratio from what each row adds to total and count, see ``ratio_interval``."""
    total_R, count_R = np.asarray(total_R, dtype=np.float64), np.asarray(count_R, dtype=np.float64)
    sums = {"total": total_R, "count": count_R, "total_sq": total_R**2, "cross": total_R * count_R}
    sums["count_sq"] = count_R**2
    return ratio_interval(**{name: float(of_R.sum()) for name, of_R in sums.items()}, rows=int((count_R > 0).sum()))


@dataclass(frozen=True)
class Summary:
    """Mean over seeds, sample standard deviation (NaN for one seed), number of seeds, Student t interval."""

    mean: float
    sd: float
    n: int
    ci95: Interval | None


def summarize(values: Sequence[float]) -> Summary:
    """Summarise one value per seed (``ValueError``: no value, or one is NaN or infinite)."""
    data = _finite(values)
    if data.size == 0:
        raise ValueError("no value to summarise")
    sd = float(data.std(ddof=1)) if data.size > 1 else math.nan
    return Summary(float(data.mean()), sd, int(data.size), t_interval(data.tolist()))


@functools.lru_cache(maxsize=1024)
def t_quantile(degrees: int) -> float:
    """Return the two-sided quantile of Student's t distribution: 12.706 for one degree of freedom at 95%."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, 0.975))


def _check_counts(successes: int, trials: int) -> None:
    if successes < 0 or trials < 0 or successes > trials:
        raise ValueError(f"{successes} successes of {trials} trials cannot be")


def _finite(values: Sequence[float]) -> np.ndarray:
    data = np.asarray(values, dtype=np.float64)
    if data.ndim != 1:
        raise ValueError(f"expected a flat sequence of numbers, got shape {data.shape}")
    if not np.isfinite(data).all():
        raise ValueError(f"every value must be finite, got {data.tolist()}")
    return data


def _differences(ours: Sequence[float], base: Sequence[float]) -> np.ndarray:
    first, second = _finite(ours), _finite(base)
    if first.size != second.size:
        raise ValueError(f"paired values must be equally many, got {first.size} and {second.size}")
    return first - second


def exp_or_inf(nats: float) -> float:
    """Return exp(nats), infinite where that is beyond the largest float (``math.exp`` raises there)."""
    try:
        return math.exp(nats)
    except OverflowError:
        return math.inf


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's (1979) adjusted p-values, in the given order: the k-th smallest of m times m - k + 1.

    Raises:
        ValueError: a value is not between 0 and 1.
    """
    data = _finite(p_values)
    if data.size and (data.min() < 0 or data.max() > 1):
        raise ValueError(f"p-values lie between 0 and 1, got {data.tolist()}")
    adjusted, least = np.empty(data.size), 0.0
    for place, number in enumerate(np.argsort(data, kind="stable")):
        # never below that of a smaller one
        least = max(least, min(1.0, float(data[number]) * (data.size - place)))
        adjusted[number] = least
    return adjusted.tolist()

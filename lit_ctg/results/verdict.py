"""Verdicts: what our records say about printed numbers and claims.

``docs/verdicts.md`` has the rules with their formulas, sources and examples; ``LEGEND`` is their short form, printed
under the tables. Everything here is a function of plain numbers: which runs are comparable at all (size, data, metric,
checks) is decided in ``rows.py`` from the specification.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lit_ctg.limits import NonNegative
from lit_ctg.statistics import (
    Interval,
    coefficient_of_variation,
    prediction_interval,
    rate_prediction_interval,
    summarize,
    t_quantile,
    wilson_interval,
)

REPRODUCED = "reproduced"
UNTRAINED = "met by an untrained model"
NOT_REPRODUCED = "not reproduced"
SUPPORTED = "supported"
CONTRADICTED = "contradicted"
UNDECIDED = "undecided"
CANNOT_DECIDE = "cannot decide"
TOO_SMALL = "too small to tell"
OTHER_SIZE = "other size"
OTHER_METRIC = "other metric"
OTHER_DATA = "other data"
IMPOSSIBLE = "impossible"
NOT_RUN = "not run"

# a printed number is not comparable with runs of another size, metric or kind of data
NOT_COMPARABLE = (OTHER_SIZE, OTHER_METRIC, OTHER_DATA)
_EITHER = (UNDECIDED, UNTRAINED, CANNOT_DECIDE, TOO_SMALL, *NOT_COMPARABLE, IMPOSSIBLE, NOT_RUN)
NUMBER_LABELS = (REPRODUCED, NOT_REPRODUCED, *_EITHER)
CLAIM_LABELS = (SUPPORTED, CONTRADICTED, *_EITHER)
LABELS = tuple(dict.fromkeys((*NUMBER_LABELS, *CLAIM_LABELS)))

# Student's factor is 12.7 with two seeds, 4.3 with three
MIN_SEEDS = 3
TRUTH_SEEDS = 6  # of yes or no: as many as the exact sign test needs
MIN_CELLS = TRUTH_SEEDS  # cells that a statement "never" needs

# runs whose range holds one more run in 95% of cases, whatever their distribution: (n - 1) / (n + 1)
RANGE_RUNS = 39

# what each verdict says, in a line
LEGEND = {
    REPRODUCED: "one more run like ours would lie within the stated margin of the printed number (95% interval)",
    NOT_REPRODUCED: "one more run like ours would lie outside that margin",
    SUPPORTED: "the 95% interval of our mean difference lies on the claimed side of 0; where no difference is claimed, "
    "within the margin",
    CONTRADICTED: "that interval excludes the printed difference, or the smallest one that would matter",
    UNDECIDED: "neither of the two",
    CANNOT_DECIDE: "a check that must hold first does not hold",
    UNTRAINED: "an untrained model gets the same verdict",
    TOO_SMALL: "the metric is at its floor",
    IMPOSSIBLE: "the printed number lies beyond a bound that holds for the stated model",
    OTHER_SIZE: "not comparable, so not judged: a run of another size",
    OTHER_METRIC: "not comparable, so not judged: another metric",
    OTHER_DATA: "not comparable, so not judged: another kind of data",
    NOT_RUN: "there is no run, or it did not measure this",
}
HOW = (
    "Numbers are judged at the paper's size, by its metric, on its data, from three seeds on. Claims are judged "
    "at any size, which the verdict names. Differences are paired by seed. Intervals of levels are prediction "
    "intervals, those of differences are intervals of the mean. Intervals of rates over all texts of our seeds are the "
    "wider of Wilson's over texts and Student's over seeds. Intervals over folds are of one run. No spread: all runs "
    "gave the same number. CV* is the spread over seeds in percent of the mean, corrected for few seeds; in brackets "
    "with the printed number among them. The rules with their formulas: docs/verdicts.md."
)
RULES = " ".join([*(f"{label}: {meaning}." for label, meaning in LEGEND.items()), HOW])


@dataclass(frozen=True)
class Verdict:
    """One of ``LABELS``, and the reason in words."""

    label: str
    reason: str = ""


@dataclass(frozen=True)
class Margin:
    """How close is close enough, stated in advance: a share of the printed number or a distance; ``why`` in words."""

    relative: NonNegative | None = None
    absolute: NonNegative | None = None
    why: str = ""

    def size(self, printed: float) -> float:
        """Return the distance around a printed number."""
        return self.absolute if self.absolute is not None else abs(printed) * (self.relative or 0.0)

    def __str__(self) -> str:
        """Return e.g. ``5% of the number``."""
        size = f"{self.absolute:g}" if self.absolute is not None else f"{100 * (self.relative or 0):g}% of the number"
        return f"{size} ({self.why})" if self.why else size


def beyond_bound(printed: float, floor: float | None, ceiling: float | None) -> Verdict | None:
    """Return ``impossible`` when ``printed`` lies beyond a bound, else None."""
    if floor is not None and printed < floor:
        return Verdict(IMPOSSIBLE, f"below the floor {floor:.4g}")
    if ceiling is not None and printed > ceiling:
        return Verdict(IMPOSSIBLE, f"above the ceiling {ceiling:.4g}")
    return None


def judge_number(printed: float, interval: Interval | None, margin: Margin, why_none: str = "") -> Verdict:
    """Judge a printed number by the interval in which one more run like ours would lie.

    Reproduced when the whole interval is within the margin, not reproduced when all of it is outside. If the true
    difference is larger than the margin, the first happens in at most 2.5% of cases; if it is smaller, the second does
    (two one-sided tests on a single new value), however many seeds there are.

    Args:
        interval: prediction interval; both ends equal where the quantity has no spread; None with too few seeds
            (``why_none`` says so).
    """
    if interval is None:
        return Verdict(UNDECIDED, why_none or f"fewer than {MIN_SEEDS} seeds")
    if not all(map(math.isfinite, interval)):
        return Verdict(NOT_REPRODUCED, "ours is not a finite number")
    reach = margin.size(printed) + 1e-9 * max(1.0, abs(printed))  # the last bits; rounding in print is the margin's
    low, high = interval[0] - printed, interval[1] - printed
    if -reach <= low and high <= reach:
        return Verdict(REPRODUCED, f"within {margin}")
    if low > reach or high < -reach:
        return Verdict(NOT_REPRODUCED, f"a run like ours gives {interval[0]:.4g} to {interval[1]:.4g}")
    wide = "wider than the margin" if high - low > 2 * reach else "across the margin's end"
    return Verdict(UNDECIDED, f"a run like ours gives {interval[0]:.4g} to {interval[1]:.4g}, {wide}")


def judge_claim(
    claim: str,
    interval: Interval | None,
    *,
    another: Interval | None = None,
    effect: float | None = None,
    meaningful: bool = False,
    margin: float | None = None,
    why_none: str = "",
) -> Verdict:
    """Judge a stated side of 0, or the statement that there is no difference.

    Args:
        claim: ``less`` or ``greater`` than 0, ``equal`` to it, ``not_less`` or ``not_greater`` (``never_less``:
            ``judge_never``).
        interval: 95% interval of our mean difference; None with too few seeds (``why_none`` says so).
        another: 95% interval in which one more difference like ours would lie: a printed size is one such difference,
            so only this can exclude it. None where single differences are not known: ``interval`` does.
        effect: size of the printed difference, or of the smallest one that would matter; its sign is the claim's.
        meaningful: ``effect`` is the smallest that would matter, so that anything less contradicts, whatever its sign.
        margin: for the other three claims, how large a difference counts as none; for a side of 0, how close to it an
            exact number, which has no interval, is too close to call.
    """
    if interval is None or not all(map(math.isfinite, interval)):
        return Verdict(UNDECIDED, (why_none or f"fewer than {MIN_SEEDS} seeds") if interval is None else "not finite")
    low, high = interval
    ours = "the interval" if low < high else "our number"
    if claim in ("less", "not_greater"):
        low, high = -high, -low
    if claim in ("equal", "not_less", "not_greater"):
        assert margin is not None
        both = claim == "equal"
        if -margin <= low and (high <= margin or not both):
            within = f"lies within {margin:g} of 0" if both else f"is nowhere beyond the margin of {margin:g}"
            return Verdict(SUPPORTED, f"{ours} {within}")
        outside = high < -margin or (both and low > margin)
        words = f"the interval {'lies' if outside else 'reaches'} beyond the margin of {margin:g}"
        return Verdict(CONTRADICTED if outside else UNDECIDED, words)
    if margin is not None and low == high and abs(low) <= margin:
        return Verdict(UNDECIDED, f"without an interval, within {margin:g} of 0 is too close to call")
    if another is not None and not meaningful:
        most = -another[0] if claim == "less" else another[1]
    else:
        most = high
    short = effect is not None and most < abs(effect)
    if low > 0 and not (short and meaningful):
        return Verdict(SUPPORTED, "the sign; the printed size lies outside our interval" if short else "excludes 0")
    if high < 0:
        return Verdict(CONTRADICTED, f"{ours} lies on the other side of 0")
    if short:
        words = "the smallest difference that would matter" if meaningful else "the printed difference"
        whose = "the interval" if most == high else "the interval of one more difference"
        return Verdict(CONTRADICTED, f"{whose} excludes {words}, {abs(effect or 0.0):.3g}")
    return Verdict(UNDECIDED, "the interval holds 0")


def judge_never(cells: Sequence[Sequence[float]]) -> Verdict:
    """Judge "there was never a pair in which ours is lower" (claim ``never_less``): one such pair contradicts it.

    Args:
        cells: the differences of every pair that could be lower, by cell. A mean would hide a pair; but pairs of one
            cell are no further draws of cells, so cells are what can support it.
    """
    differences = [each for cell in cells for each in cell]
    count = len(differences)
    lower = sum(each < 0 for each in differences)
    if not all(map(math.isfinite, differences)):
        return Verdict(UNDECIDED, "not finite")
    if lower:
        return Verdict(CONTRADICTED, f"in {lower} of {count} pairs")
    if len(cells) < MIN_CELLS:
        return Verdict(UNDECIDED, f"in none of {count} pairs, but they are of fewer than {MIN_CELLS} cells")
    # the exact bound of a share of which none was seen
    missed = 1 - 0.05 ** (1 / len(cells))
    return Verdict(
        SUPPORTED, f"in none of {count} pairs of {len(cells)} cells; up to {missed:.0%} of cells would be missed"
    )


def as_untrained(verdict: Verdict, untrained: Verdict | None) -> Verdict:
    """Return the verdict, or that an untrained model meets it too."""
    if untrained is not None and verdict.label in (REPRODUCED, SUPPORTED) and untrained.label == verdict.label:
        return Verdict(UNTRAINED, f"{verdict.label}, as by the same model before training")
    return verdict


def find_sign(interval: Interval | None) -> str:
    """Say in words what a paired difference of ours shows."""
    if interval is None:
        return "too few seeds"
    if not all(map(math.isfinite, interval)):
        return "not finite"
    if interval[0] <= 0 <= interval[1]:
        return "no difference shown"
    return "lower" if interval[1] < 0 else "higher"


# --- intervals that stay where the quantity can be ------------------------------------------------------------------


@dataclass(frozen=True)
class Domain:
    """The range of a quantity; ``log`` when its intervals are made on the log scale of ``value + shift``."""

    low: float = -math.inf
    high: float = math.inf
    log: bool = False
    shift: float = 0.0
    # yes or no per run: an interval of the mean would be meaningless
    truth: bool = False
    # a quotient of two runs: its mean is the geometric one, as the arithmetic means of a / b and of b / a both exceed 1
    # where a and b are alike
    quotient: bool = False


ANY = Domain()
_POSITIVE = Domain(low=0.0, log=True)
_QUOTIENT = Domain(low=0.0, log=True, quotient=True)
_COUNT = Domain(low=0.0)
_RATE = Domain(low=0.0, high=1.0)
# by the first word of the unit
_BY_UNIT = {
    "perplexity": Domain(low=1.0, log=True),
    **dict.fromkeys(("ratio", "factor", "s/token", "seconds"), _POSITIVE),
    **dict.fromkeys(("count", "tokens", "products", "km", "l2", "squared", "terms"), _COUNT),
    **dict.fromkeys(("rate", "share", "unique", "probability", "weight", "total", "F1", "BLEU,"), _RATE),
    "truth": Domain(low=0.0, high=1.0, truth=True),
    "BLEU": Domain(low=0.0, high=100.0),
}


def domain_of(unit: str, direction: str = "none", combine: str | None = None) -> Domain:
    """Return the domain of a quantity.

    Args:
        unit: of the measured metric, e.g. ``perplexity`` or ``share of content words``.
        direction: of the metric; a cost in nats (``lower``) cannot be negative, a gap in nats can.
        combine: how the row combines it; a difference may have either sign, a change in percent is at least -100.
    """
    words = unit.split()
    own = _BY_UNIT.get(words[0], ANY) if words and "difference" not in words else ANY
    if unit == "nats" and direction == "lower":
        own = _COUNT
    if combine == "ratio":
        return _QUOTIENT
    if combine == "percent_change":
        return Domain(low=-100.0, log=True, shift=100.0, quotient=True)
    if combine == "interaction":
        return ANY
    if combine == "difference":
        return Domain(own.low - own.high, own.high - own.low, truth=own.truth)
    return Domain(own.low) if combine == "sum" else own


def mean_of(values: Sequence[float], domain: Domain = ANY) -> float:
    """Return the mean of values, the geometric one of quotients (none of which is 0 or infinite)."""
    shifted = [value + domain.shift for value in values]
    if domain.quotient and all(0 < value < math.inf for value in shifted):
        return math.exp(math.fsum(map(math.log, shifted)) / len(shifted)) - domain.shift
    return math.fsum(values) / len(values)


def mean_interval(values: Sequence[float], domain: Domain = ANY) -> Interval | None:
    """Return the 95% interval of the mean of independent values; None below two.

    For quotients it is Student's of the logs. For other values on the log scale it is the mean divided and multiplied
    by ``exp(t s / mean)``, s the standard error (delta method), else Student's, clipped to the domain. Values outside
    the domain (a misnamed unit) get Student's plain interval.
    """
    if (logs := _logs(values, domain)) is not None:
        return _from_logs(mean_interval(logs), domain)
    found = summarize(values)
    return _within(values, domain, found.ci95, found.sd / math.sqrt(found.n))


def next_interval(values: Sequence[float], domain: Domain = ANY) -> Interval | None:
    """Return the 95% interval in which one more value lies (see ``mean_interval``); None below two."""
    if (logs := _logs(values, domain)) is not None:
        return _from_logs(next_interval(logs), domain)
    found = summarize(values)
    return _within(values, domain, prediction_interval(values), found.sd * math.sqrt(1 + 1 / found.n))


def _logs(values: Sequence[float], domain: Domain) -> list[float] | None:
    """Return the logs of quotients; None for other values, and where one is 0 or not finite."""
    shifted = [value + domain.shift for value in values]
    if not domain.quotient or not all(0 < value < math.inf for value in shifted):
        return None
    return [math.log(value) for value in shifted]


def _from_logs(interval: Interval | None, domain: Domain) -> Interval | None:
    if interval is None:
        return None
    low, high = (math.exp(min(end, 700.0)) - domain.shift for end in interval)  # exp(710) overflows
    return low, high


def _within(values: Sequence[float], domain: Domain, plain: Interval | None, error: float) -> Interval | None:
    if plain is None or min(values) < domain.low or max(values) > domain.high:
        return plain
    low, high = plain
    mean = math.fsum(values) / len(values) + domain.shift
    if domain.log and mean > 0:
        # nothing is below 0 on this scale, so the exponent of n values is at most t sqrt(n + 1): it does not overflow
        factor = math.exp(t_quantile(len(values) - 1) * error / mean)
        low, high = mean / factor - domain.shift, mean * factor - domain.shift
    return max(low, domain.low), min(high, domain.high)


def next_rate(values: Sequence[float], trials: Sequence[int], printed_trials: int) -> Interval | None:
    """Return the 95% interval of a rate that a printed run of ``printed_trials`` would show, given ours by seed.

    On either side the wider of two: sampling alone (pooled trials, beta-binomial) and, from ``MIN_SEEDS`` seeds on, the
    seeds, whose spread includes what another training run changes.
    """
    return _of_rate(values, trials, lambda hits, n: rate_prediction_interval(hits, n, printed_trials), next_interval)


def mean_rate(values: Sequence[float], trials: Sequence[int]) -> Interval | None:
    """Return the 95% interval of the rate over all texts of our seeds, by seed ``values`` of ``trials`` texts.

    On either side the wider of two: Wilson's over the pooled trials and, from ``MIN_SEEDS`` seeds on, Student's over
    the seeds. Texts of one trained model are no further draws of models: Wilson's alone would claim that they are.
    """
    return _of_rate(values, trials, wilson_interval, mean_interval)


def _of_rate(
    values: Sequence[float],
    trials: Sequence[int],
    of_counts: Callable[[int, int], Interval | None],
    of_values: Callable[[Sequence[float], Domain], Interval | None],
) -> Interval | None:
    pooled = of_counts(sum(round(value * n) for value, n in zip(values, trials, strict=True)), sum(trials))
    seeds = of_values(values, _RATE) if len(values) >= MIN_SEEDS else None
    if pooled is None or seeds is None:
        return pooled
    return min(pooled[0], seeds[0]), max(pooled[1], seeds[1])


def repeatability(values: Sequence[float], domain: Domain, printed: float | None = None) -> float | None:
    """Return CV* in percent of our values by seed, with ``printed`` among them if given.

    Values are measured from the lower end of their scale (1 for a perplexity), as CV* requires. None if there is no
    such end, fewer than two values, or a value that is not finite.
    """
    every = [*values, *([] if printed is None else [printed])]
    if not math.isfinite(domain.low) or not all(map(math.isfinite, every)):
        return None
    return coefficient_of_variation([value - domain.low for value in every])

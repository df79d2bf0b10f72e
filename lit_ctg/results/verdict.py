"""Verdicts: what our records say about a number somebody printed.

The rules, in order (``RULES`` is their short form, printed under the tables):

1. **impossible**: the printed number lies beyond a bound that provably holds for the stated model, e.g. a perplexity
   below the entropy floor of a causal model. Needs no run.
2. **not run**: no finished run has the number; the cell names the run that is missing.
3. **reproduced**: the printed number lies inside the 95% interval of our mean, or our mean lies within the stated
   tolerance of it. The interval counts from three seeds on (for two, Student's t makes it so wide that it agrees with
   anything), and only if it is informative: it reaches no farther from our mean than half the printed number, or the
   tolerance. A Wilson interval over pooled trials always counts, and so does that of a single run over its folds, where
   the row asks for it (it does not hold what another training would change). Intervals stay where the quantity can be
   (``interval.py``): perplexities, ratios and times on the log scale, rates cut at 0 and 1. Those of claims are plain.
4. **direction only**: the size differs, but printed number and our mean lie on the same side of the row's reference
   (chance, a base rate, a constant predictor), our interval excluding the reference where it counts.
5. **not reproduced** otherwise, also when our number is not finite.

A *claim* ("A is lower than B") is a paired difference by seed and is judged against 0: **reproduced** when the interval
excludes 0 on the claimed side and the printed size fits by rule 3; **direction only** when it excludes 0 but the size
does not fit; **not reproduced** when it spans 0 or lies on the other side. With fewer than three seeds a claim is at
best **direction only**. A sentence without a size has no size to miss. Comparisons of our own, with nothing printed,
get a finding by the same test, not a verdict.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from lit_ctg.errors import UserError

REPRODUCED = "reproduced"
DIRECTION_ONLY = "direction only"
NOT_REPRODUCED = "not reproduced"
IMPOSSIBLE = "impossible"
NOT_RUN = "not run"
LABELS = (REPRODUCED, DIRECTION_ONLY, NOT_REPRODUCED, IMPOSSIBLE, NOT_RUN)

# with two seeds Student's factor is 12.7, with three 4.3
MIN_SEEDS = 3

RULES = (
    "Verdicts. reproduced: the printed number is inside the 95% interval of our mean, or our mean is within the "
    "tolerance. The interval is Student's over 3 seeds or more, or over the folds of one run, or Wilson's over pooled "
    "trials, and counts when it reaches no farther from our mean than half the printed number or the tolerance; those "
    "of perplexities, ratios and times are made on the log scale, those of rates end at 0 and 1. direction only: same "
    "side of the row's reference, other size. impossible: the printed number is beyond a bound that holds for the "
    "stated model. not run: no finished run has it. not reproduced: all else. "
    "Claims (A against B) are paired by seed: their interval must exclude 0 on the claimed side."
)

Interval = tuple[float, float]


@dataclass(frozen=True)
class Verdict:
    """One of ``LABELS`` and the reason in words."""

    label: str
    reason: str


@dataclass(frozen=True)
class Tolerance:
    """How far our mean may lie from the printed number: a share of it, or an absolute distance; ``why`` in words."""

    relative: float | None = None
    absolute: float | None = None
    why: str = ""

    def __post_init__(self) -> None:
        """Check that exactly one of the two is given.

        Raises:
            UserError: none or both are.
        """
        if (self.relative is None) == (self.absolute is None):
            raise UserError("tolerance: state either relative or absolute")

    def allows(self, printed: float, ours: float) -> bool:
        """Say whether ``ours`` is near enough to ``printed``."""
        limit = self.absolute if self.absolute is not None else abs(printed) * (self.relative or 0.0)
        return abs(ours - printed) <= limit + 1e-12

    def __str__(self) -> str:
        """Return e.g. ``5% of the printed number``."""
        size = f"{self.absolute:g}" if self.absolute is not None else f"{100 * (self.relative or 0):g}% of the number"
        return f"{size} ({self.why})" if self.why else size


def beyond_bound(printed: float, floor: float | None, ceiling: float | None) -> Verdict | None:
    """Return ``impossible`` when ``printed`` lies beyond a bound, else None."""
    if floor is not None and printed < floor:
        return Verdict(IMPOSSIBLE, f"below the floor {floor:.4g}")
    if ceiling is not None and printed > ceiling:
        return Verdict(IMPOSSIBLE, f"above the ceiling {ceiling:.4g}")
    return None


def judge_value(
    printed: float, ours: float, interval: Interval | None, tolerance: Tolerance, reference: float | None = None
) -> Verdict:
    """Judge one number (rules 3 to 5).

    Args:
        printed: the paper's number.
        ours: our mean over seeds, or pooled rate.
        interval: its 95% interval where it counts (see rule 3), else None.
        tolerance: the stated tolerance.
        reference: what "direction" is measured against; None means that a wrong size is a wrong number.
    """
    if not math.isfinite(ours):
        return Verdict(NOT_REPRODUCED, f"ours is {ours}")
    if (fits := _size_fits(printed, ours, interval, tolerance)) is not None:
        return Verdict(REPRODUCED, fits)
    if reference is not None and (printed - reference) * (ours - reference) > 0 and not _holds(interval, reference):
        side = "above" if ours > reference else "below"
        return Verdict(DIRECTION_ONLY, f"both {side} the reference {reference:.4g}, the size differs")
    return Verdict(NOT_REPRODUCED, f"ours {ours:.4g}, printed {printed:g}")


def judge_claim(claim: str, printed: float, ours: float, interval: Interval | None, tolerance: Tolerance) -> Verdict:
    """Judge a paired comparison against 0.

    Args:
        claim: ``"less"`` or ``"greater"``: the side of 0 the paper states.
        printed: the printed difference.
        ours: the mean of our paired differences.
        interval: its 95% interval, or None with fewer than three seeds.
        tolerance: for the size of the difference.
    """
    sentence = judge_sentence(claim, ours, interval)
    if sentence.label != REPRODUCED:
        return sentence
    if (fits := _size_fits(printed, ours, interval, tolerance)) is not None:
        return Verdict(REPRODUCED, fits)
    return Verdict(DIRECTION_ONLY, f"the sign holds, ours is {ours:+.4g}, printed {printed:+.4g}")


def judge_sentence(claim: str, ours: float, interval: Interval | None) -> Verdict:
    """Judge a stated side of 0 for which no size is printed (see ``judge_claim``)."""
    sign = -1.0 if claim == "less" else 1.0
    if not math.isfinite(ours):
        return Verdict(NOT_REPRODUCED, f"ours is {ours}")
    if sign * ours <= 0:
        return Verdict(NOT_REPRODUCED, f"ours is {ours:+.4g}, claimed {claim} than 0")
    if interval is None:
        return Verdict(DIRECTION_ONLY, f"the sign holds; fewer than {MIN_SEEDS} seeds cannot say more")
    if _holds(interval, 0.0):
        return Verdict(NOT_REPRODUCED, "the interval spans 0")
    return Verdict(REPRODUCED, "the interval lies on the claimed side of 0")


def find_sign(interval: Interval | None) -> str:
    """Say in words what a paired difference of our own shows."""
    if interval is None:
        return "too few seeds"
    if _holds(interval, 0.0):
        return "no difference shown"
    return "lower" if interval[1] < 0 else "higher"


def _size_fits(printed: float, ours: float, interval: Interval | None, tolerance: Tolerance) -> str | None:
    if _holds(interval, printed) and _informative(printed, ours, interval, tolerance):
        return "inside our interval"
    return f"within {tolerance}" if tolerance.allows(printed, ours) else None


def _informative(printed: float, ours: float, interval: Interval | None, tolerance: Tolerance) -> bool:
    """Say whether an interval is narrow enough that holding the printed number means something."""
    if interval is None:
        return False
    reach = max(interval[1] - ours, ours - interval[0])
    return reach <= 0.5 * abs(printed) or tolerance.allows(printed, printed + reach)


def _holds(interval: Interval | None, value: float) -> bool:
    """Say whether the interval holds ``value``; rounding must not part equal rates."""
    return interval is not None and interval[0] - 1e-9 <= value <= interval[1] + 1e-9

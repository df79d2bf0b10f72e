"""Horizontal bars with intervals and printed values, linear or on a log scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lit_ctg.results.cell import format_value
from lit_ctg.results.svg import LETTER, WIDTH, Axis, Interval, frame, line, text, tick_text, ticks, without_collisions

BAR = 13


@dataclass(frozen=True)
class Bar:
    """One bar: class, value (None: a hole), interval, and what was to be expected."""

    kind: str
    value: float | None
    interval: Interval | None = None
    expectation: float | None = None


@dataclass(frozen=True)
class BarGroup:
    """The bars of one row with the printed value; ``section`` puts a heading before the first of its rows."""

    label: str
    bars: Sequence[Bar]
    printed: float | None = None
    section: str = ""
    digits: int = 3


def bar_range(groups: Sequence[BarGroup], low: float | None, high: float | None, log: bool) -> Interval:
    """Return the axis' ends: 0 (log: 1, or the power of ten below the least value) to the longest bar.

    An interval stretches it to half as much again (log: ten times as much); a longer whisker is cut at the frame.
    """
    marks = [v for g in groups for v in (g.printed, *(b.value for b in g.bars), *(b.expectation for b in g.bars))]
    finite = [v for v in marks if v is not None and math.isfinite(v) and (v > 0 or not log)]
    top, bottom = max(finite, default=1.0), min(finite, default=0.0)
    ends = [end for g in groups for b in g.bars if b.interval for end in b.interval if math.isfinite(end)]
    if log:
        start = 1.0 if bottom >= 1 or not finite else 10.0 ** math.floor(math.log10(bottom))
        low = start if low is None else low
        stretched = min(max([top, *ends]), top * 10)
        return low, stretched * 1.05 if high is None and stretched > low else high or 10 * low
    low = min(0.0, bottom) if low is None else low
    reach = (top - low) or 1.0
    return low, max(min(max([top, *ends]), top + reach / 2), low + 1e-9) + 0.02 * reach if high is None else high


def bar_chart(
    title: str,
    groups: Sequence[BarGroup],
    *,
    measure: str = "",
    low: float | None = None,
    high: float | None = None,
    log: bool = False,
    about: str = "",
) -> str:
    """Draw horizontal bars: label above, interval as a whisker, printed value as a diamond; ``measure``: of what."""
    low, high = bar_range(groups, low, high, log)
    widest = max([len(_value_text(bar, group.digits)) for group in groups for bar in group.bars], default=4)
    axis = Axis(low, high, 8, WIDTH - 16 - LETTER * widest, log)
    parts, at, section = [text(8, 16, title, "title")], 26.0, ""
    if below := " ".join(filter(None, (measure, "(log scale)" if log else ""))):
        parts.append(text(8, 34, below, "tick"))
        at = 44.0
    top = at
    body: list[str] = []
    for group in groups:
        if group.section != section:
            section = group.section
            body.append(text(8, at + 14, section, "section"))
            at += 22
        body.append(text(8, at + 12, group.label, "label"))
        at += 18
        start = at
        for one in group.bars:
            body += _bar(one, axis, at, group.digits)
            at += BAR + 3
        if group.printed is not None:
            body.append(_diamond(axis(group.printed), (start + at - 3) / 2, group.printed))
        at += 7
    marks = [(axis(mark), tick_text(mark)) for mark in ticks(low, high, log)]
    parts += [line("grid", spot, top, spot, at) for spot, _ in marks]
    parts += [text(spot, at + 14, words, "tick", "middle") for spot, words in without_collisions(marks)]
    return frame(about + ", ".join(filter(None, (title, measure))), at + 22, parts + body)


def _value_text(one: Bar, digits: int) -> str:
    return "" if one.value is None else format_value(one.value, digits)


def _bar(one: Bar, axis: Axis, at: float, digits: int) -> list[str]:
    middle = at + BAR / 2
    if one.value is None or not math.isfinite(one.value):
        return [text(axis.start + 4, at + BAR - 2, "not run" if one.value is None else str(one.value), "tick")]
    zero = axis(0.0) if axis.low < 0 < axis.high else axis.start
    x, end = sorted((zero, axis(one.value)))
    parts = [f'<rect class="{one.kind}" x="{x:.1f}" y="{at:.1f}" height="{BAR}" width="{end - x:.1f}"/>']
    if one.interval is not None:
        a, b = axis(one.interval[0]), axis(one.interval[1])
        path = f"M{a:.1f} {middle}H{b:.1f}"
        # no cap where the interval goes on beyond the frame
        path += "".join(f"M{axis(end):.1f} {middle - 4}V{middle + 4}" for end in one.interval if axis.holds(end))
        parts.append(f'<path class="whisker" d="{path}"/>')
    if one.expectation is not None:
        parts.append(line("expected", axis(one.expectation), at - 1, axis(one.expectation), at + BAR + 1))
    parts.append(text(WIDTH - 4, at + BAR - 2, _value_text(one, digits), "tick", "end"))
    return parts


def _diamond(x: float, y: float, value: float) -> str:
    corners = f"{x:.1f},{y - 6:.1f} {x + 6:.1f},{y:.1f} {x:.1f},{y + 6:.1f} {x - 6:.1f},{y:.1f}"
    return f'<polygon class="mark printed" points="{corners}"><title>printed: {value:g}</title></polygon>'

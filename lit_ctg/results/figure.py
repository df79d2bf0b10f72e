"""Small inline SVG plots for the report: lines by epoch, bars with intervals, confusion matrices.

Hand-made so that the page stays small, works without network or script, and follows the page's light or dark colours:
marks carry classes (``printed``, ``as_published``, ``corrected``, ``grid``, ``band``, ``rule``) that the page styles.
Every text is escaped; every plot has a description for screen readers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

Interval = tuple[float, float]
Point = tuple[float, float]

WIDTH = 460


@dataclass(frozen=True)
class Line:
    """One curve: class (whose it is), points, and a band of intervals ``x -> (low, high)``."""

    kind: str
    points: Sequence[Point]
    band: Mapping[float, Interval] = field(default_factory=dict)


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


def ticks(low: float, high: float, log: bool = False) -> list[float]:
    """Return three to about eight round numbers in [low, high]; on a log axis 1, 2, 5 times powers of ten."""
    if log:
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        marks = [digit * 10.0**power for power in powers for digit in (1, 2, 3, 5)]
        return [mark for mark in marks if low * 0.999 <= mark <= high * 1.001]
    rough = (high - low) / 5 or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(size * power for size in (1, 2, 2.5, 5, 10) if size * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def value_range(lines: Sequence[Line], rules: Sequence[tuple[str, float]] = (), log: bool = False) -> Interval:
    """Return a range that holds all points and rules with a little air, for panels that share an axis.

    Bands do not stretch it to more than twice the points' span: a wide interval is cut at the frame.
    """
    values = [y for line in lines for _, y in line.points if math.isfinite(y) and (y > 0 or not log)]
    values += [y for _, y in rules if math.isfinite(y)]
    if not values:
        return (1.0, 10.0)
    low, high = min(values), max(values)
    bounds = [b for line in lines for pair in line.band.values() for b in pair if math.isfinite(b)]
    if log:
        air = max(high / low, 1.1) ** 0.08
        low, high = max(min([low, *[b for b in bounds if b > 0]]), low / 1.5), min(max([high, *bounds]), high * 1.5)
        return (low / air, high * air)
    span = (high - low) or abs(high) or 1.0
    low, high = max(min([low, *bounds]), low - span / 2), min(max([high, *bounds]), high + span / 2)
    return (low - 0.06 * span, high + 0.06 * span)


def line_chart(
    title: str,
    lines: Sequence[Line],
    *,
    x: str = "",
    y: str = "",
    log: bool = False,
    limits: Interval | None = None,
    rules: Sequence[tuple[str, float]] = (),
) -> str:
    """Draw curves with their interval bands and labelled horizontal rules."""
    height, left, right, top, bottom = 300, 46, 14, 30, 42
    low, high = limits or value_range(lines, rules, log)
    xs = sorted({point[0] for line in lines for point in line.points}) or [0.0, 1.0]
    first, last = xs[0], xs[-1] if xs[-1] > xs[0] else xs[0] + 1
    scale = math.log if log else float

    def px(value: float) -> float:
        return left + 8 + (value - first) / (last - first) * (WIDTH - left - right - 16)

    def py(value: float) -> float:
        value = min(max(value, low), high)
        return top + (scale(high) - scale(value)) / (scale(high) - scale(low)) * (height - top - bottom)

    parts = [_text(left, 16, title, "title")]
    for mark in ticks(low, high, log):
        parts.append(f'<line class="grid" x1="{left}" x2="{WIDTH - right}" y1="{py(mark):.1f}" y2="{py(mark):.1f}"/>')
        parts.append(_text(left - 6, py(mark) + 4, f"{mark:g}", "tick", "end"))
    for mark in xs if len(xs) <= 10 else ticks(first, last):
        parts.append(_text(px(mark), height - bottom + 18, f"{mark:g}", "tick", "middle"))
    for label, value in rules:
        parts.append(f'<line class="rule" x1="{left}" x2="{WIDTH - right}" y1="{py(value):.1f}" y2="{py(value):.1f}"/>')
        parts.append(_text(WIDTH - right, py(value) - 5, label, "tick", "end"))
    for line in lines:
        band = [(at, pair) for at, pair in sorted(line.band.items()) if all(map(math.isfinite, pair))]
        if band:
            outline = [(at, pair[0]) for at, pair in band] + [(at, pair[1]) for at, pair in reversed(band)]
            points = " ".join(f"{px(at):.1f},{py(value):.1f}" for at, value in outline)
            parts.append(f'<polygon class="band {line.kind}" points="{points}"/>')
    for line in lines:
        shown = [(at, value) for at, value in line.points if math.isfinite(value)]
        points = " ".join(f"{px(at):.1f},{py(value):.1f}" for at, value in shown)
        parts.append(f'<polyline class="curve {line.kind}" points="{points}"/>')
        for at, value in shown:
            hover = f"<title>{escape(f'{line.kind}, {x} {at:g}: {value:.4g}'.replace('_', ' '))}</title>"
            parts.append(
                f'<circle class="dot {line.kind}" cx="{px(at):.1f}" cy="{py(value):.1f}" r="3.2">{hover}</circle>'
            )
    parts.append(_text((left + WIDTH - right) / 2, height - 6, x, "tick", "middle"))
    parts.append(_text(WIDTH - right, 16, y, "tick", "end"))
    return _svg(f"{title}: {y} by {x}", height, parts)


def bar_chart(title: str, groups: Sequence[BarGroup], *, low: float = 0.0, high: float | None = None) -> str:
    """Draw horizontal bars from ``low``: label above, interval as a whisker, printed value as a diamond."""
    left, right, bar = 8, 58, 13
    marks = [v for g in groups for v in (g.printed, *(b.value for b in g.bars), *(b.expectation for b in g.bars))]
    marks += [bound for group in groups for one in group.bars if one.interval for bound in one.interval]
    finite = [mark for mark in marks if mark is not None and math.isfinite(mark)]
    high = max([*finite, low + 1e-9]) * 1.02 if high is None else high

    def px(value: float) -> float:
        return left + (min(max(value, low), high) - low) / (high - low) * (WIDTH - left - right)

    parts, at, section = [_text(left, 16, title, "title")], 26.0, ""
    body: list[str] = []
    for group in groups:
        if group.section != section:
            section = group.section
            body.append(_text(left, at + 14, section, "section"))
            at += 22
        body.append(_text(left, at + 12, group.label, "label"))
        at += 18
        start = at
        for one in group.bars:
            body += _bar(one, px, at, bar, low, group.digits)
            at += bar + 3
        if group.printed is not None:
            body.append(_diamond(px(group.printed), (start + at - 3) / 2, group.printed))
        at += 7
    for mark in ticks(low, high):
        parts.append(f'<line class="grid" x1="{px(mark):.1f}" x2="{px(mark):.1f}" y1="26" y2="{at:.0f}"/>')
        parts.append(_text(px(mark), at + 14, f"{mark:g}", "tick", "middle"))
    return _svg(title, at + 22, parts + body)


def _bar(one: Bar, px, at: float, bar: float, low: float, digits: int) -> list[str]:  # type: ignore[no-untyped-def]
    middle = at + bar / 2
    if one.value is None or not math.isfinite(one.value):
        return [_text(px(low) + 4, at + bar - 2, "not run" if one.value is None else str(one.value), "tick")]
    width = px(one.value) - px(low)
    parts = [f'<rect class="{one.kind}" x="{px(low):.1f}" y="{at:.1f}" height="{bar}" width="{width:.1f}"/>']
    if one.interval is not None:
        a, b = px(one.interval[0]), px(one.interval[1])
        path = f"M{a:.1f} {middle - 4}V{middle + 4}M{a:.1f} {middle}H{b:.1f}M{b:.1f} {middle - 4}V{middle + 4}"
        parts.append(f'<path class="whisker" d="{path}"/>')
    if one.expectation is not None:
        spot = px(one.expectation)
        parts.append(f'<line class="expected" x1="{spot:.1f}" x2="{spot:.1f}" y1="{at - 1}" y2="{at + bar + 1}"/>')
    parts.append(_text(WIDTH - 4, at + bar - 2, f"{one.value:.{digits}f}", "tick", "end"))
    return parts


def _diamond(x: float, y: float, value: float) -> str:
    corners = f"{x:.1f},{y - 6:.1f} {x + 6:.1f},{y:.1f} {x:.1f},{y + 6:.1f} {x - 6:.1f},{y:.1f}"
    return f'<polygon class="mark printed" points="{corners}"><title>printed: {value:g}</title></polygon>'


def heat_map(
    title: str,
    columns: Sequence[str],
    rows: Sequence[str],
    values: Mapping[tuple[str, str], float],
    *,
    x: str,
    y: str,
    kind: str,
) -> str:
    """Draw a matrix ``(row, column) -> value`` in the colour of ``kind``.

    A cell's depth is its share of the row; a missing value is a hole.
    """
    left, top, cell, width = 96, 56, 44, (WIDTH - 100) / max(len(columns), 1)
    parts = [_text(4, 16, title, "title"), _text(left, 34, f"{x} \N{RIGHTWARDS ARROW}", "tick")]
    parts.append(_text(4, 50, f"{y} \N{DOWNWARDS ARROW}", "tick"))
    for j, column in enumerate(columns):
        parts.append(_text(left + (j + 0.5) * width, 50, column, "label", "middle"))
    for i, row in enumerate(rows):
        total = math.fsum(values.get((row, column), 0.0) for column in columns)
        at = top + i * cell
        parts.append(_text(left - 8, at + cell / 2 + 4, row, "label", "end"))
        for j, column in enumerate(columns):
            value = values.get((row, column))
            share = value / total if value is not None and total > 0 else 0.0
            spot = f'x="{left + j * width:.1f}" y="{at}" width="{width - 3:.1f}" height="{cell - 3}"'
            parts.append(f'<rect class="cell {kind}" {spot} style="fill-opacity:{share:.3f}"/>')
            words = "not run" if value is None else f"{value:g}" if total <= 0 else f"{value:g} ({share:.0%})"
            ink = "on" if share > 0.6 else "label"
            parts.append(_text(left + (j + 0.5) * width - 1.5, at + cell / 2 + 3, words, ink, "middle"))
    return _svg(f"{title}: {y} by {x}", top + cell * len(rows) + 4, parts)


def _text(x: float, y: float, words: str, kind: str, anchor: str = "start") -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>' if words else ""
    )


def _svg(description: str, height: float, parts: Sequence[str]) -> str:
    name = escape(description, quote=True)
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{name}">{"".join(parts)}</svg>'

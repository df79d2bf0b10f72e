"""Small inline SVG plots for the report: lines, and confusion matrices (bars are in ``bars.py``).

Hand-made so that the page stays small, works without network or script, and follows the page's light or dark colours:
marks carry classes (``printed``, ``as_published``, ``corrected``, ``grid``, ``band``, ``rule``) that the page styles.
Every text is escaped; every plot has a description for screen readers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from lit_ctg.results.svg import WIDTH, Axis, Interval, frame, line, text, tick_text, ticks, without_collisions

Point = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """One curve: class (whose it is), points, and a band of intervals ``x -> (low, high)``."""

    kind: str
    points: Sequence[Point]
    band: Mapping[float, Interval] = field(default_factory=dict)


def value_range(lines: Sequence[Line], rules: Sequence[tuple[str, float]] = (), log: bool = False) -> Interval:
    """Return a range that holds all points and rules with a little air, for panels that share an axis.

    Bands do not stretch it to more than twice the points' span: a wide interval is cut at the frame.
    """
    values = [y for one in lines for _, y in one.points if math.isfinite(y) and (y > 0 or not log)]
    values += [y for _, y in rules if math.isfinite(y)]
    if not values:
        return (1.0, 10.0)
    low, high = min(values), max(values)
    bounds = [b for one in lines for pair in one.band.values() for b in pair if math.isfinite(b)]
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
    steps: Sequence[str] = (),
    about: str = "",
) -> str:
    """Draw curves with their interval bands and labelled horizontal rules.

    ``steps`` are the words on an x axis of equal steps, whose points then stand at 0, 1, ...; ``about`` goes before the
    description for screen readers.
    """
    height, right, top, bottom = 300, 14, 48, 42
    low, high = limits or value_range(lines, rules, log)
    marks = ticks(low, high, log)
    left = 18 + 6.6 * max(len(tick_text(mark)) for mark in marks or [low])
    xs = sorted({point[0] for one in lines for point in one.points}) or [0.0, 1.0]
    first, last = (0.0, max(len(steps) - 1.0, 1.0)) if steps else (xs[0], max(xs[-1], xs[0] + 1e-9))
    if not steps and xs[-1] == xs[0]:
        first, last = xs[0] - 1, xs[0] + 1
    px = Axis(first, last, left + (24 if steps else 8), WIDTH - right - (24 if steps else 8))
    py = Axis(low, high, height - bottom, top, log)

    parts = [text(4, 16, title, "title"), text(4, 34, y + (" (log scale)" if log else ""), "tick")]
    for mark in marks:
        parts.append(line("grid", left, py(mark), WIDTH - right, py(mark)))
        parts.append(text(left - 6, py(mark) + 4, tick_text(mark), "tick", "end"))
    places = [(px(at), words) for at, words in enumerate(steps)]
    places = places or [(px(mark), tick_text(mark)) for mark in (xs if len(xs) <= 10 else ticks(first, last))]
    parts += [text(at, height - bottom + 18, words, "tick", "middle") for at, words in without_collisions(places)]
    for label, value in rules:
        parts.append(line("rule", left, py(value), WIDTH - right, py(value)))
        parts.append(text(WIDTH - right, py(value) - 5, label, "tick", "end"))
    for one in lines:
        band = [(at, pair) for at, pair in sorted(one.band.items()) if all(map(math.isfinite, pair))]
        if len(band) > 1:
            outline = [(at, pair[0]) for at, pair in band] + [(at, pair[1]) for at, pair in reversed(band)]
            points = " ".join(f"{px(at):.1f},{py(value):.1f}" for at, value in outline)
            parts.append(f'<polygon class="band {one.kind}" points="{points}"/>')
    for one in lines:
        shown = [(at, value) for at, value in one.points if math.isfinite(value)]
        points = " ".join(f"{px(at):.1f},{py(value):.1f}" for at, value in shown)
        if len(shown) > 1:
            parts.append(f'<polyline class="curve {one.kind}" points="{points}"/>')
        for at, value in shown:
            place = steps[int(at)] if steps else f"{at:g}"
            hover = f"<title>{escape(f'{one.kind}, {x} {place}: {value:.4g}'.replace('_', ' '))}</title>"
            parts.append(
                f'<circle class="dot {one.kind}" cx="{px(at):.1f}" cy="{py(value):.1f}" r="3.2">{hover}</circle>'
            )
    parts.append(text((left + WIDTH - right) / 2, height - 6, x, "tick", "middle"))
    return frame(f"{about}{title}: {y} by {x}", height, parts)


def heat_map(
    title: str,
    columns: Sequence[str],
    rows: Sequence[str],
    values: Mapping[tuple[str, str], float],
    *,
    x: str,
    y: str,
    kind: str,
    about: str = "",
) -> str:
    """Draw a matrix ``(row, column) -> value`` in the colour of ``kind``.

    A cell's depth is its share of the row; a missing value is a hole.
    """
    left, top, cell, width = 96, 56, 44, (WIDTH - 100) / max(len(columns), 1)
    parts = [text(4, 16, title, "title"), text(left, 34, f"{x} \N{RIGHTWARDS ARROW}", "tick")]
    parts.append(text(4, 50, f"{y} \N{DOWNWARDS ARROW}", "tick"))
    for j, column in enumerate(columns):
        parts.append(text(left + (j + 0.5) * width, 50, column, "label", "middle"))
    for i, row in enumerate(rows):
        total = math.fsum(values.get((row, column), 0.0) for column in columns)
        at = top + i * cell
        parts.append(text(left - 8, at + cell / 2 + 4, row, "label", "end"))
        for j, column in enumerate(columns):
            value = values.get((row, column))
            share = value / total if value is not None and total > 0 else 0.0
            spot = f'x="{left + j * width:.1f}" y="{at}" width="{width - 3:.1f}" height="{cell - 3}"'
            parts.append(f'<rect class="cell {kind}" {spot} style="fill-opacity:{share:.3f}"/>')
            words = "not run" if value is None else f"{value:g}" if total <= 0 else f"{value:g} ({share:.0%})"
            ink = "on" if share > 0.6 else "label"
            parts.append(text(left + (j + 0.5) * width - 1.5, at + cell / 2 + 3, words, ink, "middle"))
    return frame(f"{about}{title}: {y} by {x}", top + cell * len(rows) + 4, parts)

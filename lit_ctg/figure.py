"""The drawing library: SVG for the report, for papers' figures and for metrics' ``plot()``; no script, no network.

Hand-made so that a page stays small and follows its reader's light or dark colours: marks carry classes (``printed``,
``as_published``, ``corrected``, ``series0`` to ``series5``, ``grid``, ``band``, ``rule``) that ``figure.css`` styles; a
picture on its own (``Drawing``) carries these rules itself. Every text is escaped, every plot described for screen
readers.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from lit_ctg.files import write_atomic
from lit_ctg.numbers import format_value

Interval = tuple[float, float]

WIDTH = 460
# letters of a title beyond which it would be cut
_SQUEEZED = 54
# more dots on one line would touch; the line itself goes through every point
MOST_DOTS = 26
# width of the widest letters of the page's font at 12 px, so that labels never overlap
LETTER = 6.6


@dataclass(frozen=True)
class Axis:
    """Maps values from ``low`` to ``high`` onto pixels from ``start`` to ``stop``; values beyond are put at the end."""

    low: float
    high: float
    start: float
    stop: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Return the pixel of a value."""
        value = min(max(value, self.low), self.high)
        scale = math.log if self.log else float
        share = (scale(value) - scale(self.low)) / (scale(self.high) - scale(self.low))
        return self.start + share * (self.stop - self.start)

    def holds(self, value: float) -> bool:
        """Say whether a value lies on the axis."""
        return self.low <= value <= self.high


def ticks(low: float, high: float, log: bool = False) -> list[float]:
    """Return three to about eight round numbers in [low, high]; on a log axis 1, 2, 3, 5 times powers of ten."""
    if log:
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        if len(powers) > 4:
            step = math.ceil((len(powers) - 2) / 7)
            marks = [10.0**power for power in powers if power % step == 0]
        else:
            marks = [digit * 10.0**power for power in powers for digit in (1, 2, 3, 5)]
        marks = [mark for mark in marks if low * 0.999 <= mark <= high * 1.001]
        if len(marks) >= 3:
            return marks
        # within a factor of about three, equal steps do as well
    rough = (high - low) / 5 or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    size = next(size * power for size in (1, 2, 2.5, 5, 10) if size * power >= rough * 0.999)
    first, last = math.ceil(low / size - 1e-9), math.floor(high / size + 1e-9)
    return [round(i * size, 12) for i in range(first, last + 1)]


def tick_text(value: float) -> str:
    """Return a tick in few characters: 20, 0.5, 10,000, 1e6."""
    if 1e3 <= abs(value) < 1e6 and value == round(value):
        return f"{value:,.0f}"
    return f"{value:g}".replace("e+0", "e").replace("e+", "e").replace("e-0", "e-")


def without_collisions(places: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """Return labels (middle, words) without those that would touch the one before; the last one always stays."""
    kept: list[tuple[float, str]] = []
    for at, words in places:
        if not kept or at - kept[-1][0] >= (len(words) + len(kept[-1][1])) / 2 * LETTER + 4:
            kept.append((at, words))
        elif (at, words) == places[-1] and len(kept) > 1:
            kept[-1] = (at, words)
    return kept


def text(x: float, y: float, words: str, kind: str, anchor: str = "start") -> str:
    """Return escaped words at a place, nothing for no words."""
    if not words:
        return ""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def heading(title: str) -> str:
    """Return a panel's title; one too long for the panel is squeezed into it."""
    made = text(4, 16, title, "title")
    if len(title) <= _SQUEEZED:
        return made
    return made.replace("<text ", f'<text textLength="{WIDTH - 8}" lengthAdjust="spacingAndGlyphs" ', 1)


def line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    """Return a straight line."""
    return f'<line class="{kind}" x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}"/>'


def frame(description: str, height: float, parts: Sequence[str]) -> str:
    """Return the whole picture, named for screen readers."""
    name = escape(description, quote=True)
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{name}">{"".join(parts)}</svg>'


def style_sheet() -> str:
    """Return the rules that colour the classes of all plots, for light and dark pages."""
    return Path(__file__).with_name("figure.css").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Drawing:
    """One or more standalone plots: a notebook shows them, ``save`` writes them; any browser displays them."""

    plots: tuple[str, ...]

    @property
    def svg(self) -> str:
        """The first plot as a complete SVG file, with its style."""
        start = '<svg xmlns="http://www.w3.org/2000/svg"'
        svg = self.plots[0].replace("<svg", start, 1)
        return svg.replace(">", f"><style>{escape(style_sheet(), quote=False)}</style>", 1)

    @property
    def html(self) -> str:
        """All plots as one page without scripts, under a policy that allows none."""
        policy = "default-src 'none'; style-src 'unsafe-inline'"
        body = "\n".join(self.plots)
        return (
            '<!doctype html>\n<meta charset="utf-8">'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<style>\n{style_sheet()}"
            "body { background: var(--ground); } svg { max-width: 640px; display: block; }\n</style>\n"
            f"{body}\n"
        )

    def _repr_html_(self) -> str:
        """The form that a notebook shows."""
        return f"<style>{style_sheet()}</style>{''.join(self.plots)}"

    def _repr_svg_(self) -> str:
        """What is kept in a notebook that was run: the first plot."""
        return self.svg

    def save(self, path: Path | str) -> None:
        """Write the first plot as ``.svg``, or all of them as a page under any other suffix.

        Raises:
            UserError: the file cannot be written.
        """
        write_atomic(Path(path), self.svg + "\n" if Path(path).suffix == ".svg" else self.html)


FEW = 16  # plots of a sheet that fit on two screens


def sheet(plots: Sequence[str], legend: Sequence[tuple[str, str]] = (), about: str = "") -> str:
    """Return plots as one SVG file on a ground of its own, the legend (class, words) above them.

    Up to ``FEW`` plots stand in two columns, more in four.

    The file carries its style: it follows the light or dark colours of whatever page shows it.
    """
    columns, gap = (1 if len(plots) == 1 else 2 if len(plots) <= FEW else 4), 16
    width = columns * WIDTH + (columns + 1) * gap
    parts, at, row = [], gap, 0.0
    place = float(gap)
    for kind, words in legend:
        wide = 24 + LETTER * len(words)
        if place > gap and place + wide > width - gap:
            place, at = float(gap), at + 20
        parts.append(_sign(kind, place, at) + text(place + 20, at + 11, words, "tick"))
        place += wide + 14
    top = float(at + (26 if legend else 0))
    for number, plot in enumerate(plots):
        height = float(re.match(r'<svg viewBox="0 0 \d+ (\d+)"', plot)[1])  # type: ignore[index] # as frame() writes it
        if number % columns == 0:
            top, row = top + row, 0.0
        x = gap + (number % columns) * (WIDTH + gap)
        parts.append(plot.replace("<svg", f'<svg x="{x}" y="{top:.0f}" width="{WIDTH}" height="{height:.0f}"', 1))
        row = max(row, height + gap)
    height = top + row
    start = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.0f}" width="{width}"'
    name = escape(about, quote=True)
    ground = f'<rect class="ground" width="{width}" height="{height:.0f}" rx="8"/>'
    style = f"<style>{escape(style_sheet(), quote=False)}</style>"
    return f'{start} role="img" aria-label="{name}">{style}{ground}{"".join(parts)}</svg>\n'


def _sign(kind: str, x: float, y: float) -> str:
    """Return the sign before the words of a legend."""
    if kind == "printed":
        corners = f"{x + 6:.0f},{y} {x + 12:.0f},{y + 6} {x + 6:.0f},{y + 12} {x:.0f},{y + 6}"
        return f'<polygon class="mark printed" points="{corners}"/>'
    if kind == "expected":
        return line("expected", x + 6, y, x + 6, y + 13)
    return f'<rect class="{kind}" x="{x:.0f}" y="{y}" width="12" height="12"/>'


# --- lines and matrices ---------------------------------------------------------------------------------------------

Point = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """One curve: class (whose it is), points, a band of intervals ``x -> (low, high)``, and a name for a legend.

    ``labels`` are words beside the points, one each: the curve is then a way through two measures (a Pareto curve), in
    the order of its points.
    """

    kind: str
    points: Sequence[Point]
    band: Mapping[float, Interval] = field(default_factory=dict)
    name: str = ""
    labels: Sequence[str] = ()


def value_range(lines: Sequence[Line], rules: Sequence[tuple[str, float]] = (), log: bool = False) -> Interval:
    """Return a range that holds all points and rules with a little air, for panels that share an axis.

    Bands do not stretch it to more than twice the points' span: a wide interval is cut at the frame.
    """
    values = [y for one in lines for _, y in one.points if math.isfinite(y) and (y > 0 or not log)]
    values += [y for _, y in rules if math.isfinite(y) and (y > 0 or not log)]
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
    log_x: bool = False,
    limits: Interval | None = None,
    rules: Sequence[tuple[str, float]] = (),
    steps: Sequence[str] = (),
    about: str = "",
) -> str:
    """Draw curves with their interval bands and labelled horizontal rules.

    ``log`` and ``log_x`` are scales, for values above 0. ``steps`` are the words on an x axis of equal steps, whose
    points then stand at 0, 1, ...; ``about`` goes before the description for screen readers.
    """
    named = [one for one in lines if one.name]
    height, right, top, bottom = 300 + 16 * len(named), 14, 48 + 16 * len(named), 42
    low, high = limits or value_range(lines, rules, log)
    marks = ticks(low, high, log)
    left = 18 + 6.6 * max(len(tick_text(mark)) for mark in marks or [low])
    xs = sorted({point[0] for one in lines for point in one.points}) or [0.0, 1.0]
    first, last = (0.0, max(len(steps) - 1.0, 1.0)) if steps else (xs[0], max(xs[-1], xs[0] + 1e-9))
    if not steps and xs[-1] == xs[0]:
        first, last = xs[0] - 1, xs[0] + 1
    labelled = any(one.labels for one in lines)
    # room for words beside the outermost points
    edge = 24 if steps or labelled else 8
    px = Axis(first, last, left + edge, WIDTH - right - edge, log_x)
    py = Axis(low, high, height - bottom, top, log)

    parts = [heading(title), text(4, 34, y + (" (log scale)" if log else ""), "tick")]
    for at, one in enumerate(named):
        parts.append(f'<rect class="{one.kind}" x="4" y="{42 + 16 * at}" width="11" height="11"/>')
        parts.append(text(20, 52 + 16 * at, one.name, "tick"))
    for mark in marks:
        parts.append(line("grid", left, py(mark), WIDTH - right, py(mark)))
        parts.append(text(left - 6, py(mark) + 4, tick_text(mark), "tick", "end"))
    places = [(px(at), words) for at, words in enumerate(steps)]
    own = xs if len(xs) <= 10 and not labelled else ticks(first, last, log_x)
    places = places or [(px(mark), tick_text(mark)) for mark in own]
    parts += [text(at, height - bottom + 18, words, "tick", "middle") for at, words in without_collisions(places)]
    for label, value in rules:
        if not math.isfinite(value) or (log and value <= 0):
            continue
        parts.append(line("rule", left, py(value), WIDTH - right, py(value)))
        parts.append(text(WIDTH - right, py(value) - 5, label, "tick", "end"))
    for one in lines:
        for stretch in _stretches(one):
            if len(stretch) == 1:
                x_at, (low_end, high_end) = stretch[0]
                parts.append(line("whisker", px(x_at), py(low_end), px(x_at), py(high_end)))
                continue
            outline = [(at, pair[0]) for at, pair in stretch] + [(at, pair[1]) for at, pair in reversed(stretch)]
            points = " ".join(f"{px(at):.1f},{py(value):.1f}" for at, value in outline)
            parts.append(f'<polygon class="band {one.kind}" points="{points}"/>')
    for one in lines:
        shown = [(x_at, value) for x_at, value in one.points if math.isfinite(value)]
        points = " ".join(f"{px(x_at):.1f},{py(value):.1f}" for x_at, value in shown)
        if len(shown) > 1:
            parts.append(f'<polyline class="curve {one.kind}" points="{points}"/>')
        stride = max(1, math.ceil(len(shown) / MOST_DOTS))
        for x_at, value in shown[::-stride][::-1]:  # the last one is always among them
            place = steps[int(x_at)] if steps else f"{x_at:g}"
            whose = one.name or one.kind.replace("_", " ")
            if one.labels:
                whose = f"{whose}, {one.labels[list(one.points).index((x_at, value))]}"
            hover = f"<title>{escape(f'{whose}, {x} {place}: {value:.4g}')}</title>"
            parts.append(
                f'<circle class="dot {one.kind}" cx="{px(x_at):.1f}" cy="{py(value):.1f}" r="3.2">{hover}</circle>'
            )
    spots = [
        (px(at), py(value), words)
        for one in lines
        for words, (at, value) in zip(one.labels, one.points, strict=False)
        if math.isfinite(value)
    ]
    parts += _beside(spots, (left, WIDTH - 2.0))
    below = x + (" (log scale)" if log_x else "")
    parts.append(text((left + WIDTH - right) / 2, height - 6, below, "tick", "middle"))
    return frame(f"{about}{title}: {y} by {x}", height, parts)


def _stretches(one: Line) -> list[list[tuple[float, Interval]]]:
    """Return the runs of neighbouring points that have a finite interval: between others nothing is known of it."""
    runs: list[list[tuple[float, Interval]]] = [[]]
    for at, _ in one.points:
        pair = one.band.get(at)
        if pair is not None and all(map(math.isfinite, pair)):
            runs[-1].append((at, pair))
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _beside(spots: Sequence[tuple[float, float, str]], sides: Interval) -> list[str]:
    """Return words beside points, each where it touches no other point or words; none where there is no such place."""
    taken = [(x - 4, x + 4, y - 4, y + 4) for x, y, _ in spots]
    parts = []
    for x, y, words in spots:
        wide = LETTER * len(words)
        for right, down in ((True, -5), (False, -5), (True, 14), (False, 14)):
            start = x + 6 if right else x - 6 - wide
            box = (start, start + wide, y + down - 10, y + down + 2)
            free = all(box[1] < a or b < box[0] or box[3] < c or d < box[2] for a, b, c, d in taken)
            if free and sides[0] <= start and start + wide <= sides[1]:
                taken.append(box)
                parts.append(text(x + 6 if right else x - 6, y + down, words, "tick", "start" if right else "end"))
                break
    return parts


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


# --- bars -----------------------------------------------------------------------------------------------------------

BAR = 13


@dataclass(frozen=True)
class Bar:
    """One bar: class, value (None: a hole), interval, and the expected value."""

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
    """Return the ends of the axis: 0 (log: 1, or the power of ten below the least value) to the longest bar.

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
    base: float | None = None,
) -> str:
    """Draw horizontal bars of ``measure``: label above, interval as a whisker, printed value as a diamond.

    Bars begin at ``base``: by default 0, or on a log scale the axis' end.
    """
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
            body += _bar(one, axis, at, group.digits, base)
            at += BAR + 3
        if group.printed is not None:
            body.append(_diamond(axis(group.printed), (start + at - 3) / 2, group.printed))
        at += 7
    marks = [(axis(mark), tick_text(mark)) for mark in ticks(low, high, log)]
    # the axis begins near the frame, which would cut a long number's first letter
    marks = [(max(spot, LETTER * len(words) / 2), words) for spot, words in marks]
    parts += [line("grid", spot, top, spot, at) for spot, _ in marks]
    parts += [text(spot, at + 14, words, "tick", "middle") for spot, words in without_collisions(marks)]
    return frame(about + ", ".join(filter(None, (title, measure))), at + 22, parts + body)


def _value_text(one: Bar, digits: int) -> str:
    return "not run" if one.value is None else format_value(one.value, digits)


def _bar(one: Bar, axis: Axis, at: float, digits: int, base: float | None) -> list[str]:
    middle = at + BAR / 2
    if one.value is None or not math.isfinite(one.value):  # where its number would be: a printed one may stand left
        return [text(WIDTH - 4, at + BAR - 2, _value_text(one, digits), "tick", "end")]
    zero = axis(base) if base is not None else axis(0.0) if axis.low < 0 < axis.high else axis.start
    x, end = sorted((zero, axis(one.value)))
    parts = [f'<rect class="{one.kind}" x="{x:.1f}" y="{at:.1f}" height="{BAR}" width="{end - x:.1f}"/>']
    if one.interval is not None:
        a, b = axis(one.interval[0]), axis(one.interval[1])
        path = f"M{a:.1f} {middle}H{b:.1f}"
        # no cap where the interval continues beyond the frame
        path += "".join(f"M{axis(end):.1f} {middle - 4}V{middle + 4}" for end in one.interval if axis.holds(end))
        parts.append(f'<path class="whisker" d="{path}"/>')
    if one.expectation is not None:
        parts.append(line("expected", axis(one.expectation), at - 1, axis(one.expectation), at + BAR + 1))
    parts.append(text(WIDTH - 4, at + BAR - 2, _value_text(one, digits), "tick", "end"))
    return parts


def _diamond(x: float, y: float, value: float) -> str:
    corners = f"{x:.1f},{y - 6:.1f} {x + 6:.1f},{y:.1f} {x:.1f},{y + 6:.1f} {x - 6:.1f},{y:.1f}"
    return f'<polygon class="mark printed" points="{corners}"><title>printed: {value:g}</title></polygon>'


# --- two lists of words ---------------------------------------------------------------------------------------------

# "word 0.123, word 0.045"; a word may itself be a comma
_PAIR = re.compile(r"(.*?) (\d\.\d+)(?:, |$)")
ROW = 20
# letters of a title that fit a line
_LINE = 50
_LEFT, _RIGHT, _FULL = 190.0, WIDTH - 190.0, 60.0

Words = list[tuple[str, float]]


def read_words(listed: str) -> Words:
    """Read a sample of best words, ``word probability, ...``, best first; words without one are left out."""
    return [(word, float(probability)) for word, probability in _PAIR.findall(listed)]


def word_shift(title: str, before: Words, after: Words, *, names: Sequence[str], kind: str, about: str = "") -> str:
    """Draw two lists of words with bars of their probabilities; lines join the words that are in both."""
    top = max([probability for _, probability in [*before, *after]], default=1.0) or 1.0
    lines = textwrap.wrap(title, _LINE)
    parts = [text(4, 16 + 18 * at, words, "title") for at, words in enumerate(lines)]
    head = 18 * len(lines) + 20
    parts += [text(_LEFT - 6, head, names[0], "tick", "end"), text(_RIGHT + 6, head, names[1], "tick")]
    top_row, first, second = head + 10, _counted(before), _counted(after)
    places = {word: rank for rank, word in enumerate(second)}
    for rank, (word, probability) in enumerate(before):
        y, width = top_row + rank * ROW, _FULL * probability / top
        parts.append(f'<rect class="neutral" x="{_LEFT - width:.1f}" y="{y}" width="{width:.1f}" height="14"/>')
        parts.append(text(_LEFT - _FULL - 6, y + 11, f"{_shown(word)} {probability:.3f}", "label", "end"))
        if first[rank] in places:
            parts.append(line(f"shift {kind}", _LEFT + 3, y + 7, _RIGHT - 3, top_row + places[first[rank]] * ROW + 7))
    for rank, (word, probability) in enumerate(after):
        y, width = top_row + rank * ROW, _FULL * probability / top
        parts.append(f'<rect class="{kind}" x="{_RIGHT:.1f}" y="{y}" width="{width:.1f}" height="14"/>')
        ink = "label" if second[rank] in first else "section"
        parts.append(text(_RIGHT + _FULL + 6, y + 11, f"{_shown(word)} {probability:.3f}", ink))
    return frame(f"{about}{title}: {names[0]} to {names[1]}", top_row + 8 + ROW * max(len(before), len(after)), parts)


def _shown(word: str) -> str:
    """Return a word that fits its column; a token without letters is quoted."""
    word = word if word.strip() and word.isprintable() else repr(word)[1:-1] or "(space)"
    return word if len(word) <= 11 else word[:10] + "\N{HORIZONTAL ELLIPSIS}"


def _counted(words: Words) -> list[tuple[str, int]]:
    """Number repeated words by earlier occurrences: different pieces of characters may look the same."""
    return [(word, sum(other == word for other, _ in words[:rank])) for rank, (word, _) in enumerate(words)]

"""Charts by matplotlib: the report, papers' figures, the field, the play page and metrics' ``plot()``.

A ``Chart`` draws itself on any axes; a ``Sheet`` of charts is written as SVG, PNG or PDF. The ground is transparent.
Every colour can be read on a white and on a black page. The same charts give the same bytes. In SVG, words stay text,
each part has the class of its kind (``printed``, ``corrected``, ``series0`` ...), and points show their value on hover.
"""

from __future__ import annotations

import math
import re
import textwrap
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape, unescape
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from lit_ctg.errors import UserError
from lit_ctg.files import write_atomic
from lit_ctg.numbers import format_value

Interval = tuple[float, float]
Point = tuple[float, float]

INK = "#787b80"
_SERIES = ("#3d85cc", "#c9761c", "#2e9a5b", "#a06acb", "#d6584c", INK)
COLOURS = {
    **{f"series{number}": colour for number, colour in enumerate(_SERIES)},
    **{"corrected": _SERIES[0], "as_published": _SERIES[1], "rule": _SERIES[3]},
    **dict.fromkeys(("printed", "expected", "neutral"), INK),
}
FORMATS = ("svg", "png", "pdf")

WIDTH = 5.0  # of a chart, inches
LETTER = 0.078  # about the width of a letter, inches
FEW = 16  # charts of a sheet that fit on two screens

_STYLE = {
    **{"svg.fonttype": "none", "svg.hashsalt": "lit_ctg", "pdf.fonttype": 42, "text.parse_math": False},
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), "none"),
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
    **{"axes.spines.top": False, "axes.spines.right": False, "xtick.major.size": 0, "ytick.major.size": 0},
    **{"grid.color": INK, "grid.alpha": 0.3, "axes.axisbelow": True, "legend.frameon": False, "savefig.dpi": 160},
    **{"font.size": 9, "axes.titlesize": 11, "axes.titleweight": "bold", "axes.titlelocation": "left"},
    **{"font.family": "DejaVu Sans"},
}
# matplotlib's settings are global, and the play page draws in threads
_LOCK = threading.RLock()


@contextmanager
def _styled() -> Iterator[None]:
    with _LOCK, style.context(["default", _STYLE]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # SVG leaves the choice of a font to its reader
        yield


@dataclass(frozen=True)
class Chart:
    """One chart: a function that draws it on axes, the axes' height, margins and a description for screen readers.

    Lengths are inches, margins left, right, top, bottom.
    """

    draw: Callable[[Axes], object]
    about: str
    height: float = 2.6
    margins: tuple[float, float, float, float] = (0.7, 0.15, 0.4, 0.5)

    def on(self, ax: Axes | None = None) -> tuple[Figure, Axes]:
        """Draw on ``ax``, by default on a new figure of pyplot; return figure and axes."""
        with _styled():
            if ax is None:
                from matplotlib import pyplot

                ax = self.place(pyplot.figure(figsize=(WIDTH, self.outer_height)), 0.0, 0.0)
            self.draw(ax)
        figure = ax.get_figure(root=True)
        assert figure is not None, "axes that belong to no figure"
        return figure, ax

    @property
    def outer_height(self) -> float:
        return self.height + self.margins[2] + self.margins[3]

    def place(self, figure: Figure, x: float, y: float) -> Axes:
        """Return new axes for the chart, whose upper left corner is at (x, y) from the figure's."""
        left, right, top, _ = self.margins
        wide, high = figure.get_size_inches()
        below = high - y - top - self.height
        return figure.add_axes((
            (x + left) / wide, below / high, (WIDTH - left - right) / wide, self.height / high))  # fmt: skip

    @property
    def svg(self) -> str:
        """The chart as an element of a page, whose text colour it takes."""
        return self._repr_svg_().replace(INK, "currentColor").replace(' xmlns="http://www.w3.org/2000/svg"', "")

    def _repr_svg_(self) -> str:
        """The form that a notebook shows."""
        return Sheet((self,), about=self.about).render().decode()


@dataclass(frozen=True)
class Sheet:
    """Charts in one, two or (more than ``FEW``) four columns; above them the legend (kind, words)."""

    charts: Sequence[Chart]
    legend: Sequence[tuple[str, str]] = ()
    about: str = ""

    def render(self, kind: str = "svg") -> bytes:
        """Return the file of a format (``UserError``: unknown format)."""
        if kind not in FORMATS:
            raise UserError(f"format {kind or 'without a name'}: a figure is one of {', '.join(FORMATS)}")
        empty = {"svg": ("Date", "Creator", "Format", "Type"), "pdf": ("CreationDate",), "png": ("Software",)}[kind]
        made = BytesIO()
        with _styled():
            self._figure().savefig(made, format=kind, metadata=dict.fromkeys(empty))
        return _tidy(made.getvalue().decode(), self.about).encode() if kind == "svg" else made.getvalue()

    def save(self, path: Path | str) -> None:
        """Write the sheet in the format that the suffix names, whole or not at all.

        Raises:
            UserError: unknown format, or the file cannot be written.
        """
        write_atomic(Path(path), self.render(Path(path).suffix[1:]))

    def _figure(self) -> Figure:
        columns = 1 if len(self.charts) == 1 else 2 if len(self.charts) <= FEW else 4
        longest = max((len(words) for _, words in self.legend), default=1)
        beside = max(1, int(columns * WIDTH / (0.5 + LETTER * longest)))
        top = 0.2 + 0.2 * math.ceil(len(self.legend) / beside) if self.legend else 0.0
        rows = [self.charts[start : start + columns] for start in range(0, len(self.charts), columns)]
        heights = [max(chart.outer_height for chart in row) for row in rows]
        figure = Figure((columns * WIDTH, top + sum(heights)))
        for number, row in enumerate(rows):
            for place, chart in enumerate(row):
                chart.draw(chart.place(figure, place * WIDTH, top + sum(heights[:number])))
        if self.legend:
            handles = [_sign(kind, words) for kind, words in self.legend]
            figure.legend(handles=handles, loc="upper left", ncols=beside, borderaxespad=0.5)
        return figure


def _sign(kind: str, words: str) -> Any:
    if kind in ("printed", "expected"):
        return Line2D([], [], color=INK, ls="", marker="D" if kind == "printed" else "|", label=words)
    return Patch(color=COLOURS[kind], label=words)


def _tidy(svg: str, about: str) -> str:
    """Return matplotlib's SVG with a description, without its names of parts, which would not be unique in a page."""
    svg = svg[svg.index("<svg") :].replace("<svg", f'<svg role="img" aria-label="{escape(about)}"', 1)
    svg = re.sub(r' transform="rotate\(-0 [^"]*"|<g id="[^"]*"/>', "", re.sub("\n *", "\n", svg))
    svg = re.sub(r' (?:x|y|d)="[^"]*"', lambda match: re.sub(r"(\.\d\d)\d+", r"\1", match[0]), svg)
    svg = svg.replace("font-family: 'DejaVu Sans'; ", "").replace("xlink:href", "href")
    svg = svg.replace("butt}", "butt} text{font-family: 'DejaVu Sans', sans-serif}")
    svg = svg.replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', "")
    hover: list[str] = []

    def named(match: re.Match[str]) -> str:
        if match["id"] is not None:
            kind, *words = unescape(match["id"]).split("\t")
            hover[:] = words
            return f'<g class="{kind}">' if kind in COLOURS else "<g>"
        return f"<use{match['use']}><title>{escape(hover.pop(0))}</title></use>" if hover else match[0]

    svg = re.sub(r'<g id="(?P<id>[^"]*)">|<use(?P<use>[^>]*)/>', named, svg)
    return re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", "\N{REPLACEMENT CHARACTER}", svg)


def _kind(kind: str, hover: Sequence[str] = ()) -> dict[str, Any]:
    """Return the colour of a kind, and its name with the words of its points for ``_tidy``."""
    words = (" ".join(each.split()) for each in hover)
    return {"color": COLOURS[kind], "gid": "\t".join([kind, *words])}


def _title(ax: Axes, title: str, pad: float = 8.0) -> None:
    """Set a title; one too long for the chart becomes smaller."""
    title = " ".join(title.split())
    ax.set_title(title, y=1.0, pad=pad, fontsize=11 * min(1.0, 44 / max(len(title), 1)))


def tick_text(value: float) -> str:
    """Return a tick in few characters: 20, 0.5, 10,000, 1e6."""
    if 1e3 <= abs(value) < 1e6 and value == round(value):
        return f"{value:,.0f}"
    return f"{round(value, 12):g}".replace("e+0", "e").replace("e+", "e").replace("e-0", "e-")


def _ticks(axis: Axis, log: bool, limits: Interval, whole: bool = False) -> None:
    """Put about six round ticks on an axis; on a log scale round digits times powers of ten."""
    decades = math.log10(limits[1] / limits[0]) if log else 0.0
    digits = (1, 2, 3, 5) if decades < 1.5 else (1, 3) if decades < 4 else (1,)
    # within a factor of three equal steps do as well
    locator = LogLocator(subs=digits) if decades > 0.5 else MaxNLocator(6, steps=[1, 2, 2.5, 5, 10], integer=whole)
    axis.set_major_locator(locator)
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: tick_text(value)))


# --- lines ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """One curve: kind (whose it is), points, a band of intervals ``x -> (low, high)``, and a name for a legend.

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
) -> Chart:
    """Return curves with their interval bands and labelled horizontal rules.

    ``log`` and ``log_x`` are scales, for values above 0. ``steps`` are the words on an x axis of equal steps, whose
    points are then at 0, 1, ...; ``about`` is put before the description for screen readers.
    """
    named = sum(bool(one.name) for one in lines)
    upright = sum(len(step) + 2 for step in steps) * LETTER > WIDTH - 1

    def draw(ax: Axes) -> None:
        _title(ax, title, 10 + 13.5 * named)
        low, high = limits or value_range(lines, rules, log)
        ax.set(xscale="log" if log_x else "linear", yscale="log" if log else "linear", ylim=(low, high))
        ax.set_xlabel(x + " (log scale)" * log_x)
        ax.set_ylabel(y + " (log scale)" * log, fontsize=9 * min(1.0, 40 / max(len(y), 1)))
        ax.grid(axis="y")
        for words, value in rules:
            if math.isfinite(value) and (value > 0 or not log):
                ax.axhline(value, ls=":", lw=1.4, **_kind("rule"))
                ax.text(1, value, words, ha="right", va="bottom", transform=ax.get_yaxis_transform())
        for one in lines:
            _curve(ax, one, x, steps)
        xs = [at for one in lines for at, value in one.points if math.isfinite(value)]
        ax.margins(x=0.12 if any(one.labels for one in lines) else 0.04)
        if steps:
            ax.set_xticks(range(len(steps)), steps, rotation=90 if upright else 0)
        else:
            ends = (min(xs), max(xs)) if xs else (1.0, 10.0)
            _ticks(ax.xaxis, log_x, ends, whole=not log_x and all(float(at).is_integer() for at in xs))
        _ticks(ax.yaxis, log, (low, high))
        _label_points(ax, lines)
        if named:
            ax.legend(loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2, labelspacing=0.3)

    below = 0.5 + (LETTER * max(map(len, steps)) if upright else 0.0)
    return Chart(draw, f"{about}{title}: {y} by {x}", margins=(0.7, 0.15, 0.4 + 0.19 * named, below))


def _curve(ax: Axes, one: Line, x: str, steps: Sequence[str]) -> None:
    """Draw a curve through its finite points, and an interval where one is known: neighbours' are joined."""
    if one.band:
        xs, none = [at for at, _ in one.points], (math.nan, math.nan)
        lows_highs = np.array([one.band.get(at, none) for at in xs], dtype=float)
        known = np.pad(np.isfinite(lows_highs).all(1), 1)
        alone = known[1:-1] & ~known[:-2] & ~known[2:]
        ax.fill_between(xs, *lows_highs.T, alpha=0.16, lw=0, **_kind(one.kind))
        ax.vlines(np.array(xs)[alone], *lows_highs[alone].T, lw=1.2, **_kind(one.kind))
    points = [point for point in enumerate(one.points) if math.isfinite(point[1][1])]
    if not points:
        return
    whose = one.name or one.kind.replace("_", " ")
    hover = []
    for number, (at, value) in points:
        words = f"{whose}, {one.labels[number]}" if one.labels else whose
        hover.append(f"{words}, {x} {steps[int(at)] if steps else f'{at:g}'}: {value:.4g}")
    # on a long line dots would touch; the last one always stays
    stride = math.ceil(len(points) / 26)
    start = (len(points) - 1) % stride
    places, values = zip(*(point for _, point in points), strict=True)
    look = "o--" if one.kind == "printed" else "o-"
    ax.plot(places, values, look, ms=4, lw=1.8, markevery=(start, stride), label=one.name or "_" + one.kind,
            **_kind(one.kind, hover[start::stride]))  # fmt: skip


def _label_points(ax: Axes, lines: Sequence[Line]) -> None:
    """Put words beside points, each where it touches no other point or words; none where there is no such place."""
    spots = [(point, words) for one in lines for point, words in zip(one.points, one.labels, strict=False)]
    ax.get_xlim()  # places are known after the limits
    places = [ax.transData.transform(point) * 72 / ax.figure.dpi for point, _ in spots]
    taken = [(x - 4, x + 4, y - 4, y + 4) for x, y in places]
    left, right = (ax.transAxes.transform((end, 0))[0] * 72 / ax.figure.dpi for end in (0, 1))
    for (x, y), (point, words) in zip(places, spots, strict=True):
        wide = 72 * LETTER * len(words)
        for side, up in ((1, 4), (-1, 4), (1, -12), (-1, -12)):
            start = x + 6 if side > 0 else x - 6 - wide
            box = (start, start + wide, y + up, y + up + 9)
            free = all(box[1] < a or b < box[0] or box[3] < c or d < box[2] for a, b, c, d in taken)
            if free and left <= start and start + wide <= right + 8:
                taken.append(box)
                where = "left" if side > 0 else "right"
                ax.annotate(words, point, (6 * side, up), textcoords="offset points", ha=where, fontsize=8)
                break


# --- bars -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bar:
    """One bar: kind, value (None: a hole), interval, and the expected value."""

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
    beside: bool = False,
) -> Chart:
    """Return horizontal bars of ``measure``: label above, interval as a whisker, printed value as a diamond.

    Bars begin at ``base``: by default 0, or on a log scale the axis' end. Labels ``beside`` the bars take less room.
    """
    low, high = bar_range(groups, low, high, log)
    base = base if base is not None else 0.0 if low < 0 < high else low
    widest = max([len(_value_text(bar, group.digits)) for group in groups for bar in group.bars], default=4)
    sections = [number for number, group in enumerate(groups)
                if group.section and (not number or group.section != groups[number - 1].section)]  # fmt: skip
    # inches down the chart: 0.2 a line of words or a bar, 0.08 between groups
    above = 0.0 if beside else 0.2
    height = sum((0.08 + above + 0.2 * len(group.bars) for group in groups), 0.25 * len(sections)) + 0.05

    def draw(ax: Axes) -> None:
        _title(ax, title)
        ax.set(xscale="log" if log else "linear", xlim=(low, high), ylim=(height, 0))
        ax.set_xlabel(" ".join(filter(None, (measure, "(log scale)" if log else ""))))
        ax.grid(axis="x")
        ax.yaxis.set_visible(False)
        ax.spines["left"].set_visible(False)
        at, across = 0.0, ax.get_yaxis_transform()
        for number, group in enumerate(groups):
            if number in sections:
                ax.text(0, at + 0.13, group.section, weight="bold", va="center", transform=across)
                at += 0.25
            place, side = (-0.02, "right") if beside else (0, "left")
            ax.text(place, at + (0.1 if beside else 0.12), group.label, va="center", ha=side, transform=across)
            at += above
            if group.printed is not None:
                mark = _kind("printed", [f"printed: {group.printed:g}"])
                shown = min(max(group.printed, low), high)
                ax.plot(shown, at + 0.1 * len(group.bars), "D", ms=6, mec="white", mew=0.6, clip_on=False, zorder=4,
                        **mark)  # fmt: skip
            for one in group.bars:
                _bar(ax, one, at + 0.1, (low, base, high), log)
                words = _value_text(one, group.digits)
                ax.text(1, at + 0.1, f"  {words}", va="center", transform=across)
                at += 0.2
            at += 0.08
        _ticks(ax.xaxis, log, (low, high))

    left = 0.066 * max((len(group.label) for group in groups), default=0) if beside else 0.0
    margins = (0.2 + left, 0.3 + LETTER * widest, 0.4, 0.5)
    return Chart(draw, about + ", ".join(filter(None, (title, measure))), height, margins)


def _value_text(one: Bar, digits: int) -> str:
    return "not run" if one.value is None else format_value(one.value, digits)


def _bar(ax: Axes, one: Bar, at: float, scale: tuple[float, float, float], log: bool) -> None:
    if one.value is None or not math.isfinite(one.value):
        return
    low, base, high = scale
    value = min(max(one.value, low), high)
    ax.barh(at, value - base, 0.16, base, alpha=0.8, **_kind(one.kind))
    if one.interval is not None:
        # an end beyond the frame has no cap there
        ends = [max(end, low / 10) if log else end for end in one.interval]
        ax.plot(ends, [at, at], marker="|", ms=6, lw=1.2, color=INK, zorder=3)
    if one.expectation is not None:
        ax.plot([one.expectation] * 2, [at - 0.09, at + 0.09], ls=(0, (1, 0.6)), lw=2.4, **_kind("expected"))


# --- matrices and lists of words ------------------------------------------------------------------------------------


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
) -> Chart:
    """Return a matrix ``(row, column) -> value``; a bar below each value is its share of the row.

    A missing value is a hole.
    """

    def draw(ax: Axes) -> None:
        _title(ax, title, 34)
        ax.set(xlim=(0, len(columns)), ylim=(len(rows), 0), xlabel=x, ylabel=y)
        ax.set_xticks([at + 0.5 for at in range(len(columns))], columns)
        ax.set_yticks([at + 0.5 for at in range(len(rows))], rows)
        ax.xaxis.tick_top()
        ax.xaxis.set_label_position("top")
        for i, row in enumerate(rows):
            total = math.fsum(values.get((row, column), 0.0) for column in columns)
            for j, column in enumerate(columns):
                value = values.get((row, column))
                share = value / total if value is not None and total > 0 else 0.0
                ax.barh(i + 0.7, 0.9, 0.16, j + 0.05, color=INK, alpha=0.25)
                ax.barh(i + 0.7, 0.9 * share, 0.16, j + 0.05, **_kind(kind))
                words = "not run" if value is None else f"{value:g}" if total <= 0 else f"{value:g} ({share:.0%})"
                ax.text(j + 0.5, i + 0.36, words, ha="center", va="center")
        ax.spines[:].set_visible(False)

    left = 0.45 + LETTER * max(map(len, rows), default=0)
    return Chart(draw, f"{about}{title}: {y} by {x}", 0.5 * len(rows), (left, 0.15, 0.8, 0.1))


# "word 0.123, word 0.045"; a word may itself be a comma
_PAIR = re.compile(r"(.*?) (\d\.\d+)(?:, |$)")

Words = list[tuple[str, float]]


def read_words(listed: str) -> Words:
    """Read a sample of best words, ``word probability, ...``, best first; words without one are left out."""
    return [(word, float(probability)) for word, probability in _PAIR.findall(listed)]


def word_shift(title: str, before: Words, after: Words, *, names: Sequence[str], kind: str, about: str = "") -> Chart:
    """Return two lists of words with bars of their probabilities; lines join the words that are in both."""
    heading, longest = textwrap.wrap(title, 46), max(len(before), len(after))
    top = max([probability for _, probability in [*before, *after]], default=1.0) or 1.0

    def draw(ax: Axes) -> None:
        ax.set(xlim=(-1, 1), ylim=(longest, -1.2))
        ax.set_axis_off()
        ax.set_title("\n".join(heading), pad=4)
        first, second = _counted(before), _counted(after)
        for side, words, ranked, other in ((-1, before, first, second), (1, after, second, first)):
            away = "right" if side < 0 else "left"
            ax.text(side * 0.2, -0.7, names[side > 0], ha=away)
            for rank, (word, probability) in enumerate(words):
                colour = _kind("neutral" if side < 0 else kind)
                ax.barh(rank, side * 0.25 * probability / top, 0.7, side * 0.2, **colour)
                weight = "normal" if side < 0 or ranked[rank] in other else "bold"
                ax.text(side * 0.47, rank, f"{_shown(word)} {probability:.3f}", ha=away, va="center", weight=weight)
        for rank, same in enumerate(first):
            if same in second:
                ax.plot([-0.18, 0.18], [rank, second.index(same)], lw=1.3, **_kind(kind))

    margins = (0.1, 0.1, 0.15 + 0.2 * len(heading), 0.05)
    return Chart(draw, f"{about}{title}: {names[0]} to {names[1]}", 0.24 * (longest + 1.2), margins)


def _shown(word: str) -> str:
    """Return a word that fits its column; a token without letters is quoted."""
    word = word if word.strip() and word.isprintable() else repr(word)[1:-1] or "(space)"
    return word if len(word) <= 11 else word[:10] + "\N{HORIZONTAL ELLIPSIS}"


def _counted(words: Words) -> list[tuple[str, int]]:
    """Number repeated words by earlier occurrences: different pieces of characters may look the same."""
    return [(word, sum(other == word for other, _ in words[:rank])) for rank, (word, _) in enumerate(words)]

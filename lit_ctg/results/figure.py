"""The figures of a paper, from its tables' ``plot`` entries (``spec.check_plot``) and its training histories.

`lit-ctg figure` writes them as SVG, PNG or PDF, beside the tables and from the same records: ``headline.svg`` is the
one picture of the paper's manifest, ``<table>.svg`` the panels of a table or figure, and ``training.svg`` the training
curves, of the largest size that was run; those of other sizes are ``<size>_<table>.svg``. The same records give the
same bytes.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from lit_ctg.errors import UserError
from lit_ctg.figure import (
    Bar,
    BarGroup,
    Chart,
    Line,
    Sheet,
    bar_chart,
    bar_range,
    heat_map,
    line_chart,
    read_words,
    value_range,
    word_shift,
)
from lit_ctg.limits import Choice, check_value
from lit_ctg.results.gather import gather
from lit_ctg.results.record import REGIMES, RunRecord
from lit_ctg.results.render import REGIME_TITLES
from lit_ctg.results.spec import MANIFEST, unit_of
from lit_ctg.results.table import Cell, RecordPool, Results, Row, Table
from lit_ctg.results.verdict import MIN_SEEDS, domain_of, mean_interval
from lit_ctg.terminal import Console

# name of a panel -> its chart, or None where no run has anything to draw
Panels = dict[str, Chart | None]


def panels_for(table: Table, beside: Sequence[Table] = ()) -> Panels:
    """Return the table's charts by name; empty if it asks for none.

    ``beside`` are the same table with other runs, shown on the same page: their values count for the axes of lines and
    bars, so that both have the same scales.
    """
    if not table.spec.plot:
        return {}
    kinds = {"line": _lines, "bars": _bars, "matrix": _matrices, "words": _words}
    panels = kinds[kind](table, beside) if (kind := table.spec.plot["kind"]) in kinds else {}
    return panels | _pairs(table)


def plots_for(table: Table) -> list[Chart]:
    """Return the figures that have something to show."""
    return [chart for chart in panels_for(table).values() if chart is not None]


def legend_for(table: Table) -> list[tuple[str, str]]:
    """Return (kind, words) of what the table's plots show."""
    if not table.spec.plot or table.spec.plot["kind"] in ("matrix", "words", "pareto"):
        return []
    drawn = _drawn(table)
    legend = [("printed", "printed")] if any(_number(row) is not None for row in drawn) else []
    for regime in table.regimes:
        if any(_mean(row, regime) is not None for row in drawn):
            legend.append((regime, f"{REGIME_TITLES[regime].lower()} (95% interval)"))
    notes = {q.note for row in drawn for q in row.spec.expectation.values() if q is not None and q.note}
    return legend + [("expected", f"expected: {', '.join(sorted(notes))}")] * bool(notes)


def _drawn(table: Table) -> list[Row]:
    plot = table.spec.plot or {}
    if plot["kind"] == "line":
        return [row for row in table.rows if row.spec.series]
    return [row for row in table.rows if "sections" not in plot or row.spec.section in plot["sections"]]


def _number(row: Row) -> float | None:
    return row.printed.value if row.printed is not None else None


def _cells(row: Row, table: Table) -> list[tuple[str, Cell]]:
    return [(regime, cell) for regime in table.regimes if (cell := row.cells[regime]) is not None]


def _series(table: Table) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in table.rows:
        if row.spec.series:
            groups.setdefault(row.spec.series, []).append(row)
    return groups


def _lines(table: Table, beside: Sequence[Table]) -> Panels:
    plot = table.spec.plot or {}
    log, series = bool(plot.get("log")), _series(table)
    steps: list[str] = []
    if plot.get("xscale") == "steps":
        steps = list(dict.fromkeys(str(row.spec.x) for rows in series.values() for row in rows))
    curves = {name: _curves(rows, table, steps) for name, rows in series.items()}
    rules = {name: _rules(rows, table) for name, rows in series.items()}
    units = {name: unit_of(rows[0].spec) for name, rows in series.items()}
    limits = {}
    for unit in set(units.values()):
        alike = [
            (rows, one) for one in (table, *beside) for rows in _series(one).values() if unit_of(rows[0].spec) == unit
        ]
        every = [line for rows, one in alike for line in _curves(rows, one, steps)]
        limits[unit] = value_range(every, [rule for rows, one in alike for rule in _rules(rows, one)], log)
    return {
        name: line_chart(
            name,
            lines,
            x=str(plot["x"]),
            y=str(plot.get("y", units[name])),
            log=log,
            limits=limits[units[name]],
            rules=rules[name],
            steps=steps,
            about=f"{table.title}. ",
        )
        if any(math.isfinite(value) for line in lines for _, value in line.points)
        else None
        for name, lines in curves.items()
    }


def _pairs(table: Table) -> Panels:
    """Draw one measure against another: a point a label, a curve a series and regime."""
    panels: Panels = {}
    for title, pair in (table.spec.plot or {}).get("pairs", {}).items():
        across, up = (_labelled(table, str(pair[axis])) for axis in ("x", "y"))
        found: dict[tuple[str, str], list[tuple[float, float, str]]] = {}
        for label, row in across.items():
            for regime in table.regimes if label in up else ():
                x, y = _mean(row, regime), _mean(up[label], regime)
                if x is not None and y is not None and math.isfinite(x) and math.isfinite(y):
                    words = label if row.spec.x is None else str(row.spec.x)
                    # points of no series are no curve
                    found.setdefault((row.spec.series or label, regime), []).append((x, y, words))
        lines = []
        for number, ((_, regime), points) in enumerate(found.items()):
            kind = regime if len({series for series, _ in found}) == 1 else f"series{number % 6}"
            name = REGIME_TITLES[regime].lower() if len(table.regimes) > 1 else ""
            lines.append(Line(kind, [(x, y) for x, y, _ in points], {}, name, [words for *_, words in points]))
        far = [x for one in lines for x, _ in one.points]
        wide = bool(far) and min(far) > 0 and max(far) > 10 * min(far)
        panels[title] = None
        if lines:
            names = str(pair["x"]), str(pair["y"])
            panels[title] = line_chart(title, lines, x=names[0], y=names[1], log_x=wide, about=f"{table.title}. ")
    return panels


def _labelled(table: Table, section: str) -> dict[str, Row]:
    return {row.spec.label: row for row in table.rows if row.spec.section == section}


def _rules(rows: Sequence[Row], table: Table) -> list[tuple[str, float]]:
    rules = {}
    for row in rows:
        for regime, cell in _cells(row, table):
            quantity, floor = row.spec.floor.get(regime), cell.bounds.get("floor")
            if quantity is not None and floor is not None:
                rules[quantity.note or "floor"] = floor
    return list(rules.items())


def _curves(rows: Sequence[Row], table: Table, steps: Sequence[str]) -> list[Line]:
    def place(row: Row) -> float:
        return float(steps.index(str(row.spec.x)) if steps else row.spec.x)

    printed = [(place(row), value) for row in rows if (value := _number(row)) is not None]
    lines = [Line("printed", printed)] if printed else []
    for regime in table.regimes:
        cells = [(place(row), row.cells[regime]) for row in rows]
        points = [(x, cell.mean) for x, cell in cells if cell is not None and cell.mean is not None]
        band = {x: cell.interval for x, cell in cells if cell is not None and cell.interval is not None}
        if points:
            lines.append(Line(regime, points, band))
    return lines


def _charts(table: Table) -> dict[str, tuple[list[Row], list[BarGroup]]]:
    """Return title -> rows and bars of a table's bar charts."""
    plot = table.spec.plot or {}
    charts = {}
    for section in plot.get("sections", [None]):
        rows = [row for row in table.rows if section in (None, row.spec.section) and row.spec.samples is None]
        ran = [regime for regime in table.regimes if any(_mean(row, regime) is not None for row in rows)]
        groups = [g for row in rows if (g := _group(row, section, ran))]
        title = section or _measure(table)
        charts[title[:1].upper() + title[1:]] = (rows, groups)
    return charts


def _measure(table: Table) -> str:
    plot = table.spec.plot or {}
    return str(plot.get("x", plot.get("y", "")))


def _bars(table: Table, beside: Sequence[Table]) -> Panels:
    plot, measure, charts = table.spec.plot or {}, _measure(table), _charts(table)
    log, low, high = bool(plot.get("log")), plot.get("low"), plot.get("high")
    every = [chart for one in (table, *beside) for chart in _charts(one).values()]
    shared = {}
    for unit in {unit_of(rows[0].spec) for rows, _ in charts.values()}:
        groups = [group for rows, found in every if unit_of(rows[0].spec) == unit for group in found]
        shared[unit] = bar_range(groups, low, high, log)
    panels: Panels = {}
    for title, (rows, groups) in charts.items():
        start, end = shared[unit_of(rows[0].spec)]
        about, unit = f"{table.title}. ", measure if "sections" in plot else ""
        panels[title] = (
            bar_chart(title, groups, low=start, high=end, log=log, about=about, measure=unit, base=plot.get("base"))
            if groups
            else None
        )
    return panels


def _mean(row: Row, regime: str) -> float | None:
    cell = row.cells[regime]
    return None if cell is None else cell.mean


def _group(row: Row, section: str | None, regimes: Sequence[str]) -> BarGroup | None:
    """Return a row's bars in these regimes; None where there is neither a run nor a printed number."""
    cells = [(regime, cell) for regime in regimes if (cell := row.cells[regime]) is not None]
    bars = [Bar(regime, cell.mean, cell.interval, cell.bounds.get("expectation")) for regime, cell in cells]
    if all(bar.value is None for bar in bars) and _number(row) is None:
        return None
    return BarGroup(row.spec.label, bars, _number(row), "" if section else row.spec.section, min(row.spec.digits, 3))


def _matrices(table: Table, beside: Sequence[Table]) -> Panels:
    plot = table.spec.plot or {}
    figures: Panels = {}
    for name, rows in _series(table).items():
        columns = list(dict.fromkeys(str(row.spec.x) for row in rows))
        lines = list(dict.fromkeys(str(row.spec.y) for row in rows))
        panels = {"printed": {(str(r.spec.y), str(r.spec.x)): v for r in rows if (v := _number(r)) is not None}}
        for regime in table.regimes:
            cells = {(str(row.spec.y), str(row.spec.x)): row.cells[regime] for row in rows}
            panels[regime] = {at: c.mean for at, c in cells.items() if c is not None and c.mean is not None}
        for kind, values in panels.items():
            if values:
                title = f"{name}, {REGIME_TITLES.get(kind, kind).lower()}"
                labels = {"x": str(plot.get("x", "")), "y": str(plot.get("y", ""))}
                figures[title] = heat_map(title, columns, lines, values, **labels, kind=kind, about=f"{table.title}. ")
        if not any(panels.values()):
            figures[name] = None
    return figures


def _words(table: Table, beside: Sequence[Table]) -> Panels:
    sections: dict[str, list[Row]] = {}
    for row in table.rows:
        if row.spec.samples is not None:
            sections.setdefault(row.spec.section, []).append(row)
    figures: Panels = {}
    for section, (first, *others) in sections.items():
        for regime in table.regimes:
            for other in others:
                lists = [_best(row.cells[regime]) for row in (first, other)]
                title = f"{section}: {other.spec.label}, {REGIME_TITLES[regime].lower()}"
                if all(lists):
                    names = (first.spec.label, other.spec.label)
                    figures[title] = word_shift(title, *lists, names=names, kind=regime, about=f"{table.title}. ")
    return figures


def _best(cell: Cell | None) -> list[tuple[str, float]]:
    return read_words(cell.texts[0]) if cell is not None and cell.texts else []


# --- training curves ------------------------------------------------------------------------------------------------

# from each family of measures (train, val, ...) take the first of these that exists, else the first by name
PREFERRED = ("perplexity", "loss", "cross_entropy")


def curve_metrics(records: Sequence[RunRecord]) -> list[str]:
    """Return one measure of each family that some run recorded for two or more epochs.

    Measures of generated texts (``trial/...``) are left out: they are no training curves, and tables show them.
    """
    families: dict[str, list[str]] = {}
    for name in sorted({name for r in records for name, points in r.history.items() if len(points) > 1}):
        family, _, rest = name.partition("/")
        if family != "trial":
            families.setdefault(family, []).append(rest)
    first = (next((wanted for wanted in PREFERRED if wanted in names), names[0]) for names in families.values())
    return [f"{family}/{name}" for family, name in zip(families, first, strict=True)]


def training_curves(pool: RecordPool) -> dict[tuple[str, str], Chart]:
    """Return (experiment, measure) -> chart, one scale per measure; runs that measured only once have no panel."""
    found: dict[tuple[str, str], tuple[list[Line], str]] = {}
    for experiment in dict.fromkeys(name for name, _ in pool.runs):
        runs = {regime: found for (name, regime), found in pool.runs.items() if name == experiment}
        records = [record for found in runs.values() for record in found.values()]
        for metric in curve_metrics(records):
            unit, direction = _unit(records, metric)
            lines = [line for regime, own in runs.items() if (line := _line(regime, own, metric, unit, direction))]
            if lines:
                found[experiment, metric] = lines, unit
    panels: dict[tuple[str, str], Chart] = {}
    for (experiment, metric), (lines, unit) in found.items():
        log = unit.startswith("perplexity")
        alike = [line for (_, other), (own, _) in found.items() if other == metric for line in own]
        limits, y = value_range(alike, log=log), _axis_title(metric, unit)
        chart = line_chart(experiment, lines, x="epoch", y=y, log=log, limits=limits, about="Training curve. ")
        panels[experiment, metric] = chart
    return panels


def _axis_title(metric: str, unit: str) -> str:
    return metric if metric.endswith(unit) else f"{metric}, {unit}"


# --- the one picture of a paper -------------------------------------------------------------------------------------


def headline_picture(results: Results, beside: Sequence[Results] = ()) -> tuple[Chart, list[tuple[str, str]]] | None:
    """Return the picture that a paper's manifest names, and its legend; None where no run has anything to draw.

    ``beside`` are the same paper's other runs on the page, drawn on the same scales.

    Raises:
        UserError: the manifest names a table, panel or experiment that does not exist.
    """
    headline = results.manifest.headline if results.manifest is not None else None
    if headline is None or headline.picture is None:
        return None
    wanted, where = headline.picture, f"{results.paper}/{MANIFEST}, headline picture"
    if "curves" in wanted:
        return _named_curves(wanted, results.pool, [one.pool for one in beside])
    tables = {table.spec.name: table for table in results.tables}
    check_value(f"{where}: table", wanted["table"], Annotated[str, Choice(tables)])
    table = tables[wanted["table"]]
    panels = panels_for(table, [other for one in beside for other in one.tables if other.spec.name == table.spec.name])
    if not table.ran or table.spec.name in results.hidden:
        return None
    check_value(f"{where}: panel of {table.spec.name}", wanted["panel"], Annotated[str, Choice(panels)])
    chart = panels[wanted["panel"]]
    return None if chart is None else (chart, legend_for(table))


def _named_curves(
    wanted: Mapping[str, Any], pool: RecordPool, beside: Sequence[RecordPool]
) -> tuple[Chart, list[tuple[str, str]]] | None:
    """Draw one measure of several experiments over epochs, in one panel."""
    lines, unit = _named_lines(wanted, pool)
    if not lines:
        return None
    y, log = _axis_title(str(wanted["metric"]), unit), unit.startswith("perplexity")
    limits = value_range([line for one in (pool, *beside) for line in _named_lines(wanted, one)[0]], log=log)
    title = str(wanted["title"])
    return line_chart(title, lines, x="epoch", y=y, log=log, limits=limits, about="Training curves. "), []


def _named_lines(wanted: Mapping[str, Any], pool: RecordPool) -> tuple[list[Line], str]:
    """Return the curves of the experiments that were run, and their unit."""
    metric, regime, lines, unit = str(wanted["metric"]), str(wanted["regime"]), [], ""
    for number, (words, experiment) in enumerate(wanted["curves"].items()):
        runs = pool.runs.get((str(experiment), regime), {})
        if not runs:
            continue
        unit, direction = _unit(list(runs.values()), metric)
        found = _line(f"series{number}", runs, metric, unit, direction)
        if found is not None:
            lines.append(dataclasses.replace(found, name=str(words)))
    return lines, unit


def _unit(records: Sequence[RunRecord], metric: str) -> tuple[str, str]:
    found = next((record.metrics[metric] for record in records if metric in record.metrics), None)
    return (str(found["unit"]), str(found["direction"])) if found else (metric.rpartition("/")[2], "none")


def _line(regime: str, runs: Mapping[int, RunRecord], metric: str, unit: str, direction: str) -> Line | None:
    """Return the mean over seeds at the epochs that all of them have; None where there is nothing to draw."""
    curves = [{entry[0]: entry[1] for entry in record.history.get(metric, [])} for record in runs.values()]
    curves = [curve for curve in curves if len(curve) > 1]
    if not curves:
        return None
    points, band = [], {}
    for epoch in sorted(set.intersection(*map(set, curves))):
        values = [curve[epoch] for curve in curves]
        points.append((float(epoch), statistics.fmean(values)))
        if len(values) >= MIN_SEEDS and all(map(math.isfinite, values)):
            interval = mean_interval(values, domain_of(unit, direction))
            if interval is not None:
                band[float(epoch)] = interval
    measured = any(math.isfinite(value) for _, value in points)
    return Line(regime, points, band) if len(points) > 1 and measured else None


# --- files -----------------------------------------------------------------------------------------------------------


HEADLINE, TRAINING = "headline", "training"


def pictures(sizes: Sequence[Results]) -> dict[str, Sheet]:
    """Return name -> sheet of everything that can be drawn from a paper's records, the largest size first.

    What is drawn at several sizes has the smaller sizes' names before its own.
    """
    found: dict[str, Sheet] = {}
    for results in sizes:
        start = "" if results is sizes[0] else f"{results.size}_"
        about = f", size {results.size}" if len(sizes) > 1 else ""
        if HEADLINE not in found and (headline := headline_picture(results)) is not None:
            chart, legend = headline
            found[HEADLINE] = Sheet([chart], legend, f"{results.title}: {chart.about}{about}")
        for table in results.shown:
            if table.ran and (plots := plots_for(table)):
                name = start + table.spec.name if table.spec.name in found else table.spec.name
                found[name] = Sheet(plots, legend_for(table), table.title + about)
        if curves := training_curves(results.pool):
            legend = [
                (regime, f"{REGIME_TITLES[regime].lower()} (mean over seeds, 95% interval from three on)")
                for regime in REGIMES
                if any(own == regime for _, own in results.pool.runs)
            ]
            found[start + TRAINING] = Sheet(list(curves.values()), legend, f"{results.title}: training curves{about}")
    return found


def write(sizes: Sequence[Results], folder: Path, format: str = "svg") -> list[Path]:
    """Write a paper's figures into ``folder``, each whole or not at all; other files there stay."""
    made = {folder / f"{name}.{format}": sheet for name, sheet in pictures(sizes).items()}
    for path, sheet in made.items():
        sheet.save(path)
    return list(made)


def main(
    paper: str | None = None,
    size: str | None = None,
    records: Sequence[str | Path] | None = None,
    out: str | Path | None = None,
    console: Console | None = None,
    format: str = "svg",
) -> int:
    """Write the figures of a paper, or of all into a folder each.

    Args:
        out: the folder, by default ``outputs/figures/<paper>``; for all papers, the parent of their folders.
        console: where to report what was written.
        format: svg, png or pdf.

    Raises:
        UserError: no such paper or format, a damaged record, nothing to draw, or a file that cannot be written.
    """
    shown = console or Console()
    results, left_out = gather(paper, size, records, every_size=True)
    every = paper in (None, "all")
    if not every and not pictures(results):
        raise UserError(f"{paper}: no run has anything to draw: lit-ctg reproduce paper={paper} makes the runs")
    for name, sizes in itertools.groupby(results, key=lambda one: one.paper):
        folder = Path(out or Path("outputs") / "figures")
        folder = folder / name if every or out is None else folder
        made = write(list(sizes), folder, format)
        shown.print(f"{name}: {len(made)} figures in {folder}", markup=False, highlight=False, soft_wrap=True)
    for line in left_out:
        shown.print(line, markup=False, highlight=False, soft_wrap=True)
    return 0

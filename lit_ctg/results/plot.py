"""From a table and its ``plot`` entry to figures: which rows become which curve, bar or matrix.

``plot: {kind: line, x, y, log}``: one panel for every ``series``, rows placed by ``x``. ``{kind: bars, y, low, high,
sections}``: one row, one group of bars. ``{kind: matrix, x, y}``: one panel for every ``series``, rows placed by ``x``
and ``y``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lit_ctg.errors import UserError, did_you_mean
from lit_ctg.results.cell import Cell, Row
from lit_ctg.results.figure import Bar, BarGroup, Line, bar_chart, heat_map, line_chart, value_range
from lit_ctg.results.render import REGIME_TITLES

if TYPE_CHECKING:
    from lit_ctg.results.table import Table

KINDS = ("line", "bars", "matrix")


def plots_for(table: Table) -> list[str]:
    """Return the table's figures as SVG, none when it asks for none.

    Raises:
        UserError: an unknown kind of plot.
    """
    plot = table.spec.plot
    if not plot:
        return []
    kind = str(plot.get("kind"))
    if kind not in KINDS:
        raise UserError(f"{table.spec.name}: plot.kind is '{kind}'{did_you_mean(kind, KINDS)}")
    return {"line": _lines, "bars": _bars, "matrix": _matrices}[kind](table)


def legend_for(table: Table) -> list[tuple[str, str]]:
    """Return (class, words) of what the table's plots show."""
    if not table.spec.plot or table.spec.plot["kind"] == "matrix":
        return []
    legend = [("printed", "printed")] if any(row.printed for row in table.rows) else []
    legend += [(regime, f"{REGIME_TITLES[regime].lower()} (95% interval)") for regime in table.regimes]
    notes = {q.note for row in table.rows for q in row.spec.expectation.values() if q is not None and q.note}
    return legend + [("expected", f"expected: {', '.join(sorted(notes))}")] * bool(notes)


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


def _lines(table: Table) -> list[str]:
    plot = table.spec.plot or {}
    log = bool(plot.get("log"))
    panels = {}
    for name, rows in _series(table).items():
        rules = {}
        for row in rows:
            for regime, cell in _cells(row, table):
                quantity, floor = row.spec.floor.get(regime), cell.bounds.get("floor")
                if quantity is not None and floor is not None:
                    rules[quantity.note or "floor"] = floor
        panels[name] = (_curves(rows, table), list(rules.items()))
    if not panels:
        return []
    every = [line for lines, _ in panels.values() for line in lines]
    limits = value_range(every, [rule for _, rules in panels.values() for rule in rules], log)
    x, y = str(plot.get("x", "")), str(plot.get("y", ""))
    return [
        line_chart(name, lines, x=x, y=y, log=log, limits=limits, rules=rules)
        for name, (lines, rules) in panels.items()
    ]


def _curves(rows: Sequence[Row], table: Table) -> list[Line]:
    printed = [(float(row.spec.x), value) for row in rows if (value := _number(row)) is not None]
    lines = [Line("printed", printed)] if printed else []
    for regime in table.regimes:
        cells = [(float(row.spec.x), row.cells[regime]) for row in rows]
        points = [(x, cell.mean) for x, cell in cells if cell is not None and cell.mean is not None]
        band = {x: cell.interval for x, cell in cells if cell is not None and cell.interval is not None}
        if points:
            lines.append(Line(regime, points, band))
    return lines


def _bars(table: Table) -> list[str]:
    plot = table.spec.plot or {}
    wanted = plot.get("sections")
    charts = []
    for section in wanted or [None]:
        groups = []
        for row in table.rows:
            if section is None or row.spec.section == section:
                bars = [Bar(r, c.mean, c.interval, c.bounds.get("expectation")) for r, c in _cells(row, table)]
                heading, digits = "" if section else row.spec.section, min(row.spec.digits, 3)
                groups.append(BarGroup(row.spec.label, bars, _number(row), heading, digits))
        if groups:
            title = ", ".join(filter(None, (section, str(plot.get("y", "")))))
            low, high = float(plot.get("low", 0.0)), plot.get("high")
            charts.append(bar_chart(title[:1].upper() + title[1:], groups, low=low, high=high))
    return charts


def _matrices(table: Table) -> list[str]:
    plot = table.spec.plot or {}
    figures = []
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
                figures.append(heat_map(title, columns, lines, values, **labels, kind=kind))
    return figures

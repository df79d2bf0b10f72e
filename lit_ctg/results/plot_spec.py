"""What a table's ``plot`` entry may say, checked when the table is loaded.

``plot`` is one of::

    {kind: line, x: epoch, y: validation perplexity, log: true, xscale: steps}
                                          # a panel for every series; y may be left out: then it is each panel's unit,
                                          # as it must be where the panels have several; xscale steps: equal distances
    {kind: bars, x: perplexity, log: true, low: 0, high: 1, sections: [...]}
                                          # a chart for every section named, else one; x or y says what is measured
    {kind: matrix, x: realised, y: intended}      # a panel for every series
    {kind: words}                         # best words of a section's first row against those of its others

Panels and charts of one unit share their axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lit_ctg.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from lit_ctg.results.spec import RowSpec

KEYS = {
    "line": ("x", "y", "log", "xscale"),
    "bars": ("x", "y", "log", "low", "high", "sections"),
    "matrix": ("x", "y"),
    "words": (),
}
SCALES = ("linear", "steps")


def unit_of(row: RowSpec) -> str:
    """Return what a row's number is counted in; a difference is not counted in the same as what it is made of."""
    return f"change, {row.unit}" if row.combine in ("difference", "percent_change") else row.unit


def check_plot(plot: Any, rows: Sequence[RowSpec], where: str) -> None:
    """Check a ``plot`` entry against the rows it draws.

    Raises:
        UserError: unknown kind or key, a key that this kind does not use, sections or series that are not there, or
            numbers of several units on one axis.
    """
    if plot is None:
        return
    kind = plot.get("kind") if isinstance(plot, dict) else None
    if kind not in KEYS:
        raise UserError(f"{where}: plot.kind is '{kind}'{did_you_mean(str(kind), KEYS)}; one of {', '.join(KEYS)}")
    for key in plot:
        if key != "kind" and key not in KEYS[kind]:
            known = any(key in keys for keys in KEYS.values())
            told = f"plot.{key} is not used by kind '{kind}'" if known else f"unknown key 'plot.{key}'"
            near = "" if known else did_you_mean(str(key), KEYS[kind])
            raise UserError(f"{where}: {told}{near}; it uses {', '.join(KEYS[kind]) or 'none'}")
    {"line": _check_line, "bars": _check_bars, "matrix": _check_matrix, "words": _check_words}[kind](plot, rows, where)


def _check_line(plot: dict[str, Any], rows: Sequence[RowSpec], where: str) -> None:
    if plot.get("xscale", "linear") not in SCALES:
        raise UserError(f"{where}: plot.xscale is '{plot['xscale']}', expected one of {', '.join(SCALES)}")
    drawn = _with_series(rows, where)
    if "x" not in plot or any(row.x is None for row in drawn):
        raise UserError(f"{where}: a line plot needs plot.x, what its x axis shows, and 'x' in every row with a series")
    units: dict[str, set[str]] = {}
    for row in drawn:
        units.setdefault(row.series, set()).add(unit_of(row))
    if mixed := next((series for series, found in units.items() if len(found) > 1), None):
        raise UserError(f"{where}: series '{mixed}' has several units: {', '.join(sorted(units[mixed]))}")
    if "y" in plot and len(found := set().union(*units.values())) > 1:
        raise UserError(f"{where}: plot.y names panels of several units ({', '.join(sorted(found))}): leave it out")


def _check_bars(plot: dict[str, Any], rows: Sequence[RowSpec], where: str) -> None:
    if ("x" in plot) == ("y" in plot):
        raise UserError(f"{where}: a bar plot needs plot.x or plot.y (one of them): what its bars measure")
    known = list(dict.fromkeys(row.section for row in rows))
    for section in plot.get("sections", []):
        if section not in known:
            raise UserError(f"{where}: plot.sections: no section '{section}'{did_you_mean(section, known)}")
    for section in plot.get("sections", [None]):
        units = {unit_of(row) for row in rows if section in (None, row.section) and row.samples is None}
        if len(units) > 1:
            words = ", ".join(unit or "none" for unit in sorted(units))
            raise UserError(f"{where}: a bar chart has one unit, not {words}: choose plot.sections")
    if plot.get("log") and plot.get("low", 1) <= 0:
        raise UserError(f"{where}: plot.low is {plot['low']}, a log scale begins above 0")


def _check_matrix(plot: dict[str, Any], rows: Sequence[RowSpec], where: str) -> None:
    if any(row.x is None or row.y is None for row in _with_series(rows, where)):
        raise UserError(f"{where}: a matrix needs 'x' and 'y' in every row with a series")


def _check_words(plot: dict[str, Any], rows: Sequence[RowSpec], where: str) -> None:
    if all(row.samples is None for row in rows):
        raise UserError(f"{where}: plot.kind 'words' needs rows of samples")


def _with_series(rows: Sequence[RowSpec], where: str) -> list[RowSpec]:
    drawn = [row for row in rows if row.series]
    if not drawn:
        raise UserError(f"{where}: this plot draws rows that have a 'series', and there is none")
    return drawn

"""The words of a table's cells: what stands in every format and on the report."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lit_ctg.results.cell import Cell, Row, format_value, needs_exponent
from lit_ctg.results.verdict import IMPOSSIBLE, NOT_RUN

if TYPE_CHECKING:
    from lit_ctg.results.gap import Gap
    from lit_ctg.results.table import Table

REGIME_TITLES = {"as_published": "As published", "corrected": "Corrected"}
# shown where a regime does not apply to a row
NOT_APPLICABLE = "\N{EM DASH}"


def section_of(row: Row | Gap) -> str:
    """Return the section of a row, or of the rows in a gap."""
    return row.spec.section if isinstance(row, Row) else row.section


def printed_text(row: Row) -> str:
    """Return the printed number as it was printed, or a dash when the row is ours alone."""
    if row.printed is None:
        return NOT_APPLICABLE
    return re.sub(r"^-(?=\d)", "\N{MINUS SIGN}", row.printed.text)


def marked(table: Table, row: Row) -> str:
    """Return the printed number with the letter of its tolerance."""
    mark = table.mark(row)
    return f"{printed_text(row)} ({mark})" if mark else printed_text(row)


def value_text(row: Row, cell: Cell) -> str:
    """Return our mean, or the sample texts."""
    if cell.texts:
        return "\n".join(cell.texts)
    return format_value(cell.mean, row.spec.digits, signed=_signed(row))


def interval_text(row: Row, cell: Cell) -> str:
    """Return ``[low, high]`` or nothing."""
    if cell.interval is None:
        return ""
    exponent = needs_exponent(cell.mean, row.spec.digits)
    low, high = (format_value(bound, row.spec.digits, _signed(row), exponent) for bound in cell.interval)
    return f"[{low}, {high}]"


def n_text(cell: Cell) -> str:
    """Return the number of seeds, and of what the interval is over where that is folds or pooled trials."""
    seeds = str(len(cell.values)) if cell.values else ""
    if cell.folds:
        return f"{seeds} run, {cell.folds} folds"
    return f"{seeds} ({cell.trials:,} trials)" if cell.trials else seeds


def n_words(cell: Cell) -> str:
    """Return ``n_text`` as it stands in running text."""
    return n_text(cell) if cell.folds else f"n={n_text(cell)}"


def verdict_text(row: Row, cell: Cell) -> str:
    """Return the verdict of a printed number, else our own finding; a hole is always told."""
    label = ""
    if cell.verdict is not None and (row.judged or cell.hole is not None):
        label = cell.verdict.label
        if label == IMPOSSIBLE:
            label = f"{label}: {cell.verdict.reason}"
    return "; ".join(filter(None, (label, cell.finding)))


def _signed(row: Row) -> bool:
    return row.spec.combine in ("difference", "percent_change")


def flat(table: Table, reasons: list[str] | None = None) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of strings: row, printed, then value, n, interval, verdict of each regime.

    A section's heading is a row of one string. With ``reasons`` a hole is a number, and what it means is added there.
    """
    header = ["", "Printed"] if table.has_printed else [""]
    for regime in table.regimes:
        header += [REGIME_TITLES[regime], "n", "95% interval", "Verdict"]
    lines = []
    section = ""
    for row in table.shown:
        if section_of(row) != section:
            section = section_of(row)
            lines.append([section])
        if not isinstance(row, Row):
            lines.append([row.words] + [""] * (len(header) - 1))
            continue
        line = [row.spec.label, marked(table, row)] if table.has_printed else [row.spec.label]
        for regime in table.regimes:
            cell = row.cells[regime]
            if cell is None:
                line += [NOT_APPLICABLE, "", "", ""]
            elif cell.hole is not None:
                told = verdict_text(row, cell)
                line += ["", "", "", _hole(told, cell.hole, reasons)]
            else:
                line += [value_text(row, cell), n_text(cell), interval_text(row, cell), verdict_text(row, cell)]
        lines.append(line)
    return header, lines


def _hole(told: str, hole: str, reasons: list[str] | None) -> str:
    if reasons is None:
        return hole if told == NOT_RUN else f"{told}; {hole}"
    if hole not in reasons:
        reasons.append(hole)
    return f"{told} ({reasons.index(hole) + 1})"

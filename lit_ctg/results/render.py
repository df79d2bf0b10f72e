"""One table, four ways: rich text, Markdown, LaTeX (booktabs) and CSV, from the same cells."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from lit_ctg.results.cell import Cell, Row
from lit_ctg.results.cell_text import (
    NOT_APPLICABLE,
    REGIME_TITLES,
    flat,
    interval_text,
    marked,
    n_words,
    section_of,
    value_text,
    verdict_text,
)
from lit_ctg.results.latex import escape_latex, latex_table
from lit_ctg.results.verdict import DIRECTION_ONLY, IMPOSSIBLE, NOT_REPRODUCED, NOT_RUN, REPRODUCED, RULES

if TYPE_CHECKING:
    from lit_ctg.results.table import Table

FORMATS = ("text", "md", "latex", "csv")
STYLES = {
    REPRODUCED: "green",
    DIRECTION_ONLY: "yellow",
    NOT_REPRODUCED: "red",
    IMPOSSIBLE: "magenta",
    NOT_RUN: "dim",
}


def render(table: Table, fmt: str = "text") -> str:
    """Return one table with its notes and the verdict rules."""
    return render_all([table], fmt)


def render_all(tables: Sequence[Table], fmt: str = "text", notes: Sequence[str] = ()) -> str:
    """Return tables as ``text``, ``md``, ``latex`` or ``csv``; the rules stand once at the end (not in CSV)."""
    if fmt == "csv":
        return _csv(tables)
    if fmt == "text":
        console = Console(file=io.StringIO(), width=120, force_terminal=False, highlight=False)
        print_tables(tables, console, notes)
        return console.file.getvalue()  # type: ignore[attr-defined]
    one = _markdown if fmt == "md" else latex_table
    escape = escape_markdown if fmt == "md" else escape_latex
    last = [escape(note) for note in (*notes, RULES)]
    return "\n".join([one(table) for table in tables] + ["\n\n".join(last), ""])


def print_tables(tables: Sequence[Table], console: Console, notes: Sequence[str] = ()) -> None:
    """Print tables, their notes and the rules to a console."""
    for table in tables:
        console.print(rich_table(table))
        for note in table.notes:
            console.print(Text(note, style="dim"))
        console.print()
    for note in (*notes, RULES):
        console.print(Text(note, style="dim"))


def rich_table(table: Table) -> RichTable:
    """Return the table for a terminal: each regime's value, interval and verdict share one column."""
    rich = RichTable(title=Text(table.title), title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    rich.add_column("", max_width=44)
    if table.has_printed:
        rich.add_column("Printed")
    for regime in table.regimes:
        rich.add_column(REGIME_TITLES[regime])
    section = ""
    for row in table.shown:
        if section_of(row) != section:
            section = section_of(row)
            rich.add_section()
            rich.add_row(Text(section, style="bold"))
        if not isinstance(row, Row):
            rich.add_row(Text(row.words, style="dim italic"))
            continue
        cells = [_stacked(row, row.cells[regime]) for regime in table.regimes]
        printed = [Text(marked(table, row))] if table.has_printed else []
        rich.add_row(Text(row.spec.label), *printed, *cells)
    return rich


def _stacked(row: Row, cell: Cell | None) -> Text:
    """Return value and interval on one line, n and verdict on the next."""
    if cell is None:
        return Text(NOT_APPLICABLE, style="dim")
    words = verdict_text(row, cell)
    style = STYLES.get(cell.verdict.label, "") if cell.verdict is not None else "cyan"
    if cell.hole is not None:
        text = Text(cell.hole, style="dim italic")
        return text if words == NOT_RUN else text.append("\n").append(words, style=f"not dim not italic {style}")
    text = Text().append(value_text(row, cell), style="" if cell.texts else "bold")
    if cell.interval is not None:
        text.append(f"  {interval_text(row, cell)}")
    text.append(f"\n{n_words(cell)}", style="dim")
    return text.append("  ").append(words, style=style) if words else text


def escape_markdown(text: str) -> str:
    """Return ``text`` so that Markdown shows its characters and nothing else."""
    return re.sub(r"([\\`*_{}\[\]<>()#|~&!])", r"\\\1", text).replace("\n", "<br>")


def _markdown(table: Table) -> str:
    header, lines = flat(table)
    lines = [line if len(line) > 1 else [f"\0{line[0]}"] + [""] * (len(header) - 1) for line in lines]
    body = [[_strong(escape_markdown(word)) for word in line] for line in lines]
    align = ["---", "---:"][: 1 + table.has_printed] + ["---:", "---:", ":---:", "---"] * len(table.regimes)
    rows = [header, align, *body]
    text = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    notes = "".join(f"\n{escape_markdown(note)}\n" for note in table.notes)
    return f"### {escape_markdown(table.title)}\n\n{text}\n{notes}"


def _strong(word: str) -> str:
    return f"**{word[1:]}**" if word.startswith("\0") else word


_CELL_COLUMNS: dict[str, Callable[[Row, Cell], object]] = {
    "value": lambda row, cell: "\n".join(cell.texts) if cell.texts else cell.mean,
    "low": lambda row, cell: cell.interval[0] if cell.interval else None,
    "high": lambda row, cell: cell.interval[1] if cell.interval else None,
    "n": lambda row, cell: len(cell.values) or None,
    "trials": lambda row, cell: cell.trials,
    "folds": lambda row, cell: cell.folds,
    "verdict": verdict_text,
    "reason": lambda row, cell: cell.hole or (cell.verdict.reason if cell.verdict else None),
    "note": lambda row, cell: cell.note or None,
}


def _csv(tables: Sequence[Table]) -> str:
    """Return all tables as one machine-readable sheet: full precision, empty where there is nothing."""
    regimes = tuple(REGIME_TITLES)
    header = ["paper", "size", "table", "section", "row", "unit", "printed"]
    header += [f"{regime}_{column}" for regime in regimes for column in _CELL_COLUMNS]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    for table in tables:
        for row in table.rows:
            printed = row.printed.value if row.printed is not None and row.printed.value is not None else None
            if row.printed is not None and row.printed.value is None:
                printed = row.printed.text  # type: ignore[assignment]
            line: list[object] = [table.spec.paper, table.size, table.spec.name, row.spec.section, row.spec.label]
            line += [row.spec.unit or (row.printed.unit if row.printed else ""), printed]
            for regime in regimes:
                cell = row.cells.get(regime)
                line += [None if cell is None else column(row, cell) for column in _CELL_COLUMNS.values()]
            writer.writerow(["" if value is None else value for value in line])
    return out.getvalue()

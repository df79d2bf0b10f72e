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

from lit_ctg.results.cell import Cell, Row, format_value, needs_exponent
from lit_ctg.results.verdict import DIRECTION_ONLY, IMPOSSIBLE, NOT_REPRODUCED, NOT_RUN, REPRODUCED, RULES

if TYPE_CHECKING:
    from lit_ctg.results.table import Gap, Table

FORMATS = ("text", "md", "latex", "csv")
REGIME_TITLES = {"as_published": "As published", "corrected": "Corrected"}
STYLES = {
    REPRODUCED: "green",
    DIRECTION_ONLY: "yellow",
    NOT_REPRODUCED: "red",
    IMPOSSIBLE: "magenta",
    NOT_RUN: "dim",
}
# shown where a regime does not apply to a row
NOT_APPLICABLE = "\N{EM DASH}"


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
    one = _markdown if fmt == "md" else _latex
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


def section_of(row: Row | Gap) -> str:
    """Return the section of a row, or of the rows in a gap."""
    return row.spec.section if isinstance(row, Row) else row.section


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


def _flat(table: Table) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of strings: row, printed, then value, n, interval, verdict of each regime."""
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
                line += ["", "", "", cell.hole if told == NOT_RUN else f"{told}; {cell.hole}"]
            else:
                line += [value_text(row, cell), n_text(cell), interval_text(row, cell), verdict_text(row, cell)]
        lines.append(line)
    return header, lines


def escape_markdown(text: str) -> str:
    """Return ``text`` so that Markdown shows its characters and nothing else."""
    return re.sub(r"([\\`*_{}\[\]<>()#|~&!])", r"\\\1", text).replace("\n", "<br>")


def _markdown(table: Table) -> str:
    header, lines = _flat(table)
    lines = [line if len(line) > 1 else [f"\0{line[0]}"] + [""] * (len(header) - 1) for line in lines]
    body = [[_strong(escape_markdown(word)) for word in line] for line in lines]
    align = ["---", "---:"][: 1 + table.has_printed] + ["---:", "---:", ":---:", "---"] * len(table.regimes)
    rows = [header, align, *body]
    text = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    notes = "".join(f"\n{escape_markdown(note)}\n" for note in table.notes)
    return f"### {escape_markdown(table.title)}\n\n{text}\n{notes}"


def _strong(word: str) -> str:
    return f"**{word[1:]}**" if word.startswith("\0") else word


_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "{''}",
    "\N{MINUS SIGN}": "$-$",
    "\N{EM DASH}": "---",
    "\n": " ",
}


def escape_latex(text: str) -> str:
    """Return ``text`` so that LaTeX prints its characters and runs none of them."""
    return "".join(_LATEX.get(letter, letter) for letter in text)


def _latex(table: Table) -> str:
    header, lines = _flat(table)
    count, first = len(header), 1 + table.has_printed
    groups = " & ".join(rf"\multicolumn{{4}}{{c}}{{{REGIME_TITLES[regime]}}}" for regime in table.regimes)
    rules = " ".join(rf"\cmidrule(lr){{{first + 1 + 4 * i}-{first + 4 + 4 * i}}}" for i in range(len(table.regimes)))
    names = " & ".join(header[:first] + ["Value", "$n$", r"95\% interval", "Verdict"] * len(table.regimes))
    body = []
    for line in lines:
        words = [escape_latex(word) for word in line]
        if len(words) == 1:
            body.append(rf"\addlinespace \multicolumn{{{count}}}{{l}}{{\emph{{{words[0]}}}}} \\")
        else:
            # a row that begins with "[" would be read as an argument of the \\ before it
            body.append(" & ".join(f"{{{word}}}" if word.startswith("[") else word for word in words) + r" \\")
    notes = " ".join(escape_latex(note) for note in table.notes)
    return "\n".join(
        [
            r"\begin{table}",
            rf"\caption{{{escape_latex(table.title)}. {notes}}}",
            r"\begin{tabular}{" + "l" * first + "rrcl" * len(table.regimes) + "}",
            r"\toprule",
            rf"{'& ' * first}{groups} \\ {rules}",
            rf"{names} \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


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

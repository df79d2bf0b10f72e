"""One table, four formats: rich text, Markdown, LaTeX (longtable with booktabs' rules) and CSV, from the same cells.

What a run wrote (texts, labels, messages) is data: terminal control characters are escaped, and a CSV cell that a
spreadsheet would take for a formula is quoted.
"""

from __future__ import annotations

import csv
import dataclasses
import html
import io
import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table as RichTable
from rich.text import Text

from lit_ctg.numbers import format_value, needs_exponent
from lit_ctg.results.spec import DIFFERENCES
from lit_ctg.results.table import Cell, Row, Table
from lit_ctg.results.verdict import (
    CANNOT_DECIDE,
    CONTRADICTED,
    HOW,
    IMPOSSIBLE,
    LABELS,
    LEGEND,
    NOT_COMPARABLE,
    NOT_REPRODUCED,
    NOT_RUN,
    REPRODUCED,
    RULES,
    SUPPORTED,
    UNDECIDED,
    UNTRAINED,
)
from lit_ctg.terminal import Console, printable

# verdicts that judge nothing have no colour
STYLES = {
    REPRODUCED: "green",
    SUPPORTED: "green",
    UNTRAINED: "yellow",
    UNDECIDED: "yellow",
    CANNOT_DECIDE: "yellow",
    NOT_REPRODUCED: "red",
    CONTRADICTED: "red",
    IMPOSSIBLE: "magenta",
}
REGIME_TITLES = {"as_published": "As published", "corrected": "Corrected"}
# shown where a regime does not apply to a row
NOT_APPLICABLE = "\N{EM DASH}"
# between the first and the last section of a gap
GAP_TO = " \N{HORIZONTAL ELLIPSIS} "
# in place of an interval of runs that all gave one number
NO_SPREAD = "(no spread)"

# the legend of the verdicts below Markdown tables, and the links to it
VERDICTS = "Verdicts"
_LINKED = re.compile(rf"(?:^|(?<=; ))({'|'.join(sorted(LABELS, key=len, reverse=True))})")
# a hole that only names the run, and what a failed check compared
_NAMES_RUN = re.compile(r"not run: \w+")
_COMPARED = re.compile(r": (not measured|\S+ against \S+)$")

PREAMBLE = "% needs \\usepackage{array,booktabs,longtable}, and a wide page (\\usepackage[landscape]{geometry})"
# longer values (generated texts) and verdicts wrap in a column that takes a share of the line
_WRAPPED = 24

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


@dataclass(frozen=True)
class Gap:
    """Consecutive rows without runs, all for the same reason: shown as one line, with the printed numbers."""

    section: str
    labels: tuple[str, ...]
    reason: str = NOT_RUN
    # printed numbers, row by row; empty for rows of ours
    printed: tuple[str, ...] = ()
    # the section has no other rows
    whole: bool = False

    def fits(self, other: Gap) -> bool:
        """Say whether the same thing is missing and the labels are distinct."""
        return not set(self.labels) & set(other.labels) and (self.reason, bool(self.printed)) == (
            other.reason,
            bool(other.printed),
        )

    def joined(self, other: Gap) -> Gap:
        """Return this gap with the rows of the next section."""
        section = f"{self.section.split(GAP_TO)[0]}{GAP_TO}{other.section}"
        return Gap(section, self.labels + other.labels, self.reason, self.printed + other.printed, whole=True)

    @property
    def summary(self) -> str:
        """Say how many rows there are and why they are empty; name some if they are ours."""
        if self.printed:
            return f"{len(self.labels)} rows {self.reason}"
        labels = self.labels if len(self.labels) <= 4 else (*self.labels[:2], "...", self.labels[-1])
        return f"{len(self.labels)} rows {self.reason}: {'; '.join(labels)}"

    @property
    def numbers(self) -> str:
        """Return all printed numbers in one line."""
        pairs = zip(self.labels, self.printed, strict=True) if self.printed else ()
        return "; ".join(f"{label}: {number}" for label, number in pairs)

    @property
    def words(self) -> str:
        return f"{self.summary}. Printed: {self.numbers}" if self.printed else self.summary


def printed_text(row: Row) -> str:
    """Return the printed number as it was printed, or a dash when the row is ours alone."""
    if row.printed is None:
        return "\N{EM DASH}"
    return re.sub(r"^-(?=\d)", "\N{MINUS SIGN}", row.printed.text)


def shown_rows(rows: Sequence[Row]) -> list[Row | Gap]:
    """Return rows and gaps in order; gaps of whole sections that lack the same thing are joined."""
    shown: list[Row | Gap] = []
    for section, group in itertools.groupby(rows, key=lambda row: row.spec.section):
        found = _with_gaps(section, list(group))
        last, first = shown[-1] if shown else None, found[0]
        if isinstance(last, Gap) and isinstance(first, Gap) and last.whole and first.whole and last.fits(first):
            shown[-1] = last.joined(first)
        else:
            shown += found
    return shown


def _with_gaps(section: str, rows: Sequence[Row]) -> list[Row | Gap]:
    """Return a section's rows; three or more that lack the same thing become one gap, in place of the first."""
    alike: dict[tuple[bool, str], list[Row]] = {}
    for row in rows:
        if (reason := _empty(row)) is not None:
            alike.setdefault(reason, []).append(row)
    shown: list[Row | Gap] = []
    for row in rows:
        same = alike.get(_empty(row) or (False, ""), [])
        if len(same) < 3:
            shown.append(row)
        elif row is same[0]:
            printed = tuple(printed_text(one) for one in same if one.printed is not None)
            labels, (_, why) = tuple(one.spec.label for one in same), _empty(row) or (False, "")
            shown.append(Gap(section, labels, why, printed, whole=len(same) == len(rows)))
    return shown


def _empty(row: Row) -> tuple[bool, str] | None:
    """Return (whether printed, why there is nothing) for a row without a number of ours; None if there is one."""
    cells = [cell for cell in row.cells.values() if cell is not None]
    if not cells or any(cell.hole is None for cell in cells):
        return None
    if row.printed is None:
        absent = all((cell.hole or "").startswith("not recorded") for cell in cells)
        return False, "not recorded" if absent else NOT_RUN
    if any(cell.verdict is not None and cell.verdict.label != NOT_RUN for cell in cells):
        return None  # a bound shows that the printed number is impossible
    return True, "; ".join(dict.fromkeys(cell.hole or "" for cell in cells))


# --- the words of a cell --------------------------------------------------------------------------------------------


def section_of(row: Row | Gap) -> str:
    """Return the section of a row, or of the rows in a gap."""
    return row.spec.section if isinstance(row, Row) else row.section


def marked(table: Table, row: Row) -> str:
    """Return the printed number with the letter of its margin, and the reason if it is impossible."""
    mark = table.mark(row)
    words = f"{printed_text(row)} ({mark})" if mark else printed_text(row)
    return "; ".join(filter(None, (words, impossible_text(row))))


def impossible_text(row: Row) -> str:
    """Return why a printed number is impossible, and in which regime unless in all; "" if it is not."""
    if not row.impossible:
        return ""
    everywhere = set(row.impossible) == {regime for regime, cell in row.cells.items() if cell is not None}
    where = "" if everywhere else f" ({', '.join(REGIME_TITLES[regime].lower() for regime in row.impossible)})"
    reasons = dict.fromkeys(verdict.reason for verdict in row.impossible.values())
    return f"{IMPOSSIBLE}{where}: {'; '.join(reasons)}"


def value_text(row: Row, cell: Cell) -> str:
    """Return our mean, or the sample texts."""
    if cell.texts:
        return "\n".join(cell.texts)
    return format_value(cell.mean, row.spec.digits, signed=_signed(row))


def interval_text(row: Row, cell: Cell) -> str:
    """Return ``[low, high]`` or nothing; NO_SPREAD where all runs gave one number, which is not certainty."""
    if cell.interval is None:
        return ""
    if math.isclose(*cell.interval, rel_tol=1e-9):
        return NO_SPREAD
    exponent = needs_exponent(cell.mean, row.spec.digits)
    low, high = (format_value(bound, row.spec.digits, _signed(row), exponent) for bound in cell.interval)
    return f"[{low}, {high}]"


def n_text(cell: Cell) -> str:
    """Return the number of seeds, and of the cells, folds or pooled trials that the interval is over."""
    if cell.cells is not None:
        return f"{cell.cells} cell{'s' * (cell.cells != 1)}"
    seeds = str(len(cell.values)) if cell.values else ""
    if cell.folds:
        return f"{seeds} run, {cell.folds} folds"
    return f"{seeds} ({cell.trials:,} trials)" if cell.trials else seeds


def n_words(cell: Cell) -> str:
    """Return ``n_text`` in the form for running text."""
    return n_text(cell) if cell.folds or cell.cells else f"n={n_text(cell)}"


def spread_text(cell: Cell) -> str:
    """Return CV* over our seeds in percent, in brackets with the printed number among them."""
    if cell.spread is None:
        return ""
    printed = "" if cell.spread_printed is None else f" ({cell.spread_printed:.1f})"
    return f"{cell.spread:.1f}{printed}"


def verdict_text(row: Row, cell: Cell, size: str = "paper", *, reasons: list[str] | None = None) -> str:
    """Return the verdict on a printed number or claim, else our own finding; a hole is always reported.

    ``impossible`` is shown beside the printed number; a claim judged at a ``size`` other than the paper's says so, and
    one that cannot be decided says which check fails. With ``reasons`` a reason is a number, and its words are added to
    that list.
    """
    label = ""
    if cell.verdict is not None and (row.judged or cell.hole is not None):
        label, reason = cell.verdict.label, cell.verdict.reason
        if label == IMPOSSIBLE:
            label = ""
        elif label == CANNOT_DECIDE:
            checked = _COMPARED.sub("", reason)
            label = f"{label}: {reason}" if reasons is None else _numbered(label, f"{label}: {checked}", reasons)
        elif label in NOT_COMPARABLE and reason and not reason.startswith("size "):
            label = f"{label} ({reason})" if reasons is None else _numbered(label, f"{label}: {reason}", reasons)
        elif row.is_claim and size != "paper" and label in (SUPPORTED, CONTRADICTED, UNDECIDED):
            label = f"{label} at size {size}"
    return "; ".join(filter(None, (label, cell.finding)))


def _signed(row: Row) -> bool:
    return row.spec.combine in DIFFERENCES


def flat(table: Table, reasons: list[str] | None = None) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of strings: row, printed, then per regime value, n, interval, CV* if any, verdict.

    A section's heading is a row of one string. With ``reasons`` a reason is a number, explained in that list.
    """
    header = ["", "Printed"] if table.has_printed else [""]
    spread = ["CV*"] if table.has_spread else []
    for regime in table.regimes:
        header += [REGIME_TITLES[regime], "n", "95% interval", *spread, "Verdict"]
    lines = []
    section = ""
    for row in shown_rows(table.rows):
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
                line += [NOT_APPLICABLE, "", "", *([""] * len(spread)), ""]
            elif cell.hole is not None:
                words = verdict_text(row, cell, table.size, reasons=reasons)
                line += ["", "", "", *([""] * len(spread)), _hole(words, cell.hole, reasons)]
            else:
                numbers = [value_text(row, cell), n_text(cell), interval_text(row, cell)]
                numbers += [spread_text(cell)] * len(spread)
                line += [*numbers, verdict_text(row, cell, table.size, reasons=reasons)]
        lines.append(line)
    return header, lines


def _hole(words: str, hole: str, reasons: list[str] | None) -> str:
    """Return what is missing: in words, or as a number unless it only names the run."""
    if reasons is None:
        return hole if words in ("", NOT_RUN, hole) else f"{words}; {hole}"
    if words.endswith(")"):
        return words  # its verdict has the reason already
    return words or NOT_RUN if _NAMES_RUN.fullmatch(hole) else _numbered(words or NOT_RUN, hole, reasons)


def _numbered(words: str, reason: str, reasons: list[str]) -> str:
    if reason not in reasons:
        reasons.append(reason)
    return f"{words} ({reasons.index(reason) + 1})"


def _numbered_notes(reasons: Sequence[str]) -> list[str]:
    return [f"({number}) {reason}." for number, reason in enumerate(reasons, start=1)]


# --- the four formats -----------------------------------------------------------------------------------------------


def render_all(tables: Sequence[Table], fmt: str = "text", notes: Sequence[str] = ()) -> str:
    """Return tables as ``text``, ``md``, ``latex`` or ``csv``; the rules follow once at the end (not in CSV)."""
    if fmt == "csv":
        return _csv(tables)
    if fmt == "text":
        text = io.StringIO()
        print_tables(tables, Console(file=text, width=120, force_terminal=False, highlight=False), notes)
        return text.getvalue()
    if fmt == "md":
        last = [*map(escape_markdown, notes), _legend()]
        return "\n".join([_markdown(table) for table in tables] + ["\n\n".join(last), ""])
    last = [escape_latex(note) for note in (*notes, RULES)]
    return "\n".join([latex_table(table) for table in tables] + ["\n\n".join(last), ""])


def print_tables(tables: Sequence[Table], console: Console, notes: Sequence[str] = ()) -> None:
    """Print tables, their notes and the rules to a console."""
    for table in tables:
        console.print(rich_table(table))
        for note in table.notes:
            console.print(_text(note, style="dim"))
        console.print()
    for note in (*notes, RULES):
        console.print(_text(note, style="dim"))


def rich_table(table: Table) -> RichTable:
    """Return the table for a terminal: each regime's value, interval and verdict share one column."""
    rich = RichTable(
        title=_text(table.title), title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False
    )
    rich.add_column("", max_width=44)
    if table.has_printed:
        rich.add_column("Printed")
    for regime in table.regimes:
        rich.add_column(REGIME_TITLES[regime])
    section = ""
    for row in shown_rows(table.rows):
        if section_of(row) != section:
            section = section_of(row)
            rich.add_section()
            rich.add_row(_text(section, style="bold"))
        if not isinstance(row, Row):
            rich.add_row(_text(row.words, style="dim italic"))
            continue
        cells = [_stacked(row, row.cells[regime], table.size) for regime in table.regimes]
        printed = [_text(marked(table, row))] if table.has_printed else []
        rich.add_row(_text(row.spec.label), *printed, *cells)
    return rich


def _stacked(row: Row, cell: Cell | None, size: str) -> Text:
    """Return value and interval on one line, n, CV* and verdict on the next."""
    if cell is None:
        return _text(NOT_APPLICABLE, style="dim")
    words = verdict_text(row, cell, size)
    style = STYLES.get(cell.verdict.label, "") if cell.verdict is not None else "cyan"
    if cell.hole is not None:
        text = _text(cell.hole, style="dim italic")
        plain = words in ("", NOT_RUN, cell.hole)
        return text if plain else text.append("\n").append(printable(words), style=f"not dim not italic {style}")
    text = Text().append(printable(value_text(row, cell)), style="" if cell.texts else "bold")
    if cell.interval is not None:
        text.append(f"  {interval_text(row, cell)}")
    text.append(f"\n{n_words(cell)}", style="dim")
    if spread := spread_text(cell):
        text.append(f"  CV* {spread}", style="dim")
    return text.append("  ").append(printable(words), style=style) if words else text


def _text(words: str, style: str = "") -> Text:
    """Return text for a terminal; rich drops some control characters without a word."""
    return Text(printable(words), style=style)


def escape_markdown(text: str) -> str:
    """Return ``text`` so that Markdown shows its characters, control characters written out, and nothing else."""
    return re.sub(r"([\\`*_{}\[\]<>()#|~&!])", r"\\\1", printable(text)).replace("\n", "<br>")


def _markdown(table: Table) -> str:
    """Return a table of what was run; rows that were not run are folded below it, reasons are numbered notes."""
    kept, missing = _run_rows(table)
    reasons: list[str] = []
    header, lines = flat(kept, reasons)
    body = [list(map(escape_markdown, line)) for line in lines]
    body = [
        line[:1] + [_LINKED.sub(rf"[\1](#{VERDICTS.lower()})", word) for word in line[1:]]
        if len(line) > 1
        else [f"**{line[0]}**"] + [""] * (len(header) - 1)
        for line in body
    ]
    own = ["---:", "---:", ":---:", *(["---:"] if kept.has_spread else []), "---"]
    align = ["---", "---:"][: 1 + kept.has_printed] + own * len(kept.regimes)
    text = "".join("| " + " | ".join(row) + " |\n" for row in [header, align, *body]) if body else ""
    unread = [REGIME_TITLES[regime] for regime in table.regimes if regime not in kept.regimes]
    notes = [*_numbered_notes(reasons), *(f"{title}: not run." for title in unread if body), *table.notes]
    parts = [
        f"### {escape_markdown(table.title)}\n",
        escape_markdown(table.spec.caption.strip()),
        text,
        _folded(missing),
    ]
    return "\n".join(
        part if part.endswith("\n") else f"{part}\n" for part in (*parts, *map(escape_markdown, notes)) if part
    )


def _run_rows(table: Table) -> tuple[Table, list[Row]]:
    """Return the table without rows and regimes that were not run, and these rows."""
    kept = [row for row in table.rows if _empty(row) is None]
    missing = [row for row in table.rows if _empty(row) is not None]
    run = {regime for row in kept for regime, cell in row.cells.items() if cell is not None and cell.hole is None}
    rows = [
        row if run >= set(row.cells) else dataclasses.replace(
            row, cells={regime: cell if regime in run else None for regime, cell in row.cells.items()}
        )
        for row in kept
    ]  # fmt: skip
    return dataclasses.replace(table, rows=tuple(rows)), missing


def _folded(rows: Sequence[Row]) -> str:
    """Return rows that were not run as a list that a click opens; HTML, as Markdown is not read within it."""
    if not rows:
        return ""
    items = [
        f"<li>{_escape_html(f'{section_of(row)}: {words}' if section_of(row) else words)}</li>"
        for row in shown_rows(rows)
        for words in [_missing(row) if isinstance(row, Row) else row.words]
    ]
    head = f"<details><summary>{len(rows)} row{'s' * (len(rows) > 1)} not run</summary>"
    return "\n".join([head, "<ul>", *items, "</ul>", "</details>"])


def _escape_html(text: str) -> str:
    """Return text of one line of HTML; an empty line, or a link of Markdown, would end it."""
    return html.escape(printable(" ".join(text.split()))).replace("]", "&#93;")


def _missing(row: Row) -> str:
    holes = "; ".join(dict.fromkeys(cell.hole for cell in row.cells.values() if cell is not None and cell.hole))
    return f"{row.spec.label}: {holes}" + ("" if row.printed is None else f". Printed: {printed_text(row)}")


def _legend() -> str:
    lines = [f"### {VERDICTS}\n", "| verdict | what it says |", "| --- | --- |"]
    lines += [f"| {label} | {escape_markdown(meaning)} |" for label, meaning in LEGEND.items()]
    return "\n".join([*lines, "", escape_markdown(HOW)])


_CELL_COLUMNS: dict[str, Callable[[Row, Cell], object]] = {
    "value": lambda row, cell: "\n".join(cell.texts) if cell.texts else cell.mean,
    "low": lambda row, cell: cell.interval[0] if cell.interval else None,
    "high": lambda row, cell: cell.interval[1] if cell.interval else None,
    "n": lambda row, cell: len(cell.values) or None,
    "trials": lambda row, cell: cell.trials,
    "folds": lambda row, cell: cell.folds,
    "cells": lambda row, cell: cell.cells,
    "cv": lambda row, cell: cell.spread,
    "cv_printed": lambda row, cell: cell.spread_printed,
    "verdict": lambda row, cell: cell.verdict.label if cell.verdict is not None and row.judged else None,
    "finding": lambda row, cell: cell.finding or None,
    "reason": lambda row, cell: cell.hole or (cell.verdict.reason if cell.verdict else None),
    "note": lambda row, cell: cell.note or None,
}


def _csv(tables: Sequence[Table]) -> str:
    """Return all tables as one machine-readable sheet: full precision, empty cells where there is nothing."""
    regimes = tuple(REGIME_TITLES)
    header = ["paper", "size", "table", "section", "row", "unit", "printed"]
    header += [f"{regime}_{column}" for regime in regimes for column in _CELL_COLUMNS]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    for table in tables:
        for row in table.rows:
            printed: float | str | None = None
            if row.printed is not None:
                printed = row.printed.text if row.printed.value is None else row.printed.value
            line: list[object] = [table.spec.paper, table.size, table.spec.name, row.spec.section, row.spec.label]
            line += [row.spec.unit or (row.printed.unit if row.printed else ""), printed]
            for regime in regimes:
                cell = row.cells.get(regime)
                line += [None if cell is None else column(row, cell) for column in _CELL_COLUMNS.values()]
            writer.writerow([csv_cell(value) for value in line])
    return out.getvalue()


def csv_cell(value: object) -> object:
    """Return a value for a sheet: text that a spreadsheet would run as a formula begins with an apostrophe."""
    if not isinstance(value, str):
        return "" if value is None else value
    text = printable(value)
    return f"'{text}" if text.lstrip().startswith(("=", "+", "-", "@", "|")) else text


def escape_latex(text: str) -> str:
    """Return ``text`` so that LaTeX prints its characters and executes none of them."""
    return "".join(_LATEX.get(letter, letter) for letter in printable(text))


def latex_table(table: Table) -> str:
    """Return a table with its notes; holes are numbered and explained below."""
    reasons: list[str] = []
    header, lines = flat(table, reasons)
    first = 1 + table.has_printed
    columns, rules = _columns(table, lines, first), _rules(table, first)
    width = _width(table)
    groups = " & ".join(rf"\multicolumn{{{width}}}{{c}}{{{REGIME_TITLES[regime]}}}" for regime in table.regimes)
    own = ["Value", "$n$", r"95\% interval", *(["CV*"] if table.has_spread else []), "Verdict"]
    names = " & ".join(header[:first] + own * len(table.regimes))
    head = [r"\toprule", rf"{'& ' * first}{groups} \\ {rules}", rf"{names} \\", r"\midrule"]
    notes = [*table.notes, *_numbered_notes(reasons)]
    return "\n".join(
        [
            PREAMBLE,
            r"\begingroup\footnotesize\setlength{\tabcolsep}{3pt}",
            rf"\begin{{longtable}}{{{columns}}}",
            rf"\caption{{{escape_latex(table.title)}}} \\",
            *head,
            r"\endfirsthead",
            *head,
            r"\endhead",
            r"\bottomrule",
            r"\endfoot",
            *(_line(line, len(header)) for line in lines),
            r"\end{longtable}",
            *(rf"\noindent {escape_latex(note)}\par" for note in notes),
            r"\endgroup",
            "",
        ]
    )


def _columns(table: Table, lines: list[list[str]], first: int) -> str:
    """Return the columns: words wrap, numbers do not."""
    widest = [max((len(line[i]) for line in lines if len(line) > i and len(set(line[1:])) > 1), default=0)
              for i in range(first + _width(table) * len(table.regimes))]  # fmt: skip
    spec = _wrapped(0.2) + (_wrapped(0.1) if first > 1 and widest[1] > _WRAPPED else "r" * (first - 1))
    for index in range(len(table.regimes)):
        value = widest[first + _width(table) * index]
        spec += (_wrapped(0.16) if value > _WRAPPED else "r") + "rc" + "r" * table.has_spread + _wrapped(0.11)
    return spec


def _wrapped(share: float) -> str:
    return rf">{{\raggedright\arraybackslash}}p{{{share:g}\linewidth}}"


def _width(table: Table) -> int:
    """Columns of one regime."""
    return 4 + table.has_spread


def _rules(table: Table, first: int) -> str:
    width = _width(table)
    return " ".join(
        rf"\cmidrule(lr){{{first + 1 + width * i}-{first + width * (i + 1)}}}" for i in range(len(table.regimes))
    )


def _line(line: list[str], columns: int) -> str:
    words = [escape_latex(word) for word in line]
    if len(words) == 1:
        return rf"\addlinespace \multicolumn{{{columns}}}{{l}}{{\emph{{{words[0]}}}}} \\"
    if not any(words[1:]):  # rows that were not run, as one line
        return rf"\multicolumn{{{columns}}}{{{_wrapped(0.95)}}}{{{words[0]}}} \\"
    # a row that begins with "[" would be read as an argument of the \\ before it
    words = [f"{{{word}}}" if word.startswith("[") else word for word in words]
    return " & ".join(words) + r" \\"

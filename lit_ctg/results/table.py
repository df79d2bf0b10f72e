"""The tables of a paper: printed | as published | corrected | n | 95% interval | verdict, from records alone."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from lit_ctg.errors import UserError, did_you_mean
from lit_ctg.results.cell import Row, build_row
from lit_ctg.results.files import write_atomic
from lit_ctg.results.gap import Gap, shown_rows
from lit_ctg.results.pool import RecordPool
from lit_ctg.results.record import RunRecord, load_records
from lit_ctg.results.render import FORMATS, print_tables, render_all
from lit_ctg.results.schema import REGIMES, SIZES
from lit_ctg.results.spec import TableSpec, experiments_root, load_specs, papers, read_printed

OUTPUTS = "outputs"
# missing runs that are named
MISSING_NAMED = 6
# the largest size that a paper has finished runs of
AUTO = "auto"


@dataclass(frozen=True)
class Table:
    """One finished table; ``notes`` are printed under it."""

    spec: TableSpec
    size: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Title with the paper's own number, if it has one."""
        return self.spec.title

    def mark(self, row: Row) -> str:
        """Return the letter of the row's tolerance, if the table has more than one."""
        known = list(dict.fromkeys(str(one.spec.tolerance) for one in self.rows if _tolerated(one)))
        return chr(ord("a") + known.index(str(row.spec.tolerance))) if len(known) > 1 and _tolerated(row) else ""

    @property
    def shown(self) -> list[Row | Gap]:
        """The rows, with three and more of a section that lack the same in one line; whole sections share a line."""
        return shown_rows(self.rows)

    @property
    def has_printed(self) -> bool:
        """Whether the paper has any of these numbers."""
        return any(row.printed is not None for row in self.rows)

    @property
    def regimes(self) -> tuple[str, ...]:
        """The regimes that apply to at least one row."""
        return tuple(regime for regime in REGIMES if any(row.cells.get(regime) is not None for row in self.rows))


@dataclass(frozen=True)
class Results:
    """All tables of a paper, the records behind them, and what was left out."""

    paper: str
    size: str
    tables: tuple[Table, ...]
    pool: RecordPool
    notes: tuple[str, ...] = field(default_factory=tuple)

    def verdicts(self, regime: str) -> Counter[str]:
        """Count the verdicts of one regime over all tables."""
        cells = [row.cells.get(regime) for table in self.tables for row in table.rows if row.judged]
        return Counter(cell.verdict.label for cell in cells if cell is not None and cell.verdict is not None)


def sizes_run(records: Iterable[RunRecord], paper: str) -> list[str]:
    """Return the sizes that a paper has finished runs of, largest first."""
    found = {record.size for record in records if record.paper == paper and record.status == "DONE"}
    return [size for size in reversed(SIZES) if size in found]


def results_for(
    paper: str,
    root: Path | None = None,
    record_dirs: Iterable[Path | str] | None = None,
    size: str = AUTO,
    extra: Iterable[RunRecord] = (),
    known: dict[Path, RunRecord] | None = None,
) -> Results:
    """Join printed numbers, specifications and records of one paper.

    Args:
        paper: name of a folder in ``experiments``.
        root: the ``experiments`` folder; found from the current folder or the package when not given.
        record_dirs: folders and files with records; default: the committed ones and ``outputs``.
        size: only runs of this size count; "auto" is the largest size that has finished runs.
        extra: records that lie in no folder yet.
        known: records that were read before, by file (see ``load_records``).

    Raises:
        UserError: no such paper, a damaged record or specification.
    """
    root = experiments_root(paper) if root is None else Path(root)
    if not (root / paper / "paper_numbers.csv").is_file():
        raise UserError(f"no paper '{paper}' in {root}{did_you_mean(paper, papers(root))}")
    committed = root / paper / "results"
    folders = [committed, Path(OUTPUTS)] if record_dirs is None else [Path(folder) for folder in record_dirs]
    records = [*load_records(folders, known), *extra]
    if size == AUTO:
        size = next(iter(sizes_run(records, paper)), "small")
    pool = RecordPool(records, paper, size, committed)
    numbers = read_printed(root / paper / "paper_numbers.csv")
    tables = []
    for spec in load_specs(root, paper):
        rows = tuple(build_row(spec, row, numbers, pool) for row in spec.rows)
        tables.append(Table(spec, size, rows, tuple(_notes(rows))))
    notes = [*pool.notes, *_missing_runs(paper, tables, pool)]
    return Results(paper, size, tuple(tables), pool, tuple(notes))


def _missing_runs(paper: str, tables: Sequence[Table], pool: RecordPool) -> list[str]:
    """Name the runs that rows ask for and no record has, and the command that makes them."""
    wanted = [
        name
        for table in tables
        for row in table.spec.rows
        if not row.not_run
        for regime in row.regimes
        for name, _ in row.terms
        if not pool.runs.get((name, regime))
    ]
    names = list(dict.fromkeys(wanted))
    if not names:
        return []
    left = len(names) - MISSING_NAMED
    told = ", ".join(names[:MISSING_NAMED]) + (f" and {left} more" if left > 0 else "")
    return [
        f"Missing runs (in one regime at least): {told}. lit-ctg reproduce {paper} size={pool.size} makes those that "
        "runs.yaml lists; with --dry-run it says which, and how long they take."
    ]


def all_results(
    paper: str,
    root: Path | None,
    record_dirs: Sequence[Path | str] | None,
    size: str,
    known: dict[Path, RunRecord] | None = None,
) -> list[Results]:
    """Return the results of one size; of size "auto", those of every size with finished runs (at least one)."""
    if size != AUTO:
        return [results_for(paper, root, record_dirs, size, known=known)]
    known = {} if known is None else known
    largest = results_for(paper, root, record_dirs, known=known)
    others = [other for other in sizes_run(largest.pool.seen, paper) if other not in (largest.size, "smoke")]
    return [largest, *(results_for(paper, root, record_dirs, other, known=known) for other in others)]


def tables_for(
    paper: str, root: Path | None = None, record_dirs: Iterable[Path | str] | None = None, size: str = AUTO
) -> list[Table]:
    """Return the tables of one paper (see ``results_for``)."""
    return list(results_for(paper, root, record_dirs, size).tables)


def _tolerated(row: Row) -> bool:
    return row.spec.tolerance is not None and row.printed is not None and row.printed.value is not None


def _notes(rows: Sequence[Row]) -> list[str]:
    """Say which tolerances the verdicts used (lettered if several), and what cells left out."""
    tolerances = list(dict.fromkeys(str(row.spec.tolerance) for row in rows if _tolerated(row)))
    letters = [f"({chr(ord('a') + index)}) " if len(tolerances) > 1 else "" for index in range(len(tolerances))]
    notes = []
    if tolerances:
        words = "; ".join(letter + text for letter, text in zip(letters, tolerances, strict=True))
        notes.append(f"Tolerance: {words}.")
    left_out: dict[str, list[str]] = {}
    for row in rows:
        for regime, cell in row.cells.items():
            if cell is not None and cell.note:
                left_out.setdefault(f"{regime}, {cell.note}", []).append(row.spec.label)
    return notes + [f"{note}: {', '.join(labels)}." for note, labels in left_out.items()]


class Arguments(argparse.ArgumentParser):
    """A parser whose errors are one line, like all bad input."""

    def error(self, message: str) -> NoReturn:
        """Raise the message as ``UserError``."""
        raise UserError(f"{self.prog}: {message}")


def add_common(parser: argparse.ArgumentParser) -> None:
    """Add the options that tables and report share."""
    parser.add_argument("--records", action="append", metavar="FOLDER")
    parser.add_argument("--size", choices=(*SIZES, AUTO), default=AUTO)
    parser.add_argument("--out", type=Path, metavar="FILE")


def chosen_papers(word: str) -> list[str]:
    """Return the papers that ``word`` (a paper or ``all``) means, each checked to be there."""
    if word == "all":
        return papers(experiments_root())
    experiments_root(word)
    return [word]


def checked_folders(folders: Sequence[str] | None) -> list[Path] | None:
    """Return the folders, or None for the default ones.

    Raises:
        UserError: one does not exist.
    """
    for folder in folders or ():
        if not Path(folder).exists():
            raise UserError(f"no records at {folder}: pass a run directory or a folder of them with --records")
    return [Path(folder) for folder in folders] if folders else None


def main(words: Sequence[str], console: Console | None = None) -> int:
    """Run ``lit-ctg table <paper>|all [--format text|md|latex|csv] [--records FOLDER] [--size SIZE] [--out FILE]``."""
    parser = Arguments(prog="lit-ctg table", add_help=False)
    parser.add_argument("paper")
    parser.add_argument("--format", choices=FORMATS, default="text")
    add_common(parser)
    options = parser.parse_args(list(words))
    folders = checked_folders(options.records)
    known: dict[Path, RunRecord] = {}
    results = [results_for(paper, None, folders, options.size, known=known) for paper in chosen_papers(options.paper)]
    tables = [table for result in results for table in result.tables]
    notes = [note for result in results for note in result.notes]
    if options.out is not None:
        write_atomic(options.out, render_all(tables, options.format, notes))
        (console or Console()).print(f"written: {options.out}", markup=False, highlight=False, soft_wrap=True)
    elif options.format == "text" and (console := console or Console()).is_terminal:
        print_tables(tables, console, notes)
    else:
        print(render_all(tables, options.format, notes), end="")
    return 0

"""All tables of a paper, or of all papers: whose records count, which runs are missing, and the notes under a table."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

from lit_ctg.errors import UserError
from lit_ctg.limits import Choice, check_value
from lit_ctg.results.record import RECORDS, REGIMES, SIZES, RunRecord, check_sources, load_records
from lit_ctg.results.rows import build_row, run_checks
from lit_ctg.results.spec import NUMBERS, TableSpec, experiments_root, load_manifest, load_specs, papers, read_printed
from lit_ctg.results.table import COUNTS, CheckResult, RecordPool, Results, Row, Table, has_margin

OUTPUTS = "outputs"
# how many missing runs are named
MISSING_NAMED = 6
# the largest size that a paper has finished runs of
AUTO = "auto"
# every size that a paper has finished runs of, except smoke
ALL = "all"


def sizes_run(records: Iterable[RunRecord], paper: str) -> list[str]:
    """Return the sizes that a paper has finished runs of, largest first; counts of a text are none."""
    own = (record for record in records if record.paper == paper and not record.name.startswith(COUNTS))
    found = {record.size for record in own if record.status == "DONE"}
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
        record_dirs: folders and files with records; default: the committed ones and the user's own in ``outputs``.
        size: only runs of this size count; "auto" is the largest size with finished runs, by default with committed
            ones where there are any.
        extra: records that are not yet in a folder.
        known: records already read, by file (see ``load_records``).

    Raises:
        UserError: no such paper, a damaged record or specification.
    """
    root = experiments_root(paper) if root is None else Path(root)
    check_value("paper", paper, Annotated[str, Choice(papers(root))])
    manifest = load_manifest(root, paper)
    committed = root / paper / RECORDS
    if record_dirs is None:
        records, origin, size = _own_and_committed(paper, committed, size, known)
    else:
        folders = [Path(folder) for folder in record_dirs]
        records, origin = load_records(folders, known), ", ".join(map(str, folders))
        if [folder.resolve() for folder in folders] == [committed.resolve()]:
            origin = "the committed records"
    records = [*records, *extra]
    if size == AUTO:
        size = next(iter(sizes_run(records, paper)), "small")
    pool = RecordPool(records, paper, size, committed, manifest.data, manifest.unread)
    numbers = read_printed(root / paper / NUMBERS)
    tables = []
    for spec in load_specs(root, paper):
        rows = tuple(build_row(spec, row, numbers, pool) for row in spec.rows)
        tables.append(Table(spec, size, rows, tuple(_notes(spec, rows, pool))))
    notes = [f"Records: {origin or 'none'}; {pool.describe()}."] if pool.records() or origin else []
    notes += [*twins(pool, committed, known), *pool.notes, *_missing_runs(paper, tables, pool)]
    return Results(paper, size, tuple(tables), pool, tuple(notes), manifest, origin)


def _own_and_committed(
    paper: str, committed: Path, size: str, known: dict[Path, RunRecord] | None
) -> tuple[list[RunRecord], str, str]:
    """Return the committed records and the user's own, whose they are, and the size: no run of one's own hides a
    committed table, unless its size is asked for."""
    own, theirs = load_records([Path(OUTPUTS)], known), load_records([committed], known)
    mine, sizes = f"your own runs in {OUTPUTS}", sizes_run(own, paper)
    if size == AUTO:
        size = next(iter(sizes_run(theirs, paper) or sizes), AUTO)
    if size not in sizes:
        return theirs, "the committed records" + (f" ({mine}: size={','.join(sizes)})" if sizes else ""), size
    if size not in sizes_run(theirs, paper):
        return own, f"{mine} (none of size={size} are committed)", size
    return [*theirs, *own], f"the committed records and {mine}", size


def twins(pool: RecordPool, committed: Path, known: dict[Path, RunRecord] | None) -> list[str]:
    """Say how far the user's runs agree with the committed runs of the same experiment, regime, size and seed."""
    folder = committed.resolve()
    own = [record for record in pool.records() if record.source is None or folder not in record.source.parents]
    if not own:
        return []
    others = {(r.name, r.regime, r.size, r.seed): r for r in load_records([committed], known) if r.status == "DONE"}
    pairs = [
        (record, others[key])
        for record in own
        if (key := (record.name, record.regime, record.size, record.seed)) in others
    ]
    if not pairs:
        return []
    apart: dict[str, float] = {}
    count = differ = 0
    for one, other in pairs:
        for name in set(one.metrics) & set(other.metrics):
            value, twin = one.metrics[name]["value"], other.metrics[name]["value"]
            count += 1
            same = math.isclose(value, twin, rel_tol=1e-6) or (math.isnan(value) and math.isnan(twin))
            if not same:
                differ += 1
                far = abs(value - twin) / max(abs(twin), 1e-12)
                apart[name] = max(apart.get(name, 0.0), far if math.isfinite(far) else math.inf)
    words = f"{len(pairs)} of {len(own)} runs have a committed one of the same seed beside them: "
    if not apart:
        return [f"{words}all {count} numbers are the same."]
    most = max(apart, key=lambda name: apart[name])
    return [f"{words}{differ} of {count} numbers differ, most of all {most} ({100 * apart[most]:.2g}%)."]


def _missing_runs(paper: str, tables: Sequence[Table], pool: RecordPool) -> list[str]:
    """Name the runs that rows ask for and that have no record, and the command that makes them."""
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
    listed = ", ".join(names[:MISSING_NAMED]) + (f" and {left} more" if left > 0 else "")
    return [
        f"Missing runs (in one regime at least): {listed}. lit-ctg reproduce paper={paper} size={pool.size} makes "
        "those that paper.yaml lists; with dry_run=true it says which, and how long they take."
    ]


def all_results(
    paper: str,
    root: Path | None,
    record_dirs: Sequence[Path | str] | None,
    size: str,
    known: dict[Path, RunRecord] | None = None,
) -> list[Results]:
    """Return the results of one size; for size "auto", of every size with finished runs (at least one).

    Of several sizes a table is hidden where it has no run but has some at another, and one without any run is hidden at
    all but the largest.
    """
    if size != AUTO:
        return [results_for(paper, root, record_dirs, size, known=known)]
    known = {} if known is None else known
    largest = results_for(paper, root, record_dirs, known=known)
    others = [other for other in sizes_run(largest.pool.seen, paper) if other not in (largest.size, "smoke")]
    sizes = [largest, *(results_for(paper, root, record_dirs, other, known=known) for other in others)]
    ran = [{table.spec.name for table in one.tables if one.pool.has_run_of(table.spec)} for one in sizes]
    every = frozenset(table.spec.name for table in largest.tables)
    ran[0] |= every.difference(*ran)
    return [dataclasses.replace(one, hidden=every - own) for one, own in zip(sizes, ran, strict=True)]


def _largest_of_each(sizes: Sequence[Results]) -> list[Results]:
    """Return the results with every table at the largest size only at which it is shown."""
    kept: list[Results] = []
    seen: frozenset[str] = frozenset()
    for one in sizes:
        one = dataclasses.replace(one, hidden=one.hidden | seen)
        seen |= {table.spec.name for table in one.shown}
        if one.shown:
            kept.append(one)
    return kept


def gather(
    paper: str | None,
    size: str | None = None,
    records: Sequence[str | Path] | None = None,
    root: Path | None = None,
    every_size: bool = False,
) -> tuple[list[Results], list[str]]:
    """Return the results of one paper, or of all, and one line for every paper that was left out.

    Args:
        paper: name of a paper; None or "all" for all of them, except broken ones.
        size: see ``results_for``; None is "auto" (every table at the largest size that it has runs of), "all" is "auto"
            with ``every_size``.
        every_size: for size "auto", every size with finished runs instead of only the largest.

    Raises:
        UserError: the paper is missing or broken, or all of them are; a folder of records does not exist.
    """
    check_sources(records or ())
    every_size = every_size or size == ALL
    size = AUTO if size in (None, ALL) else size
    assert size is not None
    known: dict[Path, RunRecord] = {}
    results, left_out = [], []
    one = paper not in (None, "all")
    top = root if root is not None else experiments_root(paper if one else None)
    for name in [str(paper)] if one else papers(top):
        try:
            sizes = all_results(name, top, records, size, known)
            results += sizes if every_size else _largest_of_each(sizes)
        except UserError as error:
            if one:
                raise
            left_out.append(f"{name}: left out: {error}")
    if not results:
        raise UserError("; ".join(left_out) or f"no papers in {top}")
    return results, left_out


def _notes(spec: TableSpec, rows: Sequence[Row], pool: RecordPool) -> list[str]:
    """Return notes: the margins (lettered if several) and checks behind the verdicts, and what cells left out."""
    margins = list(dict.fromkeys(str(row.spec.margin) for row in rows if has_margin(row)))
    letters = [f"({chr(ord('a') + index)}) " if len(margins) > 1 else "" for index in range(len(margins))]
    notes = []
    if margins:
        words = "; ".join(letter + text for letter, text in zip(letters, margins, strict=True))
        notes.append(f"Margin: {words}.")
    notes += _check_notes(spec, rows, pool)
    floors = dict.fromkeys(
        f"too small to tell below {row.spec.too_small['below']:g}: {row.spec.too_small.get('why', 'at its floor')}"
        for row in rows
        if row.spec.too_small is not None
    )
    notes += [f"{words[:1].upper()}{words[1:]}." for words in floors]
    if sizes := dict.fromkeys(row.spec.any_size for row in rows if row.spec.any_size):
        notes.append(f"Judged at any size: {'; '.join(sizes)}.")
    if repeated := list(dict.fromkeys(row.spec.repeats for row in rows if row.spec.repeats)):
        notes.append(f"Some rows repeat {', '.join(repeated)} and are not counted again.")
    left_out: dict[str, list[str]] = {}
    for row in rows:
        for regime, cell in row.cells.items():
            if cell is not None and cell.note:
                left_out.setdefault(f"{regime}, {cell.note}", []).append(row.spec.label)
    return notes + [f"{note}: {', '.join(dict.fromkeys(labels))}." for note, labels in left_out.items()]


def _check_notes(spec: TableSpec, rows: Sequence[Row], pool: RecordPool) -> list[str]:
    """Return one line per check: what must hold, where it held, and with which numbers."""
    notes = []
    for name, check in spec.checks.items():
        users = [row for row in rows if name in (*row.spec.checks, *row.spec.some, *row.spec.mechanism)]
        by_mean = all(row.spec.over for row in users)
        wanted = {
            (experiment, regime)
            for row in users
            for regime in row.spec.regimes
            for experiment, _ in row.spec.terms
            if pool.runs.get((experiment, regime))
        }
        found: list[CheckResult] = []
        for regime in REGIMES:
            names = sorted(experiment for experiment, own in wanted if own == regime)
            found += run_checks([check], names, regime, pool, by_mean) if names else []
        listed = [f"{label} {_where(results)}" for label, results in _by_outcome(found).items()]
        if listed:
            notes.append(f"Check {name} ({check.says}): {'; '.join(listed)}.")
    return notes


def _by_outcome(found: Sequence[CheckResult]) -> dict[str, list[CheckResult]]:
    words = {True: "held in", False: "failed in", None: "not measured in"}
    groups: dict[str, list[CheckResult]] = {}
    for result in found:
        groups.setdefault("open in" if result.open else words[result.held], []).append(result)
    return groups


def _where(results: Sequence[CheckResult]) -> str:
    """Name the runs of one outcome, with their numbers."""
    numbers = [f" ({one.words})" if one.held is not None else "" for one in results]
    return ", ".join(f"{one.regime}/{one.experiment}{words}" for one, words in zip(results, numbers, strict=True))

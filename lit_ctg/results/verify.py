"""`lit-ctg verify`: recompute from committed texts and records what can be recomputed, and fail on a difference.

Two kinds of numbers need neither model nor corpus: those that follow from other numbers of the same record (a gain
from two rates, a perplexity from those of its classes, an interval from a count), and those that are counted over
generated texts. Records keep the first texts of every trial, not all of them: a count over some of the texts bounds
the number over all. What cannot be recomputed, such as a bootstrap interval, has a digest: ``records/digests.txt`` says
what every committed record was when it was collected.

Each paper knows which numbers can be recomputed: ``lit_ctg/papers/<paper>/verify.py`` defines ``recompute(record)``,
and so does ``lit_ctg/field/verify.py`` for the level field, whose records keep every text.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lit_ctg.errors import UserError, one_line
from lit_ctg.results.record import (
    RECORDS,
    RunRecord,
    check_sources,
    digest_of,
    has_own_hash,
    load_records,
    read_digests,
    stem_of,
)
from lit_ctg.results.spec import experiments_root, papers
from lit_ctg.statistics import Interval, t_interval, wilson_interval
from lit_ctg.terminal import Console

# the original sums were made in another order
TOLERANCE = 1e-6
# how many differences are printed
TOLD = 10
# measured beside the papers, without a manifest of printed numbers
FIELD = "field"
# papers whose perplexities are of all tokens: between those of the folds, not their mean
POOLED = ("nslm",)


@dataclass(frozen=True)
class Recomputed:
    """An expected metric: exact (``low == high``) or between bounds; ``part``: the value or an end of its interval."""

    metric: str
    low: float
    high: float
    how: str
    part: str = "value"


def exactly(metric: str, value: float, how: str, part: str = "value") -> Recomputed:
    """Return an exact expectation."""
    return Recomputed(metric, value, value, how, part)


def from_mean(metric: str, values: Sequence[float], n: int, low: float, high: float) -> Recomputed:
    """Bound the mean of ``n`` values in [low, high] from some of them; from all of them it is exact."""
    rest, total = n - len(values), math.fsum(values)
    return Recomputed(metric, (total + rest * low) / n, (total + rest * high) / n, f"{len(values)} of {n} texts")


def pooled(record: RunRecord, metric: str, parts: Sequence[str], log: bool = False) -> Iterator[Recomputed]:
    """Recompute a mean from those of its parts, weighted by their counts; ``log``: of perplexities."""
    found = [record.metrics[part] for part in parts if part in record.metrics]
    if metric not in record.metrics or len(found) < len(parts) or not found:
        return
    total = sum(entry["n"] for entry in found)
    values = [math.log(entry["value"]) if log else entry["value"] for entry in found]
    mean = math.fsum(entry["n"] * value for entry, value in zip(found, values, strict=True)) / total
    yield exactly(metric, math.exp(mean) if log else mean, f"{len(parts)} parts")


def difference(record: RunRecord, metric: str, one: str, other: str) -> Iterator[Recomputed]:
    """Recompute a difference of two metrics."""
    if {metric, one, other} <= set(record.metrics):
        yield exactly(metric, value_of(record, one) - value_of(record, other), f"{one} - {other}")


def history_end(record: RunRecord) -> Iterator[Recomputed]:
    """Expect in the record what the history has after the last epoch, or after the one that ``keep_best`` kept."""
    last = (record.config.get("trainer") or {}).get("max_epochs")
    keep = (record.config.get("callback") or {}).get("keep_best") or {}
    costs = record.history.get(str(keep.get("monitor")), [])
    best = min(costs, key=lambda point: (point[1], point[0]))[0] if costs else None
    if best is not None:
        yield exactly("best_epoch", best, "history")
    for name, points in record.history.items():
        # the training loss is never measured again
        wanted = last if best is None else points[-1][0] if name.startswith("train/") and points else best
        for epoch, value in points[-1:] if best is None else points:
            if name in record.metrics and epoch == wanted:
                yield exactly(name, value, "history")


def value_of(record: RunRecord, metric: str) -> float:
    return float(record.metrics[metric]["value"])


def rate_intervals(record: RunRecord) -> Iterator[Recomputed]:
    """Recompute Wilson's interval of every rate that counts trials."""
    for name, entry in record.metrics.items():
        if entry["unit"] == "rate" and entry["ci95"] and 0 <= float(entry["value"]) <= 1 and not name.endswith("_gain"):
            yield from wilson_of(record, name)


def wilson_of(record: RunRecord, name: str) -> Iterator[Recomputed]:
    """Recompute a rate as a count of its trials, and Wilson's interval of that count."""
    value, n = value_of(record, name), int(record.metrics[name]["n"])
    if n == 0:
        return  # a rate of nothing
    # this finds a rate that is not a count of its trials: the nearest such rate differs
    yield exactly(name, round(value * n) / n, f"a count of {n}")
    yield from ends(name, wilson_interval(round(value * n), n), f"Wilson, n = {n}")


def ends(metric: str, interval: Interval | None, how: str) -> Iterator[Recomputed]:
    """Expect an interval."""
    for part, end in zip(("low", "high"), interval or (), strict=False):
        yield exactly(metric, end, how, part)


def fold_means(record: RunRecord) -> Iterator[Recomputed]:
    """Recompute the mean of what was measured over folds, and its interval; or bound a whole by its folds."""
    for name, entry in record.metrics.items():
        if folds := entry.get("folds"):
            how = f"{len(folds)} folds"
            if record.paper in POOLED:
                yield Recomputed(name, min(folds), max(folds), how)
                continue
            yield exactly(name, math.fsum(folds) / len(folds), how)
            if all(map(math.isfinite, folds)):
                yield from ends(name, t_interval(folds), how)


@dataclass(frozen=True)
class Outcome:
    """How many numbers of some records were recomputed, and one line for each that differs."""

    records: int
    recomputed: int
    bounded: int
    left: int
    differences: tuple[str, ...]


# place in the archive and start of a run -> its digests: scored twice, it is in two folders
Digests = Mapping[tuple[str, str], set[str]]


def verify(
    records: Iterable[RunRecord],
    recompute: Callable[[RunRecord], Iterator[Recomputed]] | None,
    digests: Digests | None = None,
) -> Outcome:
    """Compare every number that can be recomputed with its record, its hash with its configuration, and its digest.

    Args:
        records: of one paper.
        recompute: yields what the numbers of one must be.
        digests: of committed records (``digests_of``); the others have none.
    """
    count, same, bounded, left = 0, 0, 0, 0
    differences = []
    for record in records:
        count += 1
        seen: set[str] = set()
        if not has_own_hash(record):
            differences.append(f"{_place(record)}: config_hash: not that of its configuration")
        wanted = (digests or {}).get(_key(record))
        if wanted and digest_of(record) not in wanted:
            differences.append(f"{_place(record)}: not the record that was committed (digest)")
        try:
            expected = [*fold_means(record), *(recompute(record) if recompute is not None else ())]
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
            # what a paper keeps in texts and configuration is checked nowhere else
            raise UserError(
                f"{record.source or _place(record)}: not as {record.paper} writes it ({one_line(error)}): run it again"
            ) from error
        for found in expected:
            stored = _stored(record.metrics.get(found.metric), found.part)
            if stored is None:
                differences.append(f"{_place(record)}: {found.metric}: not recorded, {found.low:.6g} recomputed")
            elif not _within(stored, found):
                bounds = f"{found.low:.9g}" if found.low == found.high else f"{found.low:.6g} to {found.high:.6g}"
                what = found.metric + ("" if found.part == "value" else f", {found.part} end of the interval")
                differences.append(
                    f"{_place(record)}: {what}: recorded {stored:.9g}, recomputed {bounds} ({found.how})"
                )
            seen.add(found.metric)
            bounded += found.low < found.high
            same += not found.low < found.high
        left += len(set(record.metrics) - seen)
    return Outcome(count, same, bounded, left, tuple(differences))


def _stored(entry: Mapping[str, object] | None, part: str) -> float | None:
    if entry is None:
        return None
    if part == "value":
        return float(entry["value"])  # type: ignore[arg-type]  # checked when the record was read
    interval = entry["ci95"]
    return float(interval[part == "high"]) if interval else None  # type: ignore[index]  # the same


def _within(stored: float, found: Recomputed) -> bool:
    if math.isnan(stored) or math.isinf(stored):
        return math.isnan(found.low) if math.isnan(stored) else stored in (found.low, found.high)
    room = TOLERANCE * max(1e-3, abs(stored))
    return found.low - room <= stored <= found.high + room


def digests_of(folders: Iterable[Path]) -> Digests:
    """Return what the records in some folders were when they were collected."""
    kept: dict[tuple[str, str], set[str]] = {}
    for folder in folders:
        for key, digest in read_digests(folder).items():
            kept.setdefault(key, set()).add(digest)
    return kept


def _key(record: RunRecord) -> tuple[str, str]:
    return stem_of(record), record.started_at


def _place(record: RunRecord) -> str:
    return f"{record.paper}/{record.name} {record.regime} {record.size} seed {record.seed}"


def recompute_of(paper: str) -> Callable[[RunRecord], Iterator[Recomputed]] | None:
    """Return what the ``verify.py`` of a paper, or of the field, can recompute; None for a paper without one."""
    name = "lit_ctg.field.verify" if paper == FIELD else f"lit_ctg.papers.{paper}.verify"
    try:
        there = importlib.util.find_spec(name)
    except ModuleNotFoundError:  # a paper with experiments but no code here
        there = None
    return None if there is None else importlib.import_module(name).recompute


def folders_of(root: Path, paper: str) -> list[Path]:
    """Return a paper's folders of committed records: its ``records``, and those of folders beside that one."""
    own = root / paper
    return [own / RECORDS, *sorted(path for path in own.glob(f"*/{RECORDS}") if path.is_dir())]


def main(paper: str | None = None, records: Sequence[str | Path] | None = None, console: Console | None = None) -> int:
    """Verify the records of one paper, or of all and the field; return 1 when a number differs.

    Args:
        paper: name of a paper, or ``field``; None or "all" for all.
        records: folders and files with records; default: the committed ones (see ``folders_of``).

    Raises:
        UserError: no such paper, no such folder, or a damaged record.
    """
    shown = console or Console()
    every = paper in (None, "all")
    root = experiments_root(None if every or paper == FIELD else paper)
    code = 0
    check_sources(records or ())
    # a wheel has none
    measured = records is not None or any(folder.is_dir() for folder in folders_of(root, FIELD))
    for name in [*papers(root), *([FIELD] if measured else [])] if every else [str(paper)]:
        folders = folders_of(root, name)
        digests = digests_of(folders)
        found = load_records(records if records is not None else folders)
        done = [record for record in found if record.paper == name and record.status == "DONE"]
        if not every and not done and (records is not None or name == FIELD):
            places = ", ".join(map(str, records or [root]))
            raise UserError(f"no finished record of {name} at {places}: give another records=")
        outcome = verify(done, recompute_of(name), digests)
        differences = list(outcome.differences)
        if records is None:
            there = {_key(record) for record in found}
            differences[:0] = [
                *(f"{name}/{stem}: a committed record is missing" for stem, _ in sorted(set(digests) - there)),
                *(f"{name}/{stem}: no digest, so nobody collected it" for stem, _ in sorted(there - set(digests))),
            ]
        counts = f"{outcome.recomputed:,} numbers recomputed, {outcome.bounded:,} more bounded by their texts"
        outcome_words = f"{len(differences)} differ; {outcome.left:,} numbers need the model or the corpus"
        lines = [f"{name}: {outcome.records} records, {counts}, {outcome_words}"]
        lines += [f"  {line}" for line in differences[:TOLD]]
        if len(differences) > TOLD:
            lines.append(f"  and {len(differences) - TOLD} more")
        for line in lines:
            shown.print(line, markup=False, highlight=False, soft_wrap=True)
        code = max(code, int(bool(differences)))
    return code

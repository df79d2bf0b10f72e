"""The tables of a paper as data: the runs in use (``RecordPool``), and the rows, tables and results made from them.

A pool holds one run per seed, all of one configuration, and a note for every run that it leaves out. ``rows.py`` makes
rows from it: printed numbers, ours in both regimes with intervals, and verdicts; ``gather.py`` makes the tables of a
whole paper. ``render.py`` and ``report.py`` decide how they look.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from lit_ctg.limits import Choice, check_value
from lit_ctg.numbers import format_number
from lit_ctg.results.record import (
    HASH_IGNORED,
    REGIMES,
    RunRecord,
    config_hash,
    drop_keys,
    in_float32,
    without_modules,
)
from lit_ctg.results.spec import MANIFEST, Check, Manifest, Printed, RowSpec, TableSpec
from lit_ctg.results.verdict import Verdict
from lit_ctg.statistics import Interval

Key = tuple[str, str]  # experiment name, regime
# records of `lit-ctg data counts`
COUNTS = "counts_"
_DERIVED = re.compile(r"(fall|rest|below)\(([^,()]+)(?:, ([^,()]+))?(?:, ([\d.]+))?\)")


@dataclass(frozen=True)
class Read:
    """Values of one quantity by seed, or the reason why there are none; ``note`` says what was left out.

    ``folds`` are the values behind the value of a run that was measured over folds. ``intervals`` are the runs' own 95%
    intervals. ``unit`` and ``direction`` are the metric's own. ``version`` grows when the metric's definition changes.
    """

    values: dict[int, float]
    trials: dict[int, int]
    hole: str | None = None
    note: str = ""
    folds: dict[int, list[float]] = field(default_factory=dict)
    unit: str = ""
    direction: str = "none"
    experiment: str = ""
    metric: str = ""
    version: int | None = None
    intervals: dict[int, list[float]] = field(default_factory=dict)


class RecordPool:
    """Records of one paper at one size, by experiment and regime.

    Finished runs only; of two runs with the same seed the later one. Runs of one experiment and regime whose
    configurations differ in more than the seed are not one sample: the committed configuration, else the most common
    one, is kept and ``notes`` names the others.

    Args:
        records: all records, including those of other papers and sizes.
        committed: folder of the paper's committed records.
        data: folders of local data that are the paper's kind of data; None: any.
        unread: experiment -> the part of its configuration that no number of it has read.
    """

    def __init__(
        self,
        records: Iterable[RunRecord],
        paper: str,
        size: str,
        committed: Path | None = None,
        data: Sequence[str] | None = None,
        unread: Mapping[str, str] | None = None,
    ) -> None:
        self.paper, self.size = paper, size
        # folders of local data that are the paper's kind of data; None: any
        self.data = data
        self.unread = unread or {}
        # all records, including those of other papers and sizes
        self.seen = list(records)
        self.notes: list[str] = []
        self.failed: dict[Key, list[RunRecord]] = {}
        done: dict[Key, list[RunRecord]] = {}
        for record in self.seen:
            if (record.paper, record.size) == (paper, size):
                target = done if record.status == "DONE" else self.failed
                target.setdefault((record.name, record.regime), []).append(record)
        folder = committed.resolve() if committed is not None else None
        self.runs: dict[Key, dict[int, RunRecord]] = {}
        for key, group in sorted(done.items()):
            kept = self._one_configuration(key, group, folder)
            self.runs[key] = {record.seed: record for record in sorted(kept, key=lambda record: record.started_at)}
            # a mean over the seeds that did not diverge is a favourable choice
            lost = sorted({record.seed for record in self.failed.get(key, []) if record.status == "DIVERGED"})
            if lost := [seed for seed in lost if seed not in self.runs[key]]:
                self._tell("diverged, so not among the values", key, lost)
            self._tell_float32(key)
            self._tell_training_seeds(key, kept)

    def records(self) -> list[RunRecord]:
        """Return the records in use, by experiment, regime and seed."""
        return [runs[seed] for runs in self.runs.values() for seed in sorted(runs)]

    def has_run_of(self, spec: TableSpec) -> bool:
        """Say whether a model was run that one of a table's rows reads."""
        names = {name for row in spec.rows for name, _ in row.terms if not name.startswith(COUNTS)}
        return any(runs and name in names for (name, _), runs in self.runs.items())

    def trained(self) -> list[RunRecord]:
        """Return the records in use that belong to a model; the others are counts of a text (``run/counts.py``)."""
        return [record for record in self.records() if not record.name.startswith(COUNTS)]

    def read(self, experiment: str, regime: str, metric: str, epoch: int | None = None) -> Read:
        """Return a metric (or its history at ``epoch``, or a field of the record as ``run/<field>``) by seed.

        ``rest(<whole>, <part>)`` is the mean over what the metric ``whole`` counts and ``part`` does not, for
        perplexities the mean of their logarithms. ``fall(<metric>)`` is the decrease of a metric in the last epoch.
        ``below(<metric>, <other>, <times>)`` is 1 where a metric is below that many times the other, else 0.
        """
        if (hole := self.hole(experiment, regime)) is not None:
            return Read({}, {}, hole)
        if (derived := _DERIVED.fullmatch(metric)) is not None:
            kind, one, other, times = derived.groups()
            if kind == "fall":
                return self._fall(experiment, regime, one)
            pair = self.read(experiment, regime, one), self.read(experiment, regime, other)
            return _rest(*pair) if kind == "rest" else _below(*pair, float(times))
        runs = self.runs[experiment, regime]
        if epoch is None and not metric.startswith("run/"):
            versions = {
                seed: record.metrics[metric]["version"] for seed, record in runs.items() if metric in record.metrics
            }
            newest = max(versions.values(), default=None)
            runs = {seed: runs[seed] for seed, version in versions.items() if version == newest}
        values, trials, folds, intervals = {}, {}, {}, {}
        for seed, record in sorted(runs.items()):
            value = _value(record, metric, epoch)
            if value is not None:
                values[seed] = value
                entry = record.metrics.get(metric, {})
                trials[seed] = entry.get("n", 0)
                if epoch is None and (found := entry.get("folds")):
                    folds[seed] = found
                if epoch is None and (found := entry.get("ci95")):
                    intervals[seed] = found
        at = f" at epoch {epoch}" if epoch is not None else ""
        if not values:
            return Read({}, {}, f"not recorded: {metric}{at} ({experiment})")
        missing = sorted(set(self.runs[experiment, regime]) - set(values))
        note = f"seeds without {metric}{at}: {', '.join(map(str, missing))}" if missing else ""
        measured = next((runs[seed].metrics[metric] for seed in values if metric in runs[seed].metrics), {})
        own = measured.get("unit", ""), measured.get("direction", "none"), experiment, metric, measured.get("version")
        return Read(values, trials, None, note, folds, *own, intervals)

    def _fall(self, experiment: str, regime: str, metric: str) -> Read:
        histories = {seed: run.history.get(metric, []) for seed, run in self.runs[experiment, regime].items()}
        values = {seed: points[-2][1] - points[-1][1] for seed, points in histories.items() if len(points) > 1}
        hole = None if values else f"not recorded: {metric} of two epochs ({experiment})"
        return Read(values, dict.fromkeys(values, 0), hole)

    def hole(self, experiment: str, regime: str) -> str | None:
        """Return which experiment lacks a finished run (in the column's regime and the table's size), else None."""
        if self.runs.get((experiment, regime)):
            return None
        failed = self.failed.get((experiment, regime), [])
        if diverged := [record for record in failed if record.status == "DIVERGED"]:
            seeds = ", ".join(str(record.seed) for record in diverged)
            return f"diverged: {experiment}, seed {seeds}; {diverged[-1].error}"
        return f"not run: {experiment}" + (f"; failed: {failed[-1].error}" if failed else "")

    def other_data(self, experiment: str, regime: str) -> str | None:
        """Return why runs are not on the paper's kind of data (a generated sample, the user's own text), else None."""
        for record in self.runs.get((experiment, regime), {}).values():
            for source, root in self._sources(record):
                name = source_name(source, root)
                if source == "sample":
                    return name
                if source == "local" and self.data is not None and name not in self.data:
                    return f"user-supplied data ({name})"
        return None

    def _sources(self, record: RunRecord) -> Iterator[tuple[str, Any]]:
        """Return (source, root) of every corpus that a run's numbers may have read."""
        return sources_of(without_unread(record.config, self.unread.get(record.name)))

    def describe(self) -> str:
        """Describe the records in one line: how many, which seeds, size and data."""
        records = self.records()
        if not records:
            return "no finished runs"
        seeds = sorted({record.seed for record in records})
        numbers = ", ".join(map(str, seeds)) if len(seeds) <= 6 else f"{seeds[0]} to {seeds[-1]}"
        folders = {source_name(*source) for record in records for source in self._sources(record)}
        data = f", data: {', '.join(sorted(folders))}" if folders else ""
        runs = len(self.trained())
        counts = f", {len(records) - runs} counts of its text" if len(records) > runs else ""
        return f"{runs} run{'s' * (runs != 1)}, size {self.size}, seed{'s' * (len(seeds) != 1)} {numbers}{data}{counts}"

    def _tell_float32(self, key: Key) -> None:
        """Note the seeds with float32 products beside seeds with bfloat16 ones: another machine, the same settings."""
        own = [seed for seed, record in sorted(self.runs[key].items()) if in_float32(record)]
        if own and len(own) < len(self.runs[key]):
            self._tell("float32 products, bfloat16 in the other seeds", key, own)

    def _tell(self, what: str, key: Key, seeds: Sequence[int]) -> None:
        shown = f"seed{'s' * (len(seeds) != 1)} {', '.join(map(str, seeds))}"
        self.notes.append(f"{what}: {self.paper}/{key[0]} {key[1]} {shown}")

    def _tell_training_seeds(self, key: Key, kept: list[RunRecord]) -> None:
        """Note runs of one seed that differ in ``training_seed``, of which one counts, and seeds that share one."""
        used = {seed: record.config.get("training_seed") for seed, record in sorted(self.runs[key].items())}
        for record in kept:
            if (own := record.config.get("training_seed")) != used[record.seed]:
                self._tell(f"left out, another training_seed ({own}) of a seed that counts once", key, [record.seed])
        given = [own for own in used.values() if own is not None]
        if shared := sorted({own for own in given if given.count(own) > 1}):
            seeds = [seed for seed, own in used.items() if own in shared]
            self._tell("one training_seed for several seeds, so they differ in their corpus alone", key, seeds)

    def _one_configuration(self, key: Key, group: list[RunRecord], folder: Path | None) -> list[RunRecord]:
        """Return the runs of one configuration; the others get a note."""
        committed = [r for r in group if folder is not None and r.source is not None and folder in r.source.parents]
        configs = {id(record): without_unread(record.config, self.unread.get(key[0])) for record in group}
        families = {id(record): family_hash(configs[id(record)]) for record in group}
        votes = Counter(families[id(record)] for record in committed or group)
        latest = {families[id(record)]: record for record in sorted(group, key=lambda record: record.started_at)}
        best = max(votes, key=lambda family: (votes[family], latest[family].started_at))
        kept: list[RunRecord] = []
        other: list[RunRecord] = []
        for record in group:
            fits = families[id(record)] == best or any(record is one for one in committed)
            (kept if fits else other).append(record)
        for record in [*other, *(record for record in kept if families[id(record)] != best)]:
            pair = (without_modules(configs[id(each)]) for each in (latest[best], record))
            changes = ", ".join(_differences(*pair)[:3])
            mixed = any(record is one for one in kept)
            how = "committed, so counted with the others, but of" if mixed else "left out,"
            run = f"{self.paper}/{key[0]} {key[1]} seed {record.seed}"
            # a record in a folder can be asked for alone
            alone = record.source is not None and record.source.is_file() and not mixed
            ask = f"; records={record.source.parent} shows it" if alone and record.source is not None else ""
            self.notes.append(f"{how} another configuration ({changes}): {run}{ask}")
        return kept


def sources_of(node: Any) -> Iterator[tuple[str, Any]]:
    """Return (source, root) of every corpus in a configuration."""
    if isinstance(node, Mapping):
        if isinstance(node.get("source"), str) and ("root" in node or node["source"] == "sample"):
            yield node["source"], node.get("root")
        for value in node.values():
            yield from sources_of(value)
    elif isinstance(node, list):
        for value in node:
            yield from sources_of(value)


def source_name(source: str, root: Any) -> str:
    """Return the name of a corpus: of a local one its folder's."""
    return {"sample": "made-up sample text", "local": Path(str(root)).name}.get(source, source)


def without_unread(config: dict[str, Any], part: str | None) -> dict[str, Any]:
    """Return a run's configuration without the part that no number of it has read (``unread`` of ``paper.yaml``)."""
    return config if part is None else drop_keys(config, frozenset([part]))


def family_hash(config: Mapping[str, Any]) -> str:
    """Return the hash of a configuration without its seeds: runs that share it are one sample."""
    return config_hash(_without_seeds(drop_keys(config, frozenset(HASH_IGNORED))))


# a run that has one shares no random numbers with the other models of its seed; which one it is does not matter
OWN_SEEDS = ("training_seed", "order_seed")


def _without_seeds(node: Any) -> Any:
    if isinstance(node, Mapping):
        # an option that is off is none, so records from before it existed are of the same configuration
        kept = {key: value for key, value in node.items() if key != "seed" and value is not None}
        return {key: "its own" if key in OWN_SEEDS else _without_seeds(value) for key, value in kept.items()}
    return [_without_seeds(value) for value in node] if isinstance(node, list) else node


def _differences(one: Any, other: Any, prefix: str = "") -> list[str]:
    """Return the dotted keys, with the other's value, in which two configurations differ."""
    if not isinstance(one, Mapping) or not isinstance(other, Mapping):
        return [] if one == other else [f"{prefix.rstrip('.')}={other}"]
    found = []
    for key in sorted({*one, *other}, key=str):
        pair = one.get(key), other.get(key)
        if key == "seed" or f"{prefix}{key}" in HASH_IGNORED or (key in OWN_SEEDS and None not in pair):
            continue
        found += _differences(*pair, f"{prefix}{key}.")
    return found


def older(reads: Iterable[Read]) -> str | None:
    """Return which value is by an older definition of its metric than another one's, None if there is none."""
    known = [read for read in reads if read.version is not None]
    newest: dict[str, int] = {}
    for read in known:
        newest[read.metric] = max(read.version or 0, newest.get(read.metric, 0))
    for read in known:
        if read.version != newest[read.metric]:
            what = f"{read.metric} of {read.experiment} (version {read.version}, elsewhere {newest[read.metric]})"
            return f"an older definition of {what}: run it again"
    return None


def _below(read: Read, other: Read, times: float) -> Read:
    """Return, for every seed, 1 where ``read`` is below ``times`` the other, else 0."""
    if (hole := read.hole or other.hole) is not None:
        return Read({}, {}, hole)
    seeds = [seed for seed in read.values if seed in other.values]
    values = {seed: float(read.values[seed] < times * other.values[seed]) for seed in seeds}
    trials = {seed: read.trials[seed] for seed in seeds}
    hole = None if values else "no seed has both quantities"
    return Read(values, trials, hole, read.note or other.note, {}, "truth value", read.direction)


def _rest(whole: Read, part: Read) -> Read:
    """Return the mean over what ``whole`` counts and ``part`` does not."""
    if (hole := whole.hole or part.hole) is not None:
        return Read({}, {}, hole)
    values, trials = {}, {}
    log = whole.unit.split()[:1] == ["perplexity"]
    for seed in set(whole.values) & set(part.values):
        count = whole.trials[seed] - part.trials[seed]
        if count > 0:
            one, other = (math.log(read.values[seed]) if log else read.values[seed] for read in (whole, part))
            mean = (whole.trials[seed] * one - part.trials[seed] * other) / count
            values[seed], trials[seed] = math.exp(mean) if log else mean, count
    hole = None if values else "nothing is left of the whole without its part"
    own = whole.unit, whole.direction, whole.experiment, f"{whole.metric} without {part.metric}", whole.version
    return Read(values, trials, hole, whole.note or part.note, {}, *own)


def _value(record: RunRecord, metric: str, epoch: int | None) -> float | None:
    if metric.startswith("run/"):
        value = getattr(record, metric.removeprefix("run/"))
        return None if value is None else float(value)
    if epoch is not None:
        return next((value for at, value in record.history.get(metric, []) if at == epoch), None)
    return record.metrics[metric]["value"] if metric in record.metrics else None


# --- rows, tables and results ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """Our side of a row in one regime.

    ``values`` are by seed, ``mean`` is their mean (or the pooled rate over ``trials``). ``interval`` is where one more
    run would lie; for a difference, the interval of its mean; for ``interval: wilson`` without a printed number,
    the wider of Wilson's and Student's over seeds. ``folds`` is their number where the interval is over the folds of
    one run. A ``hole`` says what is missing. A row with a printed number or a claim has a ``verdict``, another may have
    a ``finding``. ``bounds`` holds the numbers behind floor, ceiling and expectation; ``spread`` is CV* of ours alone,
    ``spread_printed`` with the printed number. In a row "on average" the values are the means of its ``cells``,
    numbered from 0.
    """

    values: dict[int, float] = field(default_factory=dict)
    mean: float | None = None
    interval: Interval | None = None
    trials: int | None = None
    folds: int | None = None
    cells: int | None = None
    hole: str | None = None
    verdict: Verdict | None = None
    finding: str = ""
    note: str = ""
    texts: tuple[str, ...] = ()
    bounds: dict[str, float | None] = field(default_factory=dict)
    spread: float | None = None
    spread_printed: float | None = None


@dataclass(frozen=True)
class CheckResult:
    """A check of one experiment in one regime: whether it held, and the numbers. ``held`` None: not measured.

    It holds if all of its ``interval`` is on the right side of the limit; ``open``: the limit lies inside.
    """

    check: Check
    experiment: str
    regime: str
    held: bool | None
    value: float | None = None
    limit: float | None = None
    interval: Interval | None = None
    open: bool = False

    @property
    def words(self) -> str:
        """Return e.g. ``2,301 against 529``."""
        if self.held is None:
            return "not measured"
        low, high = self.interval or (self.value, self.value)
        within = f" [{format_number(low)}, {format_number(high)}]" if low != high else ""
        return f"{format_number(self.value)}{within} against {format_number(self.limit)}"


@dataclass(frozen=True)
class Row:
    """A row; a regime that does not apply has no cell. ``impossible`` is about the printed number, by regime."""

    spec: RowSpec
    printed: Printed | None
    cells: dict[str, Cell | None]
    impossible: dict[str, Verdict] = field(default_factory=dict)

    @property
    def judged(self) -> bool:
        """Whether the paper states something here, a number or a claim, that gets a verdict."""
        return self.printed is not None or self.spec.claim is not None

    @property
    def is_claim(self) -> bool:
        """Whether it is a claim rather than a number."""
        return self.spec.claim is not None

    @property
    def ran(self) -> bool:
        """Whether it has a number of ours."""
        return any(cell is not None and cell.hole is None for cell in self.cells.values())


@dataclass(frozen=True)
class Table:
    """One finished table; ``notes`` are printed under it."""

    spec: TableSpec
    size: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return self.spec.title

    @property
    def ran(self) -> bool:
        """Whether it has a number of ours: printed numbers alone make no picture."""
        return any(row.ran for row in self.rows)

    def of_its_size(self) -> Table:
        """Return the table with its size in the title, for pages that show it at several sizes."""
        spec = dataclasses.replace(self.spec, title=f"{self.spec.title} (size {self.size})")
        return dataclasses.replace(self, spec=spec)

    def mark(self, row: Row) -> str:
        """Return the letter of the row's margin, if the table has more than one."""
        known = list(dict.fromkeys(str(one.spec.margin) for one in self.rows if has_margin(one)))
        return chr(ord("a") + known.index(str(row.spec.margin))) if len(known) > 1 and has_margin(row) else ""

    @property
    def has_printed(self) -> bool:
        """Whether the paper has any of these numbers."""
        return any(row.printed is not None for row in self.rows)

    @property
    def has_spread(self) -> bool:
        """Whether any cell has a coefficient of variation."""
        return any(c is not None and c.spread is not None for row in self.rows for c in row.cells.values())

    @property
    def regimes(self) -> tuple[str, ...]:
        """The regimes that apply to at least one row."""
        return tuple(regime for regime in REGIMES if any(row.cells.get(regime) is not None for row in self.rows))


@dataclass(frozen=True)
class Results:
    """All tables of a paper, the records behind them, and what was left out.

    ``hidden`` names the tables that are shown at another size only.
    """

    paper: str
    size: str
    tables: tuple[Table, ...]
    pool: RecordPool
    notes: tuple[str, ...] = field(default_factory=tuple)
    manifest: Manifest | None = None
    # whose records these are
    origin: str = ""
    hidden: frozenset[str] = frozenset()

    @property
    def shown(self) -> tuple[Table, ...]:
        return tuple(table for table in self.tables if table.spec.name not in self.hidden)

    @property
    def title(self) -> str:
        return self.manifest.title if self.manifest is not None else self.paper.replace("_", " ")

    def named(self, wanted: Mapping[str, str]) -> tuple[Table, Row]:
        """Return the row that a headline names by ``table``, ``section`` and ``label``, with its table."""
        where = f"{self.paper}/{MANIFEST}, headline"
        tables = {table.spec.name: table for table in self.tables}
        name = wanted["table"]
        check_value(f"{where}: table", name, Annotated[str, Choice(tables)])
        key = f"{wanted['section']} / {wanted['label']}"
        rows = {f"{row.spec.section} / {row.spec.label}": row for row in tables[name].rows}
        check_value(f"{where}: row", key, Annotated[str, Choice(rows)])
        return tables[name], rows[key]

    def counted(self, claims: bool) -> list[Row]:
        """Return the rows with a printed number, or with a claim, each number and each claim once.

        A row that ``repeats`` another, or whose printed number occurred in an earlier row, is not counted again.
        """
        seen: set[str] = set()
        rows = []
        for table in self.shown:
            for row in table.rows:
                if not row.judged or row.is_claim != claims or row.spec.repeats or row.spec.samples is not None:
                    continue
                if not claims and (row.printed is None or row.printed.value is None):
                    continue  # a printed text, or "not reported"
                key = _identity(table.spec, row)
                if key not in seen:
                    rows.append(row)
                seen.add(key)
        return rows

    def verdicts(self, regime: str, claims: bool | None = None) -> Counter[str]:
        """Count the verdicts of one regime over all tables: on numbers, on claims, or on both.

        Points of a curve that have the same verdict count once.
        """
        kinds = (False, True) if claims is None else (claims,)
        rows = [row for kind in kinds for row in self.counted(kind)]
        found = {
            (_curve(row) or number, cell.verdict.label)
            for number, row in enumerate(rows)
            if (cell := row.cells.get(regime)) is not None and cell.verdict is not None
        }
        return Counter(label for _, label in found)


def _curve(row: Row) -> tuple[str, ...]:
    """Return what the points of a curve over epochs share; nothing for another row."""
    if row.spec.epoch is None or row.is_claim:
        return ()
    return row.spec.section, row.spec.series, re.sub(r"\d+", "", row.spec.label)


def _identity(table: TableSpec, row: Row) -> str:
    """Return what identifies a printed number or a claim."""
    spec = row.spec
    if not row.is_claim:
        references = spec.printed if isinstance(spec.printed, list) else [spec.printed]
        return repr([(one.get("table", table.table), one.get("row"), one.get("column")) for one in references])
    return repr((spec.claim, spec.combine, spec.terms, spec.metric, spec.epoch, spec.seeds))


def has_margin(row: Row) -> bool:
    """Whether the row's margin takes part in its verdict."""
    if row.spec.margin is None or row.is_claim:
        return row.spec.margin is not None and row.spec.claim not in ("less", "greater", "never_less")
    return row.printed is not None and row.printed.value is not None

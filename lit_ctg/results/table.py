"""The tables of a paper as data: printed numbers, ours in both regimes with intervals, and verdicts, from records
alone.

From a row's specification to its verdict, in order: which runs have the quantity (``pool.py``), whether they may speak
(data, size, metric, checks), what they say (``verdict.py``). How it looks is ``render.py``'s and ``report.py``'s.
"""

from __future__ import annotations

import dataclasses
import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lit_ctg.errors import UserError, did_you_mean
from lit_ctg.numbers import format_number, format_value
from lit_ctg.results.pool import Read, RecordPool
from lit_ctg.results.record import REGIMES, SIZES, RunRecord, load_records
from lit_ctg.results.spec import (
    NUMBERS,
    Check,
    Manifest,
    Printed,
    Quantity,
    RowSpec,
    TableSpec,
    experiments_root,
    load_manifest,
    load_specs,
    papers,
    read_printed,
)
from lit_ctg.results.verdict import (
    CANNOT_DECIDE,
    MIN_SEEDS,
    NOT_COMPARABLE,
    NOT_REPRODUCED,
    NOT_RUN,
    OTHER_DATA,
    OTHER_SIZE,
    TOO_SMALL,
    UNDECIDED,
    Domain,
    Verdict,
    as_untrained,
    beyond_bound,
    domain_of,
    find_sign,
    judge_claim,
    judge_number,
    mean_interval,
    next_interval,
    next_rate,
    repeatability,
)
from lit_ctg.statistics import Interval, sign_test, wilson_interval

OUTPUTS = "outputs"
# missing runs that are named
MISSING_NAMED = 6
# the largest size that a paper has finished runs of
AUTO = "auto"
# every size that a paper has finished runs of, a smoke run excepted
ALL = "all"

_BOUNDS = ("floor", "ceiling", "expectation")
_DIFFERENCES = ("difference", "percent_change", "interaction")
_COMBINE: dict[str, Callable[..., float]] = {
    "difference": lambda one, other: one - other,
    "ratio": lambda one, other: one / other,
    "percent_change": lambda one, other: 100.0 * (one - other) / other,
    "sum": lambda *values: math.fsum(values),
    "mean": lambda *values: statistics.fmean(values),
    "interaction": lambda one, other, third, fourth: (one - other) - (third - fourth),
}
_HOLDS: dict[str, Callable[[float, float], bool]] = {
    "at_most": lambda value, limit: value <= limit,
    "at_least": lambda value, limit: value >= limit,
    "below": lambda value, limit: value < limit,
    "above": lambda value, limit: value > limit,
}

Numbers = Mapping[tuple[str, str, str], Printed]


@dataclass(frozen=True)
class Cell:
    """Our side of a row in one regime.

    ``values`` are by seed, ``mean`` their mean (or the pooled rate over ``trials``). ``interval`` is where one more run
    would lie, for a difference that of its mean, for ``interval: wilson`` without a printed number Wilson's;
    ``folds`` is their number where it is over the folds of one run. A ``hole`` says what is missing. A row with a
    printed number or a claim has a ``verdict``, one without may have a ``finding``. ``bounds`` holds the numbers
    behind floor, ceiling and expectation; ``spread`` is CV* of ours alone, ``spread_printed`` with the printed number.
    Of a row "on average" the values are the means of its ``cells``, numbered from 0.
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
    """A check of one experiment in one regime: did it hold, and the numbers. ``held`` None: not measured."""

    check: Check
    experiment: str
    regime: str
    held: bool | None
    value: float | None = None
    limit: float | None = None

    @property
    def words(self) -> str:
        """Return e.g. ``2,301 against 529``."""
        if self.held is None:
            return "not measured"
        return f"{format_number(self.value)} against {format_number(self.limit)}"


@dataclass(frozen=True)
class Row:
    """A row; a regime that does not apply has no cell. ``impossible`` is of the printed number, by regime."""

    spec: RowSpec
    printed: Printed | None
    cells: dict[str, Cell | None]
    impossible: dict[str, Verdict] = field(default_factory=dict)

    @property
    def judged(self) -> bool:
        """Whether the paper says something here, a number or a sentence, that gets a verdict."""
        return self.printed is not None or self.spec.claim is not None

    @property
    def is_claim(self) -> bool:
        """Whether it is a claim rather than a number."""
        return self.spec.claim is not None


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

    def of_its_size(self) -> Table:
        """Return the table with its size in the title, for pages that have it at several sizes."""
        spec = dataclasses.replace(self.spec, title=f"{self.spec.title} (size {self.size})")
        return dataclasses.replace(self, spec=spec)

    def mark(self, row: Row) -> str:
        """Return the letter of the row's margin, if the table has more than one."""
        known = list(dict.fromkeys(str(one.spec.margin) for one in self.rows if _has_margin(one)))
        return chr(ord("a") + known.index(str(row.spec.margin))) if len(known) > 1 and _has_margin(row) else ""

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
    """All tables of a paper, the records behind them, and what was left out."""

    paper: str
    size: str
    tables: tuple[Table, ...]
    pool: RecordPool
    notes: tuple[str, ...] = field(default_factory=tuple)
    manifest: Manifest | None = None
    # whose records these are
    origin: str = ""

    @property
    def title(self) -> str:
        """The paper's name in words."""
        return self.manifest.title if self.manifest is not None else self.paper.replace("_", " ")

    def counted(self, claims: bool) -> list[Row]:
        """Return the rows with a printed number, or with a claim, each number and each claim once.

        A row that ``repeats`` another, or whose printed number stood in a row before, is not counted again.
        """
        seen: set[str] = set()
        rows = []
        for table in self.tables:
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
        """Count the verdicts of one regime over all tables: of numbers, of claims, or of both."""
        kinds = (False, True) if claims is None else (claims,)
        cells = [row.cells.get(regime) for kind in kinds for row in self.counted(kind)]
        return Counter(cell.verdict.label for cell in cells if cell is not None and cell.verdict is not None)


def _identity(table: TableSpec, row: Row) -> str:
    """Return what tells printed numbers and claims apart."""
    spec = row.spec
    if not row.is_claim:
        references = spec.printed if isinstance(spec.printed, list) else [spec.printed]
        return repr([(one.get("table", table.table), one.get("row"), one.get("column")) for one in references])
    return repr((spec.claim, spec.combine, spec.terms, spec.metric, spec.epoch, spec.seeds))


# --- one row --------------------------------------------------------------------------------------------------------


def build_row(table: TableSpec, row: RowSpec, numbers: Numbers, pool: RecordPool) -> Row:
    """Join one row's printed number with the records."""
    printed = printed_of(table, row, numbers)
    if printed is not None and printed.value and (row.claim, printed.value > 0) in (("less", True), ("greater", False)):
        raise UserError(f"{table.name}, {row.label}: claim {row.claim}, but {printed.text} is printed")
    impossible: dict[str, Verdict] = {}
    cells: dict[str, Cell | None] = {}
    for regime in row.metric:
        if regime not in row.regimes:
            cells[regime] = None
        elif row.samples is not None:
            cells[regime] = build_text_cell(row, regime, pool)
        else:
            bounds = {
                key: _number(getattr(row, key)[regime], row, regime, pool) for key in _BOUNDS if getattr(row, key)
            }
            bound = None
            if printed is not None and printed.value is not None:
                bound = beyond_bound(printed.value, bounds.get("floor"), bounds.get("ceiling"))
            if bound is not None:
                impossible[regime] = bound
            cells[regime] = build_cell(table, row, regime, printed, pool, bounds, bound)
    return Row(row, printed, cells, impossible)


def printed_of(table: TableSpec, row: RowSpec, numbers: Numbers) -> Printed | None:
    """Return the row's printed number; a list of references is combined as the row's terms are.

    Raises:
        UserError: the reference is not in ``numbers.csv``.
    """
    if row.printed is None:
        return None
    if isinstance(row.printed, dict) and "value" in row.printed:
        return Printed(None, str(row.printed["value"]))
    references = row.printed if isinstance(row.printed, list) else [row.printed]
    found = []
    for reference in references:
        key = (str(reference.get("table", table.table)), str(reference["row"]), str(reference["column"]))
        if key not in numbers:
            known = [other[2] for other in numbers if other[:2] == key[:2]] or [other[1] for other in numbers]
            raise UserError(f"{table.name}: no printed number {'/'.join(key)}{did_you_mean(key[2], known)}")
        found.append(numbers[key])
    if len(found) == 1:
        return found[0]
    values = [number.value for number in found if number.value is not None]
    if len(values) < len(found) or row.combine is None:
        raise UserError(f"{table.name}, {row.label}: a list of printed numbers needs 'combine' and every number")
    value = _COMBINE[row.combine](*values)
    return Printed(value, format_value(value, row.digits, signed=row.combine != "ratio"), row.unit)


def build_cell(
    table: TableSpec,
    row: RowSpec,
    regime: str,
    printed: Printed | None,
    pool: RecordPool,
    bounds: dict[str, float | None],
    bound: Verdict | None,
) -> Cell:
    """Measure one row in one regime and judge it."""
    if row.over:
        return _pooled(table, row, regime, pool, bounds)
    reads = [pool.read(name, regime, metric[regime] or "", row.epoch) for name, metric in row.terms]
    hole = next((read.hole for read in reads if read.hole), None)
    seeds = sorted(set.intersection(*(set(read.values) for read in reads)))
    wanted = row.seeds.get(regime)
    if wanted is not None:
        seeds = [seed for seed in seeds if seed in wanted]
    if not hole and not seeds:
        hole = "no seed has all of its terms" if wanted is None else f"not run: seed {', '.join(map(str, wanted))}"
    if hole:
        hole = f"not run: {row.not_run}" if row.not_run else hole
        return Cell(hole=hole, verdict=bound or Verdict(NOT_RUN, row.not_run or hole), bounds=bounds)
    values = {seed: _combined(row, [read.values[seed] for read in reads]) for seed in seeds}
    domain = domain_of(reads[0].unit, reads[0].direction, row.combine)
    domain = domain if row.limits is None else Domain(float(row.limits[0]), float(row.limits[1]))
    measured = _Measured(row, values, reads, domain, printed)
    unpaired = sorted(set.union(*(set(read.values) for read in reads)) - set(seeds)) if wanted is None else []
    notes = [*dict.fromkeys(read.note for read in reads if read.note)]
    notes += [f"unpaired seeds left out: {', '.join(map(str, unpaired))}"] if unpaired else []
    says = row.claim is not None or (printed is not None and printed.value is not None)
    sized = not row.sign_only.get(regime) and (pool.size == "paper" or bool(row.any_size))
    verdict = bound or (_refused(table, row, regime, reads, pool) if says else None)
    verdict = verdict or _judge(row, printed, measured, sized)
    if verdict is not None and bound is None and row.untrained.get(regime):
        verdict = as_untrained(verdict, _judge_untrained(row, regime, printed, pool, seeds, domain, sized))
    level = row.claim is None and row.combine not in _DIFFERENCES and row.interval != "none"
    comparable = verdict is not None and bound is None and printed is not None and verdict.label not in _NO_SPREAD
    return Cell(
        values=values,
        mean=measured.mean,
        interval=measured.interval,
        trials=measured.trials,
        folds=measured.folds,
        verdict=verdict,
        finding=_finding(row, printed, measured, bounds),
        note="; ".join(notes),
        bounds=bounds,
        spread=_spread(row, values, domain) if level and says else None,
        spread_printed=_spread(row, values, domain, printed.value)
        if level and says and comparable and printed
        else None,
    )


def _pooled(table: TableSpec, row: RowSpec, regime: str, pool: RecordPool, bounds: dict[str, float | None]) -> Cell:
    """Measure and judge a row "on average": one value for every cell that has been run, the mean over its seeds.

    The sentence speaks of cells, and the seeds of one cell share its size and data: they are no further draws of it. A
    cell that fails a check of the row is left out, and the note says so.
    """
    means: list[float] = []
    reads: list[Read] = []
    experiments: list[tuple[str, dict[str, str | None]]] = []
    holes: list[str] = []
    failed: dict[str, int] = {}
    pairs = 0
    for terms in row.over:
        own = [pool.read(name, regime, metric[regime] or "", row.epoch) for name, metric in terms]
        holes += [read.hole for read in own if read.hole]
        seeds = sorted(set.intersection(*(set(read.values) for read in own)))
        if not seeds:
            continue
        if (why := _failed_check(table, row, [name for name, _ in terms], regime, pool)) is not None:
            failed[why.check.name] = failed.get(why.check.name, 0) + 1
            continue
        pairs += len(seeds)
        reads += own
        experiments += terms
        means.append(statistics.fmean(_combined(row, [read.values[seed] for read in own]) for seed in seeds))
    told = [f"{count} left out, check {name} does not hold" for name, count in failed.items()]
    if not means:
        if failed:
            verdict = Verdict(CANNOT_DECIDE, "; ".join(told)) if row.claim else None
            return Cell(hole=f"cannot decide: {'; '.join(told)}", verdict=verdict, bounds=bounds)
        hole = holes[0] if holes else "no seed has all of its terms"
        return Cell(hole=hole, verdict=Verdict(NOT_RUN, hole) if row.claim else None, bounds=bounds)
    values = dict(enumerate(means))
    domain = domain_of(reads[0].unit, reads[0].direction, row.combine)
    measured = _Measured(dataclasses.replace(row, interval="seeds"), values, _numbered(reads, values), domain, None)
    if measured.counts is None:
        enough = len(means) >= MIN_SEEDS and domain.truth
        measured.why_none = f"{len(means)} cells of a yes-or-no quantity" if enough else f"fewer than {MIN_SEEDS} cells"
    run = dataclasses.replace(row, terms=tuple(experiments), checks=(), some=())
    verdict = (_refused(table, run, regime, reads, pool) or _judge(row, None, measured)) if row.claim else None
    size = f"{pairs} {'pairs' if len(row.over[0]) == 2 else 'sets'} of runs"
    return Cell(
        values=values,
        mean=measured.mean,
        interval=measured.interval,
        cells=len(means),
        verdict=verdict,
        finding=_finding(row, None, measured, bounds),
        note="; ".join([f"over {len(means)} of {len(row.over)} cells ({size})", *told]),
        bounds=bounds,
    )


def _numbered(reads: Sequence[Read], values: Mapping[int, float]) -> list[Read]:
    """Return a read that has a number of trials for every pooled value."""
    return [Read(dict(values), dict.fromkeys(values, 0), unit=reads[0].unit, direction=reads[0].direction)]


def _spread(row: RowSpec, values: Mapping[int, float], domain: Domain, printed: float | None = None) -> float | None:
    """Return CV*, but not of numbers that are all at the end of their scale, where rounding would be all there is."""
    near = all(value - domain.low < 10.0**-row.digits for value in values.values())
    return None if near else repeatability(list(values.values()), domain, printed)


# with these the printed number is no measurement of the same quantity
_NO_SPREAD = (*NOT_COMPARABLE, NOT_RUN)


class _Measured:
    """Mean, intervals and pooled trials of a row's values by seed."""

    def __init__(
        self,
        row: RowSpec,
        values: Mapping[int, float],
        reads: Sequence[Read],
        domain: Domain,
        printed: Printed | None,
    ) -> None:
        self.values, self.domain = list(values.values()), domain
        self.mean = statistics.fmean(self.values)
        self.trials: int | None = None
        self.folds: int | None = None
        self.interval: Interval | None = None
        self.counts: Interval | None = None
        self.why_none = ""
        finite = all(map(math.isfinite, self.values))
        trials = [reads[0].trials[seed] for seed in values]
        if row.interval == "wilson" and finite:
            self._pool(row, reads, trials)
        if row.interval == "none":
            self.counts = (self.mean, self.mean)
        elif not finite:
            self.counts = (self.mean, self.mean) if len(self.values) >= MIN_SEEDS else None
        elif row.interval == "folds" and len(self.values) == 1 and (folds := _folds(row, next(iter(values)), reads)):
            self.folds = len(folds)
            self.interval = mean_interval(folds, domain)
            self.counts = self.interval if self.folds >= MIN_SEEDS else None
        elif row.trials is not None:
            self.interval = self.counts = next_rate(self.values, trials, row.trials)
        elif row.interval != "wilson":
            self._seeds(row)

    def _pool(self, row: RowSpec, reads: Sequence[Read], trials: Sequence[int]) -> None:
        hits, total = sum(round(v * n) for v, n in zip(self.values, trials, strict=True)), sum(trials)
        if not 0 <= hits <= total:
            raise UserError(
                f"{row.label}: {row.terms[0][1]} is no rate ({hits} of {total}); interval: wilson is for rates"
            )
        self.mean, self.trials = (hits / total if total else math.nan), total
        self.interval = self.counts = wilson_interval(hits, total)

    def _seeds(self, row: RowSpec) -> None:
        """Intervals over seeds: of the mean for a difference, of one more run for a level; from three on they count."""
        of = mean_interval if row.combine in _DIFFERENCES else next_interval
        self.interval = of(self.values, self.domain)
        enough = len(self.values) >= MIN_SEEDS
        if enough and self.domain.truth and row.combine in _DIFFERENCES and not self._sure():
            self.interval, self.why_none = None, f"{len(self.values)} seeds of a yes-or-no quantity"
            return
        if row.claim is not None and len(self.values) > 1 and not self.domain.truth and self._one_value():
            # an interval without width says that the seed changes nothing, not that we are sure
            self.interval, self.why_none = None, "the seed changes nothing: one value, not several"
            return
        self.counts = self.interval if enough else None

    def _one_value(self) -> bool:
        return max(self.values) - min(self.values) <= 1e-9 * max(1.0, abs(self.mean))

    def _sure(self) -> bool:
        """Of yes or no: Student's interval of +1, +1, +1 has no width; the exact test says what three seeds can say."""
        return sign_test(self.values, [0.0] * len(self.values)) <= 0.05


def _combined(row: RowSpec, values: list[float]) -> float:
    try:
        return _COMBINE[row.combine](*values) if row.combine else values[0]
    except ZeroDivisionError:
        return math.nan


def _folds(row: RowSpec, seed: int, reads: Sequence[Read]) -> list[float]:
    """Return what the row makes of each fold of one run; nothing where a term has none."""
    folds = [read.folds.get(seed, []) for read in reads]
    if len({len(values) for values in folds}) > 1:
        return []
    combined = [_combined(row, list(values)) for values in zip(*folds, strict=True)]
    return combined if all(map(math.isfinite, combined)) else []


def _number(quantity: Quantity | None, row: RowSpec, regime: str, pool: RecordPool) -> float | None:
    """Return a bound: its metric's mean over the seeds that have it, else its stated number."""
    if quantity is None:
        return None
    return _quantity(quantity, quantity.experiment or row.experiment, regime, pool)


def _quantity(quantity: Quantity, experiment: str, regime: str, pool: RecordPool) -> float | None:
    if quantity.metric is not None:
        read = pool.read(experiment, regime, quantity.metric)
        if read.values and all(map(math.isfinite, read.values.values())):
            return statistics.fmean(read.values.values())
    return quantity.number


def _refused(table: TableSpec, row: RowSpec, regime: str, reads: Sequence[Read], pool: RecordPool) -> Verdict | None:
    """Return why these runs may not speak about what was printed or claimed; None if they may."""
    names = list(dict.fromkeys(name for name, _ in row.terms))
    for name in names:
        if (why := pool.other_data(name, regime)) is not None:
            return Verdict(OTHER_DATA, why)
    if (other := row.other.get(regime)) is not None:
        label, _, why = other.partition(":")
        return Verdict(label, why.strip())
    if pool.size == "smoke" or (row.claim is None and pool.size != "paper" and not row.any_size):
        return Verdict(OTHER_SIZE, f"size {pool.size}, the printed number is of size paper")
    if row.too_small is not None:
        largest = max(abs(statistics.fmean(read.values.values())) for read in reads)
        if largest < float(row.too_small["below"]):
            return Verdict(TOO_SMALL, f"{largest:.2g}, below {row.too_small['below']:g}")
    if (result := _failed_check(table, row, names, regime, pool)) is not None:
        return Verdict(CANNOT_DECIDE, f"{result.check.says}: {result.words}")
    return None


def _failed_check(
    table: TableSpec, row: RowSpec, experiments: Sequence[str], regime: str, pool: RecordPool
) -> CheckResult | None:
    """Return the first check that does not hold: of ``checks`` in any experiment, of ``some`` in none of them."""
    names = list(dict.fromkeys(experiments))
    for result in run_checks([table.checks[name] for name in row.checks], names, regime, pool):
        if not result.held:
            return result
    for name in row.some:
        found = run_checks([table.checks[name]], names, regime, pool)
        if found and not any(result.held for result in found):
            return next((result for result in found if result.held is not None), found[0])
    return None


def run_checks(checks: Iterable[Check], experiments: Sequence[str], regime: str, pool: RecordPool) -> list[CheckResult]:
    """Hold each check against its limit, for its own experiment or for each of ``experiments``."""
    results = []
    for check in checks:
        for name in [check.experiment] if check.experiment is not None else experiments:
            metric, quantity = check.metric[regime], check.against[regime]
            if metric is None or quantity is None:
                continue  # does not apply to this regime
            read = pool.read(name, regime, metric)
            against = _quantity(quantity, quantity.experiment or name, regime, pool)
            if not read.values or against is None:
                results.append(CheckResult(check, name, regime, None))
                continue
            value, limit = statistics.fmean(read.values.values()), against * check.times
            held = math.isfinite(value) and _HOLDS[check.limit](value, limit)
            results.append(CheckResult(check, name, regime, held, value, limit))
    return results


def _judge(row: RowSpec, printed: Printed | None, ours: _Measured, sized: bool = True) -> Verdict | None:
    """Judge what was measured; ``sized``: the printed size of a difference is comparable, not its sign alone."""
    value = None if printed is None else printed.value
    if row.claim is not None:
        value = value if sized else None
        if not all(map(math.isfinite, ours.values)):
            return Verdict(UNDECIDED, f"ours is {ours.mean}")
        return judge_claim(
            row.claim,
            ours.counts,
            effect=row.effect if row.effect is not None else value,
            meaningful=row.effect is not None,
            margin=row.margin.absolute if row.margin is not None else None,
            why_none=ours.why_none,
        )
    if value is None or row.margin is None:
        return None
    if not math.isfinite(ours.mean):
        return Verdict(NOT_REPRODUCED, f"ours is {ours.mean}")
    return judge_number(value, ours.counts, row.margin)


def _judge_untrained(
    row: RowSpec,
    regime: str,
    printed: Printed | None,
    pool: RecordPool,
    seeds: Sequence[int],
    domain: Domain,
    sized: bool,
) -> Verdict | None:
    """Return the verdict that the model before training would get; None where nobody measured it."""
    read = pool.read(row.experiment, regime, row.untrained[regime] or "")
    values = {seed: read.values[seed] for seed in seeds if seed in read.values}
    return _judge(row, printed, _Measured(row, values, [read], domain, printed), sized) if values else None


def _finding(row: RowSpec, printed: Printed | None, ours: _Measured, bounds: Mapping[str, float | None]) -> str:
    """Say what a number of our own shows: a goal met or not, the sign of a difference, a value below its floor."""
    found = []
    if row.goal is not None:
        for word, limit in row.goal.items():
            met = ours.mean <= limit if word == "at_most" else ours.mean >= limit
            found.append(f"goal {word.replace('_', ' ')} {limit:g}: {'met' if met else 'missed'}")
    elif row.combine in _DIFFERENCES and printed is None and row.claim is None:
        found.append(find_sign(ours.counts) if not ours.why_none else ours.why_none)
    floor = bounds.get("floor")
    if floor is not None and math.isfinite(ours.mean) and ours.mean < floor:
        found.append(f"below the floor {floor:.4g}: the model sees what it predicts")
    return "; ".join(found)


def build_text_cell(row: RowSpec, regime: str, pool: RecordPool) -> Cell:
    """Pick generated texts of the lowest seed, and count over all seeds how many are as asked."""
    assert row.samples is not None
    where = row.samples.get("where", {})
    runs = pool.runs.get((row.experiment, regime), {})
    texts = {
        seed: [s["text"] for s in runs[seed].samples if all(s.get(key, "") == value for key, value in where.items())]
        for seed in sorted(runs)
    }
    texts = {seed: found for seed, found in texts.items() if found}
    if not texts:
        wanted = ", ".join(f"{key}={value!r}" for key, value in where.items())
        hole = pool.hole(row.experiment, regime) or f"not recorded: samples with {wanted}"
        return Cell(hole=hole, verdict=Verdict(NOT_RUN, hole))
    shown = tuple(dict.fromkeys(next(iter(texts.values()))))[: row.samples.get("show", 3)]
    everything = [text for found in texts.values() for text in found]
    finding = ""
    if "expect" in row.samples:
        hits = sum(re.search(row.samples["expect"], text) is not None for text in everything)
        finding = f"{hits} of {len(everything)} as asked"
    return Cell(values=dict.fromkeys(texts, math.nan), finding=finding, texts=shown)


# --- all tables of a paper ------------------------------------------------------------------------------------------


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
        record_dirs: folders and files with records; default: one's own in ``outputs`` if the paper has finished runs
            there (of the size asked for), else the committed ones.
        size: only runs of this size count; "auto" is the largest size that has finished runs.
        extra: records that lie in no folder yet.
        known: records that were read before, by file (see ``load_records``).

    Raises:
        UserError: no such paper, a damaged record or specification.
    """
    root = experiments_root(paper) if root is None else Path(root)
    if paper not in papers(root):
        raise UserError(f"no paper '{paper}' in {root}{did_you_mean(paper, papers(root))}")
    manifest = load_manifest(root, paper)
    committed = root / paper / "results"
    if record_dirs is None:
        records, origin = _own_or_committed(paper, committed, size, known)
    else:
        folders = [Path(folder) for folder in record_dirs]
        records, origin = load_records(folders, known), ", ".join(map(str, folders))
        if [folder.resolve() for folder in folders] == [committed.resolve()]:
            origin = "the committed records"
    records = [*records, *extra]
    if size == AUTO:
        size = next(iter(sizes_run(records, paper)), "small")
    pool = RecordPool(records, paper, size, committed, manifest.data)
    numbers = read_printed(root / paper / NUMBERS)
    tables = []
    for spec in load_specs(root, paper):
        rows = tuple(build_row(spec, row, numbers, pool) for row in spec.rows)
        tables.append(Table(spec, size, rows, tuple(_notes(spec, rows, pool))))
    notes = [f"Records: {origin or 'none'}; {pool.describe()}."] if pool.records() or origin else []
    notes += [*twins(pool, committed, known), *pool.notes, *_missing_runs(paper, tables, pool)]
    return Results(paper, size, tuple(tables), pool, tuple(notes), manifest, origin)


def _own_or_committed(
    paper: str, committed: Path, size: str, known: dict[Path, RunRecord] | None
) -> tuple[list[RunRecord], str]:
    """Return one's own finished runs of the paper where there are any, else the committed ones, and whose they are."""
    own = load_records([Path(OUTPUTS)], known)
    if size in sizes_run(own, paper) or (size == AUTO and sizes_run(own, paper)):
        return own, f"your own runs in {OUTPUTS} (the committed ones: records={_shown_path(committed)})"
    return load_records([committed], known), "the committed records"


def twins(pool: RecordPool, committed: Path, known: dict[Path, RunRecord] | None) -> list[str]:
    """Say how far runs of one's own agree with the committed runs of the same experiment, regime, size and seed."""
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


def _shown_path(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


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
        f"Missing runs (in one regime at least): {told}. lit-ctg reproduce paper={paper} size={pool.size} makes those "
        "that paper.yaml lists; with dry_run=true it says which, and how long they take."
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


def gather(
    paper: str | None,
    size: str | None = None,
    records: Sequence[str | Path] | None = None,
    root: Path | None = None,
    every_size: bool = False,
) -> tuple[list[Results], list[str]]:
    """Return the results of one paper, or of all, and a line for every paper that was left out.

    Args:
        paper: name of a paper; None or "all" for all of them, those that are broken left out.
        size: see ``results_for``; None is "auto", "all" is "auto" with ``every_size``.
        records: folders and files with records.
        root: the ``experiments`` folder.
        every_size: of size "auto" every size with finished runs, not the largest alone.

    Raises:
        UserError: the paper is not there or broken, or all of them are; a folder of records does not exist.
    """
    for folder in records or ():
        if not Path(folder).exists():
            raise UserError(f"no records at {folder}: pass a run directory or a folder of them with records=")
    every_size = every_size or size == ALL
    size = AUTO if size in (None, ALL) else size
    assert size is not None
    if size not in (*SIZES, AUTO):
        raise UserError(f"size={size}{did_you_mean(size, SIZES)}; one of {', '.join((*SIZES, AUTO, ALL))}")
    known: dict[Path, RunRecord] = {}
    results, left_out = [], []
    one = paper not in (None, "all")
    top = root if root is not None else experiments_root(paper if one else None)
    for name in [str(paper)] if one else papers(top):
        try:
            if every_size:
                results += all_results(name, top, records, size, known)
            else:
                results.append(results_for(name, top, records, size, known=known))
        except UserError as error:
            if one:
                raise
            left_out.append(f"{name}: left out: {error}")
    if not results:
        raise UserError("; ".join(left_out) or f"no papers in {top}")
    return results, left_out


def tables_for(
    paper: str, root: Path | None = None, record_dirs: Iterable[Path | str] | None = None, size: str = AUTO
) -> list[Table]:
    """Return the tables of one paper (see ``results_for``)."""
    return list(results_for(paper, root, record_dirs, size).tables)


def _has_margin(row: Row) -> bool:
    """Whether the row's margin takes part in its verdict."""
    if row.spec.margin is None or row.is_claim:
        return row.spec.margin is not None and row.spec.claim not in ("less", "greater")
    return row.printed is not None and row.printed.value is not None


def _notes(spec: TableSpec, rows: Sequence[Row], pool: RecordPool) -> list[str]:
    """Say which margins and checks the verdicts used (margins lettered if several), and what cells left out."""
    margins = list(dict.fromkeys(str(row.spec.margin) for row in rows if _has_margin(row)))
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
    return notes + [f"{note}: {', '.join(labels)}." for note, labels in left_out.items()]


def _check_notes(spec: TableSpec, rows: Sequence[Row], pool: RecordPool) -> list[str]:
    """Return one line a check: what must hold, and where it did with which numbers."""
    notes = []
    for name, check in spec.checks.items():
        wanted = {
            (experiment, regime)
            for row in rows
            if name in (*row.spec.checks, *row.spec.some)
            for regime in row.spec.regimes
            for experiment, _ in row.spec.terms
            if pool.runs.get((experiment, regime))
        }
        found: list[CheckResult] = []
        for regime in REGIMES:
            names = sorted(experiment for experiment, own in wanted if own == regime)
            found += run_checks([check], names, regime, pool) if names else []
        told = [f"{label} {_where(results)}" for label, results in _by_outcome(found).items()]
        if told:
            notes.append(f"Check {name} ({check.says}): {'; '.join(told)}.")
    return notes


def _by_outcome(found: Sequence[CheckResult]) -> dict[str, list[CheckResult]]:
    words = {True: "held in", False: "failed in", None: "not measured in"}
    groups: dict[str, list[CheckResult]] = {}
    for result in found:
        groups.setdefault(words[result.held], []).append(result)
    return groups


def _where(results: Sequence[CheckResult]) -> str:
    """Name the runs of one outcome, with their numbers."""
    return ", ".join(
        f"{one.regime}/{one.experiment}" + (f" ({one.words})" if one.held is not None else "") for one in results
    )

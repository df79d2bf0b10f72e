"""One row of a table, from its specification to its verdict.

Which runs have the quantity (``table.RecordPool``), whether they are comparable with what was printed (data, size,
metric, checks), and what they show (``verdict.py``).
"""

from __future__ import annotations

import dataclasses
import math
import operator
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated

from lit_ctg.errors import UserError
from lit_ctg.limits import Choice, check_value
from lit_ctg.numbers import format_value
from lit_ctg.results.spec import DIFFERENCES, QUANTITIES, Check, Printed, Quantity, RowSpec, TableSpec
from lit_ctg.results.table import Cell, CheckResult, Read, RecordPool, Row, older
from lit_ctg.results.verdict import (
    CANNOT_DECIDE,
    MIN_SEEDS,
    NOT_COMPARABLE,
    NOT_REPRODUCED,
    NOT_RUN,
    OTHER_DATA,
    OTHER_SIZE,
    RANGE_RUNS,
    TOO_SMALL,
    TRUTH_SEEDS,
    UNDECIDED,
    Domain,
    Verdict,
    as_untrained,
    beyond_bound,
    domain_of,
    find_sign,
    judge_claim,
    judge_never,
    judge_number,
    mean_interval,
    mean_of,
    mean_rate,
    next_interval,
    next_rate,
    repeatability,
)
from lit_ctg.statistics import Interval, sign_test

_COMBINE: dict[str, Callable[..., float]] = {
    "difference": lambda one, other: one - other,
    "ratio": lambda one, other: one / other,
    "percent_change": lambda one, other: 100.0 * (one - other) / other,
    "sum": lambda *values: math.fsum(values),
    "mean": lambda *values: statistics.fmean(values),
    "interaction": lambda one, other, third, fourth: (one - other) - (third - fourth),
}
_HOLDS = {"at_most": operator.le, "at_least": operator.ge, "below": operator.lt, "above": operator.gt}

Numbers = Mapping[tuple[str, str, str], Printed]


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
                key: _quantity(getattr(row, key)[regime], row.experiment, regime, pool)
                for key in QUANTITIES
                if getattr(row, key)
            }
            bound = None
            if printed is not None and printed.value is not None:
                bound = beyond_bound(printed.value, bounds.get("floor"), bounds.get("ceiling"))
            if bound is not None:
                impossible[regime] = bound
            cells[regime] = build_cell(table, row, regime, printed, pool, bounds, bound)
    return Row(row, printed, cells, impossible)


def printed_of(table: TableSpec, row: RowSpec, numbers: Numbers) -> Printed | None:
    """Return the row's printed number; a list of references is combined in the same way as the row's terms.

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
        check_value(f"{table.name}: printed", "/".join(key), Annotated[str, Choice(["/".join(one) for one in numbers])])
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
    hole = next((read.hole for read in reads if read.hole), None) or older(reads)
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
    combine = "difference" if _is_difference(row) and row.combine is None else row.combine
    domain = domain_of(reads[0].unit, reads[0].direction, combine)
    domain = domain if row.limits is None else Domain(float(row.limits[0]), float(row.limits[1]))
    measured = _Measured(row, values, reads, domain, printed)
    unpaired = sorted(set.union(*(set(read.values) for read in reads)) - set(seeds)) if wanted is None else []
    notes = [*dict.fromkeys(read.note for read in reads if read.note)]
    notes += [f"unpaired seeds left out: {', '.join(map(str, unpaired))}"] if unpaired else []
    mechanism = run_checks(
        [table.checks[name] for name in row.mechanism], [name for name, _ in row.terms], regime, pool
    )
    notes += [f"mechanism {_not_shown(result)}" for result in mechanism if not result.held]
    says = row.claim is not None or (printed is not None and printed.value is not None)
    sized = not row.sign_only.get(regime) and (pool.size == "paper" or bool(row.any_size))
    verdict = bound or (_refused(table, row, regime, reads, pool) if says else None)
    verdict = verdict or _judge(row, printed, measured, sized)
    if verdict is not None and bound is None and row.untrained.get(regime):
        verdict = as_untrained(verdict, _judge_untrained(row, regime, printed, pool, seeds, domain, sized))
    level = not _is_difference(row) and row.interval != "none"
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
        spread_printed=_spread(row, values, domain, printed.value) if level and comparable and printed else None,
    )


def _pooled(table: TableSpec, row: RowSpec, regime: str, pool: RecordPool, bounds: dict[str, float | None]) -> Cell:
    """Measure and judge a row "on average": one value per cell that was run, the mean over its seeds.

    The claim is about cells, and the seeds of one cell share its size and data: they are not further draws of it; nor
    are sizes that the row declares alike. What fails a check of the row is left out, and the note says so.
    """
    by_cell: dict[str, list[float]] = {}
    reads: list[Read] = []
    experiments: list[tuple[str, dict[str, str | None]]] = []
    holes: list[str] = []
    failed: dict[str, int] = {}
    pairs: dict[str, list[list[float]]] = {}
    names = row.alike or tuple(map(str, range(len(row.over))))
    found = [[pool.read(name, regime, metric[regime] or "", row.epoch) for name, metric in terms] for terms in row.over]
    if (mixed := older(read for own in found for read in own)) is not None:
        return Cell(hole=mixed, verdict=Verdict(NOT_RUN, mixed) if row.claim else None, bounds=bounds)
    for cell, terms, own in zip(names, row.over, found, strict=True):
        holes += [read.hole for read in own if read.hole]
        seeds = sorted(set.intersection(*(set(read.values) for read in own)))
        if not seeds:
            continue
        if (why := _failed_check(table, row, [name for name, _ in terms], regime, pool)) is not None:
            failed[why.check.name] = failed.get(why.check.name, 0) + 1
            continue
        runs = [[read.values[seed] for read in own] for seed in seeds]
        pairs.setdefault(cell, []).extend(runs)
        reads += own
        experiments += terms
        domain = domain_of(own[0].unit, own[0].direction, row.combine)
        by_cell.setdefault(cell, []).append(mean_of([_combined(row, values) for values in runs], domain))
    means = [mean_of(own_means, domain) for own_means in by_cell.values()]
    what = " combination" if row.alike else ""
    failures = [
        f"{count}{what}{'s' * (count > 1 and bool(what))} left out, check {name} does not hold"
        for name, count in failed.items()
    ]
    if not means:
        if failed:
            verdict = Verdict(CANNOT_DECIDE, "; ".join(failures)) if row.claim else None
            return Cell(hole=f"cannot decide: {'; '.join(failures)}", verdict=verdict, bounds=bounds)
        hole = holes[0] if holes else "no seed has all of its terms"
        return Cell(hole=hole, verdict=Verdict(NOT_RUN, hole) if row.claim else None, bounds=bounds)
    values = dict(enumerate(means))
    pooled = Read(values, dict.fromkeys(values, 0), unit=reads[0].unit, direction=reads[0].direction)
    measured = _Measured(dataclasses.replace(row, interval="seeds"), values, [pooled], domain, None)
    if measured.counts is None:
        enough = len(means) >= MIN_SEEDS and domain.truth
        measured.why_none = f"{len(means)} cells of a yes-or-no quantity" if enough else f"fewer than {MIN_SEEDS} cells"
    run = dataclasses.replace(row, terms=tuple(experiments), checks=(), some=())
    verdict = _refused(table, run, regime, reads, pool) if row.claim else None
    if verdict is None and row.claim == "never_less":
        # of yes or no only pairs whose second is a yes could be below 0
        possible = [[_combined(row, own) for own in cell if not domain.truth or own[1] > 0] for cell in pairs.values()]
        verdict = judge_never([cell for cell in possible if cell])
    elif verdict is None and row.claim:
        verdict = _judge(row, None, measured)
    count = sum(map(len, pairs.values()))
    size = f"{count} {'pair' if len(row.over[0]) == 2 else 'set'}{'s' * (count != 1)} of runs"
    return Cell(
        values=values,
        mean=measured.mean,
        interval=measured.interval,
        cells=len(means),
        verdict=verdict,
        finding=_finding(row, None, measured, bounds),
        note="; ".join([f"over {len(means)} of {len(set(names))} cells ({size})", *failures]),
        bounds=bounds,
    )


def _spread(row: RowSpec, values: Mapping[int, float], domain: Domain, printed: float | None = None) -> float | None:
    """Return CV*, except for numbers that are all at the end of their scale, where only rounding would vary."""
    near = all(value - domain.low < 10.0**-row.digits for value in values.values())
    return None if near else repeatability(list(values.values()), domain, printed)


# with these verdicts the printed number does not measure the same quantity
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
        self.mean = mean_of(self.values, domain)
        self.trials: int | None = None
        self.folds: int | None = None
        self.interval: Interval | None = None
        self.counts: Interval | None = None
        self.another: Interval | None = None
        self.why_none = ""
        finite = all(map(math.isfinite, self.values))
        trials = [reads[0].trials[seed] for seed in values]
        if row.interval == "wilson" and finite:
            self._pool(row, reads, trials)
        if row.interval == "none":
            self.counts = (self.mean, self.mean)
        elif row.interval == "range":
            # one more run is within the range of n others in (n - 1) / (n + 1) of cases, whatever their distribution
            self.counts = self.interval = self._range()
        elif not finite:
            self.counts = (self.mean, self.mean) if len(self.values) >= MIN_SEEDS else None
        elif row.interval == "folds" and len(self.values) == 1 and (folds := _folds(row, next(iter(values)), reads)):
            self.folds = len(folds)
            self.interval = mean_interval(folds, domain)
            self.counts = self.interval if self.folds >= MIN_SEEDS else None
        elif row.trials is not None:
            # sampling alone gives an interval to one seed too, but says nothing of another training
            self.interval = next_rate(self.values, trials, row.trials)
            self.counts = self.interval if len(self.values) >= MIN_SEEDS else None
        elif row.interval != "wilson":
            self._seeds(row, printed)

    def _pool(self, row: RowSpec, reads: Sequence[Read], trials: Sequence[int]) -> None:
        hits, total = sum(round(v * n) for v, n in zip(self.values, trials, strict=True)), sum(trials)
        if not 0 <= hits <= total:
            raise UserError(
                f"{row.label}: {row.terms[0][1]} is not a rate ({hits} of {total}); interval: wilson is for rates"
            )
        self.mean, self.trials = (hits / total if total else math.nan), total
        self.interval = mean_rate(self.values, trials)

    def _seeds(self, row: RowSpec, printed: Printed | None) -> None:
        """Set the intervals over seeds: of the mean for a difference, of one more run for a level; they need three.

        A printed difference without a claim is a number, so it too is compared with one more run.
        """
        difference = _is_difference(row)
        number = row.claim is None and printed is not None and printed.value is not None
        of = mean_interval if difference and not number else next_interval
        self.interval = of(self.values, self.domain)
        enough = len(self.values) >= MIN_SEEDS
        if enough and self.domain.truth and not (self._sure() if difference else len(self.values) >= TRUTH_SEEDS):
            self.interval, self.why_none = None, f"{len(self.values)} seeds of a yes-or-no quantity"
            return
        if row.claim is not None and len(self.values) > 1 and not self.domain.truth and self._one_value():
            # an interval of width zero means that the seed changes nothing, not that we are certain
            self.interval, self.why_none = None, "the seed changes nothing: one value, not several"
            return
        self.counts = self.interval if enough else None
        self.another = next_interval(self.values, self.domain)

    def _range(self) -> Interval | None:
        if len(self.values) >= RANGE_RUNS:
            return min(self.values), max(self.values)
        self.why_none = f"{len(self.values)} of {RANGE_RUNS} runs that a range needs"
        return None

    def _one_value(self) -> bool:
        return max(self.values) - min(self.values) <= 1e-9 * max(1.0, abs(self.mean))

    def _sure(self) -> bool:
        """For yes or no: Student's interval of +1, +1, +1 has no width; use the exact test instead."""
        return sign_test(self.values, [0.0] * len(self.values)) <= 0.05


def _is_difference(row: RowSpec) -> bool:
    """Return whether a row is a difference: by how it combines its terms, or because a claim says on which side of 0
    its metric lies."""
    return row.combine in DIFFERENCES or row.claim is not None


def _combined(row: RowSpec, values: list[float]) -> float:
    try:
        return _COMBINE[row.combine](*values) if row.combine else values[0]
    except ZeroDivisionError:
        return math.nan


def _folds(row: RowSpec, seed: int, reads: Sequence[Read]) -> list[float]:
    """Return the row's value for each fold of one run; empty if a term has no folds."""
    folds = [read.folds.get(seed, []) for read in reads]
    if len({len(values) for values in folds}) > 1:
        return []
    combined = [_combined(row, list(values)) for values in zip(*folds, strict=True)]
    return combined if all(map(math.isfinite, combined)) else []


def _quantity(quantity: Quantity | None, experiment: str, regime: str, pool: RecordPool) -> float | None:
    """Return a bound: its metric's mean over the seeds that recorded it, else its stated number."""
    if quantity is None:
        return None
    if quantity.metric is not None:
        read = pool.read(quantity.experiment or experiment, regime, quantity.metric)
        if read.values and all(map(math.isfinite, read.values.values())):
            return statistics.fmean(read.values.values())
    return quantity.number


def _refused(table: TableSpec, row: RowSpec, regime: str, reads: Sequence[Read], pool: RecordPool) -> Verdict | None:
    """Return why these runs cannot be compared with what was printed or claimed; None if they can."""
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
        return Verdict(UNDECIDED if result.open else CANNOT_DECIDE, _not_shown(result))
    return None


def _not_shown(result: CheckResult) -> str:
    return f"not shown that {result.check.says}: {result.words}"


def _failed_check(
    table: TableSpec, row: RowSpec, experiments: Sequence[str], regime: str, pool: RecordPool
) -> CheckResult | None:
    """Return the first failed check: one of ``checks`` that fails anywhere, or one of ``some`` that holds nowhere.

    In a row "on average" checks choose the cells, by their means.
    """
    names, by_mean = list(dict.fromkeys(experiments)), bool(row.over)
    for result in run_checks([table.checks[name] for name in row.checks], names, regime, pool, by_mean):
        if not result.held:
            return result
    for name in row.some:
        found = run_checks([table.checks[name]], names, regime, pool, by_mean)
        if found and not any(result.held for result in found):
            return next((result for result in found if result.held is not None), found[0])
    return None


def run_checks(
    checks: Iterable[Check], experiments: Sequence[str], regime: str, pool: RecordPool, by_mean: bool = False
) -> list[CheckResult]:
    """Compare each check with its limit, for its own experiment or for each of ``experiments``.

    A check holds with its whole interval; ``by_mean``: with its mean, to choose the cells of a row "on average".
    """
    results = []
    for check in checks:
        for name in [check.experiment] if check.experiment is not None else experiments:
            metric, quantity = check.metric[regime], check.against[regime]
            if metric is None or quantity is None:
                continue  # does not apply to this regime
            read = pool.read(name, regime, metric)
            against = _quantity(quantity, name, regime, pool)
            beside = pool.read(quantity.experiment or name, regime, quantity.metric) if quantity.metric else read
            if not read.values or against is None or older([read, beside]):
                results.append(CheckResult(check, name, regime, None))
                continue
            value, limit = statistics.fmean(read.values.values()), against * check.times
            interval = (value, value) if by_mean else _check_interval(read)
            held = [math.isfinite(end) and _HOLDS[check.limit](end, limit) for end in interval]
            inside = held[0] != held[1] and all(map(math.isfinite, interval))
            results.append(CheckResult(check, name, regime, all(held), value, limit, interval, inside))
    return results


def _check_interval(read: Read) -> Interval:
    """Return where the quantity of a check lies: its mean over seeds, below three the intervals of the runs."""
    values = read.values
    if len(values) >= MIN_SEEDS and all(map(math.isfinite, values.values())):
        return mean_interval(list(values.values()), domain_of(read.unit, read.direction)) or (math.nan, math.nan)
    ends = [end for seed, value in values.items() for end in read.intervals.get(seed, [value])]
    return min(ends), max(ends)


def _judge(row: RowSpec, printed: Printed | None, ours: _Measured, sized: bool = True) -> Verdict | None:
    """Judge what was measured; ``sized``: the printed size of a difference is comparable, not only its sign."""
    value = None if printed is None else printed.value
    if row.claim is not None:
        value = value if sized else None
        if not all(map(math.isfinite, ours.values)):
            return Verdict(UNDECIDED, f"ours is {ours.mean}")
        return judge_claim(
            row.claim,
            ours.counts,
            another=ours.another,
            effect=row.effect if row.effect is not None else value,
            meaningful=row.effect is not None,
            margin=row.margin.absolute if row.margin is not None else None,
            why_none=ours.why_none,
        )
    if value is None or row.margin is None:
        return None
    if ours.counts is not None and not math.isfinite(ours.mean):
        return Verdict(NOT_REPRODUCED, f"ours is {ours.mean}")
    return judge_number(value, ours.counts, row.margin, ours.why_none)


def _judge_untrained(
    row: RowSpec,
    regime: str,
    printed: Printed | None,
    pool: RecordPool,
    seeds: Sequence[int],
    domain: Domain,
    sized: bool,
) -> Verdict | None:
    """Return the verdict that the untrained model would get; None where it was not measured."""
    read = pool.read(row.experiment, regime, row.untrained[regime] or "")
    values = {seed: read.values[seed] for seed in seeds if seed in read.values}
    return _judge(row, printed, _Measured(row, values, [read], domain, printed), sized) if values else None


def _finding(row: RowSpec, printed: Printed | None, ours: _Measured, bounds: Mapping[str, float | None]) -> str:
    """Say what our number shows: a goal met or missed, the sign of a difference, a value below its floor."""
    found = []
    if row.goal is not None:
        for word, limit in row.goal.items():
            met = ours.mean <= limit if word == "at_most" else ours.mean >= limit
            found.append(f"goal {word.replace('_', ' ')} {limit:g}: {'met' if met else 'missed'}")
    elif row.combine in DIFFERENCES and printed is None and row.claim is None:
        found.append(find_sign(ours.counts) if not ours.why_none else ours.why_none)
    floor = bounds.get("floor")
    if floor is not None and math.isfinite(ours.mean) and ours.mean < floor:
        found.append(f"below the floor {floor:.4g}: the model sees what it predicts")
    return "; ".join(found)


def build_text_cell(row: RowSpec, regime: str, pool: RecordPool) -> Cell:
    """Pick generated texts of the lowest seed; with ``expect`` count over all seeds how many are as requested."""
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
    if "expect" not in row.samples:
        return Cell(values={min(texts): math.nan}, texts=shown)
    everything = [text for found in texts.values() for text in found]
    hits = sum(re.search(row.samples["expect"], text) is not None for text in everything)
    finding = f"{hits} of {len(everything)} as asked"
    return Cell(values=dict.fromkeys(texts, math.nan), finding=finding, texts=shown)

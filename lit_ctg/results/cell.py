"""One row of a table: the printed number and, for each regime, ours with its interval and verdict."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from lit_ctg.errors import UserError, did_you_mean
from lit_ctg.results.interval import ANY, Domain, domain_of, mean_interval
from lit_ctg.results.pool import Read, RecordPool
from lit_ctg.results.spec import Printed, Quantity, RowSpec, TableSpec
from lit_ctg.results.verdict import (
    MIN_SEEDS,
    NOT_RUN,
    Interval,
    Verdict,
    beyond_bound,
    find_sign,
    judge_claim,
    judge_sentence,
    judge_value,
)
from lit_ctg.statistics import wilson_interval

_BOUNDS = ("floor", "ceiling", "reference", "expectation")
_COMBINE: dict[str, Callable[..., float]] = {
    "difference": lambda one, other: one - other,
    "ratio": lambda one, other: one / other,
    "percent_change": lambda one, other: 100.0 * (one - other) / other,
    "sum": lambda *values: math.fsum(values),
    "mean": lambda *values: statistics.fmean(values),
}


@dataclass(frozen=True)
class Cell:
    """Our side of a row in one regime.

    ``values`` are by seed, ``mean`` their mean (or the pooled rate over ``trials``); ``folds`` is their number where
    the interval is over the folds of one run; a ``hole`` says what is missing. A row with a printed number has a
    ``verdict``, one without may have a ``finding``. ``bounds`` holds the numbers behind floor, ceiling, reference and
    expectation.
    """

    values: dict[int, float] = field(default_factory=dict)
    mean: float | None = None
    interval: Interval | None = None
    trials: int | None = None
    folds: int | None = None
    hole: str | None = None
    verdict: Verdict | None = None
    finding: str = ""
    note: str = ""
    texts: tuple[str, ...] = ()
    bounds: dict[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """A row of a table; a regime that does not apply has no cell."""

    spec: RowSpec
    printed: Printed | None
    cells: dict[str, Cell | None]

    @property
    def judged(self) -> bool:
        """Whether the paper says something here, a number or a sentence, that gets a verdict."""
        return self.printed is not None or self.spec.claim is not None


def build_row(table: TableSpec, row: RowSpec, numbers: Mapping[tuple[str, str, str], Printed], pool: RecordPool) -> Row:
    """Join one row's printed number with the records."""
    printed = printed_of(table, row, numbers)
    build = build_text_cell if row.samples is not None else build_cell
    cells = {regime: build(row, regime, printed, pool) if regime in row.regimes else None for regime in row.metric}
    return Row(row, printed, cells)


def printed_of(table: TableSpec, row: RowSpec, numbers: Mapping[tuple[str, str, str], Printed]) -> Printed | None:
    """Return the row's printed number; a list of references is combined as the row's terms are.

    Raises:
        UserError: the reference is not in ``paper_numbers.csv``.
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


def build_cell(row: RowSpec, regime: str, printed: Printed | None, pool: RecordPool) -> Cell:
    """Measure one row in one regime and judge it."""
    reads = [pool.read(name, regime, metric[regime] or "", row.epoch) for name, metric in row.terms]
    hole = next((read.hole for read in reads if read.hole), None)
    bounds = {key: _number(getattr(row, key)[regime], row, regime, pool) for key in _BOUNDS if getattr(row, key)}
    bound = None
    if printed is not None and printed.value is not None:
        bound = beyond_bound(printed.value, bounds.get("floor"), bounds.get("ceiling"))
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
    # a claim is held against 0, on whose both sides it must be free to lie
    domain = ANY if row.claim is not None else domain_of(reads[0].unit, reads[0].direction, row.combine)
    mean, interval, trials = _summary(row, values, reads[0].trials, domain)
    folds = _folds(row, seeds[0], reads) if row.interval == "folds" and len(seeds) == 1 else []
    interval = mean_interval(folds, domain) if folds else interval
    counts = interval if len(seeds) >= MIN_SEEDS or len(seeds) == 1 or row.interval == "wilson" else None
    unpaired = sorted(set.union(*(set(read.values) for read in reads)) - set(seeds)) if wanted is None else []
    notes = [*dict.fromkeys(read.note for read in reads if read.note)]
    notes += [f"unpaired seeds left out: {', '.join(map(str, unpaired))}"] if unpaired else []
    return Cell(
        values=values,
        mean=mean,
        interval=interval,
        trials=trials,
        folds=len(folds) or None,
        verdict=bound or _verdict(row, printed, mean, counts, bounds),
        finding=_finding(row, printed, mean, counts, bounds),
        note="; ".join(notes),
        bounds=bounds,
    )


def _combined(row: RowSpec, values: list[float]) -> float:
    try:
        return _COMBINE[row.combine](*values) if row.combine else values[0]
    except ZeroDivisionError:
        return math.nan


def _summary(
    row: RowSpec, values: Mapping[int, float], trials: Mapping[int, int], domain: Domain
) -> tuple[float, Interval | None, int | None]:
    """Return mean, interval and pooled trials (of a Wilson row)."""
    if row.interval == "wilson" and all(map(math.isfinite, values.values())):
        total = sum(trials[seed] for seed in values)
        hits = sum(round(values[seed] * trials[seed]) for seed in values)
        if not 0 <= hits <= total:
            raise UserError(
                f"{row.label}: {row.terms[0][1]} is no rate ({hits} of {total}); interval: wilson is for rates"
            )
        return (hits / total if total else math.nan), wilson_interval(hits, total), total
    mean = statistics.fmean(values.values())
    wanted = row.interval in ("seeds", "folds") and math.isfinite(mean)
    return mean, mean_interval(list(values.values()), domain) if wanted else None, None


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
    if quantity.metric is not None:
        read = pool.read(quantity.experiment or row.experiment, regime, quantity.metric)
        if read.values and all(map(math.isfinite, read.values.values())):
            return statistics.fmean(read.values.values())
    return quantity.number


def _verdict(
    row: RowSpec, printed: Printed | None, mean: float, counts: Interval | None, bounds: Mapping[str, float | None]
) -> Verdict | None:
    if row.claim is not None and (printed is None or printed.value is None):
        return judge_sentence(row.claim, mean, counts)
    if printed is None or printed.value is None or row.tolerance is None:
        return None
    if row.claim is not None:
        return judge_claim(row.claim, printed.value, mean, counts, row.tolerance)
    return judge_value(printed.value, mean, counts, row.tolerance, bounds.get("reference"))


def _finding(
    row: RowSpec, printed: Printed | None, mean: float, counts: Interval | None, bounds: Mapping[str, float | None]
) -> str:
    """Say what a number of our own shows: a goal met or not, the sign of a difference, a value below its floor."""
    found = []
    if row.goal is not None:
        for word, limit in row.goal.items():
            met = mean <= limit if word == "at_most" else mean >= limit
            found.append(f"goal {word.replace('_', ' ')} {limit:g}: {'met' if met else 'missed'}")
    elif row.combine in ("difference", "percent_change") and printed is None and row.claim is None:
        found.append(find_sign(counts))
    floor = bounds.get("floor")
    if floor is not None and math.isfinite(mean) and mean < floor:
        found.append(f"below the floor {floor:.4g}: the model sees what it predicts")
    return "; ".join(found)


def build_text_cell(row: RowSpec, regime: str, printed: Printed | None, pool: RecordPool) -> Cell:
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


def needs_exponent(value: float | None, digits: int) -> bool:
    """Say whether fixed decimals would hide a number (0.00000) or be longer than anybody reads."""
    if value is None or not math.isfinite(value):
        return False
    # below 1e-12 it is a zero that was rounded
    return 1e-12 < abs(value) < 0.5 * 10.0**-digits or abs(value) >= 1e9


def format_value(value: float | None, digits: int, signed: bool = False, exponent: bool | None = None) -> str:
    """Return a number with fixed decimals, thousands apart, a true minus sign, and no sign before zero.

    ``exponent`` says whether it is written as ``1.2e-7``; None: where it needs to be.
    """
    if value is None:
        return ""
    if not math.isfinite(value):
        return str(value)
    if value != 0 and (needs_exponent(value, digits) if exponent is None else exponent or abs(value) >= 1e9):
        size, _, power = f"{value:{'+' if signed else ''}.1e}".partition("e")
        return f"{size}e{int(power)}".replace("-", "\N{MINUS SIGN}")
    text = f"{value:{'+' if signed else ''},.{digits}f}"
    text = text.lstrip("+-") if float(text.replace(",", "")) == 0 else text
    return text.replace("-", "\N{MINUS SIGN}")

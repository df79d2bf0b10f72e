"""The tables of a paper as data: printed numbers, ours in both regimes with intervals, and verdicts.

``rows.py`` makes them from records, ``gather.py`` those of a whole paper; how they look is ``render.py``'s and
``report.py``'s.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass, field

from lit_ctg.numbers import format_number
from lit_ctg.results.pool import RecordPool
from lit_ctg.results.record import REGIMES
from lit_ctg.results.spec import Check, Manifest, Printed, RowSpec, TableSpec
from lit_ctg.results.verdict import Verdict
from lit_ctg.statistics import Interval


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


def has_margin(row: Row) -> bool:
    """Whether the row's margin takes part in its verdict."""
    if row.spec.margin is None or row.is_claim:
        return row.spec.margin is not None and row.spec.claim not in ("less", "greater")
    return row.printed is not None and row.printed.value is not None

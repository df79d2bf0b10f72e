"""Rows without a number of ours, told in one line: how many, why, and what was printed there."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from lit_ctg.results.cell import Row
from lit_ctg.results.cell_text import printed_text
from lit_ctg.results.verdict import NOT_RUN

# between the first and the last section of a gap
GAP_TO = " \N{HORIZONTAL ELLIPSIS} "


@dataclass(frozen=True)
class Gap:
    """Consecutive rows that no run has, for one reason: told in one line, with what was printed."""

    section: str
    labels: tuple[str, ...]
    reason: str = NOT_RUN
    # what was printed, row by row; none for rows of ours
    printed: tuple[str, ...] = ()
    # nothing else stands in the section
    whole: bool = False

    def fits(self, other: Gap) -> bool:
        """Say whether the same is missing, and the labels tell the rows apart."""
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
        """Say how many rows there are and why nothing stands there; of rows of ours name some."""
        if self.printed:
            return f"{len(self.labels)} rows {self.reason}"
        labels = self.labels if len(self.labels) <= 4 else (*self.labels[:2], "...", self.labels[-1])
        return f"{len(self.labels)} rows not run: {'; '.join(labels)}"

    @property
    def numbers(self) -> str:
        """Return all printed numbers in one line."""
        pairs = zip(self.labels, self.printed, strict=True) if self.printed else ()
        return "; ".join(f"{label}: {number}" for label, number in pairs)

    @property
    def words(self) -> str:
        """Return everything in one line."""
        return f"{self.summary}. Printed: {self.numbers}" if self.printed else self.summary


def shown_rows(rows: Sequence[Row]) -> list[Row | Gap]:
    """Return rows and gaps in their order; gaps of whole sections that lack the same are one."""
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
    """Return a section's rows; three or more that lack the same become one gap where the first of them stood."""
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
            labels, (_, reason) = tuple(one.spec.label for one in same), _empty(row) or (False, "")
            shown.append(Gap(section, labels, reason, printed, whole=len(same) == len(rows)))
    return shown


def _empty(row: Row) -> tuple[bool, str] | None:
    """Return (printed or not, why there is nothing) of a row without a number of ours; None if there is any."""
    cells = [cell for cell in row.cells.values() if cell is not None]
    if not cells or any(cell.hole is None for cell in cells):
        return None
    if row.printed is None:
        return False, NOT_RUN
    if any(cell.verdict is not None and cell.verdict.label != NOT_RUN for cell in cells):
        return None  # a bound says that the printed number cannot be
    return True, "; ".join(dict.fromkeys(cell.hole or "" for cell in cells))

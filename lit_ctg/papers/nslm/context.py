"""Left contexts that decide the class of a number: after a month, after ``5 –``, after ``60 cm (`` (Table 2's classes).

Shape letters: B rows, T positions. "Active at t" is about the token after position t.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence

import numpy as np

from lit_ctg.papers.nslm.recogniser import number_value
from lit_ctg.papers.nslm.unit import UnitTable

_FULL = "January February March April May June July August September October November December"
_SHORT = "Jan. Feb. Mar. Apr. Jun. Jul. Aug. Sep. Sept. Oct. Nov. Dec."
MONTHS = tuple(f"{_FULL} {_SHORT}".split())
RANGE_MARKS = ("–", "—", "-", "@-@", "@–@", "to")
FILLERS = ("@-@", "-")  # between number and unit: 12 @-@ inch


class LeftContext(abc.ABC):
    """A pattern in the tokens before the next one; ``bind`` is called once with the vocabulary.

    Attributes:
        name: what recognisers refer to.
        window: tokens that the pattern may reach back.
    """

    name: str
    window: int

    @abc.abstractmethod
    def bind(self, tokens: Sequence[str]) -> None:
        """Look up the ids the pattern is made of."""

    @abc.abstractmethod
    def active(self, ids_BT: np.ndarray) -> np.ndarray:
        """Return active_BT (bool); ids of -1 stand for no token."""


def _flags(tokens: Sequence[str], wanted: Sequence[str]) -> np.ndarray:
    """Return a bool a token, and False for the id -1."""
    chosen = frozenset(wanted)
    return np.array([token in chosen for token in tokens] + [False])


def _numbers(tokens: Sequence[str]) -> np.ndarray:
    """Return the value of each number token and NaN for others and for the id -1."""
    values = [number_value(token) for token in tokens]
    return np.array([np.nan if value is None else value for value in values] + [np.nan])


def _before(flags_BT: np.ndarray, steps: int) -> np.ndarray:
    """Return the flags of the position ``steps`` earlier."""
    moved = np.zeros_like(flags_BT)
    moved[:, steps:] = flags_BT[:, :-steps]
    return moved


class AfterMonth(LeftContext):
    """The token before is a month's name: ``November [4]``."""

    name, window = "after_month", 1

    def bind(self, tokens: Sequence[str]) -> None:
        self.month_V = _flags(tokens, MONTHS)

    def active(self, ids_BT: np.ndarray) -> np.ndarray:
        return self.month_V[ids_BT]


class AfterRangeMark(LeftContext):
    """A number and a dash (or "to") before: ``1914 – [1918]``."""

    name, window = "range", 2

    def bind(self, tokens: Sequence[str]) -> None:
        self.mark_V, self.number_V = _flags(tokens, RANGE_MARKS), ~np.isnan(_numbers(tokens))

    def active(self, ids_BT: np.ndarray) -> np.ndarray:
        return self.mark_V[ids_BT] & _before(self.number_V[ids_BT], 1)


class InConversion(LeftContext):
    """A quantity and an opening bracket before: ``60 cm ( [24]``; also ``5 – 6 kg ( 11 – [13]``.

    The quantity is one number, or the two of a range, and a unit of ``units``; the second number in the bracket
    converts the second of the range. ``sources`` says what is to be converted.
    """

    name, window = "convert", 10

    def __init__(self, units: UnitTable | None = None) -> None:
        self.units = units or UnitTable()

    def bind(self, tokens: Sequence[str]) -> None:
        self.tokens = (*tokens, "")
        self.value_V, self.mark_V = _numbers(tokens), _flags(tokens, RANGE_MARKS)
        self.open_V, self.filler_V = _flags(tokens, ["("]), _flags(tokens, FILLERS)
        self.first_word_V = _flags(tokens, sorted(self.units.last_words))

    def active(self, ids_BT: np.ndarray) -> np.ndarray:
        return self.sources(ids_BT)[1] >= 0

    def sources(self, ids_BT: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (value_BT, unit_BT): the quantity to convert, NaN and -1 where there is none."""
        value_BT, unit_BT = np.full(ids_BT.shape, np.nan), np.full(ids_BT.shape, -1)
        opens_BT = self.open_V[ids_BT] & _before(self.first_word_V[ids_BT], 1)
        for row, place in zip(*np.nonzero(opens_BT), strict=True):
            found = self._quantity(ids_BT[row, max(0, place - self.window) : place])
            if found is None:
                continue
            numbers, unit = found
            value_BT[row, place], unit_BT[row, place] = numbers[0], unit
            after = ids_BT[row, place + 1 : place + 3]
            if len(numbers) == 2 and len(after) == 2 and self.mark_V[after[1]] and self.value_V[after[0]] >= 0:
                value_BT[row, place + 2], unit_BT[row, place + 2] = numbers[1], unit
        return value_BT, unit_BT

    def _quantity(self, ids_T: np.ndarray) -> tuple[list[float], int] | None:
        """Return (one or two numbers, unit) that end a stretch of tokens, or None."""
        words = [self.tokens[number] for number in ids_T if not self.filler_V[number]]
        found = self.units.ending(words)
        if found is None:
            return None
        unit, length = found
        rest = words[: len(words) - length]
        last = number_value(rest[-1]) if rest else None
        if last is None:
            return None
        ranged = len(rest) >= 3 and rest[-2] in RANGE_MARKS
        first = number_value(rest[-3]) if ranged else None
        return ([last] if first is None else [first, last]), unit


# most urgent first
CONTEXTS: dict[str, type[LeftContext]] = {
    context.name: context for context in (InConversion, AfterRangeMark, AfterMonth)
}

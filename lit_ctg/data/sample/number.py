"""Numbers as encyclopaedias write them: years near the last year, ranges, round figures, right conversions."""

from __future__ import annotations

import re
from random import Random

# unit -> the unit of the other system and how many of it one is; every factor is the legal definition
CONVERSIONS: dict[str, tuple[str, float]] = {
    "miles": ("km", 1.609344),
    "km": ("mi", 1 / 1.609344),
    "feet": ("m", 0.3048),
    "metres": ("ft", 1 / 0.3048),
    "m": ("ft", 1 / 0.3048),
    "inches": ("cm", 2.54),
    "cm": ("in", 1 / 2.54),
    "mm": ("in", 1 / 25.4),
    "pounds": ("kg", 0.45359237),
    "kg": ("lb", 1 / 0.45359237),
    "acres": ("ha", 0.40468564224),
    "mph": ("km/h", 1.609344),
}
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
    "November", "December"
)  # fmt: skip
_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
# leading digits of round figures: many people round to these
_MANTISSAS = (10, 12, 15, 18, 20, 25, 30, 35, 40, 45, 50, 60, 70, 75, 80, 90)
# difference to the last year -> weight: text mostly moves on by a year or two and seldom jumps
_YEAR_STEPS = {
    0: 14, 1: 30, 2: 16, 3: 10, 4: 6, 5: 4, 6: 3, 7: 2, 8: 2, 10: 2, 12: 2, 15: 2, 20: 1, 25: 1,
    -1: 4, -2: 2, -3: 1, -10: 1,
}  # fmt: skip
_SPANS = {1: 20, 2: 18, 3: 14, 4: 12, 5: 8, 6: 6, 7: 4, 8: 3, 10: 3, 15: 1}


def weighted(rng: Random, weights: dict[int, int]) -> int:
    """One key drawn with integer weights (no floating point, so alike everywhere)."""
    at = rng.randrange(sum(weights.values()))
    for key, weight in weights.items():
        at -= weight
        if at < 0:
            return key
    raise AssertionError("weights are positive")


def grouped(number: int) -> str:
    """``12345 -> "12,345"``; four-digit figures get a comma too, which keeps them apart from years."""
    return f"{number:,}"


def significant_digits(number: str) -> int:
    """Digits that carry the measure: trailing zeros of a whole number do not."""
    digits = number.replace(",", "").lstrip("-0.")
    return len(digits.replace(".", "")) if "." in number else len(digits.rstrip("0")) or 1


def rounded(value: float, digits: int) -> str:
    """``value`` to ``digits`` significant digits, written without an exponent: ``(1234.5, 2) -> "1,200"``."""
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])
    places = digits - 1 - exponent
    return f"{round(value, places):,.{max(places, 0)}f}"


def convert(number: str, unit: str) -> tuple[str, str]:
    """The other system's figure and unit, as precise as the given figure but at least two significant digits.

    ``convert("12", "miles") == ("19",
    "km")``. The rule the text keeps to, so a reader (or a micro-model) can redo it.

    Raises:
        KeyError: unknown unit.
    """
    other, factor = CONVERSIONS[unit]
    value = float(number.replace(",", "")) * factor
    return rounded(value, max(2, significant_digits(number))), other


def fahrenheit(celsius: int) -> str:
    """Degrees Celsius as Fahrenheit, to the nearest whole degree (halves up)."""
    return str((celsius * 18 + 320 + 5) // 10)


def round_number(rng: Random, low: int, high: int) -> int:
    """A round figure in [low, high], every order of magnitude alike.

    Raises:
        ValueError: no round figure lies between the bounds.
    """
    figures = []
    scale = 1
    while scale <= high:
        fitting = [m * scale // 10 for m in _MANTISSAS if low <= m * scale // 10 <= high and m * scale % 10 == 0]
        if fitting:
            figures.append(fitting)
        scale *= 10
    if not figures:
        raise ValueError(f"no round figure between {low} and {high}")
    return rng.choice(rng.choice(figures))


class Calendar:
    """The article's running year. Each year mentioned is near the one before, and dates use one order throughout.

    Args:
        rng: source of chance.
        low: earliest year the article may mention.
        high: latest year.
        day_first: "12 March 1914" rather than "March 12, 1914".
    """

    def __init__(self, rng: Random, low: int, high: int, *, day_first: bool) -> None:
        self._rng = rng
        self._low, self._high = low, high
        self._day_first = day_first
        self.current = rng.randrange(low, low + max(1, (high - low) * 3 // 5))

    def year(self) -> int:
        """Move on by a likely step and return the new year; a step over the edge is reflected back."""
        year = self.current + weighted(self._rng, _YEAR_STEPS)
        if year > self._high:
            year = 2 * self._high - year
        self.current = min(max(year, self._low), self._high)
        return self.current

    def span(self) -> str:
        """``"1914–1918"``: starts at the next year, ends after it."""
        start = self.year()
        self.current = min(start + weighted(self._rng, _SPANS), self._high + 1)
        return f"{start}–{self.current}"

    def later(self, low: int, high: int) -> int:
        """A year ``low`` to ``high`` years after the last one mentioned."""
        self.current = min(self.current + self._rng.randint(low, high), self._high)
        return self.current

    def day(self) -> str:
        """``"12 March"`` or ``"March 12"``."""
        month = self._rng.randrange(12)
        day = self._rng.randint(1, _DAYS[month])
        return f"{day} {MONTHS[month]}" if self._day_first else f"{MONTHS[month]} {day}"

    def date(self) -> str:
        """``"12 March 1914"`` or ``"March 12, 1914"``."""
        day = self.day()
        return f"{day} {self.year()}" if self._day_first else f"{day}, {self.year()}"


class Walk:
    """Figures of one kind in one article that stay near each other, in steps of a tenth (or a whole) of the unit."""

    def __init__(self, rng: Random, low: int, high: int, places: int) -> None:
        self._rng, self._low, self._high, self._places = rng, low, high, places
        self._now = rng.randint(low, high)
        self._reach = max(2, (high - low) // 8)

    def next(self) -> str:
        """The next figure as text, never the last one again; a step over the edge is taken the other way."""
        step = self._rng.choice((-1, 1)) * self._rng.randint(1, self._reach)
        if not self._low <= self._now + step <= self._high:
            step = -step
        self._now += step
        if self._places == 0:
            return grouped(self._now)
        whole, part = divmod(self._now, 10**self._places)
        return f"{whole}.{part:0{self._places}d}"


_GROUP = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_POINT = re.compile(r"(?<=\d)\.(?=\d)")
_HYPHEN = re.compile(r"(?<=\w)-(?=\w)")
_APART = re.compile(r"\s*([,;:()\"%?!$–°]|(?:'s\b)|(?<=[a-z])'(?= )|\.(?=\s|$|\"|\)))\s*")


def wikitext_tokens(line: str) -> str:
    """A line of plain text as WikiText writes it: ``1 @,@ 234``, ``3 @.@ 5``, ``well @-@ known``, marks apart.

    >>> wikitext_tokens("It rose 3.5% (to 1,234) in 1914–1918.")
    'It rose 3 @.@ 5 % ( to 1 @,@ 234 ) in 1914 – 1918 .'
    """
    line = _GROUP.sub(" @\0@ ", line)  # a grouping comma is hidden from the punctuation rule
    line = _POINT.sub(" @.@ ", line)
    line = _HYPHEN.sub(" @-@ ", line)
    line = _APART.sub(r" \1 ", line)
    return " ".join(line.replace("\0", ",").split())

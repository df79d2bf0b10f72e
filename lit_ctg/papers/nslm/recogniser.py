"""Token classes: which tokens belong to a class, what they measure, and after what they may stand (Table 1, step 2).

A class may be bound to a left context (``context.py``): after a month every number that is not a year is a day, after
``5 –`` every number ends a range. The class of the next token is then a function of the tokens before it, so that the
probabilities of the classes and of their members multiply to a distribution over the vocabulary.
"""

from __future__ import annotations

import abc
import re
from collections.abc import Mapping, Sequence
from typing import Any

from lit_ctg.data.place_chunk import KINDS, gazetteer
from lit_ctg.errors import UserError, did_you_mean

NUMBER = r"(?:\d[\d,]*(?:\.\d+)?|\.\d+)"
Attributes = tuple[float, ...]


def number_value(token: str) -> float | None:
    """Return the value of a token of digits, commas and one point (``"1,234.5"``), else None."""
    return float(token.replace(",", "")) if re.fullmatch(NUMBER, token) else None


class Recogniser(abc.ABC):
    """A class of tokens.

    Args:
        name: of the class.
        metrics: names of the candidate metric functions (``metric_function.METRICS``).
        densities: names of the candidate densities (``density.DENSITIES``).
        context: the left context the class is bound to; None: the class exists wherever no bound class takes its
            tokens.
        unit: what errors of guesses are counted in; None: km where members have coordinates, else a difference of
            values.
    """

    def __init__(
        self,
        *,
        name: str,
        metrics: Sequence[str],
        densities: Sequence[str],
        context: str | None = None,
        unit: str | None = None,
    ) -> None:
        self.name, self.metrics, self.densities = name, tuple(metrics), tuple(densities)
        self.context, self.unit = context, unit

    @abc.abstractmethod
    def attributes(self, token: str) -> Attributes | None:
        """Return what the metric functions read of a member: (value,) or (latitude, longitude); None: no member."""


class PatternRecogniser(Recogniser):
    """Tokens that match a regular expression as a whole; numbers have their value, other tokens NaN.

    Raises:
        UserError: the pattern is no regular expression.
    """

    def __init__(self, *, pattern: str, **options: Any) -> None:
        super().__init__(**options)
        try:
            self.pattern = re.compile(pattern)
        except re.error as error:
            raise UserError(f"class '{self.name}': pattern {pattern!r} is no regular expression: {error}") from error

    def attributes(self, token: str) -> Attributes | None:
        if not self.pattern.fullmatch(token):
            return None
        value = number_value(token)
        return (float("nan") if value is None else value,)


class ListRecogniser(Recogniser):
    """Tokens of a list, each with a number or a tuple of numbers, e.g. the stage of cooking a verb belongs to.

    Raises:
        UserError: the members have not all as many numbers.
    """

    def __init__(self, *, members: Mapping[str, float | Sequence[float]], **options: Any) -> None:
        super().__init__(**options)
        self.members: dict[str, Attributes] = {
            str(token): tuple(map(float, value)) if isinstance(value, Sequence) else (float(value),)
            for token, value in members.items()
        }
        if len({len(value) for value in self.members.values()}) != 1:
            raise UserError(f"class '{self.name}': every member needs as many numbers as the others")

    def attributes(self, token: str) -> Attributes | None:
        return self.members.get(token)


class PlaceRecogniser(Recogniser):
    """Cities, US states or countries of GeoNames as ``data.place_chunk`` writes them, with latitude and longitude.

    Args:
        kind: city, state or country.
        minimum_population: of cities; the corpus must have been chunked with the same number.

    Raises:
        UserError: no such kind.
    """

    def __init__(self, *, kind: str, minimum_population: int, **options: Any) -> None:
        super().__init__(**options)
        if kind not in KINDS:
            raise UserError(f"class '{self.name}': kind must be one of {', '.join(KINDS)}{did_you_mean(kind, KINDS)}")
        self.places = {
            place.token: (place.latitude, place.longitude)
            for place in gazetteer(minimum_population).values()
            if place.kind == kind
        }

    def attributes(self, token: str) -> Attributes | None:
        return self.places.get(token)

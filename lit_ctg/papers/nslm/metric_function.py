"""Metric functions: one number for each member of a class, given what came before (sec. 3.3, "Number and Geography").

A metric first reduces the evidence to a key (the previous member, the quantity to convert); places with the same key
have the same values. Shape letters: N places, U distinct keys, J numbers of a key, K members.
"""

from __future__ import annotations

import abc
from typing import ClassVar

import numpy as np

from lit_ctg.papers.nslm.class_table import ClassMembers
from lit_ctg.papers.nslm.occurrence import Evidence
from lit_ctg.papers.nslm.unit import UnitTable

EARTH_RADIUS_KM = 6371.0088  # mean radius, IUGG
MAX_RELATIVE_ERROR = 0.05
BLOCK = 1 << 22  # values computed at one time


class MetricFunction(abc.ABC):
    """A scalar for every member of a class; subclass it for a metric of your own and add it to ``METRICS``.

    Attributes:
        name: what recognisers list.
        kind: what the values are, so that a density knows whether it can take them: ``scalar``, ``count``, ``flag``
            (0 or 1) or ``distance`` (negative squared, in a plane: a Gaussian of them has mean zero).
        attributes: how many numbers describe a member of the classes it is for; 0: any.
    """

    name: ClassVar[str]
    kind: ClassVar[str] = "scalar"
    attributes: ClassVar[int] = 1

    def fit(self, members: ClassMembers, index_N: np.ndarray) -> MetricFunction:
        """Take the class and its training occurrences (places among the members); returns itself."""
        self.members = members
        return self

    @abc.abstractmethod
    def keys(self, evidence: Evidence) -> np.ndarray:
        """Return keys_NJ (float64); a row with NaN has no value of this metric (a first occurrence)."""

    @abc.abstractmethod
    def values(self, keys_UJ: np.ndarray) -> np.ndarray:
        """Return values_UK of all members for keys without NaN."""

    def value_of(self, keys_NJ: np.ndarray, index_N: np.ndarray) -> np.ndarray:
        """Return values_N of one member a key; override it where that needs no row of all members."""
        values_N = np.empty(len(keys_NJ))
        unique_UJ, where_N = np.unique(keys_NJ, axis=0, return_inverse=True)
        where_N = where_N.reshape(-1)
        step = max(1, BLOCK // len(self.members))
        for start in range(0, len(unique_UJ), step):
            inside_N = (where_N >= start) & (where_N < start + step)
            block_UK = self.values(unique_UJ[start : start + step])
            values_N[inside_N] = block_UK[where_N[inside_N] - start, index_N[inside_N]]
        return values_N


class _Unary(MetricFunction):
    """A metric of the member alone: one key for all places."""

    def keys(self, evidence: Evidence) -> np.ndarray:
        return np.zeros((len(evidence), 1))


class _Binary(MetricFunction):
    """A metric of the member and the previous one."""

    def keys(self, evidence: Evidence) -> np.ndarray:
        return np.where(evidence.previous_N >= 0, evidence.previous_N, np.nan)[:, None]


class Frequency(_Unary):
    """How often the member stands in training text."""

    name, kind, attributes = "frequency", "count", 0

    def fit(self, members: ClassMembers, index_N: np.ndarray) -> MetricFunction:
        self.count_K = np.bincount(index_N, minlength=len(members)).astype(np.float64)
        return super().fit(members, index_N)

    def values(self, keys_UJ: np.ndarray) -> np.ndarray:
        return np.broadcast_to(self.count_K, (len(keys_UJ), len(self.count_K)))


class Value(_Unary):
    """The member's own value."""

    name = "value"

    def values(self, keys_UJ: np.ndarray) -> np.ndarray:
        value_K = self.members.attributes_KD[:, 0]
        return np.broadcast_to(value_K, (len(keys_UJ), len(value_K)))


class Difference(_Binary):
    """The member's value minus the previous member's, rounded to 1e-6 so that equal differences are equal."""

    name = "difference"

    def values(self, keys_UJ: np.ndarray) -> np.ndarray:
        value_K = self.members.attributes_KD[:, 0]
        return np.round(value_K - value_K[keys_UJ[:, 0].astype(np.int64)][:, None], 6)

    def value_of(self, keys_NJ: np.ndarray, index_N: np.ndarray) -> np.ndarray:
        value_K = self.members.attributes_KD[:, 0]
        return np.round(value_K[index_N] - value_K[keys_NJ[:, 0].astype(np.int64)], 6)


class Euclidean(_Binary):
    """Negative squared distance in degrees of latitude and longitude; longitudes wrap at 180."""

    name, kind, attributes = "euclidean", "distance", 2

    def values(self, keys_UJ: np.ndarray) -> np.ndarray:
        place_KD = self.members.attributes_KD
        step_UKD = place_KD - place_KD[keys_UJ[:, 0].astype(np.int64)][:, None]
        turn_UK = (step_UKD[..., 1] + 180) % 360 - 180
        return -(step_UKD[..., 0] ** 2 + turn_UK**2)


class GreatCircle(_Binary):
    """Negative squared great-circle distance, in squared degrees of arc (an option beside the paper's Euclidean)."""

    name, kind, attributes = "great_circle", "distance", 2

    def values(self, keys_UJ: np.ndarray) -> np.ndarray:
        place_KD = np.radians(self.members.attributes_KD)
        from_UD = place_KD[keys_UJ[:, 0].astype(np.int64)][:, None]
        return -(np.degrees(arc(from_UD, place_KD)) ** 2)


def arc(from_D: np.ndarray, to_D: np.ndarray) -> np.ndarray:
    """Return the angle between places (..., 2) given as latitude and longitude, all in radians (haversine)."""
    step_D = to_D - from_D
    chord = np.sin(step_D[..., 0] / 2) ** 2
    chord = chord + np.cos(from_D[..., 0]) * np.cos(to_D[..., 0]) * np.sin(step_D[..., 1] / 2) ** 2
    return 2 * np.arcsin(np.sqrt(np.clip(chord, 0, 1)))


class Convert(MetricFunction):
    """1 for a member that is the quantity before it in another unit, 0 for others.

    The unit after the number is not known yet, so a member counts as correct if it is, rounded at its own last digit
    that is not a trailing zero, the amount in any other unit of the quantity; whole hundreds and the like may be off
    by 5% at most. ``60 cm ( [24]``: 23.6 in.
    """

    name, kind = "convert", "flag"

    def __init__(self, units: UnitTable | None = None) -> None:
        self.units = units or UnitTable()

    def fit(self, members: ClassMembers, index_N: np.ndarray) -> MetricFunction:
        self.step_K = np.array([last_digit(token) for token in members.tokens])
        return super().fit(members, index_N)

    def keys(self, evidence: Evidence) -> np.ndarray:
        unit_N = np.where(evidence.source_unit_N >= 0, evidence.source_unit_N, np.nan)
        return np.stack([evidence.source_value_N, unit_N], axis=1)

    def values(self, keys_UJ: np.ndarray) -> np.ndarray:
        converted_UC = self.units.convert(keys_UJ[:, 0], keys_UJ[:, 1].astype(np.int64))
        value_K = self.members.attributes_KD[:, 0]
        correct_UK = np.zeros((len(keys_UJ), len(value_K)), dtype=bool)
        for converted_U in converted_UC.T:
            off_UK = np.abs(value_K - converted_U[:, None])
            near_UK = off_UK <= 0.5 * self.step_K + 1e-9
            correct_UK |= near_UK & (off_UK <= MAX_RELATIVE_ERROR * np.abs(converted_U[:, None]))
        return correct_UK.astype(np.float64)


def last_digit(token: str) -> float:
    """Return what the last digit that is not a trailing zero counts: 0.01 for "1.25", 1 for "24", 100 for "1,200"."""
    digits = token.replace(",", "")
    if "." in digits:
        return 10.0 ** -len(digits.partition(".")[2])
    return 10.0 ** (len(digits) - len(digits.rstrip("0"))) if digits.strip("0") else 1.0


METRICS: dict[str, type[MetricFunction]] = {
    metric.name: metric for metric in (Difference, Frequency, Value, Convert, Euclidean, GreatCircle)
}

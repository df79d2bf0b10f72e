"""Micro-models (Eq. 1, Eq. 4): a metric function and a density, normalised over the vocabulary of a class.

A metric function gives one number for each member of a class, given the preceding text (sec. 3.3). It first reduces the
evidence to a key (the previous member, the quantity to convert); positions with the same key have the same values. A
density, fitted to training text, turns those numbers into unnormalised log-weights of members, over a base (log_base_K,
mean weight 1): zeros, or the class's unigram.

Shape letters: N positions or occurrences, U distinct keys, J numbers of a key, K members, M distinct observations,
G components, P parts of a blend.
"""

from __future__ import annotations

import abc
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, ClassVar

import numpy as np
from scipy.special import log_softmax

from lit_ctg.errors import UserError
from lit_ctg.limits import Choice, NonNegative, checked
from lit_ctg.papers.nslm.classes import ClassMembers, UnitTable
from lit_ctg.papers.nslm.occurrences import Evidence, Occurrences

MAX_RELATIVE_ERROR = 0.05
BLOCK = 1 << 22  # number of values computed at a time


class MetricFunction(abc.ABC):
    """A scalar for every member of a class; subclass it for your own metric and add it to ``METRICS``.

    Attributes:
        kind: type of the values, by which a density decides whether it accepts them: ``scalar``, ``count``, ``flag``
            (0 or 1) or ``distance`` (negative squared, in a plane: a Gaussian of them has mean zero).
        attributes: number of attributes of the members it needs; 0: any.
    """

    name: ClassVar[str]
    kind: ClassVar[str] = "scalar"
    attributes: ClassVar[int] = 1

    def fit(self, members: ClassMembers, index_N: np.ndarray) -> MetricFunction:
        """Take the class and its training occurrences (indices of members); returns itself."""
        self.members = members
        return self

    @abc.abstractmethod
    def keys(self, evidence: Evidence) -> np.ndarray:
        """Return keys_NJ (float64); a row with NaN has no value under this metric (a first occurrence)."""

    @abc.abstractmethod
    def values(self, keys_UJ: np.ndarray) -> np.ndarray:
        """Return values_UK of all members for keys without NaN."""

    def value_of(self, keys_NJ: np.ndarray, index_N: np.ndarray) -> np.ndarray:
        """Return values_N of one member per key; override it where that does not need the row of all members."""
        return picked(keys_NJ, index_N, self.values, len(self.members))


def picked(
    keys_NJ: np.ndarray, index_N: np.ndarray, rows_of: Callable[[np.ndarray], np.ndarray], size: int
) -> np.ndarray:
    """Return one entry (N) of the row of each key; rows (of ``size``) are computed once a distinct key, in blocks."""
    values_N = np.empty(len(keys_NJ))
    unique_UJ, where_N = np.unique(keys_NJ, axis=0, return_inverse=True)
    where_N = where_N.reshape(-1)
    step = max(1, BLOCK // size)
    order_N = np.argsort(where_N, kind="stable")
    edges = np.searchsorted(where_N[order_N], np.arange(0, len(unique_UJ) + step, step))
    for number, start in enumerate(range(0, len(unique_UJ), step)):
        chosen_N = order_N[edges[number] : edges[number + 1]]
        rows_UK = rows_of(unique_UJ[start : start + step])
        values_N[chosen_N] = rows_UK[where_N[chosen_N] - start, index_N[chosen_N]]
    return values_N


class _Unary(MetricFunction):
    """A metric of the member alone: one key for all positions."""

    def keys(self, evidence: Evidence) -> np.ndarray:
        return np.zeros((len(evidence), 1))


class _Binary(MetricFunction):
    """A metric of the member and the previous one."""

    def keys(self, evidence: Evidence) -> np.ndarray:
        return np.where(evidence.previous_N >= 0, evidence.previous_N, np.nan)[:, None]


class Frequency(_Unary):
    """How often the member occurs in training text."""

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
    """Negative squared great-circle distance, in squared degrees of arc (our alternative to the paper's Euclidean)."""

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
    """1 for a member that is the preceding quantity in another unit, 0 for others.

    The unit after the number is not yet known, so a member is correct if it equals the amount in any other unit of the
    quantity, rounded at the member's last digit that is not a trailing zero; whole hundreds and the like may be off by
    5% at most. ``60 cm ( [24]``: 23.6 in.
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
    """Return the value of the last digit that is not a trailing zero: 0.01 for "1.25", 1 for "24", 100 for "1,200"."""
    digits = token.replace(",", "")
    if "." in digits:
        return 10.0 ** -len(digits.partition(".")[2])
    return 10.0 ** (len(digits) - len(digits.rstrip("0"))) if digits.strip("0") else 1.0


METRICS: dict[str, type[MetricFunction]] = {
    metric.name: metric for metric in (Difference, Frequency, Value, Convert, Euclidean, GreatCircle)
}


# integers are precise to half a unit: no component is narrower than a uniform on [-1/2, 1/2]
LEAST_VARIANCE = 1 / 12
EM_STEPS = 200
EM_TOLERANCE = 1e-5  # minimum weight


@dataclass(frozen=True)
class Training:
    """The data to which a density is fitted.

    Attributes:
        x_N: metric values of the occurrences, at least one.
        kind: of the metric (``MetricFunction.kind``).
        x_UK: the values of all members for (a sample of) the occurring keys.
        row_M, index_M, count_M: the distinct pairs of key and member among the occurrences with those keys, and their
            counts.
        log_base_K: see above.
    """

    x_N: np.ndarray
    kind: str
    x_UK: np.ndarray
    row_M: np.ndarray
    index_M: np.ndarray
    count_M: np.ndarray
    log_base_K: np.ndarray


class Density(abc.ABC):
    """Weights from metric values; subclass it for your own density and name it by its dotted path.

    Attributes:
        kinds: kinds of metric it accepts (``MetricFunction.kind``).
        grid: constructor arguments that the grid search tries, by name.
    """

    name: ClassVar[str]
    kinds: ClassVar[frozenset[str]] = frozenset({"scalar", "count", "distance"})
    grid: ClassVar[Mapping[str, tuple[float, ...]]] = {}

    @abc.abstractmethod
    def fit(self, training: Training) -> Density:
        """Fit to training occurrences; returns itself."""

    @abc.abstractmethod
    def log_weight(self, x_UK: np.ndarray, log_base_K: np.ndarray) -> np.ndarray:
        """Return the log-weight of every member for every key, from their metric values."""

    @abc.abstractmethod
    def parameters(self) -> dict[str, Any]:
        """Return the fitted parameters as human-readable plain values."""


class Unigram(Density):
    """Weight proportional to the metric value (a frequency) plus ``smoothing``; the base is ignored."""

    name, kinds = "unigram", frozenset({"count"})
    grid = {"smoothing": (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)}

    def __init__(self, smoothing: float = 0.1) -> None:
        self.smoothing = smoothing

    def fit(self, training: Training) -> Density:
        return self

    def log_weight(self, x_UK: np.ndarray, log_base_K: np.ndarray) -> np.ndarray:
        return np.log(x_UK + self.smoothing)

    def parameters(self) -> dict[str, Any]:
        return {"smoothing": self.smoothing}


class Multinomial(Density):
    """A table: how often each metric value occurred, shared by the members that have it, plus smoothing.

    Args:
        smoothing: weight added to every member in proportion to the base.
    """

    name, kinds = "multinomial", frozenset({"scalar", "count", "distance", "flag"})
    grid = {"smoothing": (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)}

    def __init__(self, smoothing: float = 0.1) -> None:
        self.smoothing = smoothing

    def fit(self, training: Training) -> Density:
        self.value_E, self.count_E = np.unique(training.x_N, return_counts=True)
        return self

    def log_weight(self, x_UK: np.ndarray, log_base_K: np.ndarray) -> np.ndarray:
        rows, entries = len(x_UK), len(self.value_E)
        place_UK = np.minimum(np.searchsorted(self.value_E, x_UK), entries - 1)
        seen_UK = self.value_E[place_UK] == x_UK
        code_UK = place_UK + np.arange(rows)[:, None] * entries
        _, places_S, sharing_S = np.unique(code_UK[seen_UK], return_inverse=True, return_counts=True)
        weight_UK = np.tile(self.smoothing * np.exp(log_base_K), (rows, 1))
        weight_UK[seen_UK] += self.count_E[place_UK[seen_UK]] / sharing_S[places_S]
        return np.log(weight_UK)

    def parameters(self) -> dict[str, Any]:
        return {"smoothing": self.smoothing, "values": len(self.value_E), "observations": int(self.count_E.sum())}


class Gaussian(Density):
    """A normal density of the metric value; for squared distances an isotropic one in the plane with mean zero."""

    name = "gaussian"

    def fit(self, training: Training) -> Density:
        self.planar = training.kind == "distance"
        self.mean = 0.0 if self.planar else float(training.x_N.mean())
        variance = -training.x_N.mean() / 2 if self.planar else training.x_N.var()
        self.variance = max(float(variance), LEAST_VARIANCE)
        return self

    def log_weight(self, x_UK: np.ndarray, log_base_K: np.ndarray) -> np.ndarray:
        return _exponent(x_UK, self.mean, self.variance, self.planar) + log_base_K

    def parameters(self) -> dict[str, Any]:
        return {"mean": self.mean, "deviation": self.variance**0.5, "planar": self.planar}


def _exponent(x_UK: np.ndarray, mean: float, variance: float, planar: bool) -> np.ndarray:
    """Return the log of a Gaussian scaled to a maximum of 1."""
    return (x_UK if planar else -((x_UK - mean) ** 2)) / (2 * variance)


class GaussianMixtureDensity(Density):
    """A mixture of Gaussians, each normalised separately over the class vocabulary.

    Means and deviations come from EM on the metric values; for squared distances the means are zero and the deviations
    a ladder from near to far. The weights come from EM on the exact likelihood: members are points, some crowded and
    some isolated, and a weight for the continuous density would not suit them.

    Args:
        components: their number, at most the number of distinct values.
    """

    name = "mixture"
    grid = {"components": (2, 3, 5, 8)}

    def __init__(self, components: int = 3) -> None:
        self.components = int(components)

    def fit(self, training: Training) -> Density:
        self.planar = training.kind == "distance"
        components = min(self.components, len(np.unique(training.x_N)))
        if self.planar:
            apart_N = -training.x_N[training.x_N < 0]
            far = float(apart_N.max()) if len(apart_N) else 1.0
            self.mean_G = np.zeros(components)
            # from the nearest to the farthest pairs (squared degrees)
            self.variance_G = np.geomspace(LEAST_VARIANCE, max(far, LEAST_VARIANCE), components)
        else:
            self.mean_G, self.variance_G = _gaussians(training.x_N.astype(np.float64).tobytes(), components)
        observed = training.row_M, training.index_M
        parts = [self._part(training.x_UK, training.log_base_K, place)[observed] for place in range(components)]
        self.weight_G = mixture_weights(np.stack(parts, axis=1), training.count_M)
        return self

    def _part(self, x_UK: np.ndarray, log_base_K: np.ndarray, place: int) -> np.ndarray:
        """Return one component's log-probabilities."""
        top_UK = _exponent(x_UK, self.mean_G[place], self.variance_G[place], self.planar)
        return log_softmax(top_UK + log_base_K, axis=1)

    def log_weight(self, x_UK: np.ndarray, log_base_K: np.ndarray) -> np.ndarray:
        total_UK = np.full(x_UK.shape, -np.inf)
        for place in np.flatnonzero(self.weight_G > 0).tolist():
            part_UK = self._part(x_UK, log_base_K, place) + np.log(self.weight_G[place])
            np.logaddexp(total_UK, part_UK, out=total_UK)
        return total_UK

    def parameters(self) -> dict[str, Any]:
        columns = {"weight": self.weight_G, "mean": self.mean_G, "deviation": np.sqrt(self.variance_G)}
        return {"planar": self.planar} | {name: column.tolist() for name, column in columns.items()}


@lru_cache(maxsize=8)
def _gaussians(values: bytes, components: int) -> tuple[np.ndarray, np.ndarray]:
    """Return means and variances [G] by EM on float64 values; cached, because every base of a grid needs them."""
    x_N = np.frombuffer(values)
    from sklearn.mixture import GaussianMixture  # seconds of imports, which a control that is loaded need not take

    mixture = GaussianMixture(components, reg_covar=LEAST_VARIANCE, max_iter=EM_STEPS, random_state=0)
    # scikit-learn needs at least two values
    mixture.fit(np.resize(x_N, max(2, len(x_N)))[:, None])
    return mixture.means_[:, 0], mixture.covariances_[:, 0, 0]


def mixture_weights(log_NG: np.ndarray, count_N: np.ndarray | None = None) -> np.ndarray:
    """Return the weights, by EM, that make a mixture of given log-probabilities (N observations, G parts) most likely.

    Args:
        log_NG: of the observations, under each part.
        count_N: their counts; by default once each.
    """
    share_N = np.full(len(log_NG), 1 / len(log_NG)) if count_N is None else count_N / count_N.sum()
    prob_NG = np.exp(log_NG - log_NG.max(axis=1, keepdims=True))
    weight_G = np.full(log_NG.shape[1], 1 / log_NG.shape[1])
    for _ in range(EM_STEPS):
        joint_NG = prob_NG * weight_G
        new_G = (share_N / joint_NG.sum(1)) @ joint_NG
        settled = np.abs(new_G - weight_G).max() < EM_TOLERANCE
        weight_G = new_G
        if settled:
            break
    return weight_G / weight_G.sum()


class Binary(Density):
    """The share of training occurrences whose value is 1 (correct), and the remainder, each divided among its members.

    Where no member is correct, the others have everything.
    """

    name, kinds = "binary", frozenset({"flag"})

    def fit(self, training: Training) -> Density:
        if not np.isin(training.x_N, (0.0, 1.0)).all():
            raise ValueError("the binary density takes a metric with the values 0 and 1, such as convert")
        # Laplace's rule: neither share is ever zero
        self.correct = float((training.x_N.sum() + 1) / (len(training.x_N) + 2))
        return self

    def log_weight(self, x_UK: np.ndarray, log_base_K: np.ndarray) -> np.ndarray:
        right_UK = x_UK == 1
        return np.where(
            right_UK,
            np.log(self.correct) + _shared(log_base_K, right_UK),
            np.log(1 - self.correct) + _shared(log_base_K, ~right_UK),
        )

    def parameters(self) -> dict[str, Any]:
        return {"correct": self.correct}


def _shared(log_base_K: np.ndarray, chosen_UK: np.ndarray) -> np.ndarray:
    """Return the base's log-probabilities among the chosen members of each row; any finite value for others."""
    total_U1 = (chosen_UK * np.exp(log_base_K)).sum(1, keepdims=True)
    return log_base_K - np.log(np.where(total_U1 > 0, total_U1, 1))


DENSITIES: dict[str, type[Density]] = {
    density.name: density for density in (Unigram, Multinomial, Gaussian, GaussianMixtureDensity, Binary)
}


MEMO_BYTES = 1 << 28  # maximum of cached normalised rows
FIT_CELLS = 1 << 19  # maximum of weights (keys times members) that a density is fitted with
BASES = ("uniform", "unigram")


@checked
class MicroModel:
    """P_MM(w | class, preceding text).

    Where the metric has no value (a first occurrence in the document, nothing to convert) the smoothed unigram of the
    class replaces it; a member never seen in training has the weight of the smoothing.

    Args:
        fallback_smoothing: added to each member's count in the unigram.
        base: ``uniform`` (the paper) or ``unigram`` (ours): the density is multiplied by the class's unigram before
            normalisation (near *and* frequent), a multinomial is smoothed towards it.
    """

    def __init__(
        self,
        metric: MetricFunction,
        density: Density,
        *,
        fallback_smoothing: NonNegative = 0.1,
        base: Annotated[str, Choice(BASES)] = "uniform",
    ) -> None:
        self.metric, self.density, self.base = metric, density, base
        self.fallback_smoothing = fallback_smoothing
        self._memo: OrderedDict[tuple[float, ...], np.ndarray] = OrderedDict()

    def fit(self, occurrences: Occurrences, members: ClassMembers) -> MicroModel:
        """Fit to the training occurrences of the class; returns itself.

        Raises:
            UserError: there are none, or the metric needs attributes that the members lack.
        """
        needed, has = self.metric.attributes, members.attributes_KD.shape[1]
        if not len(occurrences) or needed not in (0, has) or (needed and np.isnan(members.attributes_KD).any()):
            raise UserError(
                f"class '{members.name}' has {len(occurrences)} occurrences in training text, {has} numbers a member; "
                f"metric '{self.metric.name}' needs {needed} for every member: leave the class out, give more text or "
                "the members' values, or use frequency"
            )
        self.members = members
        self._memo.clear()
        frequency = Frequency().fit(members, occurrences.index_N)
        count_1K, uniform_K = frequency.values(np.zeros((1, 1))), np.zeros(len(members))
        self.fallback_K = log_softmax(Unigram(self.fallback_smoothing).log_weight(count_1K, uniform_K)[0])
        self.log_base_K = self.fallback_K + np.log(len(members)) if self.base == "unigram" else uniform_K
        self.metric.fit(members, occurrences.index_N)
        keys_NJ = self.metric.keys(occurrences.evidence)
        usable_N = ~np.isnan(keys_NJ).any(1)
        x_N = self.metric.value_of(keys_NJ[usable_N], occurrences.index_N[usable_N])
        # nothing to fit: the class never occurs twice in a document, so the density is never used
        self.fitted = len(x_N) > 0
        if self.fitted:
            self.density.fit(self._training(x_N, keys_NJ[usable_N], occurrences.index_N[usable_N]))
        return self

    def _training(self, x_N: np.ndarray, keys_NJ: np.ndarray, index_N: np.ndarray) -> Training:
        """Return the data for fitting a density; with many keys, a fixed random sample is computed in full."""
        unique_UJ, where_N = np.unique(keys_NJ, axis=0, return_inverse=True)
        most = max(1, FIT_CELLS // len(self.members))
        chosen_U = np.arange(len(unique_UJ))
        if len(chosen_U) > most:
            chosen_U = np.sort(np.random.default_rng(0).choice(len(chosen_U), most, replace=False))
        row_U = np.full(len(unique_UJ), -1)
        row_U[chosen_U] = np.arange(len(chosen_U))
        row_N = row_U[where_N.reshape(-1)]
        pair_M, count_M = np.unique(row_N[row_N >= 0] * len(self.members) + index_N[row_N >= 0], return_counts=True)
        row_M, index_M = np.divmod(pair_M, len(self.members))
        x_UK = self.metric.values(unique_UJ[chosen_U])
        return Training(x_N, self.metric.kind, x_UK, row_M, index_M, count_M, self.log_base_K)

    def log_prob(self, evidence: Evidence) -> np.ndarray:
        """Return log_probs_NK (float64), each row a distribution over the class vocabulary."""
        keys_NJ = self.metric.keys(evidence)
        unique_UJ, where_N = np.unique(keys_NJ, axis=0, return_inverse=True)
        return self._rows(unique_UJ)[where_N.reshape(-1)]

    def log_prob_of(self, index_N: np.ndarray, evidence: Evidence) -> np.ndarray:
        """Return log_probs_N (float64) of one member at each position."""
        return picked(self.metric.keys(evidence), index_N, self._rows, len(self.members))

    def _rows(self, keys_UJ: np.ndarray) -> np.ndarray:
        """Return the normalised rows of distinct keys, from the cache if possible."""
        rows_UK = np.empty((len(keys_UJ), len(self.members)))
        # without a value it is the fallback; as a name in the cache a row with NaN would never be found again
        undefined_U = np.isnan(keys_UJ).any(1) | (not self.fitted)
        rows_UK[undefined_U] = self.fallback_K
        names = {place: tuple(keys_UJ[place].tolist()) for place in np.flatnonzero(~undefined_U).tolist()}
        missing = [place for place, name in names.items() if name not in self._memo]
        fresh = dict(zip(missing, self._compute(keys_UJ[missing]), strict=True)) if missing else {}
        for place, name in names.items():
            rows_UK[place] = fresh[place] if place in fresh else self._memo[name]
        for place, row_K in fresh.items():
            self._memo[names[place]] = row_K
        while len(self._memo) * len(self.members) * 8 > MEMO_BYTES:
            self._memo.popitem(last=False)
        return rows_UK

    def _compute(self, keys_UJ: np.ndarray) -> np.ndarray:
        weight_UK = self.density.log_weight(self.metric.values(keys_UJ), self.log_base_K)
        rows_UK: np.ndarray = log_softmax(weight_UK, axis=1)
        return rows_UK

    def forget(self) -> None:
        """Free the cached rows; they are recomputed when needed."""
        self._memo.clear()

    def describe(self) -> dict[str, Any]:
        """Return the pair and its fitted parameters as plain values."""
        fitted = self.density.parameters() if self.fitted else {}
        return {"class": self.members.name, "metric": self.metric.name, "density": self.density.name,
                "base": self.base, "fallback_smoothing": self.fallback_smoothing, **fitted}  # fmt: skip


class Repeat:
    """Repetition combined with a micro-model (ours): a share for the previous member, the rest by the micro-model.

    P(w) = repeat if w is the previous member, else (1 - repeat) P_MM(w) / (1 - P_MM(previous)). Without a previous
    member in the document it is the micro-model alone. Over a unigram it needs neither values nor coordinates.

    Attributes:
        repeat: the share of repeats among the training occurrences that have a previous member, by Laplace's rule.
    """

    def __init__(self, inner: MicroModel) -> None:
        self.inner, self.members, self.base = inner, inner.members, inner.base
        plain = isinstance(inner.metric, Frequency) and isinstance(inner.density, Unigram)
        self.metric_name = "repeat" if plain else f"repeat+{inner.metric.name}"
        self.density_name = inner.density.name

    def fit(self, occurrences: Occurrences) -> Repeat:
        """Count the repeats of the training occurrences of the class; returns itself."""
        previous_N = occurrences.evidence.previous_N
        self.repeat = float(((previous_N == occurrences.index_N).sum() + 1) / ((previous_N >= 0).sum() + 2))
        return self

    def log_prob(self, evidence: Evidence) -> np.ndarray:
        log_probs_NK = self.inner.log_prob(evidence).copy()
        if len(self.members) == 1:
            return log_probs_NK
        seen_X = np.flatnonzero(evidence.previous_N >= 0)
        previous_X = evidence.previous_N[seen_X]
        log_probs_NK[seen_X] += self._others(log_probs_NK[seen_X, previous_X])[:, None]
        log_probs_NK[seen_X, previous_X] = np.log(self.repeat)
        return log_probs_NK

    def log_prob_of(self, index_N: np.ndarray, evidence: Evidence) -> np.ndarray:
        log_probs_N = self.inner.log_prob_of(index_N, evidence)
        if len(self.members) == 1:
            return log_probs_N
        seen_X = np.flatnonzero(evidence.previous_N >= 0)
        previous_X = evidence.previous_N[seen_X]
        log_previous_X = self.inner.log_prob_of(previous_X, evidence.where(seen_X))
        other_X = log_probs_N[seen_X] + self._others(log_previous_X)
        log_probs_N[seen_X] = np.where(previous_X == index_N[seen_X], np.log(self.repeat), other_X)
        return log_probs_N

    def _others(self, log_previous_X: np.ndarray) -> np.ndarray:
        """Return the change of the micro-model's log-probabilities of the other members."""
        # an inner model that is certain of the previous member leaves almost nothing for the others
        rest_X = np.maximum(-np.expm1(log_previous_X), np.finfo(np.float64).tiny)
        return np.log1p(-self.repeat) - np.log(rest_X)

    def forget(self) -> None:
        self.inner.forget()

    def describe(self) -> dict[str, Any]:
        names = {"metric": self.metric_name, "density": self.density_name}
        return self.inner.describe() | names | {"repeat": self.repeat}


class Blend:
    """A mixture of micro-models of one class (the paper's outlook: several densities for one class).

    Args:
        weight_P: their weights, summing to 1; models with a weight below ``least`` are dropped.
    """

    def __init__(self, models: Sequence[MicroModel | Repeat], weight_P: np.ndarray, least: float = 1e-3) -> None:
        kept = [place for place, weight in enumerate(weight_P) if weight >= least]
        self.models = [models[place] for place in kept]
        self.weight_P = np.asarray(weight_P)[kept] / np.asarray(weight_P)[kept].sum()
        self.members = models[0].members

    def log_prob(self, evidence: Evidence) -> np.ndarray:
        return self._mixed(model.log_prob(evidence) for model in self.models)

    def log_prob_of(self, index_N: np.ndarray, evidence: Evidence) -> np.ndarray:
        return self._mixed(model.log_prob_of(index_N, evidence) for model in self.models)

    def _mixed(self, parts: Iterable[np.ndarray]) -> np.ndarray:
        return np.logaddexp.reduce([np.log(w) + part for w, part in zip(self.weight_P, parts, strict=True)], axis=0)

    def describe(self) -> dict[str, Any]:
        parts = [
            {"share": float(weight)} | model.describe()
            for weight, model in zip(self.weight_P, self.models, strict=True)
        ]
        return {"class": self.members.name, "blend": parts}

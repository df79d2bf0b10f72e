"""Densities: weights of members from their metric values, fitted to training text (sec. 3.3).

A density gives unnormalised log-weights; ``micro_model`` normalises them over the class vocabulary. Weights stand over
a base (log_base_K, mean weight 1): zeros, or the class's unigram.
Shape letters: N occurrences, M distinct observations, U keys, K members, G components.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from scipy.special import log_softmax
from sklearn.mixture import GaussianMixture

from lit_ctg.errors import UserError

# integers are known to half a unit: no component is narrower than a uniform on [-1/2, 1/2]
LEAST_VARIANCE = 1 / 12
EM_STEPS = 200
EM_TOLERANCE = 1e-5  # of a weight


@dataclass(frozen=True)
class Training:
    """What a density is fitted to.

    Attributes:
        x_N: metric values of the occurrences, at least one.
        kind: of the metric (``MetricFunction.kind``).
        x_UK: the values of all members for (a sample of) the keys that occur.
        row_M, index_M, count_M: the distinct pairs of key and member among the occurrences with those keys, and how
            often each occurs.
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
    """Weights from metric values; subclass it for a density of your own and name it by its dotted path.

    Attributes:
        name: what recognisers list.
        kinds: kinds of metric it can take (``MetricFunction.kind``).
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
        """Return what was fitted, as plain values to be read by people."""


class Unigram(Density):
    """Weight proportional to the metric value (a frequency) plus ``smoothing``; the base plays no part."""

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
    """A table: how often each metric value occurred, shared by the members that have it, and smoothing.

    Args:
        smoothing: weight of what the table has not seen, for each member in proportion to the base.
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
    """A normal density of the metric value; of squared distances an isotropic one in the plane with mean zero."""

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
    """Return the log of a Gaussian that is 1 at its top."""
    return (x_UK if planar else -((x_UK - mean) ** 2)) / (2 * variance)


class GaussianMixtureDensity(Density):
    """A mixture of Gaussians, each normalised over the class vocabulary by itself.

    Means and deviations come from EM on the metric values; of squared distances the means are zero and the deviations
    a ladder from near to far. The weights come from EM on the exact likelihood: members are points, some crowded and
    some alone, and a weight for the continuous density would not be one for them.

    Args:
        components: how many, at most the number of distinct values.
    """

    name = "mixture"
    grid = {"components": (2, 3, 5, 8)}

    def __init__(self, components: int = 3) -> None:
        self.components = int(components)

    def fit(self, training: Training) -> Density:
        self.planar = training.kind == "distance"
        components = min(self.components, len(np.unique(training.x_N)))
        if self.planar:
            self.mean_G, self.variance_G = np.zeros(components), _ladder(-training.x_N, components)
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
        for place in np.flatnonzero(self.weight_G > 0):
            part_UK = self._part(x_UK, log_base_K, place) + np.log(self.weight_G[place])
            np.logaddexp(total_UK, part_UK, out=total_UK)
        return total_UK

    def parameters(self) -> dict[str, Any]:
        columns = {"weight": self.weight_G, "mean": self.mean_G, "deviation": np.sqrt(self.variance_G)}
        return {"planar": self.planar} | {name: column.tolist() for name, column in columns.items()}


@lru_cache(maxsize=8)
def _gaussians(values: bytes, components: int) -> tuple[np.ndarray, np.ndarray]:
    """Return means and variances [G] by EM on float64 values; kept, because every base of a grid asks for them."""
    x_N = np.frombuffer(values)
    mixture = GaussianMixture(components, reg_covar=LEAST_VARIANCE, max_iter=EM_STEPS, random_state=0)
    # scikit-learn wants two values at least
    mixture.fit(np.resize(x_N, max(2, len(x_N)))[:, None])
    return mixture.means_[:, 0], mixture.covariances_[:, 0, 0]


def _ladder(square_N: np.ndarray, components: int) -> np.ndarray:
    """Return variances of planar Gaussians from the nearest to the farthest pairs (squared degrees)."""
    apart_N = square_N[square_N > 0]
    far = float(apart_N.max()) if len(apart_N) else 1.0
    return np.geomspace(LEAST_VARIANCE, max(far, LEAST_VARIANCE), components)


def mixture_weights(log_NG: np.ndarray, count_N: np.ndarray | None = None) -> np.ndarray:
    """Return the weights, by EM, that make a mixture of given log-probabilities (N places, G parts) most likely.

    Args:
        log_NG: of what was observed, under each part.
        count_N: how often; once each by default.
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
    """The share of training occurrences whose value is 1 (correct), and the rest; each is shared by its members.

    Where no member is correct, the rest has all.
    """

    name, kinds = "binary", frozenset({"flag"})

    def fit(self, training: Training) -> Density:
        if not np.isin(training.x_N, (0.0, 1.0)).all():
            raise UserError("the binary density takes a metric with the values 0 and 1, such as convert")
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
    """Return the base's log-probabilities among the chosen members of each row; of others anything finite."""
    total_U1 = (chosen_UK * np.exp(log_base_K)).sum(1, keepdims=True)
    return log_base_K - np.log(np.where(total_U1 > 0, total_U1, 1))


DENSITIES: dict[str, type[Density]] = {
    density.name: density for density in (Unigram, Multinomial, Gaussian, GaussianMixtureDensity, Binary)
}

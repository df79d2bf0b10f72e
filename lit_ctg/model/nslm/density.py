"""Densities: weights of members from their metric values, fitted to training text (sec. 3.3).

A density gives unnormalised log-weights; ``micro_model`` normalises them over the class vocabulary.
Shape letters: N occurrences, U keys, K members, G components.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from scipy.special import logsumexp
from sklearn.mixture import GaussianMixture

from lit_ctg.errors import UserError

# integers are known to half a unit: no component is narrower than a uniform on [-1/2, 1/2]
LEAST_VARIANCE = 1 / 12
EM_STEPS = 200


class Density(abc.ABC):
    """Weights from metric values; subclass it for a density of your own and add it to ``DENSITIES``.

    Attributes:
        name: what recognisers list.
        kinds: kinds of metric it can take (``MetricFunction.kind``).
        grid: constructor arguments that the grid search tries, by name.
    """

    name: ClassVar[str]
    kinds: ClassVar[frozenset[str]] = frozenset({"scalar", "count", "distance"})
    grid: ClassVar[Mapping[str, tuple[float, ...]]] = {}

    @abc.abstractmethod
    def fit(self, x_N: np.ndarray, squared_distance: bool = False) -> Density:
        """Fit to the metric values of training occurrences; returns itself.

        Args:
            x_N: at least one value.
            squared_distance: values are negative squared distances.
        """

    @abc.abstractmethod
    def log_weight(self, x_UK: np.ndarray) -> np.ndarray:
        """Return the log-weight of every member for every key, from their metric values."""

    def log_weight_over(self, x_UK: np.ndarray, log_base_K: np.ndarray) -> np.ndarray:
        """Return the log-weights over a base distribution instead of a uniform one: here their product."""
        return self.log_weight(x_UK) + log_base_K

    @abc.abstractmethod
    def parameters(self) -> dict[str, Any]:
        """Return what was fitted, as plain values to be read by people."""


class Unigram(Density):
    """Weight proportional to the metric value (a frequency) plus ``smoothing``."""

    name, kinds = "unigram", frozenset({"count"})
    grid = {"smoothing": (0.01, 0.03, 0.1, 0.3, 1.0)}

    def __init__(self, smoothing: float = 0.1) -> None:
        self.smoothing = smoothing

    def fit(self, x_N: np.ndarray, squared_distance: bool = False) -> Density:
        return self

    def log_weight(self, x_UK: np.ndarray) -> np.ndarray:
        return np.log(np.maximum(x_UK, 0) + self.smoothing)

    def parameters(self) -> dict[str, Any]:
        return {"smoothing": self.smoothing}


class Multinomial(Density):
    """A table: how often each metric value occurred, shared by the members that have it; ``smoothing`` a member more."""

    name, kinds = "multinomial", frozenset({"scalar", "count", "distance", "flag"})
    grid = {"smoothing": (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)}

    def __init__(self, smoothing: float = 0.1) -> None:
        self.smoothing = smoothing

    def fit(self, x_N: np.ndarray, squared_distance: bool = False) -> Density:
        self.value_M, self.count_M = np.unique(x_N, return_counts=True)
        return self

    def log_weight(self, x_UK: np.ndarray) -> np.ndarray:
        return self._smoothed(x_UK, np.ones(x_UK.shape[1]))

    def log_weight_over(self, x_UK: np.ndarray, log_base_K: np.ndarray) -> np.ndarray:
        """Smooth towards the base: it, and not every value alike, stands for what the table has not seen."""
        return self._smoothed(x_UK, np.exp(log_base_K) * len(log_base_K))

    def _smoothed(self, x_UK: np.ndarray, base_K: np.ndarray) -> np.ndarray:
        rows, entries = len(x_UK), len(self.value_M)
        place_UK = np.minimum(np.searchsorted(self.value_M, x_UK), entries - 1)
        seen_UK = self.value_M[place_UK] == x_UK
        code_UK = place_UK + np.arange(rows)[:, None] * entries
        _, places_S, sharing_S = np.unique(code_UK[seen_UK], return_inverse=True, return_counts=True)
        weight_UK = np.tile(self.smoothing * base_K, (rows, 1))
        weight_UK[seen_UK] += self.count_M[place_UK[seen_UK]] / sharing_S[places_S]
        return np.log(weight_UK)

    def parameters(self) -> dict[str, Any]:
        return {"smoothing": self.smoothing, "values": len(self.value_M), "observations": int(self.count_M.sum())}


class Gaussian(Density):
    """A normal density of the metric value; of squared distances an isotropic one with mean zero in the plane."""

    name = "gaussian"

    def fit(self, x_N: np.ndarray, squared_distance: bool = False) -> Density:
        self.planar = squared_distance
        if squared_distance:
            self.mean, self.variance = 0.0, max(-float(x_N.mean()) / 2, LEAST_VARIANCE)
        else:
            self.mean, self.variance = float(x_N.mean()), max(float(x_N.var()), LEAST_VARIANCE)
        return self

    def log_weight(self, x_UK: np.ndarray) -> np.ndarray:
        squares_UK = -x_UK if self.planar else (x_UK - self.mean) ** 2
        return -0.5 * squares_UK / self.variance

    def parameters(self) -> dict[str, Any]:
        return {"mean": self.mean, "deviation": self.variance**0.5, "planar": self.planar}


class GaussianMixtureDensity(Density):
    """A mixture of normal densities by EM; of squared distances isotropic ones with mean zero (a mixture of scales).

    Args:
        components: how many, at most the number of distinct values.
    """

    name = "mixture"
    grid = {"components": (2, 3, 5, 8)}

    def __init__(self, components: int = 3) -> None:
        self.components = int(components)

    def fit(self, x_N: np.ndarray, squared_distance: bool = False) -> Density:
        self.planar = squared_distance
        components = min(self.components, len(np.unique(x_N)))
        if squared_distance:
            self.mean_G = np.zeros(components)
            self.weight_G, self.variance_G = _scale_mixture(-x_N, components)
            return self
        mixture = GaussianMixture(components, reg_covar=LEAST_VARIANCE, max_iter=EM_STEPS, random_state=0)
        mixture.fit(x_N[:, None])
        self.weight_G, self.mean_G = mixture.weights_, mixture.means_[:, 0]
        self.variance_G = mixture.covariances_[:, 0, 0]
        return self

    def log_weight(self, x_UK: np.ndarray) -> np.ndarray:
        total_UK = np.full(x_UK.shape, -np.inf)
        power = 1.0 if self.planar else 0.5
        for weight, mean, variance in zip(self.weight_G, self.mean_G, self.variance_G, strict=True):
            squares_UK = -x_UK if self.planar else (x_UK - mean) ** 2
            part_UK = np.log(weight) - power * np.log(variance) - 0.5 * squares_UK / variance
            np.logaddexp(total_UK, part_UK, out=total_UK)
        return total_UK

    def parameters(self) -> dict[str, Any]:
        deviation_G = np.sqrt(self.variance_G)
        columns = {"weight": self.weight_G, "mean": self.mean_G, "deviation": deviation_G}
        return {"planar": self.planar} | {name: column.tolist() for name, column in columns.items()}


def _scale_mixture(square_N: np.ndarray, components: int) -> tuple[np.ndarray, np.ndarray]:
    """EM for planar isotropic Gaussians around zero: returns weight_G, variance_G (squared degrees)."""
    positive_N = square_N[square_N > 0]
    top = float(positive_N.max()) if len(positive_N) else 1.0
    bottom = float(np.quantile(positive_N, 0.05)) if len(positive_N) else 1.0
    variance_G = np.maximum(np.geomspace(min(bottom, top), top, components), LEAST_VARIANCE)
    weight_G = np.full(components, 1 / components)
    for _ in range(EM_STEPS):
        log_NG = np.log(weight_G) - np.log(variance_G) - 0.5 * square_N[:, None] / variance_G
        share_NG = np.exp(log_NG - logsumexp(log_NG, axis=1, keepdims=True))
        mass_G = share_NG.sum(0) + 1e-12
        weight_G = mass_G / mass_G.sum()
        variance_G = np.maximum((share_NG * square_N[:, None]).sum(0) / (2 * mass_G), LEAST_VARIANCE)
    return weight_G, variance_G


class Binary(Density):
    """Two weights: the share of training occurrences whose value is 1 (correct), and the rest; members share them.

    Where no member is correct, all have the same weight.
    """

    name, kinds = "binary", frozenset({"flag"})

    def fit(self, x_N: np.ndarray, squared_distance: bool = False) -> Density:
        if not np.isin(x_N, (0.0, 1.0)).all():
            raise UserError("the binary density takes a metric with the values 0 and 1, such as convert")
        # Laplace's rule: neither share is ever zero
        self.correct = float((x_N.sum() + 1) / (len(x_N) + 2))
        return self

    def log_weight(self, x_UK: np.ndarray) -> np.ndarray:
        right_UK = x_UK == 1
        right_U1 = np.maximum(right_UK.sum(1, keepdims=True), 1)
        wrong_U1 = np.maximum((~right_UK).sum(1, keepdims=True), 1)
        return np.where(right_UK, np.log(self.correct / right_U1), np.log((1 - self.correct) / wrong_U1))

    def parameters(self) -> dict[str, Any]:
        return {"correct": self.correct}


DENSITIES: dict[str, type[Density]] = {
    density.name: density for density in (Unigram, Multinomial, Gaussian, GaussianMixtureDensity, Binary)
}

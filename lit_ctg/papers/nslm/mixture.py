"""Mixtures of models in log space, and the weight that fits a validation text best.

Shape letters: N tokens.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import minimize_scalar


def mix(log_a_N: np.ndarray, log_b_N: np.ndarray, weight_b: float) -> np.ndarray:
    """Return log((1 - weight_b) exp(log_a) + weight_b exp(log_b)), exact for weights 0 and 1 and for -inf."""
    if weight_b == 0.0:
        return np.asarray(log_a_N)
    if weight_b == 1.0:
        return np.asarray(log_b_N)
    return np.logaddexp(math.log1p(-weight_b) + log_a_N, math.log(weight_b) + log_b_N)


def tune(log_a_N: np.ndarray, log_b_N: np.ndarray) -> float:
    """Return the weight of b in [0, 1] under which the tokens are likeliest (the cost is convex in it)."""

    def cost(weight: float) -> float:
        return -float(np.mean(mix(log_a_N, log_b_N, weight)))

    inner = minimize_scalar(cost, bounds=(0.0, 1.0), method="bounded", options={"xatol": 1e-4})
    candidates = (0.0, float(inner.x), 1.0)
    return min(candidates, key=cost)


def with_cache(log_model_N: np.ndarray, log_cache_N: np.ndarray, weight: float) -> np.ndarray:
    """Return the mixture with the cache; NaN in ``log_cache_N`` marks an empty cache, which gets no weight."""
    empty_N = np.isnan(log_cache_N)
    mixed_N = mix(log_model_N, np.where(empty_N, -np.inf, log_cache_N), weight)
    return np.where(empty_N, log_model_N, mixed_N)

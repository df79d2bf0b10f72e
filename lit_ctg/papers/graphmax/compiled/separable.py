"""A start for the model step: the problem with the diagonal of its quadratic form."""

from __future__ import annotations

import math

import numpy as np

from lit_ctg.papers.graphmax.compiled.jit import highest, normalized
from lit_ctg.papers.graphmax.compiled.keep import compiled

SEPARABLE_STEPS, SEPARABLE_TOL = 30, 1e-2


@compiled
def separable(linear_n, diagonal_n, twice_strength, log_x_n):
    """Write log x with Q replaced by its diagonal, normalised (separable.solve_separable; here a start only)."""
    high, low, total = highest(linear_n), -np.inf, 0.0
    for place in range(len(linear_n)):
        low = max(low, linear_n[place] - twice_strength * diagonal_n[place])
        total += math.exp(linear_n[place] - high)
    high += math.log(total)
    c = high
    for _ in range(SEPARABLE_STEPS):
        total, sloped = 0.0, 0.0
        for place in range(len(linear_n)):
            log_x_n[place], slope = linear_n[place] - c, 1.0
            if diagonal_n[place] > 0:
                log_a = math.log(twice_strength * diagonal_n[place])
                log_w = log_wright_omega(log_a + log_x_n[place])
                log_x_n[place], slope = log_w - log_a, 1 / (1 + math.exp(log_w))
            x = math.exp(log_x_n[place])
            total += x
            sloped += x * slope
        log_sum, share = math.log(total), sloped / total
        if abs(log_sum) < SEPARABLE_TOL:
            break
        by_sum, by_log = c + (1 - 1 / total) / share, c + log_sum / share
        if log_sum > 0:
            low = c
            c = by_log if by_log < high else max(by_sum, low)
        else:
            high = c
            c = max(by_sum, low)
    normalized(log_x_n)


@compiled
def log_wright_omega(level):
    """Return ``log w`` with ``w + log w = level`` (separable.log_wright_omega)."""
    if level < -30:
        return level
    if level > 1:
        w = level - math.log(level)
    else:
        w = math.exp(level) / (1 + math.exp(level))
    for _ in range(2):
        r = level - w - math.log(w)
        t = 2 * (1 + w) * (1 + w + 2 * r / 3)
        w *= 1 + r / (1 + w) * (t - r) / (t - 2 * r)
    return level - w if level < 1 else math.log(w)

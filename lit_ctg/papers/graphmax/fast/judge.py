"""The certificate of float32 rows (certificate.judge)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from lit_ctg.papers.graphmax.fast import over_rows
from lit_ctg.papers.graphmax.fast.jit import exponential, highest
from lit_ctg.papers.graphmax.fast.keep import compiled
from lit_ctg.papers.graphmax.fast.products import product

if TYPE_CHECKING:
    from lit_ctg.papers.graphmax.graph import Matrices

ROUNDED = 1.001 * 2.0**-24  # rounding of a float32, with room for double rounding
NEAR = 0.5
LEAST = -1e30


def judged(
    matrices: Matrices, logits_BV: np.ndarray, floor_B: np.ndarray, strength_B: np.ndarray, log_x_BV: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return y and a bound of each row's gap that holds despite rounding.

    Let e be the error of ``2 lambda M x``, and ``|e| <= worst``. By Hoeffding's lemma and Pinsker's inequality
    ``KL(x || softmax(y + e)) <= (sqrt(KL(x || softmax(y))) + worst / sqrt(2))^2``.

    As for worst: with B = I - A~, r = B x, m = B^T r, weights of at most w, and x, which sums to 1, rounded to float32
    like r and m, the error of m is at most ``2^-24 (|m| + |r| + A~^T |r| + |B|^T |B| x)``. Here ``A~^T x <= w``,
    ``A~ x <= x + |r|`` and ``A~^T A~ x = A~^T x - (r - m)``, so ``A~^T |r| <= 2 w + |r| + |m|`` and
    ``|B|^T |B| x <= 2 x + |r| + 2 w + |r| + |m|``; and ``|r| <= 1 + w``. In total: ``2^-24 (3 |m| + 8 w + 6)``.
    """
    x_BV, y_BV, gap_B = np.empty_like(log_x_BV), np.empty_like(log_x_BV), np.empty(len(log_x_BV))
    over_rows(exponentials, [log_x_BV, x_BV])
    m_BV = product(matrices, x_BV)
    over_rows(gaps, [logits_BV, floor_B, strength_B, log_x_BV, x_BV, m_BV, y_BV, gap_B])
    largest_B = np.abs(m_BV).max(axis=1).astype(np.float64)
    worst_B = 2 * strength_B * ROUNDED * (3 * largest_B + 8 * matrices.largest + 6)
    bound_B = (np.sqrt(np.maximum(gap_B, 0)) + worst_B / math.sqrt(2)) ** 2
    # a gap below 0 by more than rounding is an arithmetic error, and remains one
    return y_BV, np.where(gap_B < -1e-12, gap_B, bound_B)


@compiled
def exponentials(log_x_BV, x_BV):
    """Write ``exp(log x)``, rounded to float32."""
    for row in range(len(log_x_BV)):
        log_x_V, x_V = log_x_BV[row], x_BV[row]
        for place in range(len(log_x_V)):
            x_V[place] = exponential(np.float64(log_x_V[place]))


@compiled
def gaps(logits_BV, floor_B, strength_B, log_x_BV, x_BV, m_BV, y_BV, gap_B):
    """Write y and ``KL(x || softmax(y))`` of each row (certificate.duality_gap), x being exp(log x), normalised."""
    d_V = np.empty(logits_BV.shape[1])
    for row in range(len(logits_BV)):
        logits_V, log_x_V, x_V, m_V, y_V = logits_BV[row], log_x_BV[row], x_BV[row], m_BV[row], y_BV[row]
        top, mass, mean = np.float64(highest(logits_V)), 0.0, 0.0
        for place in range(len(x_V)):
            mass += x_V[place]
        twice = 2 * strength_B[row] / mass
        for place in range(len(x_V)):
            y = max(np.float64(logits_V[place]) - top, floor_B[row]) - twice * m_V[place]
            y_V[place] = y
            log_x = np.float64(log_x_V[place])
            # finite, so that x d is 0 where x is 0; NaN stays NaN
            d_V[place] = (LEAST if log_x < LEAST else log_x) - y
            mean += x_V[place] * d_V[place]
        mean /= mass
        spread, drift = 0.0, 0.0
        for place in range(len(x_V)):
            d, x = d_V[place] - mean, np.float64(x_V[place])
            # phi(d) = exp(-d) - 1 + d: as a series near 0; elsewhere with x exp(-d) as one number, since x may be 0
            phi = 1 / 3628800.0
            for order in (-362880.0, 40320.0, -5040.0, 720.0, -120.0, 24.0, -6.0, 2.0):
                phi = phi * d + 1 / order
            y = max(np.float64(logits_V[place]) - top, floor_B[row]) - twice * m_V[place]
            far = exponential(y + mean) + x * (d - 1)
            spread += x * d * d * phi if abs(d) < NEAR else far
            drift += x * d
        spread, drift = spread / mass, drift / mass
        gap_B[row] = math.log1p(spread - drift) + drift

"""The gap of rows over the whole vocabulary (certificate.duality_gap)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numba
import numpy as np
from numba.extending import overload

from lit_ctg.papers.graphmax.certificate import FAR
from lit_ctg.papers.graphmax.compiled.jit import compiled, exponential, total

# phi(d) = d^2 (1/2 - d/6 + d^2/24 - ...): up to here the series, whose next term is below 1e-6 of it
NEAR = np.float32(0.5)
P2, P3, P4, P5, P6, P7 = (np.float32((-1) ** n / math.factorial(n)) for n in range(2, 8))


def phi(d):
    """Return ``exp(-d) - 1 + d`` for d > -FAR."""
    return math.expm1(-d) + d


@overload(phi)
def _phi(d) -> Callable:
    def single(d):
        series = d * d * (P2 + d * (P3 + d * (P4 + d * (P5 + d * (P6 + d * P7)))))
        far = exponential(-d) + (d - np.float32(1))
        return series if abs(d) < NEAR else far

    def double(d):
        return math.expm1(-d) + d

    return single if d == numba.float32 else double


@compiled
def centred_gaps(log_x_BV, y_BV, x_BV, gap_B, plain_B):
    """Write the gap of each row in the centred form, float64, and whether that form does not hold there."""
    d_V, work_V = np.empty_like(x_BV[0]), np.empty_like(x_BV[0])
    for row in range(len(x_BV)):
        y_V, x_V = y_BV[row], x_BV[row]
        empties = _write_differences(log_x_BV[row], y_V, x_V, d_V)
        centre = x_V.dtype.type(_weighted(x_V, d_V))
        far = _write_centred(d_V, x_V, centre, work_V)
        mass = total(x_V)
        mean, spread = _weighted(x_V, d_V) / mass, total(work_V) / mass
        gap_B[row] = math.log1p(spread - mean) + mean
        plain_B[row] = far > 0 or (empties > 0 and _mass_outside(y_V, x_V))


@compiled
def _write_differences(log_x_V, y_V, x_V, d_V):
    """Write ``log x - y``, 0 where x is 0; return how many are."""
    empties = 0
    for place in range(len(x_V)):
        d_V[place] = log_x_V[place] - y_V[place] if x_V[place] != 0 else x_V.dtype.type(0)
        empties += x_V[place] == 0
    return empties


@compiled
def _write_centred(d_V, x_V, centre, work_V):
    """Take the centre from d, write ``x phi(d)``; return how many d are too far below 0."""
    far = 0
    for place in range(len(x_V)):
        d_V[place] -= centre
        far += d_V[place] < -FAR
    for place in range(len(x_V)):
        work_V[place] = x_V[place] * phi(d_V[place])
    return far


@compiled
def _weighted(x_V, d_V):
    """Return the sum of x d in float64."""
    result = 0.0
    for place in range(len(x_V)):
        result += x_V[place] * d_V[place]
    return result


@compiled
def _mass_outside(y_V, x_V):
    inside, outside = -np.inf, -np.inf
    for place in range(len(x_V)):
        if x_V[place] == 0:
            outside = max(outside, y_V[place])
        else:
            inside = max(inside, y_V[place])
    return outside > inside - FAR

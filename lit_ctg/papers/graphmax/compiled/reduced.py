"""The reduced problem of one context, solved (reduced.ReducedProblem.solve)."""

from __future__ import annotations

import math

import numpy as np

from lit_ctg.papers.graphmax.compiled.jit import highest, normalized
from lit_ctg.papers.graphmax.compiled.keep import compiled
from lit_ctg.papers.graphmax.compiled.segment import segment, slope_along
from lit_ctg.papers.graphmax.compiled.tangent import apply, tangent
from lit_ctg.papers.graphmax.constants import FAR, NEWTON_STEPS, SMALL, SURE


@compiled
def newton(linear_n, gram_KK, diagonal_n, strength, log_x_n, tol):
    """Newton-CG in log space until the gap is below tol."""
    size = len(log_x_n)
    x_n, y_n, new_x_n, new_y_n = np.empty(size), np.empty(size), np.empty(size), np.empty(size)
    gap = _judge(linear_n, gram_KK, diagonal_n, strength, log_x_n, x_n, y_n)
    for _ in range(NEWTON_STEPS):
        if gap <= tol:
            break
        new_n = _candidate(gram_KK, diagonal_n, strength, log_x_n, x_n, y_n)
        new_gap = _judge(linear_n, gram_KK, diagonal_n, strength, new_n, new_x_n, new_y_n)
        if not new_gap <= SURE * gap and not slope_along(x_n, new_x_n, new_n, new_y_n) <= 0:
            if not slope_along(x_n, new_x_n, log_x_n, y_n) < 0:
                # towards softmax(y), f always falls
                for place in range(len(new_n)):
                    new_n[place] = y_n[place]
                normalized(new_n)
                _judge(linear_n, gram_KK, diagonal_n, strength, new_n, new_x_n, new_y_n)
            new_n = segment(log_x_n, x_n, y_n, new_x_n, new_y_n)
            new_gap = _judge(linear_n, gram_KK, diagonal_n, strength, new_n, new_x_n, new_y_n)
        log_x_n, gap = new_n, new_gap
        x_n, new_x_n, y_n, new_y_n = new_x_n, x_n, new_y_n, y_n
    return log_x_n


@compiled
def _judge(linear_n, gram_KK, diagonal_n, strength, log_x_n, x_n, y_n):
    """Write x and y of a normalised log x; return ``KL(x || softmax(y))``."""
    for place in range(len(x_n)):
        x_n[place] = math.exp(log_x_n[place])
    apply(gram_KK, diagonal_n, x_n, y_n)
    mass, centre = 0.0, 0.0
    for place in range(len(x_n)):
        y_n[place] = linear_n[place] - 2 * strength * y_n[place]
        mass += x_n[place]
        if x_n[place] > 0:
            centre += x_n[place] * (log_x_n[place] - y_n[place])
    return _gap(log_x_n, x_n, y_n, mass, centre / mass)


@compiled
def _gap(log_x_n, x_n, y_n, mass, centre):
    """Return KL by the centred form of certificate.duality_gap, which does not cancel; the plain one far away."""
    mean, phi, lowest = 0.0, 0.0, 0.0
    for place in range(len(x_n)):
        if x_n[place] > 0:
            d = log_x_n[place] - y_n[place] - centre
            mean += x_n[place] * d
            lowest = min(lowest, d)
            phi += x_n[place] * (math.expm1(-d) + d)
        else:
            phi += math.exp(y_n[place] + centre)
            lowest = min(lowest, -y_n[place] - centre)
    mean /= mass
    if lowest > -FAR:
        return math.log1p(phi / mass - mean) + mean
    top, total = highest(y_n), 0.0
    for place in range(len(x_n)):
        total += math.exp(y_n[place] - top)
    return centre + mean + top + math.log(total) - math.log(mass)


@compiled
def _candidate(gram_KK, diagonal_n, strength, log_x_n, x_n, y_n):
    """Return log x after a full Newton step (descent.newton_candidate)."""
    direction_n, s_n = tangent(gram_KK, diagonal_n, strength, log_x_n, x_n, y_n)
    mean = 0.0
    for place in range(len(x_n)):
        s_n[place] = y_n[place] - 2 * strength * s_n[place] - log_x_n[place]
        mean += x_n[place] * s_n[place]
    for place in range(len(x_n)):
        s = direction_n[place] / x_n[place] if x_n[place] > SMALL else s_n[place] - mean
        if s > 0:
            s = min(s, max(math.log1p(s), math.log(SMALL) - log_x_n[place]))
        s_n[place] = log_x_n[place] + s
    return normalized(s_n)

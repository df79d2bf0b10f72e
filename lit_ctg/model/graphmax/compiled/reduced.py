"""The reduced problem of one context after the other."""

from __future__ import annotations

import math

import numpy as np

from lit_ctg.model.graphmax.certificate import FAR
from lit_ctg.model.graphmax.compiled.jit import compiled, highest, normalized
from lit_ctg.model.graphmax.compiled.segment import segment, slope_along
from lit_ctg.model.graphmax.compiled.separable import separable
from lit_ctg.model.graphmax.compiled.tangent import apply, tangent
from lit_ctg.model.graphmax.descent import SMALL
from lit_ctg.model.graphmax.reduced import ABSENT, NEWTON_STEPS, SURE


@compiled
def solve_reduced(linear_BN, gram_KK, curvature_BX, count_B, strength_B, start_BN, tol):
    """Solve the reduced problem of each row (see reduced.ReducedProblem.solve).

    Args:
        linear_BN: logits of hubs, extras (padded after ``count_B`` of them) and lump, float64.
        gram_KK: the block of M on the hubs.
        curvature_BX: ``M_jj`` of the extras, float64.
        count_B: extras of a row.
        strength_B: lambda.
        start_BN: log x to start from, float64; no rows: the separable solution.
        tol: gap in nats.

    Returns:
        log x, ``[B, N]``; ``ABSENT`` where padded.
    """
    result_BN = np.full(linear_BN.shape, ABSENT)
    hubs, last = len(gram_KK), linear_BN.shape[1] - 1
    for row in range(len(linear_BN)):
        size = hubs + count_B[row] + 1
        linear_n, diagonal_n, log_x_n = np.empty(size), np.empty(size), np.empty(size)
        for place in range(size):
            column = last if place == size - 1 else place
            linear_n[place] = linear_BN[row, column]
            if len(start_BN):
                log_x_n[place] = start_BN[row, column]
            if place < hubs:
                diagonal_n[place] = gram_KK[place, place]
            else:
                diagonal_n[place] = 0.0 if column == last else curvature_BX[row, place - hubs]
        if not len(start_BN):
            separable(linear_n, diagonal_n, 2 * strength_B[row], log_x_n)
        log_x_n = _newton(linear_n, gram_KK, diagonal_n, strength_B[row], log_x_n, tol)
        for place in range(size):
            result_BN[row, last if place == size - 1 else place] = log_x_n[place]
    return result_BN


@compiled
def _newton(linear_n, gram_KK, diagonal_n, strength, log_x_n, tol):
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

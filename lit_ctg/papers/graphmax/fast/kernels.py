"""Kernels for the CPU, compiled by numba: the model step and the certificate of each row; the product (products.py).

The mathematics is that of graph.py, model_step.py and solver.py, which run instead if numba is not installed, with
``fast=off``, on other devices, and (products and certificates) in float64. Arrays are numpy. Shape suffixes: B rows, V
vocabulary, K hubs, X extras, N = K + X + 1 variables (n of one row).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from lit_ctg.papers.graphmax.fast import (
    ABSENT,
    CG_ITERATIONS,
    CG_TOL,
    FAR,
    MOST_EXTRAS,
    NEWTON_STEPS,
    SEGMENT_STEPS,
    SEGMENT_WIDTH,
    SMALL,
    SURE,
    WEIGHTY,
    over_rows,
)
from lit_ctg.papers.graphmax.fast.jit import compiled, exponential, highest, normalized, write_exp
from lit_ctg.papers.graphmax.fast.products import SlicedRows, product, sliced

if TYPE_CHECKING:
    from lit_ctg.papers.graphmax.graph import Matrices

__all__ = ["SlicedRows", "judged", "model_steps", "product", "sliced"]

# The minimum on a segment, for when full Newton steps do not help.


@compiled
def slope_along(x_n, end_x_n, log_x_n, y_n):
    """Return the derivative of f at (log x, y) along the segment from x to its end."""
    total = 0.0
    for place in range(len(x_n)):
        total += (end_x_n[place] - x_n[place]) * (log_x_n[place] - y_n[place])
    return total


@compiled
def segment(log_x_n, x_n, y_n, end_x_n, end_y_n):
    """Return log x at the minimum of f on a segment, by bisection (model_step.segment_minimum)."""
    low, high = 0.0, 1.0
    between_n = np.empty(len(x_n))
    for _ in range(SEGMENT_STEPS):
        t, slope = (low + high) / 2, 0.0
        for place in range(len(x_n)):
            mixed = x_n[place] + t * (end_x_n[place] - x_n[place])
            if mixed > 0:
                slope += (end_x_n[place] - x_n[place]) * (
                    math.log(mixed) - y_n[place] - t * (end_y_n[place] - y_n[place])
                )
        if slope > 0:
            high = t
        else:
            low = t
        if high - low <= SEGMENT_WIDTH * high:
            break
    t = (low + high) / 2
    for place in range(len(x_n)):
        mixed = x_n[place] + t * (end_x_n[place] - x_n[place])
        between_n[place] = math.log(mixed) if mixed > 0 else log_x_n[place] + math.log1p(-t)
    return normalized(between_n)


# A start for the model step: the problem with only the diagonal of its quadratic form.


SEPARABLE_STEPS, SEPARABLE_TOL = 30, 1e-2


@compiled
def separable(linear_n, diagonal_n, twice_strength, log_x_n):
    """Write log x with Q replaced by its diagonal, normalised (model_step.solve_separable; here a start only)."""
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
    """Return ``log w`` with ``w + log w = level`` (model_step.log_wright_omega)."""
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


# The Newton direction of the model step.


@compiled
def apply(gram_KK, diagonal_n, x_n, image_n):
    """Write ``Q x``: the dense block, then the diagonal."""
    hubs = len(gram_KK)
    hub_K = np.empty(hubs, gram_KK.dtype)
    for hub in range(hubs):
        hub_K[hub] = x_n[hub]
    for row in range(hubs):
        total = gram_KK.dtype.type(0)
        for column in range(hubs):
            total += gram_KK[row, column] * hub_K[column]
        image_n[row] = total
    for place in range(hubs, len(x_n)):
        image_n[place] = diagonal_n[place] * x_n[place]


@compiled
def tangent(gram_KK, diagonal_n, strength, log_x_n, x_n, y_n):
    """Return the Newton direction d and ``Q d`` by projected, preconditioned CG (model_step.solve_tangent)."""
    size = len(x_n)
    root_n, scale_n, r_n, g_n, p_n = np.empty(size), np.empty(size), np.empty(size), np.empty(size), np.empty(size)
    v_n, m_p_n, s_n, image_n = np.empty(size), np.empty(size), np.zeros(size), np.zeros(size)
    weight, mean = 0.0, 0.0
    for place in range(size):
        root_n[place] = math.sqrt(x_n[place])
        scale_n[place] = 1 / (1 + 2 * strength * x_n[place] * diagonal_n[place])
        weight += scale_n[place] * x_n[place]
        r_n[place] = y_n[place] - log_x_n[place] if x_n[place] > 0 else 0.0
        mean += x_n[place] * r_n[place]
    for place in range(size):
        r_n[place] = root_n[place] * (r_n[place] - mean)
    rho = _precondition(r_n, g_n, root_n, scale_n, weight)
    goal = CG_TOL**2 * rho
    for place in range(size):
        p_n[place] = g_n[place]
    for _ in range(CG_ITERATIONS):
        if not rho > goal:
            break
        for place in range(size):
            v_n[place] = root_n[place] * p_n[place]
        apply(gram_KK, diagonal_n, v_n, m_p_n)
        curved = 0.0
        for place in range(size):
            v_n[place] = p_n[place] + 2 * strength * root_n[place] * m_p_n[place]
            curved += p_n[place] * v_n[place]
        alpha = rho / curved
        for place in range(size):
            s_n[place] += alpha * p_n[place]
            image_n[place] += alpha * m_p_n[place]
            r_n[place] -= alpha * v_n[place]
        new = _precondition(r_n, g_n, root_n, scale_n, weight)
        for place in range(size):
            p_n[place] = g_n[place] + new / rho * p_n[place]
        rho = new
    for place in range(size):
        s_n[place] *= root_n[place]
    return s_n, image_n


@compiled
def _precondition(r_n, g_n, root_n, scale_n, weight):
    """Remove the multiple of sqrt(x) from r, write ``D^-1 r`` into g; return their product."""
    nu, rho = 0.0, 0.0
    for place in range(len(r_n)):
        nu += scale_n[place] * root_n[place] * r_n[place]
    nu /= weight
    for place in range(len(r_n)):
        r_n[place] -= nu * root_n[place]
        g_n[place] = scale_n[place] * r_n[place]
        rho += r_n[place] * g_n[place]
    return rho


# The reduced problem of one context, solved (model_step.ReducedProblem.solve).


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
                # f always decreases towards softmax(y)
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
    """Return KL by the centred form of model_step.duality_gap, which does not cancel; far away by the plain form."""
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
    """Return log x after a full Newton step (model_step.newton_candidate)."""
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


# The model step of each row, from y to the next iterate (model_step.model_step).


SCAN = 64  # tokens that are examined together


@compiled
def model_steps(y_BV, log_x_BV, strength_B, new_BV, x_BV, hubs_K, gram_KK, diagonal_V, extra_diagonal_V, tol):
    """Write log x of each row's model problem around its last iterate, and x.

    Args:
        y_BV: ``z - 2 lambda M x`` at the last iterate, z at the start.
        log_x_BV: the last iterate; empty at the start.
        strength_B: lambda.
        new_BV, x_BV: the output.
        hubs_K, gram_KK, diagonal_V, extra_diagonal_V: of the operator.
        tol: gap in nats to which the reduced problems are solved.
    """
    work_V = np.empty_like(y_BV[0])
    started = len(log_x_BV) > 0
    for row in range(len(y_BV)):
        y_V, new_V, x_V, twice = y_BV[row], new_BV[row], x_BV[row], 2 * strength_B[row]
        before_V = log_x_BV[row] if started else y_V
        if started:
            write_exp(before_V, 0.0, x_V)
        extras_X = _extras(y_V, x_V, started, extra_diagonal_V, WEIGHTY / twice, work_V)
        linear_n, diagonal_n = _reduced(y_V, hubs_K, extras_X, gram_KK, diagonal_V, new_V, work_V)
        log_x_n = np.empty_like(linear_n)
        if started:
            _complete(linear_n, x_V, hubs_K, extras_X, gram_KK, diagonal_n, twice)
            _gather(before_V, hubs_K, extras_X, new_V, work_V, log_x_n)
            normalized(log_x_n)
        else:
            separable(linear_n, diagonal_n, twice, log_x_n)
        log_x_n = newton(linear_n, gram_KK, diagonal_n, strength_B[row], log_x_n, tol)
        _expand(y_V, linear_n[-1], log_x_n, hubs_K, extras_X, new_V, x_V)


@compiled
def _extras(y_V, x_V, started, extra_diagonal_V, least, work_V):
    """Return the tokens, except hubs, whose own penalty would move their logit by more than ``WEIGHTY``."""
    scale = y_V.dtype.type(1 / write_exp(y_V, highest(y_V), work_V))
    if started:
        for place in range(len(y_V)):
            work_V[place] = max(work_V[place] * scale, x_V[place]) * extra_diagonal_V[place]
    else:
        for place in range(len(y_V)):
            work_V[place] = work_V[place] * scale * extra_diagonal_V[place]
    found = _above(work_V, least)
    if len(found) > MOST_EXTRAS:
        weights = np.sort(work_V[found])
        found = found[work_V[found] > weights[len(found) - MOST_EXTRAS]]
    return found


@compiled
def _above(weight_V, least):
    """Return the indices of entries above ``least``."""
    found, count, bound = np.empty(len(weight_V), np.int64), 0, weight_V.dtype.type(least)
    for start in range(0, len(weight_V), SCAN):
        stop, hits = min(start + SCAN, len(weight_V)), 0
        for place in range(start, stop):
            hits += weight_V[place] > bound
        if hits:
            for place in range(start, stop):
                if weight_V[place] > bound:
                    found[count] = place
                    count += 1
    return found[:count].copy()


@compiled
def _gather(u_V, hubs_K, extras_X, rest_V, work_V, out_n):
    """Write u of hubs and extras, and log sum exp of the rest (not by subtraction, which would lose it)."""
    rest_V[:] = u_V
    for place in range(len(hubs_K)):
        out_n[place] = u_V[hubs_K[place]]
        rest_V[hubs_K[place]] = -np.inf
    for place in range(len(extras_X)):
        out_n[len(hubs_K) + place] = u_V[extras_X[place]]
        rest_V[extras_X[place]] = -np.inf
    top = highest(rest_V)
    out_n[-1] = top + math.log(write_exp(rest_V, top, work_V)) if top > ABSENT else ABSENT


@compiled
def _reduced(y_V, hubs_K, extras_X, gram_KK, diagonal_V, rest_V, work_V):
    """Return the linear term of the reduced problem at x = 0, and the diagonal of Q, float64."""
    hubs, size = len(hubs_K), len(hubs_K) + len(extras_X) + 1
    linear_n, diagonal_n = np.empty(size), np.zeros(size)
    _gather(y_V, hubs_K, extras_X, rest_V, work_V, linear_n)
    for place in range(hubs):
        diagonal_n[place] = gram_KK[place, place]
    for place in range(len(extras_X)):
        diagonal_n[hubs + place] = diagonal_V[extras_X[place]]
    return linear_n, diagonal_n


@compiled
def _complete(linear_n, x_V, hubs_K, extras_X, gram_KK, diagonal_n, twice_strength):
    """Add the model's part of M x to the linear term, in place."""
    hubs = len(hubs_K)
    x_K = x_V[hubs_K]
    for row in range(hubs):
        image = gram_KK.dtype.type(0)
        for column in range(hubs):
            image += gram_KK[row, column] * x_K[column]
        linear_n[row] += twice_strength * image
    for place in range(len(extras_X)):
        linear_n[hubs + place] += twice_strength * diagonal_n[hubs + place] * x_V[extras_X[place]]


@compiled
def _expand(y_V, lump, log_x_n, hubs_K, extras_X, new_V, x_V):
    """Spread a reduced solution over the vocabulary, normalised (model_step.log_normalized); write log x and x."""
    shift = y_V.dtype.type(log_x_n[-1] - lump)
    for place in range(len(y_V)):
        new_V[place] = y_V[place] + shift
    for place in range(len(hubs_K)):
        new_V[hubs_K[place]] = log_x_n[place]
    for place in range(len(extras_X)):
        new_V[extras_X[place]] = log_x_n[len(hubs_K) + place]
    _subtract_log_sum(new_V, highest(new_V), x_V)
    # again, now that the sum is near 1: the first logarithm is rounded like the largest entry
    _subtract_log_sum(new_V, 0.0, x_V)
    write_exp(new_V, 0.0, x_V)


@compiled
def _subtract_log_sum(u_V, top, work_V):
    shift = u_V.dtype.type(top + math.log(write_exp(u_V, top, work_V)))
    for place in range(len(u_V)):
        u_V[place] -= shift


# The certificate of float32 rows (solver.judge).


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
    """Write y and ``KL(x || softmax(y))`` of each row (model_step.duality_gap), x being exp(log x), normalised."""
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

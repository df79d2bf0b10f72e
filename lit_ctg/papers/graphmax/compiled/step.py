"""The model step of each row, from y to the next iterate (reduced.model_step)."""

from __future__ import annotations

import math

import numpy as np

from lit_ctg.papers.graphmax.compiled.jit import highest, normalized, write_exp
from lit_ctg.papers.graphmax.compiled.keep import compiled
from lit_ctg.papers.graphmax.compiled.reduced import newton
from lit_ctg.papers.graphmax.compiled.separable import separable
from lit_ctg.papers.graphmax.constants import ABSENT, MOST_EXTRAS, WEIGHTY

SCAN = 64  # tokens that are looked at together


@compiled
def model_steps(y_BV, log_x_BV, strength_B, new_BV, x_BV, hubs_K, gram_KK, diagonal_V, extra_diagonal_V, tol):
    """Write log x of each row's model problem around its last iterate, and x.

    Args:
        y_BV: ``z - 2 lambda M x`` at the last iterate, z at the start.
        log_x_BV: the last iterate; no rows at the start.
        strength_B: lambda.
        new_BV, x_BV: to write to.
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
    """Return the tokens, hubs apart, whose own penalty would move their logit by more than ``WEIGHTY``."""
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
    """Return the places of entries above ``least``."""
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
    """Add to the linear term what the model has of M x, in place."""
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
    """Spread a reduced solution over the vocabulary, normalised (logspace.log_normalized); write log x and x."""
    shift = y_V.dtype.type(log_x_n[-1] - lump)
    for place in range(len(y_V)):
        new_V[place] = y_V[place] + shift
    for place in range(len(hubs_K)):
        new_V[hubs_K[place]] = log_x_n[place]
    for place in range(len(extras_X)):
        new_V[extras_X[place]] = log_x_n[len(hubs_K) + place]
    _subtract_log_sum(new_V, highest(new_V), x_V)
    # once more, now that the sum is near 1: the first logarithm is rounded like the largest entry
    _subtract_log_sum(new_V, 0.0, x_V)
    write_exp(new_V, 0.0, x_V)


@compiled
def _subtract_log_sum(u_V, top, work_V):
    shift = u_V.dtype.type(top + math.log(write_exp(u_V, top, work_V)))
    for place in range(len(u_V)):
        u_V[place] -= shift

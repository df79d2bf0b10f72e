"""Kernels for the CPU, compiled by numba: the product with one vector and the reduced problem of one context.

The same mathematics as in operator.py and reduced.py, which run where numba is not installed, on another device and in
batches (products). Arrays are numpy. Shape suffixes: B rows, V vocabulary, K hubs, X extras, N = K + X + 1.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numba
import numpy as np
import scipy.sparse as sp

from lit_ctg.model.graphmax.certificate import FAR
from lit_ctg.model.graphmax.descent import SEGMENT_STEPS, SEGMENT_WIDTH, SMALL
from lit_ctg.model.graphmax.reduced import ABSENT, CG_ITERATIONS, CG_TOL, NEWTON_STEPS, SURE

LANES = 16  # rows of a graph that are summed side by side
LONG = 4096  # longer rows are summed on their own
SEPARABLE_STEPS, SEPARABLE_TOL = 30, 1e-2

# sums may be taken in any order; NaN and inf keep their meaning
_compiled = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz", "arcp"})


class SlicedRows(NamedTuple):
    """A sparse matrix, rows sorted by length and stored 16 side by side (SELL); 16-bit columns where they fit.

    ``order`` are the rows of the slices, ``starts`` where a slice begins in ``columns`` and ``values``; ``alone`` are
    the other rows, slices of one of ``pointers``, ``alone_columns`` and ``alone_values``.
    """

    order: np.ndarray
    starts: np.ndarray
    columns: np.ndarray
    values: np.ndarray
    alone: np.ndarray
    pointers: np.ndarray
    alone_columns: np.ndarray
    alone_values: np.ndarray

    @property
    def nbytes(self) -> int:
        """Memory held."""
        return sum(part.nbytes for part in self)


def sliced(matrix: sp.csr_array) -> SlicedRows:
    """Lay out a CSR matrix for :func:`residual`."""
    kind = np.uint16 if matrix.shape[1] <= 2**16 else np.int32
    lengths = np.diff(matrix.indptr)
    order = np.argsort(lengths, kind="stable")
    short = order[: np.searchsorted(lengths[order], LONG, side="right") // LANES * LANES]
    alone = order[len(short) :]
    widths = lengths[short].reshape(-1, LANES).max(axis=1, initial=0)
    starts = np.concatenate([[0], np.cumsum(widths)]) * LANES
    columns = np.zeros(starts[-1], dtype=kind)
    values = np.zeros(starts[-1], dtype=matrix.data.dtype)
    # the e-th edge of the row in lane l of slice s lies at starts[s] + 16 e + l
    counts = lengths[short]
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    source = np.repeat(matrix.indptr[short], counts) + within
    place = np.repeat(np.repeat(starts[:-1], LANES) + np.tile(np.arange(LANES), len(widths)), counts) + LANES * within
    columns[place], values[place] = matrix.indices[source], matrix.data[source]
    rest = matrix[alone]
    return SlicedRows(
        short.astype(np.int32),
        starts.astype(np.int64),
        columns,
        values,
        alone.astype(np.int32),
        rest.indptr.astype(np.int64),
        rest.indices.astype(kind),
        rest.data,
    )


def product(forward: SlicedRows, backward: SlicedRows, x_V: np.ndarray) -> np.ndarray:
    """Return ``(I - A~)^T (I - A~) x``."""
    middle_V, image_V = np.empty_like(x_V), np.empty_like(x_V)
    residual(*forward, x_V, middle_V)
    residual(*backward, middle_V, image_V)
    return image_V


@_compiled
def residual(order, starts, columns, values, alone, pointers, alone_columns, alone_values, x_V, out_V):
    """Write ``x - W x`` into ``out_V``, W being the matrix of the first eight arguments (a SlicedRows)."""
    sums = np.zeros(LANES, x_V.dtype)
    for part in range(len(starts) - 1):
        for lane in range(LANES):
            sums[lane] = 0
        for edge in range(starts[part], starts[part + 1], LANES):
            column, value = columns[edge : edge + LANES], values[edge : edge + LANES]
            for lane in range(LANES):
                sums[lane] += value[lane] * x_V[column[lane]]
        for lane in range(LANES):
            row = order[part * LANES + lane]
            out_V[row] = x_V[row] - sums[lane]
    for place in range(len(alone)):
        total = x_V.dtype.type(0)
        for edge in range(pointers[place], pointers[place + 1]):
            total += alone_values[edge] * x_V[alone_columns[edge]]
        out_V[alone[place]] = x_V[alone[place]] - total


@_compiled
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
            _separable(linear_n, diagonal_n, 2 * strength_B[row], log_x_n)
        log_x_n = _newton(linear_n, gram_KK, diagonal_n, strength_B[row], log_x_n, tol)
        for place in range(size):
            result_BN[row, last if place == size - 1 else place] = log_x_n[place]
    return result_BN


@_compiled
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
        if not new_gap <= SURE * gap and not _slope(x_n, new_x_n, new_n, new_y_n) <= 0:
            if not _slope(x_n, new_x_n, log_x_n, y_n) < 0:
                # towards softmax(y), f always falls
                for place in range(len(new_n)):
                    new_n[place] = y_n[place]
                _normalized(new_n)
                _judge(linear_n, gram_KK, diagonal_n, strength, new_n, new_x_n, new_y_n)
            new_n = _segment(log_x_n, x_n, y_n, new_x_n, new_y_n)
            new_gap = _judge(linear_n, gram_KK, diagonal_n, strength, new_n, new_x_n, new_y_n)
        log_x_n, gap = new_n, new_gap
        x_n, new_x_n, y_n, new_y_n = new_x_n, x_n, new_y_n, y_n
    return log_x_n


@_compiled
def _apply(gram_KK, diagonal_n, x_n, image_n):
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


@_compiled
def _judge(linear_n, gram_KK, diagonal_n, strength, log_x_n, x_n, y_n):
    """Write x and y of a normalised log x; return ``KL(x || softmax(y))``."""
    for place in range(len(x_n)):
        x_n[place] = math.exp(log_x_n[place])
    _apply(gram_KK, diagonal_n, x_n, y_n)
    mass, centre = 0.0, 0.0
    for place in range(len(x_n)):
        y_n[place] = linear_n[place] - 2 * strength * y_n[place]
        mass += x_n[place]
        if x_n[place] > 0:
            centre += x_n[place] * (log_x_n[place] - y_n[place])
    return _gap(log_x_n, x_n, y_n, mass, centre / mass)


@_compiled
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
    top, total = _highest(y_n), 0.0
    for place in range(len(x_n)):
        total += math.exp(y_n[place] - top)
    return centre + mean + top + math.log(total) - math.log(mass)


@_compiled
def _candidate(gram_KK, diagonal_n, strength, log_x_n, x_n, y_n):
    """Return log x after a full Newton step (descent.newton_candidate)."""
    direction_n, s_n = _tangent(gram_KK, diagonal_n, strength, log_x_n, x_n, y_n)
    mean = 0.0
    for place in range(len(x_n)):
        s_n[place] = y_n[place] - 2 * strength * s_n[place] - log_x_n[place]
        mean += x_n[place] * s_n[place]
    for place in range(len(x_n)):
        s = direction_n[place] / x_n[place] if x_n[place] > SMALL else s_n[place] - mean
        if s > 0:
            s = min(s, max(math.log1p(s), math.log(SMALL) - log_x_n[place]))
        s_n[place] = log_x_n[place] + s
    return _normalized(s_n)


@_compiled
def _tangent(gram_KK, diagonal_n, strength, log_x_n, x_n, y_n):
    """Return the Newton direction d and ``Q d`` by projected, preconditioned CG (linear.solve_tangent)."""
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
        _apply(gram_KK, diagonal_n, v_n, m_p_n)
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


@_compiled
def _precondition(r_n, g_n, root_n, scale_n, weight):
    """Take the multiple of sqrt(x) out of r, write ``D^-1 r`` into g; return their product."""
    nu, rho = 0.0, 0.0
    for place in range(len(r_n)):
        nu += scale_n[place] * root_n[place] * r_n[place]
    nu /= weight
    for place in range(len(r_n)):
        r_n[place] -= nu * root_n[place]
        g_n[place] = scale_n[place] * r_n[place]
        rho += r_n[place] * g_n[place]
    return rho


@_compiled
def _highest(u_n):
    top = -np.inf
    for place in range(len(u_n)):
        top = max(top, u_n[place])
    return top


@_compiled
def _normalized(u_n):
    """Return u less its log sum exp, in place."""
    top, total = _highest(u_n), 0.0
    for place in range(len(u_n)):
        total += math.exp(u_n[place] - top)
    for place in range(len(u_n)):
        u_n[place] -= top + math.log(total)
    return u_n


@_compiled
def _slope(x_n, end_x_n, log_x_n, y_n):
    """Return the derivative of f at (log x, y) along the segment from x to its end."""
    total = 0.0
    for place in range(len(x_n)):
        total += (end_x_n[place] - x_n[place]) * (log_x_n[place] - y_n[place])
    return total


@_compiled
def _segment(log_x_n, x_n, y_n, end_x_n, end_y_n):
    """Return log x at the minimum of f on a segment, by bisection (descent.segment_minimum)."""
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
    return _normalized(between_n)


@_compiled
def _separable(linear_n, diagonal_n, twice_strength, log_x_n):
    """Write log x with Q replaced by its diagonal, normalised (separable.solve_separable; here a start only)."""
    high, low, total = _highest(linear_n), -np.inf, 0.0
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
                log_w = _log_wright_omega(log_a + log_x_n[place])
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
    _normalized(log_x_n)


@_compiled
def _log_wright_omega(level):
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

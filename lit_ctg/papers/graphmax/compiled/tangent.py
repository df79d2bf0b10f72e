"""The Newton direction of the model step."""

from __future__ import annotations

import math

import numpy as np

from lit_ctg.papers.graphmax.compiled.keep import compiled
from lit_ctg.papers.graphmax.constants import CG_ITERATIONS, CG_TOL


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

"""How the kernels are compiled, and what they share."""

from __future__ import annotations

import math

import numba
import numpy as np

# sums may be taken in any order; NaN and inf keep their meaning
compiled = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz", "arcp"})


@compiled
def highest(u_n):
    """Return the largest entry."""
    top = -np.inf
    for place in range(len(u_n)):
        top = max(top, u_n[place])
    return top


@compiled
def normalized(u_n):
    """Return u less its log sum exp, in place."""
    top, total = highest(u_n), 0.0
    for place in range(len(u_n)):
        total += math.exp(u_n[place] - top)
    for place in range(len(u_n)):
        u_n[place] -= top + math.log(total)
    return u_n

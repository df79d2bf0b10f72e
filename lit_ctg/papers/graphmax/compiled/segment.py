"""Where full Newton steps do not help: the minimum on a segment."""

from __future__ import annotations

import math

import numpy as np

from lit_ctg.papers.graphmax.compiled.jit import normalized
from lit_ctg.papers.graphmax.compiled.keep import compiled
from lit_ctg.papers.graphmax.constants import SEGMENT_STEPS, SEGMENT_WIDTH


@compiled
def slope_along(x_n, end_x_n, log_x_n, y_n):
    """Return the derivative of f at (log x, y) along the segment from x to its end."""
    total = 0.0
    for place in range(len(x_n)):
        total += (end_x_n[place] - x_n[place]) * (log_x_n[place] - y_n[place])
    return total


@compiled
def segment(log_x_n, x_n, y_n, end_x_n, end_y_n):
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
    return normalized(between_n)

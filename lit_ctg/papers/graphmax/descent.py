"""What the model problem and the full problem share: a Newton candidate in log space, and the minimum of a segment.

Both work on log x, normalised, and on ``y = z - 2 lambda M x``, so that ``log x - y`` is the gradient of Eq. 3 up to a
constant. Shape suffixes: B rows, N variables.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lit_ctg.papers.graphmax.constants import SEGMENT_STEPS, SEGMENT_WIDTH, SMALL
from lit_ctg.papers.graphmax.linear import TangentSolution
from lit_ctg.papers.graphmax.logspace import log_normalized


def gradient_slack(log_x_BN: Tensor, y_BN: Tensor) -> Tensor:
    """Return ``y - log x`` with 0 where x is 0: the right-hand side of the Newton system."""
    return (y_BN - log_x_BN).masked_fill(log_x_BN.exp() == 0, 0)


def newton_candidate(log_x_BN: Tensor, y_BN: Tensor, strength_B1: Tensor, solution: TangentSolution) -> Tensor:
    """Return log x after a full Newton step, normalised.

    With d the tangent direction, the relative change is d / x, which equals ``y - 2 lambda M d - log x`` up to a
    constant: the first form is exact where x is large, the second moves even a variable that is 0 in this precision.
    Losers shrink by exp(s), which keeps them positive; gainers grow by 1 + s, as the linear model foresees, except that
    exp(s) is allowed while their mass is negligible.
    """
    x_BN = log_x_BN.exp()
    s_BN = y_BN - 2 * strength_B1 * solution.image_BN - log_x_BN
    s_BN = s_BN - (x_BN * s_BN).sum(dim=-1, keepdim=True)
    s_BN = torch.where(x_BN > SMALL, solution.direction_BN / x_BN.clamp(min=SMALL), s_BN)
    gain_BN = torch.maximum(s_BN.clamp(min=0).log1p(), math.log(SMALL) - log_x_BN)
    return log_normalized(log_x_BN + torch.minimum(s_BN, gain_BN))


def needs_search(old: tuple[Tensor, Tensor, Tensor], new: tuple[Tensor, Tensor, Tensor], sure: float) -> Tensor:
    """Say which rows have passed the lowest point between two iterates ``(log x, y, gap)``.

    A row whose gap has fallen to the share ``sure`` of what it was is left alone.
    The derivative of f at x' along ``x' - x`` is ``<x' - x, log x' - y'>``.
    """
    step_BN = new[0].exp() - old[0].exp()
    slope_B = (step_BN * (new[0] - new[1])).sum(dim=-1)
    return ~(new[2] <= sure * old[2]) & ~(slope_B <= 0)


def segment_minimum(
    old: tuple[Tensor, Tensor, Tensor], new: tuple[Tensor, Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return log x and y at the minimum of f between two iterates, and where it lies (0 to 1, ``[B, 1]``).

    M x is linear on the segment, so this costs no product; f is convex, so bisection on its derivative finds it.
    """
    step_BN = new[0].exp() - old[0].exp()
    low_B1 = torch.zeros_like(step_BN[:, :1])
    high_B1 = torch.ones_like(low_B1)
    for _ in range(SEGMENT_STEPS):
        log_x_BN, y_BN = _between(old, new, (low_B1 + high_B1) / 2)
        rising_B1 = (step_BN * (log_x_BN - y_BN)).sum(dim=-1, keepdim=True) > 0
        middle_B1 = (low_B1 + high_B1) / 2
        low_B1, high_B1 = torch.where(rising_B1, low_B1, middle_B1), torch.where(rising_B1, middle_B1, high_B1)
        if (high_B1 - low_B1 <= SEGMENT_WIDTH * high_B1).all():
            break
    t_B1 = (low_B1 + high_B1) / 2
    return *_between(old, new, t_B1), t_B1


def _between(
    old: tuple[Tensor, Tensor, Tensor], new: tuple[Tensor, Tensor, Tensor], t_B1: Tensor
) -> tuple[Tensor, Tensor]:
    log_x_BN = torch.logaddexp(old[0] + torch.log1p(-t_B1), new[0] + t_B1.log())
    return log_normalized(log_x_BN), torch.lerp(old[1], new[1], t_B1)

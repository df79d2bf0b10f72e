"""The certificate: how far a distribution is, at most, from graphmax (from the optimality condition of Eq. 3).

At the optimum ``x = softmax(y)`` with ``y = z - 2 lambda M x``. For any x on the simplex the duality gap of Eq. 3 is at
most ``KL(x || softmax(y))`` nats, and the objective is 1-strongly convex in l1, so the total variation to the optimum
is at most ``sqrt(gap / 2)``. Shape suffixes: B rows, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lit_ctg.papers.graphmax.acceleration import kernels_for, over_rows

ROUNDING = 1e-14  # float64 noise of a gap that is 0
FAR = 60.0  # nats beyond which exp() is left to the plain form; e^-60 is no mass


def duality_gap(log_probs_BV: Tensor, y_BV: Tensor, x_BV: Tensor | None = None) -> Tensor:
    """Return ``KL(x || softmax(y))`` of each row in nats, ``[B]`` float64; NaN stays NaN.

    Args:
        log_probs_BV: log x, normalised; finite or ``-inf``.
        y_BV: ``z - 2 lambda M x``, up to a constant a row.
        x_BV: ``exp(log_probs_BV)`` where it is at hand.

    With ``d = log x - y`` centred, KL = log E_x[exp(-d)] = log(1 + E[phi(d)] - E[d]) + E[d] with
    ``phi(d) = exp(-d) - 1 + d >= 0``: errors of a float32 sum then enter to second order only. Where exp(-d) leaves the
    range of that form, the plain float64 form is taken.
    """
    x_BV = log_probs_BV.exp() if x_BV is None else x_BV
    kernels = kernels_for(x_BV)
    if kernels is None:
        gap_B, plain_B = _centred_gap(log_probs_BV, y_BV, x_BV)
    else:
        gap_B, plain_B = torch.empty(len(x_BV), dtype=torch.float64), torch.empty(len(x_BV), dtype=torch.bool)
        parts = (part.detach().contiguous() for part in (log_probs_BV, y_BV, x_BV))
        over_rows(kernels.centred_gaps, [part.numpy() for part in (*parts, gap_B, plain_B)])
    if plain_B.any():
        gap_B[plain_B] = _plain_gap(log_probs_BV[plain_B].double(), y_BV[plain_B].double())
    return gap_B.masked_fill((gap_B < 0) & (gap_B >= -ROUNDING), 0.0)


def _centred_gap(log_probs_BV: Tensor, y_BV: Tensor, x_BV: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gap in the centred form, and where that form does not hold."""
    d_BV = log_probs_BV - y_BV
    # x is 0 somewhere where the row's least is; a NaN compares as neither and is found in the gap
    empty_BV = x_BV == 0 if (x_BV.amin(dim=-1) == 0).any() else None
    if empty_BV is not None:
        d_BV.masked_fill_(empty_BV, 0)
    d_BV -= (x_BV * d_BV).sum(dim=-1, keepdim=True)
    lowest_B = d_BV.amin(dim=-1)
    total_B = x_BV.sum(dim=-1).double()
    mean_B = (x_BV * d_BV).sum(dim=-1).double() / total_B
    phi_BV = torch.expm1(-d_BV).add_(d_BV).mul_(x_BV)
    shift_B = phi_BV.sum(dim=-1).double() / total_B - mean_B
    gap_B = torch.log1p(shift_B) + mean_B
    plain_B = lowest_B < -FAR
    if empty_BV is not None:
        plain_B = plain_B | _mass_outside(y_BV, empty_BV)
    return gap_B, plain_B


def _mass_outside(y_BV: Tensor, empty_BV: Tensor) -> Tensor:
    """Say which rows have tokens of mass 0 that ``softmax(y)`` gives some: the centred form does not see them."""
    inside_B = y_BV.masked_fill(empty_BV, float("-inf")).amax(dim=-1)
    outside_B = y_BV.masked_fill(~empty_BV, float("-inf")).amax(dim=-1)
    return outside_B > inside_B - FAR


def _plain_gap(log_probs_BV: Tensor, y_BV: Tensor) -> Tensor:
    log_p_BV = y_BV.log_softmax(dim=-1)
    log_x_BV = log_probs_BV.log_softmax(dim=-1)
    x_BV = log_x_BV.exp()
    return (x_BV * (log_x_BV - log_p_BV)).masked_fill(x_BV == 0, 0).sum(dim=-1)


def is_certified(gap_B: Tensor, tol: float) -> Tensor:
    """Say which gaps certify: within ``[0, tol]``. A negative gap or NaN is an error of arithmetic, never a pass."""
    return (gap_B >= 0) & (gap_B <= tol)

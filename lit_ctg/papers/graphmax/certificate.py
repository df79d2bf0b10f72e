"""The certificate: an upper bound of a distribution's distance to graphmax (from the optimality condition of Eq. 3).

At the optimum ``x = softmax(y)`` with ``y = z - 2 lambda M x``. For any x on the simplex the duality gap of Eq. 3 is at
most ``KL(x || softmax(y))`` nats, and the objective is 1-strongly convex in l1, so the total variation to the optimum
is at most ``sqrt(gap / 2)``. The certificate is about the returned array itself, float32 or not: its exponential, sum
and product with M are computed in float64, or their rounding is part of the bound. Shape suffixes: B rows, V
vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lit_ctg.papers.graphmax.graph import GraphOperator

ROUNDING = 1e-14  # float64 noise of a zero gap


def judge(
    operator: GraphOperator, logits_BV: Tensor, floor_B1: Tensor, strength_B1: Tensor, log_probs_BV: Tensor
) -> tuple[Tensor, Tensor]:
    """Return ``y = z - 2 lambda M x`` in the dtype of the logits, and a bound of each row's gap (float64).

    Args:
        operator: the graph.
        logits_BV: as given; the largest of each row is subtracted in float64.
        floor_B1: float64; logits lower than this relative to the row's largest are raised to it.
        strength_B1: lambda.
        log_probs_BV: log x, in the dtype of the logits; normalised in float64 first.
    """
    kernels = operator.kernels_for(log_probs_BV)
    if kernels is not None:
        parts = (logits_BV, floor_B1[:, 0], strength_B1[:, 0].double(), log_probs_BV)
        y_BV, gap_B = kernels.judged(operator.matrices, *(part.detach().contiguous().numpy() for part in parts))
        return torch.from_numpy(y_BV), torch.from_numpy(gap_B)
    z_BV = logits_BV.double()
    z_BV = torch.maximum(z_BV - z_BV.amax(dim=-1, keepdim=True), floor_B1)
    log_x_BV = log_probs_BV.double().log_softmax(dim=-1)
    y_BV = z_BV - 2 * strength_B1.double() * operator.product(log_x_BV.exp())
    return y_BV.to(logits_BV.dtype), duality_gap(log_x_BV, y_BV)


def duality_gap(log_probs_BV: Tensor, y_BV: Tensor) -> Tensor:
    """Return ``KL(x || softmax(y))`` of each row in nats, ``[B]`` float64; NaN stays NaN.

    Args:
        log_probs_BV: log x, normalised; finite or ``-inf``.
        y_BV: ``z - 2 lambda M x``, up to a constant per row.

        With ``d = log x - y`` centred, KL = log E_x[exp(-d)] = log(1 + E[phi(d)] - E[d]) + E[d] with
        ``phi(d) = exp(-d) - 1 + d >= 0``: rounding of d then enters only to second order. A token whose x is small
        compared with ``softmax(y)`` adds ``x exp(-d) = exp(log x - d)``, which does not overflow where x is 0.
    """
    log_x_BV, y_BV = log_probs_BV.double(), y_BV.double()
    x_BV = log_x_BV.exp()
    total_B1 = x_BV.sum(dim=-1, keepdim=True)
    # where x is 0, d does not enter the means; log x - d is then y minus the same constant
    d_BV = (log_x_BV - y_BV).masked_fill(x_BV == 0, 0)
    centre_B1 = (x_BV * d_BV).sum(dim=-1, keepdim=True) / total_B1
    d_BV = (d_BV - centre_B1).masked_fill(x_BV == 0, 0)
    mean_B = (x_BV * d_BV).sum(dim=-1) / total_B1[:, 0]
    far_BV = (y_BV + centre_B1).exp()
    phi_BV = torch.where(d_BV.abs() < 1, x_BV * (torch.expm1(-d_BV) + d_BV), far_BV + x_BV * (d_BV - 1))
    phi_BV = torch.where(x_BV == 0, far_BV, phi_BV)
    shift_B = phi_BV.sum(dim=-1) / total_B1[:, 0] - mean_B
    gap_B = torch.log1p(shift_B) + mean_B
    return gap_B.masked_fill((gap_B < 0) & (gap_B >= -ROUNDING), 0.0)


def is_certified(gap_B: Tensor, tol: float) -> Tensor:
    """Say which gaps certify: within ``[0, tol]``. A negative gap or NaN is an arithmetic error, never a pass."""
    return (gap_B >= 0) & (gap_B <= tol)

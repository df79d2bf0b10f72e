"""Graph penalties that look at the previous word: x is pulled towards its successors a, a row of A~ (not in the paper).

All keep the first two terms of Eq. 3. A word without successors (``a = 0``) pulls nowhere, so its row is softmax.
Shape suffixes: B rows, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lit_ctg.papers.graphmax.logspace import log_normalized
from lit_ctg.papers.graphmax.separable import log_wright_omega, solve_separable

ITERATIONS = 60
TOL = {torch.float32: 1e-6, torch.float64: 1e-12}


def squared_pull(logits_BV: Tensor, target_BV: Tensor, strength_B1: Tensor) -> Tensor:
    """Return log x of ``argmin -<x,z> + <x, log x> + lambda ||x - a||^2``: Eq. 3 with ``A~ x`` replaced by a.

    Separable (``M = I``, ``z + 2 lambda a``), so Lambert's W solves it exactly; ``-inf`` logits stay.
    """
    pull_B1 = _pull(target_BV, strength_B1)
    curvature_BV = (2 * pull_B1).expand_as(logits_BV)
    return solve_separable(logits_BV + 2 * pull_B1 * target_BV, curvature_BV, tol=TOL[logits_BV.dtype])


def divergence_pull(logits_BV: Tensor, target_BV: Tensor, strength_B1: Tensor) -> Tensor:
    """Return log x of ``argmin -<x,z> + <x, log x> + lambda KL(a || x)``, which moves from softmax to a.

    Optimality: ``x_j u_j = lambda a_j`` with ``u_j = log x_j - z_j + c``, so ``u_j = W(lambda a_j exp(c - z_j))``.
    The sum over x is convex and falls in c, whose value lies between log-sum-exp z and that plus lambda. Masked tokens
    (``-inf``) have no part in a.
    """
    z_BV = logits_BV - logits_BV.amax(dim=-1, keepdim=True)
    weight_BV = _pull(target_BV, strength_B1) * target_BV.masked_fill(z_BV.isinf(), 0)
    # only successors are pulled: the others fall with c together
    log_weight_BK, index_BK = _largest(weight_BV)
    z_BK = z_BV.gather(1, index_BK)
    log_rest_B1 = z_BV.scatter(1, index_BK, float("-inf")).logsumexp(dim=-1, keepdim=True)
    c_B1 = z_BV.logsumexp(dim=-1, keepdim=True)
    for _ in range(ITERATIONS):
        log_x_BK, u_BK = _pulled(z_BK, log_weight_BK, c_B1)
        log_x_BL = torch.cat([log_x_BK, log_rest_B1 - c_B1], dim=-1)
        log_sum_B1 = log_x_BL.logsumexp(dim=-1, keepdim=True)
        falls_BL = 1 / (1 + torch.nn.functional.pad(u_BK, (0, 1)))
        # log of the sum is convex in c too, and Newton on it goes farther than on the sum where that is large
        step_B1 = log_sum_B1 / ((log_x_BL - log_sum_B1).exp() * falls_BL).sum(dim=-1, keepdim=True)
        # c grows with the strength, and with it what rounding leaves of a step
        if (step_B1.abs() <= TOL[logits_BV.dtype] * (1 + c_B1.abs())).all():
            break
        c_B1 = c_B1 + step_B1
    return log_normalized((z_BV - c_B1).scatter(1, index_BK, log_x_BK))


def _largest(weight_BV: Tensor) -> tuple[Tensor, Tensor]:
    """Return logs and ids of all weights above 0, in as many columns as the fullest row has (``-inf`` fills)."""
    count = max(1, int((weight_BV > 0).sum(dim=-1).max()))
    weight_BK, index_BK = weight_BV.topk(count, sorted=False)
    return weight_BK.log(), index_BK


def _pulled(z_BK: Tensor, log_weight_BK: Tensor, c_B1: Tensor) -> tuple[Tensor, Tensor]:
    """Return log x and u of some tokens at a given c; u = 0 where nothing pulls."""
    pulled_BK = log_weight_BK > float("-inf")
    log_u_BK = log_wright_omega((log_weight_BK - z_BK + c_B1).where(pulled_BK, 0))
    u_BK = log_u_BK.exp().where(pulled_BK, 0)
    # two forms of the same: the second does not cancel where u is large
    return torch.where(u_BK > 1, log_weight_BK - log_u_BK, z_BK - c_B1 + u_BK), u_BK


def interpolation(logits_BV: Tensor, target_BV: Tensor, strength_B1: Tensor) -> Tensor:
    """Return the log of the mixture ``(softmax(z) + lambda a) / (1 + lambda)``: what a bigram model alone can do."""
    pull_B1 = _pull(target_BV, strength_B1)
    target_BV = target_BV.masked_fill(logits_BV.isinf(), 0)
    return log_normalized(torch.logaddexp(logits_BV.log_softmax(dim=-1), (pull_B1 * target_BV).log()))


def _pull(target_BV: Tensor, strength_B1: Tensor) -> Tensor:
    return strength_B1 * (target_BV.amax(dim=-1, keepdim=True) > 0)

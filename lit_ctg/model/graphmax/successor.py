"""Graph penalties that look at the previous word: x is pulled towards its successors a, a row of A~ (not in the paper).

All keep the first two terms of Eq. 3. A word without successors (``a = 0``) pulls nowhere, so its row is softmax.
Shape suffixes: B rows, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lit_ctg.model.graphmax.logspace import log_normalized
from lit_ctg.model.graphmax.separable import log_wright_omega, solve_separable

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
    shifted_BV = logits_BV - logits_BV.amax(dim=-1, keepdim=True)
    target_BV = target_BV.masked_fill(shifted_BV.isinf(), 0)
    log_weight_BV = (_pull(target_BV, strength_B1) * target_BV).log()
    pulled_BV = log_weight_BV > float("-inf")
    c_B1 = shifted_BV.logsumexp(dim=-1, keepdim=True)
    for _ in range(ITERATIONS):
        log_u_BV = log_wright_omega((log_weight_BV - shifted_BV + c_B1).where(pulled_BV, 0))
        u_BV = log_u_BV.exp().where(pulled_BV, 0)
        # two forms of the same: the second does not cancel where u is large
        log_x_BV = torch.where(u_BV > 1, log_weight_BV - log_u_BV, shifted_BV - c_B1 + u_BV)
        log_sum_B1 = log_x_BV.logsumexp(dim=-1, keepdim=True)
        # Newton on a convex sum from where it is above 1 comes down to 1 from that side
        share_B1 = (log_x_BV - log_sum_B1).exp().div(1 + u_BV).sum(dim=-1, keepdim=True)
        step_B1 = -torch.expm1(-log_sum_B1) / share_B1
        if (step_B1.abs() <= TOL[logits_BV.dtype]).all():
            break
        c_B1 = c_B1 + step_B1
    return log_normalized(log_x_BV)


def interpolation(logits_BV: Tensor, target_BV: Tensor, strength_B1: Tensor) -> Tensor:
    """Return the log of the mixture ``(softmax(z) + lambda a) / (1 + lambda)``: what a bigram model alone can do."""
    pull_B1 = _pull(target_BV, strength_B1)
    target_BV = target_BV.masked_fill(logits_BV.isinf(), 0)
    return log_normalized(torch.logaddexp(logits_BV.log_softmax(dim=-1), (pull_B1 * target_BV).log()))


def _pull(target_BV: Tensor, strength_B1: Tensor) -> Tensor:
    return strength_B1 * (target_BV.amax(dim=-1, keepdim=True) > 0)

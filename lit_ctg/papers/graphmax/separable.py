"""The separable problem: Eq. 3 with M replaced by its diagonal, solved exactly by Lambert's W.

``log x_j + 2 lambda M_jj x_j = z_j - c`` has the solution ``x_j = W(a_j exp(z_j - c)) / a_j`` with ``a_j = 2 lambda
M_jj``; one Newton iteration in c makes the sum 1. All in the log domain, so no logit overflows. Shape suffixes: B rows,
N variables.
"""

from __future__ import annotations

import torch
from torch import Tensor


def log_wright_omega(level: Tensor, iterations: int = 3) -> Tensor:
    """Return ``log w`` for the w > 0 with ``w + log w = level``, that is ``log W(exp(level))``, to rounding."""
    # exp(level) below 0, level - log(level) far above, joined by a secant-like guess between
    low = level.clamp(max=1).exp() / (1 + level.clamp(max=1).exp())
    high = level.clamp(min=1) - level.clamp(min=1).log()
    # below exp(-30) the first guess is already right to rounding; a floor keeps the logarithm finite
    w = torch.where(level > 1, high, low).clamp(min=1e-30)
    for _ in range(iterations):
        r = level - w - w.log()
        t = 2 * (1 + w) * (1 + w + 2 * r / 3)
        w = w * (1 + r / (1 + w) * (t - r) / (t - 2 * r))
    # the smaller of w and log w by the equation, the other as it is: neither cancels
    return torch.where(level < -30, level, torch.where(level < 1, level - w, w.log()))


def solve_separable(logits_BN: Tensor, curvature_BN: Tensor, *, tol: float = 1e-4, iterations: int = 30) -> Tensor:
    """Return log x of ``argmin -<x,z> + <x,log x> + <x, a x> / 2`` on the simplex, normalised, ``[B, N]``.

    Args:
        logits_BN: z; ``-inf`` for a variable that is not there.
        curvature_BN: ``a_j = 2 lambda M_jj >= 0``; 0 for a variable without a penalty.
        tol: how far from 0 the logarithm of the sum may be before it is normalised away.
        iterations: Newton steps in c at most.
    """
    tiny = torch.finfo(logits_BN.dtype).tiny
    log_a_BN = curvature_BN.clamp(min=tiny).log()
    free_BN = curvature_BN <= tiny
    # the sum is at most 1 where no variable is held back, at least 1 where one of them alone is
    high_B1 = logits_BN.logsumexp(dim=-1, keepdim=True)
    low_B1 = (logits_BN - curvature_BN).amax(dim=-1, keepdim=True)
    c_B1 = high_B1
    for step in range(iterations + 1):
        log_w_BN = log_wright_omega(log_a_BN + logits_BN - c_B1)
        log_x_BN = torch.where(free_BN, logits_BN - c_B1, log_w_BN - log_a_BN)
        log_sum_B1 = log_x_BN.logsumexp(dim=-1, keepdim=True)
        if step == iterations or (log_sum_B1.abs() < tol).all():
            break
        slope_BN = torch.where(free_BN, 1.0, 1 / (1 + log_w_BN.exp()))
        share_B1 = ((log_x_BN - log_sum_B1).exp() * slope_BN).sum(dim=-1, keepdim=True)
        # the sum is convex in c, so Newton on it always ends where it is above 1; Newton on its logarithm, exact for
        # softmax, comes back from there unless it leaves the bracket
        by_sum_B1 = c_B1 - torch.expm1(-log_sum_B1) / share_B1
        by_log_B1 = c_B1 + log_sum_B1 / share_B1
        above_B1 = log_sum_B1 > 0
        low_B1, high_B1 = torch.where(above_B1, c_B1, low_B1), torch.where(above_B1, high_B1, c_B1)
        c_B1 = torch.where(above_B1 & (by_log_B1 < high_B1), by_log_B1, torch.maximum(by_sum_B1, low_B1))
    return log_x_BN - log_sum_B1

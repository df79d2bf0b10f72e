"""Linear systems of the Hessian H = diag(1/x) + 2 lambda M on the simplex's tangent space (Eq. 4).

Newton steps and gradients both need ``J h``: the d with ``H d = h - nu 1`` and ``1^T d = 0``. Solved for ``s = d /
sqrt(x)``, where H becomes ``I + 2 lambda sqrt(x) M sqrt(x)``, by conjugate gradients projected on ``s orthogonal to
sqrt(x)`` and preconditioned by the diagonal. Shape suffixes: B rows, N variables.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class TangentSolution(NamedTuple):
    """``direction_BN`` is d, ``image_BN`` is ``M d`` (it falls out of the recurrences), ``products_B`` counts M."""

    direction_BN: Tensor
    image_BN: Tensor
    products_B: Tensor


def solve_tangent(
    apply_m: Callable[[Tensor], Tensor],
    diagonal_BN: Tensor,
    x_BN: Tensor,
    strength_B1: Tensor,
    h_BN: Tensor,
    *,
    tol: float,
    max_iterations: int,
) -> TangentSolution:
    """Return ``d = J h`` with ``J = H^-1 - H^-1 1 1^T H^-1 / (1^T H^-1 1)``.

    Args:
        apply_m: rows of vectors to rows of ``M v``.
        diagonal_BN: ``M_jj`` (may be ``[1, N]``).
        x_BN: the distribution; a token of mass 0 gets direction 0.
        strength_B1: lambda.
        h_BN: right-hand side.
        tol: stop a row when its preconditioned residual has fallen by this factor.
        max_iterations: and at the latest after so many products.
    """
    root_BN = x_BN.sqrt()
    scale_BN = 1 / (1 + 2 * strength_B1 * x_BN * diagonal_BN)
    weight_B1 = (scale_BN * x_BN).sum(dim=-1, keepdim=True)

    def precondition(r_BN: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return r less its multiple of sqrt(x), the projected ``D^-1 r`` and their product.

        Without taking that multiple out of r it grows until its rounding errors drown the rest.
        """
        nu_B1 = (scale_BN * root_BN * r_BN).sum(dim=-1, keepdim=True) / weight_B1
        r_BN = r_BN - nu_B1 * root_BN
        g_BN = scale_BN * r_BN
        return r_BN, g_BN, (r_BN * g_BN).sum(dim=-1, keepdim=True)

    # a constant in h does not matter; without it less is lost to rounding
    r_BN, p_BN, rho_B1 = precondition(root_BN * (h_BN - (x_BN * h_BN).sum(dim=-1, keepdim=True)))
    s_BN, image_BN = torch.zeros_like(r_BN), torch.zeros_like(r_BN)
    goal_B1 = tol**2 * rho_B1
    products_B = torch.zeros(len(x_BN), dtype=torch.long, device=x_BN.device)
    for _ in range(max_iterations):
        open_B1 = rho_B1 > goal_B1
        if not open_B1.any():
            break
        m_p_BN = apply_m(root_BN * p_BN)
        c_p_BN = p_BN + 2 * strength_B1 * root_BN * m_p_BN
        products_B += open_B1[:, 0]
        alpha_B1 = (rho_B1 / (p_BN * c_p_BN).sum(dim=-1, keepdim=True)).where(open_B1, 0)
        s_BN = s_BN + alpha_B1 * p_BN
        image_BN = image_BN + alpha_B1 * m_p_BN
        r_BN, g_BN, new_B1 = precondition(r_BN - alpha_B1 * c_p_BN)
        p_BN = g_BN + (new_B1 / rho_B1).where(open_B1, 0) * p_BN
        rho_B1 = new_B1.where(open_B1, rho_B1)
    return TangentSolution(root_BN * s_BN, image_BN, products_B)

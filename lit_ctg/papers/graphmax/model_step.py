"""One model step of the solver, in plain torch: Eq. 3 with M replaced by its essential part, solved to convergence.

Top to bottom: the duality gap, normalising, the separable problem, the linear systems of the Hessian, descent in log
space, the reduced problem. Shape suffixes: B rows, V vocabulary, K hubs, X extra tokens of a context (padded), N
variables.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from lit_ctg.papers.graphmax.fast import (
    ABSENT,
    CG_ITERATIONS,
    CG_TOL,
    MOST_EXTRAS,
    NEWTON_STEPS,
    SEGMENT_STEPS,
    SEGMENT_WIDTH,
    SMALL,
    SURE,
    WEIGHTY,
    over_rows,
)
from lit_ctg.papers.graphmax.graph import GraphOperator

# The duality gap: how far a distribution may be from the optimum of Eq. 3.
#
# At the optimum ``x = softmax(y)`` with ``y = z - 2 lambda M x``. For any x on the simplex the gap is at most ``KL(x ||
# softmax(y))`` nats, and the objective is 1-strongly convex in l1, so the total variation to the optimum is at most
# ``sqrt(gap / 2)``.


ROUNDING = 1e-14  # float64 noise of a zero gap


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


# Normalising in the log domain.


def log_normalized(u_BN: Tensor) -> Tensor:
    """Return ``u - log sum exp u``: log_softmax whose sum is 1 to rounding.

    torch's float32 log_softmax is off by up to 5e-5 on rows of 50,000, too much next to a hub with M_jj = 1,000.
    """
    u_BN = u_BN - u_BN.amax(dim=-1, keepdim=True)
    u_BN = u_BN - u_BN.exp().sum(dim=-1, keepdim=True).log()
    # again, now that the sum is near 1: the first logarithm is rounded like the largest u
    return u_BN - u_BN.exp().sum(dim=-1, keepdim=True).log()


# The separable problem: Eq. 3 with M replaced by its diagonal, solved exactly by Lambert's W.
#
# ``log x_j + 2 lambda M_jj x_j = z_j - c`` has the solution ``x_j = W(a_j exp(z_j - c)) / a_j`` with ``a_j = 2 lambda
# M_jj``; one Newton iteration in c makes the sum 1. All in the log domain, so no logit overflows.


def log_wright_omega(level: Tensor, iterations: int = 3) -> Tensor:
    """Return ``log w`` for the w > 0 with ``w + log w = level``, that is ``log W(exp(level))``, to rounding."""
    # exp(level) below 0, level - log(level) far above, and a secant-like guess in between
    low = level.clamp(max=1).exp() / (1 + level.clamp(max=1).exp())
    high = level.clamp(min=1) - level.clamp(min=1).log()
    # below exp(-30) the first guess is correct to rounding; a floor keeps the logarithm finite
    w = torch.where(level > 1, high, low).clamp(min=1e-30)
    for _ in range(iterations):
        r = level - w - w.log()
        t = 2 * (1 + w) * (1 + w + 2 * r / 3)
        w = w * (1 + r / (1 + w) * (t - r) / (t - 2 * r))
    # the smaller of w and log w from the equation, the other unchanged: neither cancels
    return torch.where(level < -30, level, torch.where(level < 1, level - w, w.log()))


def solve_separable(logits_BN: Tensor, curvature_BN: Tensor, *, tol: float = 1e-4, iterations: int = 30) -> Tensor:
    """Return log x of ``argmin -<x,z> + <x,log x> + <x, a x> / 2`` on the simplex, normalised, ``[B, N]``.

    Args:
        logits_BN: z; ``-inf`` for an absent variable.
        curvature_BN: ``a_j = 2 lambda M_jj >= 0``; 0 for a variable without a penalty.
        tol: how far from 0 the logarithm of the sum may be before normalising.
        iterations: maximum number of Newton steps in c.
    """
    tiny = torch.finfo(logits_BN.dtype).tiny
    log_a_BN = curvature_BN.clamp(min=tiny).log()
    free_BN = curvature_BN <= tiny
    # the sum is at most 1 at the c of softmax, at least 1 where a single variable reaches 1
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
        # softmax, returns from there unless it leaves the bracket
        by_sum_B1 = c_B1 - torch.expm1(-log_sum_B1) / share_B1
        by_log_B1 = c_B1 + log_sum_B1 / share_B1
        above_B1 = log_sum_B1 > 0
        low_B1, high_B1 = torch.where(above_B1, c_B1, low_B1), torch.where(above_B1, high_B1, c_B1)
        c_B1 = torch.where(above_B1 & (by_log_B1 < high_B1), by_log_B1, torch.maximum(by_sum_B1, low_B1))
    return log_x_BN - log_sum_B1


# Linear systems of the Hessian H = diag(1/x) + 2 lambda M on the simplex's tangent space (Eq. 4).
#
# Newton steps and gradients both need ``J h``: the d with ``H d = h - nu 1`` and ``1^T d = 0``. Solved for ``s = d /
# sqrt(x)``, where H becomes ``I + 2 lambda sqrt(x) M sqrt(x)``, by conjugate gradients projected on ``s orthogonal to
# sqrt(x)`` and preconditioned by the diagonal.


class TangentSolution(NamedTuple):
    """``direction_BN`` is d, ``image_BN`` is ``M d`` (from the recurrences), ``products_B`` counts products with M."""

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
        apply_m: maps rows of vectors to rows of ``M v``.
        diagonal_BN: ``M_jj`` (may be ``[1, N]``).
        x_BN: the distribution; a token without mass gets direction 0.
        strength_B1: lambda.
        h_BN: right-hand side.
        tol: stop a row when its preconditioned residual has fallen by this factor.
        max_iterations: maximum number of products.
    """
    root_BN = x_BN.sqrt()
    scale_BN = 1 / (1 + 2 * strength_B1 * x_BN * diagonal_BN)
    weight_B1 = (scale_BN * x_BN).sum(dim=-1, keepdim=True)

    def precondition(r_BN: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return r without its multiple of sqrt(x), the projected ``D^-1 r`` and their product.

        If left in r, that multiple grows until its rounding errors dominate.
        """
        nu_B1 = (scale_BN * root_BN * r_BN).sum(dim=-1, keepdim=True) / weight_B1
        r_BN = r_BN - nu_B1 * root_BN
        g_BN = scale_BN * r_BN
        return r_BN, g_BN, (r_BN * g_BN).sum(dim=-1, keepdim=True)

    # a constant in h does not matter; removing it reduces rounding errors
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


# Shared by the model problem and the full problem: a Newton candidate in log space, and the minimum on a segment.
#
# Both work on log x, normalised, and on ``y = z - 2 lambda M x``, so that ``log x - y`` is the gradient of Eq. 3 up to
# a constant.


def gradient_slack(log_x_BN: Tensor, y_BN: Tensor) -> Tensor:
    """Return ``y - log x`` with 0 where x is 0: the right-hand side of the Newton system."""
    return (y_BN - log_x_BN).masked_fill(log_x_BN.exp() == 0, 0)


def newton_candidate(log_x_BN: Tensor, y_BN: Tensor, strength_B1: Tensor, solution: TangentSolution) -> Tensor:
    """Return log x after a full Newton step, normalised.

    With d the tangent direction, the relative change is d / x, which equals ``y - 2 lambda M d - log x`` up to a
    constant: the first form is exact where x is large, the second moves even a variable that is 0 in this precision.
    Decreasing variables shrink by exp(s), which keeps them positive; increasing ones grow by 1 + s, as in the linear
    model, except that exp(s) is allowed while their mass is negligible.
    """
    x_BN = log_x_BN.exp()
    s_BN = y_BN - 2 * strength_B1 * solution.image_BN - log_x_BN
    s_BN = s_BN - (x_BN * s_BN).sum(dim=-1, keepdim=True)
    s_BN = torch.where(x_BN > SMALL, solution.direction_BN / x_BN.clamp(min=SMALL), s_BN)
    gain_BN = torch.maximum(s_BN.clamp(min=0).log1p(), math.log(SMALL) - log_x_BN)
    return log_normalized(log_x_BN + torch.minimum(s_BN, gain_BN))


def needs_search(old: tuple[Tensor, Tensor, Tensor], new: tuple[Tensor, Tensor, Tensor], sure: float) -> Tensor:
    """Say which rows have passed the minimum between two iterates ``(log x, y, gap)``.

    A row whose gap has fallen to the share ``sure`` of its previous value is left alone.
    The derivative of f at x' along ``x' - x`` is ``<x' - x, log x' - y'>``.
    """
    step_BN = new[0].exp() - old[0].exp()
    slope_B = (step_BN * (new[0] - new[1])).sum(dim=-1)
    return ~(new[2] <= sure * old[2]) & ~(slope_B <= 0)


def segment_minimum(
    old: tuple[Tensor, Tensor, Tensor], new: tuple[Tensor, Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return log x and y at the minimum of f between two iterates, and its position (0 to 1, ``[B, 1]``).

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


# One model step: graphmax with M replaced by its essential part in this context, solved to convergence.
#
# M_model is the dense block of M on the hubs, ``M_jj`` on a context's other tokens of weight, and 0 on the rest, which
# moves as one variable (the lump). The linear term contains what the model omits, according to the last full product:
# ``z~ = z - 2 lambda (M - M_model) x``. Here N = K + X + 1.


def model_step(
    operator: GraphOperator, y_BV: Tensor, log_x_BV: Tensor | None, strength_B1: Tensor, tol: float
) -> Tensor:
    """Return log x of the model problem's solution around the last iterate, ``[B, V]``.

    Args:
        operator: the graph.
        y_BV: ``z - 2 lambda M x`` at the last iterate; z itself at the start. Finite.
        log_x_BV: the last iterate; None at the start.
        strength_B1: lambda > 0.
        tol: gap in nats to which the reduced problem is solved.
    """
    kernels = operator.matrices.kernels if y_BV.device.type == "cpu" else None
    if kernels is not None:
        return _compiled_step(kernels, operator, y_BV, log_x_BV, strength_B1, tol)
    x_BV = None if log_x_BV is None else log_x_BV.exp()
    extras = _pick_extras(operator, y_BV, x_BV, strength_B1)
    problem = _reduce(operator, y_BV, x_BV, strength_B1, extras)
    log_x_BN = problem.solve(tol, None if log_x_BV is None else _gather(operator, log_x_BV, extras))
    return _expand(operator, problem, log_x_BN, y_BV)


def _compiled_step(
    kernels: ModuleType, operator: GraphOperator, y_BV: Tensor, log_x_BV: Tensor | None, strength_B1: Tensor, tol: float
) -> Tensor:
    """Do the same row by row, on several threads, with the reduced problem in float64 except for the Gram block."""
    y_BV = y_BV.contiguous()
    before_BV = y_BV[:0] if log_x_BV is None else log_x_BV.contiguous()
    new_BV, x_BV = torch.empty_like(y_BV), torch.empty_like(y_BV)
    rows = (y_BV, before_BV, strength_B1[:, 0].double().contiguous(), new_BV, x_BV)
    graph = (operator.hubs_K, operator.gram_KK, operator.diagonal_V, operator.extra_diagonal_V)
    over_rows(kernels.model_steps, [part.numpy() for part in rows], *(part.numpy() for part in graph), tol)
    return new_BV


@dataclass(frozen=True)
class _Extras:
    index_BX: Tensor  # padded with 0
    real_BX: Tensor
    taken_BV: Tensor  # hubs and extras


def _pick_extras(operator: GraphOperator, y_BV: Tensor, x_BV: Tensor | None, strength_B1: Tensor) -> _Extras:
    weight_BV = y_BV.softmax(dim=-1)
    if x_BV is not None:
        weight_BV = torch.maximum(weight_BV, x_BV, out=weight_BV)
    weight_BV.mul_(operator.extra_diagonal_V)
    mask_BV = weight_BV > WEIGHTY / (2 * strength_B1)
    row_P, token_P = mask_BV.nonzero(as_tuple=True)
    count_B = row_P.bincount(minlength=len(y_BV))
    count = int(count_B.max())
    if count > MOST_EXTRAS:
        floor_B1 = weight_BV.topk(MOST_EXTRAS, dim=-1).values[:, -1:]
        mask_BV = mask_BV & (weight_BV > floor_B1)
        row_P, token_P = mask_BV.nonzero(as_tuple=True)
        count_B = row_P.bincount(minlength=len(y_BV))
        count = int(count_B.max())
    # position of each pick within its row
    starts_B = count_B.cumsum(dim=0) - count_B
    place_P = torch.arange(len(row_P), device=row_P.device) - starts_B[row_P]
    index_BX = torch.zeros(len(y_BV), count, dtype=torch.long, device=y_BV.device)
    real_BX = torch.zeros(len(y_BV), count, dtype=torch.bool, device=y_BV.device)
    index_BX[row_P, place_P] = token_P
    real_BX[row_P, place_P] = True
    return _Extras(index_BX, real_BX, mask_BV | operator.is_hub_V)


def _reduce(
    operator: GraphOperator, y_BV: Tensor, x_BV: Tensor | None, strength_B1: Tensor, extras: _Extras
) -> ReducedProblem:
    hubs_K = operator.hubs_K
    hub_BK = y_BV[:, hubs_K]
    extra_BX = y_BV.gather(1, extras.index_BX)
    curvature_BX = operator.diagonal_V[extras.index_BX] * extras.real_BX
    if x_BV is not None:
        hub_BK = hub_BK + 2 * strength_B1 * (x_BV[:, hubs_K] @ operator.gram_KK)
        extra_BX = extra_BX + 2 * strength_B1 * curvature_BX * x_BV.gather(1, extras.index_BX)
    # the rest by exclusion: as a difference from the total it would be lost to rounding
    rest_BV = y_BV.masked_fill(extras.taken_BV, float("-inf"))
    lump_B1 = rest_BV.logsumexp(dim=-1, keepdim=True).clamp(min=ABSENT)
    return ReducedProblem(
        linear_BN=torch.cat([hub_BK, extra_BX.masked_fill(~extras.real_BX, ABSENT), lump_B1], dim=-1),
        gram_KK=operator.gram_KK,
        curvature_BX=curvature_BX,
        strength_B1=strength_B1,
        extras=extras,
    )


def _gather(operator: GraphOperator, log_x_BV: Tensor, extras: _Extras) -> Tensor:
    """Return log x of the reduced variables at the last iterate, as a start."""
    extra_BX = log_x_BV.gather(1, extras.index_BX).masked_fill(~extras.real_BX, ABSENT)
    rest_BV = log_x_BV.masked_fill(extras.taken_BV, float("-inf"))
    lump_B1 = rest_BV.logsumexp(dim=-1, keepdim=True).clamp(min=ABSENT)
    return log_normalized(torch.cat([log_x_BV[:, operator.hubs_K], extra_BX, lump_B1], dim=-1))


def _expand(operator: GraphOperator, problem: ReducedProblem, log_x_BN: Tensor, y_BV: Tensor) -> Tensor:
    """Spread the reduced solution over the vocabulary; the lump keeps the proportions of softmax(y)."""
    hubs = len(operator.hubs_K)
    shift_B1 = log_x_BN[:, -1:] - problem.linear_BN[:, -1:]
    log_x_BV = y_BV + shift_B1
    log_x_BV[:, operator.hubs_K] = log_x_BN[:, :hubs]
    extras = problem.extras
    row_P, place_P = extras.real_BX.nonzero(as_tuple=True)
    log_x_BV[row_P, extras.index_BX[row_P, place_P]] = log_x_BN[row_P, hubs + place_P]
    return log_normalized(log_x_BV)


@dataclass(frozen=True)
class ReducedProblem:
    """``argmin -<x, linear> + <x, log x> + lambda <x, Q x>`` over N variables; Q is Gram, diagonal, 0.

    Attributes:
        linear_BN: logits of hubs, extras (``ABSENT`` where padded) and lump (``ABSENT`` if nothing is left).
        gram_KK: block of the hubs.
        curvature_BX: ``M_jj`` of the extras.
        strength_B1: lambda.
        extras: indices of the extras in the vocabulary.
    """

    linear_BN: Tensor
    gram_KK: Tensor
    curvature_BX: Tensor
    strength_B1: Tensor
    extras: _Extras

    def rows(self, index_b: Tensor) -> ReducedProblem:
        """Return the problem for some rows only."""
        return ReducedProblem(
            self.linear_BN[index_b], self.gram_KK, self.curvature_BX[index_b], self.strength_B1[index_b], self.extras
        )

    def apply(self, x_BN: Tensor) -> Tensor:
        """Return ``Q x``."""
        hubs = len(self.gram_KK)
        image_BN = torch.zeros_like(x_BN)
        image_BN[:, :hubs] = x_BN[:, :hubs] @ self.gram_KK
        image_BN[:, hubs:-1] = x_BN[:, hubs:-1] * self.curvature_BX
        return image_BN

    @property
    def diagonal_BN(self) -> Tensor:
        """Diagonal of Q."""
        hub_BK = self.gram_KK.diagonal().expand(len(self.linear_BN), -1)
        return torch.cat([hub_BK, self.curvature_BX, torch.zeros_like(self.strength_B1)], dim=-1)

    def solve(self, tol: float, start_BN: Tensor | None = None) -> Tensor:
        """Return log x, normalised: Newton-CG in log space, from the separable solution, until the gap is below tol."""
        log_x_BN = start_BN
        if log_x_BN is None:
            log_x_BN = solve_separable(self.linear_BN, 2 * self.strength_B1 * self.diagonal_BN)
        open_b = torch.arange(len(log_x_BN), device=log_x_BN.device)
        problem, log_x_bN = self, log_x_BN.clone()
        _, y_bN, gap_b = problem.judged(log_x_bN)
        for _ in range(NEWTON_STEPS):
            stay_b = ~(gap_b <= tol)
            if not stay_b.all():
                log_x_BN[open_b] = log_x_bN
                open_b, problem = open_b[stay_b], problem.rows(stay_b)
                log_x_bN, y_bN, gap_b = log_x_bN[stay_b], y_bN[stay_b], gap_b[stay_b]
            if not len(open_b):
                break
            log_x_bN, y_bN, gap_b = problem.newton(log_x_bN, y_bN, gap_b)
        log_x_BN[open_b] = log_x_bN
        return log_x_BN

    def field(self, image_BN: Tensor) -> Tensor:
        """Return ``linear - 2 lambda Q x`` for ``image = Q x``."""
        return self.linear_BN - 2 * self.strength_B1 * image_BN

    def newton(self, log_x_BN: Tensor, y_BN: Tensor, gap_B: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return log x, y and gap after one Newton step, shortened where it is too long."""
        now = log_x_BN, y_BN, gap_B
        solution = solve_tangent(
            self.apply,
            self.diagonal_BN,
            log_x_BN.exp(),
            self.strength_B1,
            gradient_slack(log_x_BN, y_BN),
            tol=CG_TOL,
            max_iterations=CG_ITERATIONS,
        )
        new = self.judged(newton_candidate(log_x_BN, y_BN, self.strength_B1, solution))
        far_B = needs_search(now, new, SURE)
        if not far_B.any():
            return new
        return self.searched(now, new, far_B)

    def judged(self, log_x_BN: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return log x with its y and gap."""
        y_BN = self.field(self.apply(log_x_BN.exp()))
        return log_x_BN, y_BN, duality_gap(log_x_BN, y_BN)

    def searched(
        self, now: tuple[Tensor, Tensor, Tensor], new: tuple[Tensor, Tensor, Tensor], far_B: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Replace the rows ``far_B`` of ``new`` by the minimum on a segment along which f decreases."""
        old, end = ((log_x_BN[far_B], y_BN[far_B], gap_B[far_B]) for log_x_BN, y_BN, gap_B in (now, new))
        falls_b1 = ((end[0].exp() - old[0].exp()) * (old[0] - old[1])).sum(dim=-1, keepdim=True) < 0
        # f always decreases towards softmax(y)
        end_log_bN = torch.where(falls_b1, end[0], log_normalized(old[1]))
        part = self.rows(far_B)
        end = part.judged(end_log_bN)
        log_x_bN, _, _ = segment_minimum(old, end)
        found = part.judged(log_x_bN)
        log_x_BN, y_BN, gap_B = (whole.index_put((far_B,), rows) for whole, rows in zip(new, found, strict=True))
        return log_x_BN, y_BN, gap_B

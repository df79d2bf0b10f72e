"""One model step: graphmax with M replaced by what matters of it in this context, solved to the end.

M_model is the dense block of M on the hubs, ``M_jj`` on a context's other tokens of weight, and 0 on the rest, which
moves as one variable (the lump). The linear term carries what the model leaves out, as far as the last full product
tells: ``z~ = z - 2 lambda (M - M_model) x``. Shape suffixes: B rows, V vocabulary, K hubs, X extra tokens of a context
(padded), N = K + X + 1 variables of the reduced problem.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor

from lit_ctg.papers.graphmax.acceleration import kernels_for, over_rows
from lit_ctg.papers.graphmax.certificate import duality_gap
from lit_ctg.papers.graphmax.constants import ABSENT, CG_ITERATIONS, CG_TOL, MOST_EXTRAS, NEWTON_STEPS, SURE, WEIGHTY
from lit_ctg.papers.graphmax.descent import gradient_slack, needs_search, newton_candidate, segment_minimum
from lit_ctg.papers.graphmax.linear import solve_tangent
from lit_ctg.papers.graphmax.logspace import log_normalized
from lit_ctg.papers.graphmax.operator import GraphOperator
from lit_ctg.papers.graphmax.separable import solve_separable


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
    kernels = kernels_for(y_BV)
    if kernels is not None:
        return _compiled_step(kernels, operator, y_BV, log_x_BV, strength_B1, tol)
    x_BV = None if log_x_BV is None else log_x_BV.exp()
    extras = _pick_extras(operator, y_BV, x_BV, strength_B1)
    problem = _reduce(operator, y_BV, x_BV, strength_B1, extras)
    log_x_BN = problem.solve(tol, None if log_x_BV is None else _gather(operator, log_x_BV, extras))
    return _expand(operator, problem, log_x_BN, y_BV)


def _compiled_step(
    kernels: ModuleType,
    operator: GraphOperator,
    y_BV: Tensor,
    log_x_BV: Tensor | None,
    strength_B1: Tensor,
    tol: float,
) -> Tensor:
    """Do the same row by row, on several threads, the reduced problem in float64 but for the Gram block."""
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
    # position of each pick inside its row
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
    # the rest by exclusion: subtracted from a total it would be lost to rounding
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
    """Return log x of the reduced variables: the last iterate as a start."""
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
        extras: where the extras lie in the vocabulary.
    """

    linear_BN: Tensor
    gram_KK: Tensor
    curvature_BX: Tensor
    strength_B1: Tensor
    extras: _Extras

    def rows(self, index_b: Tensor) -> ReducedProblem:
        """Return the problem of some rows only."""
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
        """Return log x, y and gap after one Newton step, cut back where it goes too far."""
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
        """Replace the rows ``far_B`` of ``new`` by the lowest point on a segment along which f falls."""
        old, end = (tuple(part[far_B] for part in point) for point in (now, new))
        falls_b1 = ((end[0].exp() - old[0].exp()) * (old[0] - old[1])).sum(dim=-1, keepdim=True) < 0
        # towards softmax(y), f always falls
        end_log_bN = torch.where(falls_b1, end[0], log_normalized(old[1]))
        part = self.rows(far_B)
        end = part.judged(end_log_bN)
        log_x_bN, _, _ = segment_minimum(old, end)
        pairs = zip(new, part.judged(log_x_bN), strict=True)
        return tuple(whole.index_put((far_B,), rows) for whole, rows in pairs)

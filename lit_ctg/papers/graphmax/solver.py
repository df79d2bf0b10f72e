"""The solver: model steps with a full product each, until the certificate holds; Newton-CG on all of M if they fail.

Every iterate is evaluated by a full product with M, so the result is certified over the whole vocabulary. A row whose
final gap exceeds tol is reported as such. Shape suffixes: B rows (b those still open), V vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lit_ctg.papers.graphmax.graph import GraphOperator
from lit_ctg.papers.graphmax.model_step import (
    duality_gap,
    gradient_slack,
    log_normalized,
    model_step,
    needs_search,
    newton_candidate,
    segment_minimum,
    solve_tangent,
)

MODEL_STEPS = 8  # then Newton-CG with full products takes over
PATIENCE = 6  # a row is given up after so many iterates in a row that did not lower its gap by a tenth
LOWEST_WARM = -200.0  # a token without mass in the warm start may need some now
NEWTON_CG_TOL = 0.1
NEWTON_CG_ITERATIONS = 40


class Solution(NamedTuple):
    """``log_probs_BV``, ``gap_B`` (nats, float64), ``iterations_B`` and ``products_B`` (full products with M)."""

    log_probs_BV: Tensor
    gap_B: Tensor
    iterations_B: Tensor
    products_B: Tensor


# The certificate is about the returned array itself, float32 or not: its exponential, sum and product with M are
# computed in float64, or their rounding is part of the bound.


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


def is_certified(gap_B: Tensor, tol: float) -> Tensor:
    """Say which gaps certify: within ``[0, tol]``. A negative gap or NaN is an arithmetic error, never a pass."""
    return (gap_B >= 0) & (gap_B <= tol)


# The solver.


def solve(
    operator: GraphOperator,
    logits_BV: Tensor,
    strength_B1: Tensor,
    *,
    tol: float,
    max_iterations: int,
    warm_start_BV: Tensor | None = None,
) -> Solution:
    """Minimise Eq. 3 for each row.

    Args:
        operator: the graph in the dtype of the logits.
        logits_BV: z, ``-inf`` for a token that may not be drawn; at least one finite per row.
        strength_B1: lambda > 0.
        tol: certified gap in nats at which a row is done.
        max_iterations: maximum number of iterates; the best is returned with its gap.
        warm_start_BV: log-probabilities to start from (costs a product).
    """
    shifted_BV = logits_BV - logits_BV.amax(dim=-1, keepdim=True)
    problem = _Problem(operator, logits_BV, _floor(operator, strength_B1), strength_B1)
    z_BV = torch.maximum(shifted_BV, problem.floor_B1.to(shifted_BV))
    best = _Rows.empty(z_BV)
    open_b = torch.arange(len(z_BV), device=z_BV.device)
    now = _Point.start(problem, z_BV, warm_start_BV)
    if warm_start_BV is not None:
        open_b, now, stay_b = best.keep(open_b, now, tol)
        problem = problem.rows(stay_b)
    for step in range(max_iterations):
        if not len(open_b):
            break
        new = (_model if step < MODEL_STEPS else _newton)(problem, now, tol)
        new.counts(now)
        open_b, new, stay_b = best.keep(open_b, new, tol)
        if not stay_b.all():
            problem, now = problem.rows(stay_b), now.rows(stay_b)
        now = new if now.log_x_BV is None else _search_segment(now, new)
    # restore clamped logits: -inf, or a finite logit too low to have any mass
    log_probs_BV = best.log_x_BV
    lost_B = best.gap_B.isnan()
    if lost_B.any():
        log_probs_BV[lost_B] = z_BV[lost_B].log_softmax(dim=-1)
    if (shifted_BV < z_BV).any():
        log_probs_BV = log_probs_BV + (shifted_BV - z_BV)
    return Solution(log_probs_BV, best.gap_B, best.iterations_B, best.products_B)


def solve_carefully(
    operator: GraphOperator, logits_BV: Tensor, strength_B1: Tensor, found: Solution, *, tol: float, max_iterations: int
) -> Solution:
    """Restart in float64 where float32 or a warm start failed; the result is rounded back and re-evaluated.

    Rounding x to float32 alone can cost more than tol when lambda M_jj reaches about 1e5: such a row stays uncertified.
    """
    z_BV, strength_B1 = logits_BV.double(), strength_B1.double()
    operator = operator.like(z_BV)
    better = solve(operator, z_BV, strength_B1, tol=tol / 10, max_iterations=max_iterations)
    log_probs_BV = better.log_probs_BV.to(logits_BV.dtype)
    # evaluated as returned, including the effect of rounding
    log_x_BV = log_probs_BV.double().log_softmax(dim=-1)
    y_BV = z_BV - 2 * strength_B1 * operator.product(log_x_BV.exp())
    return Solution(
        log_probs_BV,
        duality_gap(log_x_BV, y_BV),
        found.iterations_B + better.iterations_B,
        found.products_B + better.products_B + 1,
    )


def _floor(operator: GraphOperator, strength_B1: Tensor) -> Tensor:
    """Return the lowest relevant logit relative to the largest: no penalty can give lower ones any mass."""
    return -(8 * strength_B1.double() * operator.diagonal_V.max() + 1000)


class _Problem(NamedTuple):
    """Rows to solve: logits as given, the lowest relevant ones (float64), and lambda."""

    operator: GraphOperator
    logits_BV: Tensor
    floor_B1: Tensor
    strength_B1: Tensor

    def rows(self, index: Tensor) -> _Problem:
        return _Problem(self.operator, *(part[index] for part in self[1:]))


class _Point:
    """An iterate of some rows: log x, ``y = z - 2 lambda M x`` and the bound of its gap."""

    def __init__(self, log_x_BV: Tensor | None, y_BV: Tensor, gap_B: Tensor, cost_B: Tensor):
        self.log_x_BV, self.y_BV, self.gap_B = log_x_BV, y_BV, gap_B
        self.products_B, self.iterations_B = cost_B, torch.ones_like(cost_B)

    @classmethod
    def at(cls, problem: _Problem, log_x_BV: Tensor, extra_cost: Tensor | int = 0) -> _Point:
        """Evaluate log x by one full product; ``extra_cost`` counts the products spent on finding it."""
        y_BV, gap_B = judge(*problem, log_x_BV)
        cost_B = torch.ones(len(y_BV), dtype=torch.long, device=y_BV.device) + extra_cost
        return cls(log_x_BV, y_BV, gap_B, cost_B)

    @classmethod
    def start(cls, problem: _Problem, z_BV: Tensor, warm_BV: Tensor | None) -> _Point:
        """Return the initial point: the given log-probabilities, or only z."""
        if warm_BV is not None:
            floor = torch.finfo(warm_BV.dtype).min / 4
            log_x_BV = warm_BV.clamp(min=LOWEST_WARM).masked_fill(z_BV <= problem.floor_B1.to(z_BV), floor)
            return cls.at(problem, log_normalized(log_x_BV))
        zeros_B = torch.zeros(len(z_BV), dtype=torch.long, device=z_BV.device)
        point = cls(None, z_BV, torch.full_like(zeros_B, float("inf"), dtype=torch.float64), zeros_B)
        point.iterations_B = zeros_B
        return point

    def counts(self, before: _Point) -> None:
        """Add the previous costs of the rows."""
        self.products_B = self.products_B + before.products_B
        self.iterations_B = self.iterations_B + before.iterations_B

    @property
    def found_BV(self) -> Tensor:
        """Log x of a point after the initial one."""
        assert self.log_x_BV is not None
        return self.log_x_BV

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.found_BV, self.y_BV, self.gap_B

    def rows(self, index: Tensor) -> _Point:
        log_x_BV = None if self.log_x_BV is None else self.log_x_BV[index]
        point = _Point(log_x_BV, self.y_BV[index], self.gap_B[index], self.products_B[index])
        point.iterations_B = self.iterations_B[index]
        return point


class _Rows:
    """The best iterate of every row so far."""

    def __init__(self, log_x_BV: Tensor, gap_B: Tensor, iterations_B: Tensor, products_B: Tensor):
        self.log_x_BV, self.gap_B = log_x_BV, gap_B
        self.iterations_B, self.products_B = iterations_B, products_B
        self.stale_B = torch.zeros_like(products_B)

    @classmethod
    def empty(cls, z_BV: Tensor) -> _Rows:
        zeros_B = torch.zeros(len(z_BV), dtype=torch.long, device=z_BV.device)
        gap_B = torch.full((len(z_BV),), float("nan"), dtype=torch.float64, device=z_BV.device)
        return cls(torch.empty_like(z_BV), gap_B, zeros_B, zeros_B.clone())

    def keep(self, open_b: Tensor, point: _Point, tol: float) -> tuple[Tensor, _Point, Tensor]:
        """Store the rows of ``point`` that improve; return those to continue with, and their indices."""
        self.iterations_B[open_b], self.products_B[open_b] = point.iterations_B, point.products_B
        sound_b = point.gap_B >= 0
        better_b = sound_b & ~(self.gap_B[open_b] <= point.gap_B)
        moved_b = sound_b & ~(0.9 * self.gap_B[open_b] <= point.gap_B)
        self.stale_B[open_b] = (self.stale_B[open_b] + 1).masked_fill(moved_b, 0)
        if better_b.all() and len(open_b) == len(self.gap_B):
            # the iterate does not change any more, so it need not be copied
            self.log_x_BV, self.gap_B = point.found_BV, point.gap_B.clone()
        else:
            rows_b = open_b[better_b]
            self.log_x_BV = self.log_x_BV.index_copy(0, rows_b, point.found_BV[better_b])
            self.gap_B[rows_b] = point.gap_B[better_b]
        stay_b = ~is_certified(point.gap_B, tol) & (self.stale_B[open_b] < PATIENCE)
        if stay_b.all():
            return open_b, point, stay_b
        return open_b[stay_b], point.rows(stay_b), stay_b


def _model(problem: _Problem, now: _Point, tol: float) -> _Point:
    return _Point.at(problem, model_step(problem.operator, now.y_BV, now.log_x_BV, problem.strength_B1, tol / 20))


def _newton(problem: _Problem, now: _Point, tol: float) -> _Point:
    """Take a Newton-CG step with products with all of M."""
    solution = solve_tangent(
        problem.operator.product,
        problem.operator.diagonal_V,
        now.found_BV.exp(),
        problem.strength_B1,
        gradient_slack(now.found_BV, now.y_BV),
        tol=NEWTON_CG_TOL,
        max_iterations=NEWTON_CG_ITERATIONS,
    )
    log_x_BV = newton_candidate(now.found_BV, now.y_BV, problem.strength_B1, solution)
    return _Point.at(problem, log_x_BV, solution.products_B)


def _search_segment(now: _Point, new: _Point) -> _Point:
    """Where f rises again before the new iterate, continue from its minimum on the segment between the two.

    M x is linear there, so this costs no product; but it was not evaluated by a product, so it is not a candidate.
    """
    far_B = needs_search(now.parts, new.parts, 0.0)
    if far_B.any():
        log_x_bV, y_bV, _ = segment_minimum(now.rows(far_B).parts, new.rows(far_B).parts)
        # the candidate itself may be kept as the best so far
        new.log_x_BV, new.y_BV = new.found_BV.clone(), new.y_BV.clone()
        new.log_x_BV[far_B], new.y_BV[far_B] = log_x_bV, y_bV
    return new

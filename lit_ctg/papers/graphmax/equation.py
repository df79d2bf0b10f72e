"""``graphmax(logits, graph)``: Eq. 3, solved, certified and differentiable; then its gradient.

Shape suffixes: B rows, V vocabulary, E edges.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import scipy.sparse as sp
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lit_ctg.errors import UserError, refuse
from lit_ctg.limits import Count, Positive, checked
from lit_ctg.papers.graphmax.graph import CooccurrenceGraph, GraphOperator
from lit_ctg.papers.graphmax.model_step import duality_gap, solve_tangent
from lit_ctg.papers.graphmax.published import AlgorithmOne
from lit_ctg.papers.graphmax.solver import Solution, is_certified, solve, solve_carefully

MAX_ITERATIONS = 60
CPU_ROWS = 16  # rows at a time on a CPU: more exceed its caches


class GraphmaxResult(NamedTuple):
    """The result of graphmax; its leading shape is that of the logits.

    ``probs_BV`` and ``log_probs_BV`` (float32, or float64 for float64 logits) carry gradients; ``gap_B`` is the
    certificate in nats (float64), ``iterations_B`` the number of iterates evaluated, ``products_B`` of full products
    with M, ``converged_B`` whether the gap is within ``[0, tol]``.
    """

    probs_BV: Tensor
    log_probs_BV: Tensor
    gap_B: Tensor
    iterations_B: Tensor
    products_B: Tensor
    converged_B: Tensor


class NotConverged(UserError):
    """A row is not certified and ``strict`` was set."""


@checked
def graphmax(
    logits_BV: Tensor,
    graph: CooccurrenceGraph,
    strength: float | Tensor = 1.0,
    *,
    tol: Positive = 1e-6,
    max_iterations: Count = MAX_ITERATIONS,
    strict: bool = False,
    solver: str | AlgorithmOne = "certified",
    warm_start_BV: Tensor | None = None,
    edge_weights_E: Tensor | None = None,
) -> GraphmaxResult:
    """Return ``argmin -<x,z> + <x, log x> + lambda ||x - A~ x||^2`` over the simplex for each row of logits.

    Args:
        logits_BV: z, ``[..., V]``; ``-inf`` for tokens that may not be drawn. Half precision is solved in float32.
        graph: A~ over the same vocabulary.
        strength: lambda >= 0, one number or one per row; 0 is softmax exactly.
        tol: gap in nats at which a row counts as solved; the total variation to the optimum is at most
            ``sqrt(tol / 2)``.
        max_iterations: maximum number of iterates.
        strict: raise unless every row is certified.
        solver: ``certified``, or an :class:`AlgorithmOne` for the paper's own (no gradient).
        warm_start_BV: log-probabilities to start from; worthwhile only if the logits hardly changed.
        edge_weights_E: weights instead of the graph's, in its order (``graph.weights_E``): a differentiable graph. The
            operator is then rebuilt at each call.

    Raises:
        UserError: a different vocabulary, NaN or +inf logits, a row that is all -inf, a strength below 0.
        NotConverged: ``strict`` and a row whose gap is above tol, negative or NaN.
    """
    flat_BV, strength_B1 = sound_inputs(logits_BV, graph, strength)
    if solver != "certified" and not isinstance(solver, AlgorithmOne):
        raise UserError(
            f"solver={solver!r}: pass 'certified', or AlgorithmOne(step_size=..., steps=..., threshold=..., sort=..., "
            "log_floor=...) with the numbers of conf/model/graphmax/algorithm_one.yaml (model.output=algorithm_one)"
        )
    warm_BV = None
    if warm_start_BV is not None:
        warm_BV = _fits("a warm start", warm_start_BV, logits_BV.shape).reshape(flat_BV.shape).to(flat_BV)
    operator = _operator(graph, flat_BV, edge_weights_E)
    # half-precision products would spoil the solution and its certificate
    with torch.no_grad(), torch.autocast(flat_BV.device.type, enabled=False):
        solution = _solve_rows(operator, flat_BV, strength_B1, tol, max_iterations, solver, warm_BV)
    converged_B = is_certified(solution.gap_B, tol)
    if strict and not converged_B.all():
        worst = solution.gap_B[~converged_B][0].item()
        raise NotConverged(
            f"graphmax certified {int(converged_B.sum())} of {len(converged_B)} rows; the first other has a gap of "
            f"{worst:.2g} nats (tol {tol:g}): raise tol or max_iterations, or give float64 logits"
        )
    probs_BV, log_probs_BV = solution.log_probs_BV.exp(), solution.log_probs_BV
    inputs = (flat_BV, strength_B1, edge_weights_E)
    wants_gradient = torch.is_grad_enabled() and any(part is not None and part.requires_grad for part in inputs)
    if wants_gradient and solver == "certified":
        edges = None if edge_weights_E is None else _edge_index(graph, flat_BV)
        probs_BV, log_probs_BV = ImplicitGraphmax.apply(*inputs, log_probs_BV, operator, edges)
    lead = logits_BV.shape[:-1]
    counts = (part.reshape(lead) for part in (*solution[1:], converged_B))
    return GraphmaxResult(probs_BV.reshape(logits_BV.shape), log_probs_BV.reshape(logits_BV.shape), *counts)


def warn_uncertified(result: GraphmaxResult, where: str) -> None:
    """Warn, once per call, about rows that the certified solver left above its tolerance."""
    open_B = ~result.converged_B
    if open_B.any():
        # NaN is the worst of all
        worst = result.gap_B[open_B].nan_to_num(nan=float("inf")).max().item()
        warnings.warn(
            f"{where}: graphmax certified {int(result.converged_B.sum())} of {open_B.numel()} rows, the largest gap is "
            f"{worst:.2g} nats; these rows are no optimum of Eq. 3",
            RuntimeWarning,
            stacklevel=2,
        )


def certify(
    log_probs_BV: Tensor, logits_BV: Tensor, graph: CooccurrenceGraph, strength: float | Tensor = 1.0
) -> Tensor:
    """Recompute the certificate of any distribution, in float64 throughout: nats, in the leading shape of the logits.

    It is about the distribution normalised in float64, independent of how it was found.

    Raises:
        UserError: logits, strengths or log-probabilities that are no tensors of fitting shapes.
    """
    given = logits_BV.double() if isinstance(logits_BV, Tensor) and logits_BV.is_floating_point() else logits_BV
    flat_BV, strength_B1 = sound_inputs(given, graph, strength)
    log_x_BV = _fits("log-probabilities", log_probs_BV, logits_BV.shape).double().reshape(flat_BV.shape)
    log_x_BV = log_x_BV.log_softmax(dim=-1)
    with torch.autocast(flat_BV.device.type, enabled=False):
        y_BV = flat_BV - 2 * strength_B1 * graph.operator(flat_BV).product(log_x_BV.exp())
    # a masked token is not in the problem: it must have no mass, or there is no certificate
    masked_BV = flat_BV.isinf()
    sound_B = ~(masked_BV & (log_x_BV.exp() > 0)).any(dim=-1)
    gap_B = duality_gap(log_x_BV.masked_fill(masked_BV, float("-inf")), y_BV.masked_fill(masked_BV, float("-inf")))
    return gap_B.masked_fill(~sound_B, float("inf")).reshape(logits_BV.shape[:-1])


def sound_inputs(logits_BV: Tensor, graph: CooccurrenceGraph, strength: float | Tensor) -> tuple[Tensor, Tensor]:
    """Return ``[B, V]`` logits in float32 or float64 and ``[B, 1]`` strengths, both checked."""
    refuse(_faults(logits_BV, graph, strength))
    flat_BV = logits_BV.reshape(-1, graph.vocab_size)
    if flat_BV.dtype != torch.float64:
        flat_BV = flat_BV.float()
    strength_B1 = torch.as_tensor(strength, dtype=flat_BV.dtype, device=flat_BV.device)
    return flat_BV, strength_B1.reshape(-1, 1).expand(len(flat_BV), 1)


def _faults(logits_BV: Tensor, graph: CooccurrenceGraph, strength: float | Tensor) -> Iterator[str]:
    """Yield what makes logits or strengths no input of graphmax."""
    if not isinstance(logits_BV, Tensor) or not logits_BV.is_floating_point():
        kind = f"a tensor of {logits_BV.dtype}" if isinstance(logits_BV, Tensor) else f"a {type(logits_BV).__name__}"
        yield f"logits are a torch tensor of floating-point numbers, not {kind}: use torch.as_tensor(...)"
    if logits_BV.dim() < 1 or logits_BV.shape[-1] != graph.vocab_size:
        yield (
            f"logits of shape {tuple(logits_BV.shape)} do not fit a scene graph of {graph.vocab_size} tokens: build "
            "the graph over the language model's vocabulary"
        )
    top_B = logits_BV.detach().amax(dim=-1).reshape(-1)
    if len(rows := (~top_B.isfinite()).nonzero()):
        row = int(rows[0])
        yield f"row {row}: the largest logit is {top_B[row]:g}, so there is no distribution; look at the language model"
    strengths = torch.as_tensor(strength)
    if strengths.numel() not in (1, len(top_B)):
        yield f"{strengths.numel()} strengths for {len(top_B)} rows: give one for all or one per row"
    if not (strengths.isfinite() & (strengths >= 0)).all():
        yield f"the strength of graphmax is a number >= 0, not {strengths.min().item():g}"


def _fits(what: str, values: Tensor, shape: torch.Size) -> Tensor:
    """Return values without their gradient; ``UserError`` unless they are a tensor of this shape."""
    if not isinstance(values, Tensor) or values.shape != shape:
        found = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise UserError(f"{what}: a tensor of shape {tuple(shape)} is needed, not {found}")
    return values.detach()


def _operator(graph: CooccurrenceGraph, flat_BV: Tensor, edge_weights_E: Tensor | None) -> GraphOperator:
    if edge_weights_E is None:
        return graph.operator(flat_BV.detach())
    values_E = _fits("edge weights", edge_weights_E, torch.Size([graph.edges])).double().cpu().numpy()
    matrix = sp.csr_array((values_E, graph.matrix.indices, graph.matrix.indptr), shape=graph.matrix.shape)
    return GraphOperator.from_scipy(matrix, fast=graph.fast).like(flat_BV.detach())


def _edge_index(graph: CooccurrenceGraph, flat_BV: Tensor) -> EdgeIndex:
    pairs = graph.matrix.tocoo()
    row_E, column_E = (torch.from_numpy(part.astype("int64")) for part in (pairs.row, pairs.col))
    return EdgeIndex(row_E.to(flat_BV.device), column_E.to(flat_BV.device))


def _solve_rows(
    operator: GraphOperator,
    logits_BV: Tensor,
    strength_B1: Tensor,
    tol: float,
    max_iterations: int,
    solver: str | AlgorithmOne,
    warm_BV: Tensor | None,
) -> Solution:
    if isinstance(solver, AlgorithmOne):
        return solver.solve(operator, logits_BV, strength_B1)
    rows_b = (strength_B1[:, 0] > 0).nonzero()[:, 0]
    at_once = CPU_ROWS if logits_BV.device.type == "cpu" else len(logits_BV)
    settings: dict[str, Any] = {"tol": tol, "max_iterations": max_iterations}
    if 0 < len(rows_b) == len(logits_BV) <= at_once:
        # nothing to join
        solution = solve(operator, logits_BV, strength_B1, warm_start_BV=warm_BV, **settings)
    else:
        some_at_zero = len(rows_b) < len(logits_BV)
        log_probs_BV = logits_BV.log_softmax(dim=-1) if some_at_zero else torch.empty_like(logits_BV)
        zeros_B = torch.zeros(len(logits_BV), dtype=torch.long, device=logits_BV.device)
        solution = Solution(log_probs_BV, zeros_B.double(), zeros_B, zeros_B.clone())
        for some_b in rows_b.split(at_once):
            warm_bV = None if warm_BV is None else warm_BV[some_b]
            part = solve(operator, logits_BV[some_b], strength_B1[some_b], warm_start_BV=warm_bV, **settings)
            _overwrite(solution, some_b, part)
    hard_b = rows_b[~is_certified(solution.gap_B[rows_b], tol)]
    if len(hard_b) and (logits_BV.dtype == torch.float32 or warm_BV is not None):
        found = Solution(*(whole[hard_b] for whole in solution))
        part = solve_carefully(operator, logits_BV[hard_b], strength_B1[hard_b], found, **settings)
        better_b = ~(found.gap_B <= part.gap_B)
        _overwrite(solution, hard_b[better_b], Solution(*(rows[better_b] for rows in part)))
    return solution


def _overwrite(solution: Solution, rows_b: Tensor, part: Solution) -> None:
    for whole, rows in zip(solution, part, strict=True):
        whole[rows_b] = rows


# Gradients of graphmax by differentiating its optimality condition, not its iterations.
#
# With J = dx/dz the tangent solve of :mod:`~lit_ctg.papers.graphmax.model_step`, ``J = (diag(x) - x x^T)(I - 2 lambda
# M J)``, and J is symmetric, so for gradients g_x and g_log with respect to x and log x
#
#     q = (diag(x) - x x^T) g_x + g_log - x <1, g_log>        (no division by a small x)
#     g_z = q - 2 lambda J M q
#     g_lambda = -2 <g_z, M x>
#     g_A_ij = 2 lambda (r_i g_z,j + (B g_z)_i x_j),  B = I - A~,  r = B x.


GRADIENT_CG_ITERATIONS = 200
GRADIENT_CG_TOL = {torch.float32: 1e-5, torch.float64: 1e-11}


@dataclass(frozen=True)
class EdgeIndex:
    """Row and column of every weight of a graph, both ``[E]``."""

    row_E: Tensor
    column_E: Tensor


class ImplicitGraphmax(torch.autograd.Function):
    """Passes a solution through in the forward pass; differentiates implicitly in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        logits_BV: Tensor,
        strength_B1: Tensor,
        weights_E: Tensor | None,
        log_probs_BV: Tensor,
        operator: GraphOperator,
        edges: EdgeIndex | None,
    ) -> tuple[Tensor, Tensor]:
        """Return probabilities and log-probabilities of a solved problem, differentiable in the first three."""
        probs_BV = log_probs_BV.exp()
        ctx.save_for_backward(probs_BV, strength_B1)
        ctx.operator, ctx.edges = operator, edges
        return probs_BV, log_probs_BV.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_probs_BV: Tensor, grad_log_BV: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients with respect to logits, strength and weights."""
        x_BV, strength_B1 = ctx.saved_tensors
        operator: GraphOperator = ctx.operator
        grad_strength_B1 = grad_weights_E = None
        with torch.autocast(x_BV.device.type, enabled=False):
            grad_z_BV = pull_back(operator, x_BV, strength_B1, grad_probs_BV, grad_log_BV)
            if ctx.needs_input_grad[1]:
                grad_strength_B1 = -2 * (grad_z_BV * operator.product(x_BV)).sum(dim=-1, keepdim=True)
            if ctx.needs_input_grad[2]:
                scaled_BV = strength_B1 * grad_z_BV
                residual_BV, image_BV = operator.difference(x_BV), operator.difference(scaled_BV)
                total_E = torch.zeros(len(ctx.edges.row_E), dtype=x_BV.dtype, device=x_BV.device)
                # row by row: the full [B, E] would be large
                for x_V, scaled_V, residual_V, image_V in zip(x_BV, scaled_BV, residual_BV, image_BV, strict=True):
                    total_E += (
                        residual_V[ctx.edges.row_E] * scaled_V[ctx.edges.column_E]
                        + image_V[ctx.edges.row_E] * x_V[ctx.edges.column_E]
                    )
                grad_weights_E = 2 * total_E
        return (grad_z_BV if ctx.needs_input_grad[0] else None), grad_strength_B1, grad_weights_E, None, None, None


def pull_back(
    operator: GraphOperator, x_BV: Tensor, strength_B1: Tensor, grad_probs_BV: Tensor, grad_log_BV: Tensor
) -> Tensor:
    """Return the gradient with respect to the logits, given those for the probabilities and their logarithms."""
    grad_log_BV = grad_log_BV.masked_fill(x_BV == 0, 0)
    centred_BV = grad_probs_BV - (x_BV * grad_probs_BV).sum(dim=-1, keepdim=True)
    q_BV = x_BV * centred_BV + grad_log_BV - x_BV * grad_log_BV.sum(dim=-1, keepdim=True)
    if not (strength_B1 > 0).any():
        return q_BV
    solution = solve_tangent(
        operator.product,
        operator.diagonal_V,
        x_BV,
        strength_B1,
        operator.product(q_BV),
        tol=GRADIENT_CG_TOL[x_BV.dtype],
        max_iterations=GRADIENT_CG_ITERATIONS,
    )
    return q_BV - 2 * strength_B1 * solution.direction_BN

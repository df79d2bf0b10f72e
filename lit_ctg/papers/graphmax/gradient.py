"""Gradients of graphmax by differentiating its optimality condition, not its iterations.

With J = dx/dz the tangent solve of :mod:`~lit_ctg.papers.graphmax.linear`: ``J = (diag(x) - x x^T)(I - 2 lambda M J)``,
and J is symmetric, so for gradients g_x and g_log by x and log x

    q = (diag(x) - x x^T) g_x + g_log - x <1, g_log>        (no division by a small x)
    g_z = q - 2 lambda J M q
    g_lambda = -2 <g_z, M x>
    g_A_ij = 2 lambda (r_i g_z,j + (B g_z)_i x_j),  B = I - A~,  r = B x.

Shape suffixes: B rows, V vocabulary, E edges.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from lit_ctg.papers.graphmax.linear import solve_tangent
from lit_ctg.papers.graphmax.operator import GraphOperator

CG_ITERATIONS = 200
CG_TOL = {torch.float32: 1e-5, torch.float64: 1e-11}


@dataclass(frozen=True)
class EdgeIndex:
    """Row and column of every weight of a graph, both ``[E]``."""

    row_E: Tensor
    column_E: Tensor


class ImplicitGraphmax(torch.autograd.Function):
    """Identity on a solution in the forward pass; implicit differentiation in the backward pass."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
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
    def backward(ctx: FunctionCtx, grad_probs_BV: Tensor, grad_log_BV: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients by logits, strength and weights."""
        x_BV, strength_B1 = ctx.saved_tensors
        operator: GraphOperator = ctx.operator
        grad_strength_B1 = grad_weights_E = None
        with torch.autocast(x_BV.device.type, enabled=False):
            grad_z_BV = pull_back(operator, x_BV, strength_B1, grad_probs_BV, grad_log_BV)
            if ctx.needs_input_grad[1]:
                grad_strength_B1 = -2 * (grad_z_BV * operator.product(x_BV)).sum(dim=-1, keepdim=True)
            if ctx.needs_input_grad[2]:
                grad_weights_E = _weight_gradient(operator, ctx.edges, x_BV, strength_B1 * grad_z_BV)
        return (grad_z_BV if ctx.needs_input_grad[0] else None), grad_strength_B1, grad_weights_E, None, None, None


def pull_back(
    operator: GraphOperator, x_BV: Tensor, strength_B1: Tensor, grad_probs_BV: Tensor, grad_log_BV: Tensor
) -> Tensor:
    """Return the gradient by the logits, given those by the probabilities and by their logarithms."""
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
        tol=CG_TOL[x_BV.dtype],
        max_iterations=CG_ITERATIONS,
    )
    return q_BV - 2 * strength_B1 * solution.direction_BN


def _weight_gradient(operator: GraphOperator, edges: EdgeIndex, x_BV: Tensor, scaled_BV: Tensor) -> Tensor:
    residual_BV, image_BV = operator.difference(x_BV), operator.difference(scaled_BV)
    total_E = torch.zeros(len(edges.row_E), dtype=x_BV.dtype, device=x_BV.device)
    # row by row: [B, E] at once would be large
    for x_V, scaled_V, residual_V, image_V in zip(x_BV, scaled_BV, residual_BV, image_BV, strict=True):
        total_E += residual_V[edges.row_E] * scaled_V[edges.column_E] + image_V[edges.row_E] * x_V[edges.column_E]
    return 2 * total_E

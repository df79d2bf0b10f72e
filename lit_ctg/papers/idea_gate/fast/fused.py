"""Both heads and both losses in one pass over rows, without an [N, V] tensor of all positions.

For a chunk of positions both logits are computed, the losses and their gradients with respect to the logits overwrite
them, and the gradients of hidden states and weights are accumulated: the matrix products are those of the plain
computation, none is repeated. Elementwise work is done on blocks that fit into the cache.

Shape letters: N positions, n positions of a chunk, V vocabulary, D hidden size, K window, S stopwords.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

# bytes of one head's logits per chunk, and logits per block on a CPU
CHUNK = 1 << 26
BLOCK = 1 << 16
# with fewer rows the products would be inefficient
LEAST_ROWS = 64


@dataclass(frozen=True, kw_only=True)
class GateSetting:
    """A gate in training: the paper's, or with ``base_V`` or ``neutral_V`` one of ours.

    Attributes:
        alpha: strength; 0 leaves the gate out.
        floor: value of log(p + epsilon), minus ``base_V``, below which the gate is flat.
        epsilon: inside the logarithm.
        base_V: the lift's log base rates (``GateForm``); its gate is flat above -floor, too. None: no lift.
        neutral_V: tokens whose joint probability the gate keeps (``gated_scores``), bool. None: none.
    """

    alpha: float
    floor: float
    epsilon: float
    base_V: Tensor | None = None
    neutral_V: Tensor | None = None

    @property
    def ceiling(self) -> float:
        """The value of log(p + epsilon), minus ``base_V``, above which the gate is flat."""
        return math.inf if self.base_V is None else -self.floor


@dataclass(frozen=True, kw_only=True)
class Ideas:
    """The idea head's side of the loss.

    Attributes:
        hidden_ND: input of its last layer.
        weight_VD, bias_V: its last layer.
        window_NK: distinct tokens to predict, no stopwords, -1 pads.
        counted_V: 1 where a token counts in the loss, 0 for stopwords.
        positive_weight: of tokens in the window.
        loss_weight: of the idea loss in the sum.
    """

    hidden_ND: Tensor
    weight_VD: Tensor
    bias_V: Tensor
    window_NK: Tensor
    counted_V: Tensor
    positive_weight: float
    loss_weight: float


def fused_loss(
    hidden_ND: Tensor, head_VD: Tensor, target_N: Tensor, gate: GateSetting | None = None, ideas: Ideas | None = None
) -> dict[str, Tensor]:
    """Return "loss" and its parts, in nats: cross-entropy of the gated logits (Eq. 6), idea loss (Eq. 7).

    Only the weighted sum of the parts carries a gradient. Under autocast the products run in its dtype.

    Args:
        hidden_ND: final hidden states.
        head_VD: output embedding.
        target_N: next tokens.
        gate, ideas: both, or None for a model without an idea head.
    """
    if ideas is None:
        loss, token, _ = _FusedHeads.apply(hidden_ND, head_VD, None, None, None, target_N, None, None, None)
        return {"loss": loss, "token_loss": token}
    loss, token, idea = _FusedHeads.apply(
        hidden_ND, head_VD, ideas.hidden_ND, ideas.weight_VD, ideas.bias_V, target_N, ideas.window_NK, gate, ideas
    )
    return {"loss": loss, "token_loss": token, "idea_loss": idea}


class _FusedHeads(torch.autograd.Function):
    """Computes gradients together with the values; backward only scales them."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        head_VD: Tensor,
        idea_ND: Tensor | None,
        idea_VD: Tensor | None,
        bias_V: Tensor | None,
        target_N: Tensor,
        window_NK: Tensor | None,
        gate: GateSetting | None,
        ideas: Ideas | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        device = hidden_ND.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden_ND.dtype
        with torch.autocast(device, enabled=False):
            token = _Head(hidden_ND, head_VD, None, dtype, ctx.needs_input_grad[:2])
            idea = None
            if idea_ND is not None and idea_VD is not None:
                idea = _Head(idea_ND, idea_VD, bias_V, dtype, ctx.needs_input_grad[2:5])
            token_sum, idea_sum = _sweep(token, idea, target_N, window_NK, gate, ideas)
        ctx.count = count = len(target_N)
        token_loss, idea_loss = token_sum / count, idea_sum / count
        loss = token_loss if ideas is None else token_loss + ideas.loss_weight * idea_loss
        ctx.gradients = token.gradients()[:2] + (idea.gradients() if idea else (None, None, None))
        loss, token_loss, idea_loss = (value.to(hidden_ND.dtype) for value in (loss, token_loss.clone(), idea_loss))
        ctx.mark_non_differentiable(token_loss, idea_loss)
        return loss, token_loss, idea_loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_unused: Any) -> tuple[Tensor | None, ...]:
        # gradients of the sum, not the mean: small numbers times 1 / N would be lost in half precision
        scale = grad / ctx.count
        scaled = [None if value is None else value.mul_(scale.to(value.dtype)) for value in ctx.gradients]
        ctx.gradients = None
        return (*scaled, None, None, None, None)


class _Head:
    """A linear layer over all positions, processed chunk by chunk, and its gradients so far."""

    def __init__(
        self, hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, dtype: torch.dtype, needs: tuple[bool, ...]
    ) -> None:
        self.hidden_ND, self.weight_VD, self.bias_V = hidden_ND.to(dtype), weight_VD.to(dtype), bias_V
        self.grad_hidden = torch.empty_like(hidden_ND) if needs[0] else None
        self.grad_weight = torch.zeros_like(weight_VD) if needs[1] else None
        self.grad_bias = torch.zeros_like(bias_V) if bias_V is not None and needs[2] else None

    def logits(self, rows: slice) -> Tensor:
        """Return [n, V] without the bias."""
        return self.hidden_ND[rows] @ self.weight_VD.T

    def gather(self, rows: slice, grad_nV: Tensor) -> None:
        """Add a chunk's gradients of hidden states, weight and bias."""
        if self.grad_hidden is not None:
            self.grad_hidden[rows] = grad_nV @ self.weight_VD
        if self.grad_weight is not None:
            if self.grad_weight.dtype == grad_nV.dtype:
                self.grad_weight.addmm_(grad_nV.T, self.hidden_ND[rows])
            else:
                self.grad_weight += grad_nV.T @ self.hidden_ND[rows]
        if self.grad_bias is not None:
            self.grad_bias += grad_nV.sum(0, dtype=self.grad_bias.dtype)

    def gradients(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        return self.grad_hidden, self.grad_weight, self.grad_bias


def _sweep(
    token: _Head,
    idea: _Head | None,
    target_N: Tensor,
    window_NK: Tensor | None,
    gate: GateSetting | None,
    ideas: Ideas | None,
) -> tuple[Tensor, Tensor]:
    """Return both losses summed over positions (in float64 where available); the heads accumulate the gradients."""
    count, size = len(target_N), len(token.weight_VD)
    rows = max(LEAST_ROWS, CHUNK // (size * token.hidden_ND.element_size()))
    in_cache = max(1, BLOCK // size) if target_N.device.type == "cpu" else rows
    # Apple's GPUs have no float64
    exact = torch.float32 if target_N.device.type == "mps" else torch.float64
    token_sum, idea_sum = (torch.zeros((), dtype=exact, device=target_N.device) for _ in range(2))
    working = _working(token.hidden_ND[:1]).dtype
    weight_V = None if ideas is None else (ideas.counted_V * ideas.loss_weight).to(working)
    base_V = None if gate is None or gate.base_V is None else gate.base_V.to(working)
    neutral_S = None if gate is None or gate.neutral_V is None else gate.neutral_V.nonzero().squeeze(1)
    for first in range(0, count, rows):
        chunk = slice(first, min(first + rows, count))
        z_nV = token.logits(chunk)
        y_nV = None if idea is None else idea.logits(chunk)
        for start in range(0, len(z_nV), in_cache):
            block = slice(start, min(start + in_cache, len(z_nV)))
            place = slice(first + block.start, first + block.stop)
            z = _working(z_nV[block])
            if y_nV is None:
                token_sum += _token_value_and_gradient(z, target_N[place])
            else:
                assert idea is not None and idea.bias_V is not None and window_NK is not None
                assert gate is not None and ideas is not None and weight_V is not None
                y = _working(y_nV[block]).add_(idea.bias_V)
                idea_sum += _idea_value(y, window_NK[place], ideas)
                p = y.sigmoid_()
                log_p, slope = _gate(p, gate, base_V) if gate.alpha > 0 else (None, None)
                _idea_gradient(p, window_NK[place], ideas, weight_V)
                if log_p is None or slope is None:
                    token_sum += _token_value_and_gradient(z, target_N[place])
                elif neutral_S is None or len(neutral_S) == 0:
                    z.add_(log_p, alpha=gate.alpha)
                    token_sum += _token_value_and_gradient(z, target_N[place])
                    p.addcmul_(slope, z)
                else:
                    gated = log_p.mul_(gate.alpha).add_(z)
                    token_sum += _neutral_value_and_gradients(z, gated, target_N[place], neutral_S)
                    p.addcmul_(slope, gated)
                _put_back(p, y_nV, block)
            _put_back(z, z_nV, block)
        token.gather(chunk, z_nV)
        if idea is not None and y_nV is not None:
            idea.gather(chunk, y_nV)
    return token_sum, idea_sum


def _working(block: Tensor) -> Tensor:
    """Return the block itself, or a float32 copy if it is in half precision."""
    return block.float() if block.dtype in (torch.bfloat16, torch.float16) else block


def _put_back(worked: Tensor, whole_nV: Tensor, block: slice) -> None:
    if worked.dtype != whole_nV.dtype:
        whole_nV[block] = worked


def _gate(p: Tensor, gate: GateSetting, base_V: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the gate before scaling, clamped, and the scaled gate's derivative with respect to the idea logits."""
    q = p + gate.epsilon
    # d log(p + e) / dy = p (1 - p) / (p + e), 0 where a clamp is active
    slope = torch.addcmul(p, p, p, value=-1.0).div_(q)
    log_p = q.log_()
    if base_V is not None:
        log_p.sub_(base_V)
    slope = torch.ops.aten.hardtanh_backward(slope, log_p, gate.floor, gate.ceiling)
    return log_p.clamp_(min=gate.floor, max=gate.ceiling), slope.mul_(gate.alpha)


def _idea_value(y: Tensor, window: Tensor, ideas: Ideas) -> Tensor:
    """Return the idea loss summed over the rows of a block."""
    found = y.gather(1, window.clamp(min=0))
    correction = ideas.positive_weight * F.softplus(-found) - F.softplus(found)
    correction = correction.masked_fill_(window < 0, 0.0)
    return (F.softplus(y) @ ideas.counted_V.to(y.dtype)).sum() + correction.sum()


def _idea_gradient(p: Tensor, window: Tensor, ideas: Ideas, weight_V: Tensor) -> None:
    """Turn p into the gradient of the weighted idea loss, in place; ``weight_V`` is the weight where a token counts."""
    ids = window.clamp(min=0)
    found = p.gather(1, ids)
    correction = (-ideas.positive_weight * (1 - found) - found).masked_fill_(window < 0, 0.0)
    p.mul_(weight_V).scatter_add_(1, ids, correction.mul_(ideas.loss_weight))


def _token_value_and_gradient(z: Tensor, target: Tensor) -> Tensor:
    """Return the cross-entropy summed over the rows of a block; z becomes its gradient."""
    z.sub_(z.amax(1, keepdim=True))
    reached = z.gather(1, target.unsqueeze(1))
    total = z.exp_().sum(1, keepdim=True)
    value = (total.log() - reached).sum()
    z.div_(total).scatter_add_(1, target.unsqueeze(1), torch.full_like(reached, -1.0))
    return value


def _neutral_value_and_gradients(z: Tensor, gated: Tensor, target: Tensor, neutral_S: Tensor) -> Tensor:
    """Return the cross-entropy of the stopword-neutral scores, summed over the rows of a block.

    With A, A' the sums of exp(z), exp(z + g) over all tokens but stopwords, and B that of exp(z) over stopwords, a
    stopword t has probability exp(z_t) / (A + B), as without the gate, and any other exp(z_t + g_t) / A' * A / (A + B).

    Args:
        z: token logits; they become the gradient with respect to them.
        gated: z + g; becomes the gradient with respect to the gate g.
        target: next tokens.
        neutral_S: ids of the stopwords, at least one.
    """
    place = target.unsqueeze(1)
    kept = torch.isin(place, neutral_S)
    reached = torch.where(kept, z.gather(1, place), gated.gather(1, place))
    stop = z.index_select(1, neutral_S)
    log_stop, log_other, log_gated = stop.logsumexp(1, True), _share(z, neutral_S), _share(gated, neutral_S)
    log_all = torch.logaddexp(log_stop, log_other)
    value = (log_all - reached + (log_gated - log_other).masked_fill_(kept, 0.0)).sum()
    # of the gate: shares among the others minus the target; nothing where a stopword is the target
    gated.scatter_add_(1, place, torch.full_like(reached, -1.0)).mul_(~kept)
    # of the logits: the same, and through A / (A + B)
    odds = log_other - log_stop
    z.mul_(torch.where(kept, odds.sigmoid(), -(-odds).sigmoid())).add_(gated)
    z.index_copy_(1, neutral_S, stop.sub_(log_all).exp_())
    z.scatter_add_(1, place, -kept.to(z.dtype))
    return value


def _share(scores: Tensor, left_out: Tensor) -> Tensor:
    """Turn scores [n, V] into their softmax without some tokens, which get 0; return their log-sum-exp [n, 1]."""
    top = scores.index_fill_(1, left_out, -math.inf).amax(1, keepdim=True)
    total = scores.sub_(top).exp_().sum(1, keepdim=True)
    scores.div_(total)
    return top.add_(total.log_())

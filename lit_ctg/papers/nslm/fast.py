"""Both softmaxes of a training step in one pass over the logits, with a hand-written gradient.

The plain form is ``OutputHeads.plain``: the logits of all words, a softmax over them (NNLM, Eq. 2), and one over the
tags and the words that are in no class in their context (first factor of Eq. 3 and 4). Autograd reads and writes the
[N, V] matrix a dozen times for that. Here it is computed in blocks small enough for the processor's cache and turned
into the gradient of the summed cost; the two matrix products of the gradient follow in ``backward``.

Shape letters: N positions, D hidden size, V words, C classes, M words in some class in some state.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

BLOCK = 256  # number of positions whose logits fit into the cache
DEVICE_BLOCK = 2048  # on an accelerator, where each operation costs a launch


class BothSoftmaxes(torch.autograd.Function):
    """Summed negative log-probabilities of NNLM and tag: (their sum, NNLM's, tag's), () each, in nats.

    Only the sum has a gradient; the parts are for logging.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V1: Tensor,
        tags_NC: Tensor,
        target_N: Tensor,
        class_N: Tensor,
        member_M: Tensor,
        inside_NM: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the costs.

        Args:
            weight_VD, bias_V1: rows and biases of all words.
            tags_NC: logits of the tags in float32; -inf for a class that does not exist in a state.
            class_N: their classes in their context, -1 for none.
            member_M: words that are in some class in some state, without repetition.
            inside_NM: whether each of them is in a class in the target's context (bool).
        """
        kind = hidden_ND.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else torch.float32
        with torch.autocast(kind, enabled=False):
            hidden_ND, weight_VD = hidden_ND.to(dtype), weight_VD.to(dtype)
            # the logits, then their gradient
            grad_NV = hidden_ND.new_empty(len(hidden_ND), len(weight_VD))
            grad_tags_NC, bias_V = torch.empty_like(tags_NC), bias_V1.squeeze(1)
            grad_bias_V = torch.zeros_like(bias_V)
            nnlm, tag = bias_V.new_zeros(()), bias_V.new_zeros(())
            size = BLOCK if kind == "cpu" else DEVICE_BLOCK
            for start in range(0, len(hidden_ND), size):
                part = slice(start, start + size)
                logits_XV = _logits(hidden_ND[part], weight_VD, bias_V)
                costs = _costs(logits_XV, tags_NC[part], target_N[part], class_N[part], member_M, inside_NM[part])
                nnlm, tag = nnlm + costs[0], tag + costs[1]
                grad_NV[part], grad_tags_NC[part] = logits_XV, costs[2]
                grad_bias_V.addmv_(logits_XV.mT, logits_XV.new_ones(len(logits_XV)))
        ctx.save_for_backward(hidden_ND, weight_VD, grad_NV, grad_tags_NC, grad_bias_V)
        ctx.mark_non_differentiable(nnlm, tag)
        return nnlm + tag, nnlm, tag

    @staticmethod
    def backward(ctx: Any, scale: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of states, rows, biases and tags."""
        hidden_ND, weight_VD, grad_NV, grad_tags_NC, grad_bias_V = ctx.saved_tensors
        with torch.autocast(hidden_ND.device.type, enabled=False):
            grad_hidden_ND = (grad_NV @ weight_VD).float() * scale
            # scale the small factor, not the large product
            scaled_ND = (hidden_ND.float() * scale).to(hidden_ND.dtype)
            grad_weight_VD = (grad_NV.mT @ scaled_ND).float()
        grad_bias_V1 = grad_bias_V.unsqueeze(1) * scale
        return grad_hidden_ND, grad_weight_VD, grad_bias_V1, grad_tags_NC * scale, None, None, None, None


def _logits(hidden_XD: Tensor, weight_VD: Tensor, bias_V: Tensor) -> Tensor:
    """Return logits in float32, whatever the precision of the product."""
    if hidden_XD.dtype == torch.float32:
        return torch.addmm(bias_V, hidden_XD, weight_VD.mT)
    return (hidden_XD @ weight_VD.mT).float().add_(bias_V)


def _costs(
    logits_XV: Tensor, tags_XC: Tensor, target_X: Tensor, class_X: Tensor, member_M: Tensor, inside_XM: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return both costs, () each, and the gradient of the tags; the logits become their gradient in place."""
    target_X1, class_X1 = target_X.unsqueeze(1), class_X.unsqueeze(1)
    own_X = logits_XV.gather(1, target_X1).squeeze(1)
    # one maximum for both, so that one exponential serves both
    top_X = torch.maximum(logits_XV.amax(1), tags_XC.amax(1))
    logits_XV.sub_(top_X.unsqueeze(1)).exp_()
    member_XM = logits_XV.index_select(1, member_M)
    free_XM = member_XM.masked_fill(inside_XM, 0.0)
    logits_XV.index_fill_(1, member_M, 0.0)
    outside_X, tag_XC = logits_XV.sum(1), (tags_XC - top_X.unsqueeze(1)).exp()
    # only sums, never differences: a class may have nearly all of the mass
    words_X = outside_X + member_XM.sum(1)
    tagged_X = outside_X + free_XM.sum(1) + tag_XC.sum(1)
    chosen_X = torch.where(class_X >= 0, tags_XC.gather(1, class_X1.clamp(min=0)).squeeze(1), own_X)
    nnlm = (words_X.log() + top_X - own_X).sum()
    tag = (tagged_X.log() + top_X - chosen_X).sum()
    of_words_X1, of_tagged_X1 = words_X.reciprocal().unsqueeze(1), tagged_X.reciprocal().unsqueeze(1)
    logits_XV.mul_(of_words_X1 + of_tagged_X1)
    logits_XV.index_copy_(1, member_M, member_XM * of_words_X1 + free_XM * of_tagged_X1)
    # the target counts for the NNLM, and again for the tag if it is in no class
    plain_X1 = (class_X1 < 0).float()
    logits_XV.scatter_add_(1, target_X1, -1.0 - plain_X1)
    grad_XC = tag_XC * of_tagged_X1
    return nnlm, tag, grad_XC.scatter_add_(1, class_X1.clamp(min=0), plain_X1 - 1.0)

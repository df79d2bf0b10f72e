"""Faster forms of the control-code layers, equal to the plain ones in ``model.py`` (``model.fast``).

A code is constant along its sequence, so [x; c] W + b = x W_x + (c W_c + b), and the code's part is computed once per
sequence instead of once per token.

Shape letters: B sequences, T positions, D input size, C code size, O output size, V vocabulary, N = B * T tokens,
M tokens of a chunk, K = D + B features.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

# tokens whose scores exist at a time, and parts of the vocabulary that are summed in float32
CHUNK = 256
PIECES = 16


def code_linear(x_BTD: Tensor, code_BC: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return [x; c] W + b, [B, T, O].

    Args:
        weight: W transposed, [O, D + C].
        bias: b, [O].
    """
    own, of_code = weight.split([x_BTD.shape[-1], code_BC.shape[-1]], dim=1)
    return F.linear(x_BTD, own).add_(F.linear(code_BC, of_code, bias).unsqueeze(1))


def cross_entropy(
    hidden_BTD: Tensor, code_BC: Tensor | None, weight: Tensor, bias: Tensor, target_BT: Tensor, mask_BT: Tensor
) -> Tensor:
    """Return the mean cross-entropy of softmax([h; c] W + b) over the tokens of the mask, in nats; 0 without tokens.

    The scores of all tokens never exist at the same time.

    Args:
        code_BC: codes; None if the output layer takes none.
        weight, bias: of the output layer, [V, D + C] and [V].
    """
    size, length, dim = hidden_BTD.shape
    own, of_code = weight.split([dim, weight.shape[1] - dim], dim=1)
    bias_BV = bias.expand(size, -1) if code_BC is None else F.linear(code_BC, of_code, bias)
    # the bias of sequence b is the weight of a feature that is 1 only in b
    sequence_NB = torch.eye(size, dtype=hidden_BTD.dtype, device=hidden_BTD.device).repeat_interleave(length, 0)
    states_NK = torch.cat((hidden_BTD.flatten(0, 1), sequence_NB), dim=1)
    weight_VK = torch.cat((own, bias_BV.to(own.dtype).T), dim=1)
    return _LinearCrossEntropy.apply(states_NK, weight_VK, target_BT.flatten(), mask_BT.flatten())


class _LinearCrossEntropy(torch.autograd.Function):
    """Mean cross-entropy of softmax(W h); the gradients are computed chunk by chunk in the forward pass.

    With E = exp(logits - max), n its sums over the vocabulary, r = mask / (count * n): the gradient of the logits is
    E r - onehot * mask / count. The factors r are applied to the small operands of the products, so there are only four
    passes over the scores. They are stored as [V, M], which makes the products faster.
    """

    @staticmethod
    def forward(ctx: Any, states_NK: Tensor, weight_VK: Tensor, target_N: Tensor, mask_N: Tensor) -> Tensor:
        device = states_NK.device.type
        product = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight_VK.dtype
        wide = torch.promote_types(weight_VK.dtype, torch.float32)
        share_N = mask_N.to(wide) / mask_N.sum().clamp(min=1)
        with torch.autocast(device, enabled=False):
            states, weight = states_NK.to(product), weight_VK.to(product)
            loss = torch.zeros((), dtype=wide, device=states.device)
            grad_states = torch.empty_like(states, dtype=wide)
            grad_weight = torch.zeros_like(weight, dtype=wide)
            for start in range(0, len(states), CHUNK):
                part = slice(start, start + CHUNK)
                states_MK, target_M, share_M = states[part], target_N[part], share_N[part]
                mass_VM = weight @ states_MK.T
                largest_M = mass_VM.amax(0)
                own_M = mass_VM.gather(0, target_M.unsqueeze(0)).squeeze(0).sub_(largest_M).to(wide)
                mass_VM.sub_(largest_M).exp_()
                # summed in its own dtype, part by part: converting first would cost a copy
                sum_M = torch.stack([piece_VM.sum(0) for piece_VM in mass_VM.chunk(PIECES)]).to(wide).sum(0)
                loss += ((sum_M.log() - own_M) * share_M).sum()
                ratio_M1, share_M1 = (share_M / sum_M).unsqueeze(1), share_M.unsqueeze(1)
                grad_states[part] = (mass_VM.T @ weight).to(wide) * ratio_M1 - weight[target_M].to(wide) * share_M1
                grad_weight += mass_VM @ (states_MK * ratio_M1).to(product)
                grad_weight.index_add_(0, target_M, -(states_MK * share_M1).to(wide))
        ctx.save_for_backward(grad_states, grad_weight)
        ctx.types = states_NK.dtype, weight_VK.dtype
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of states and weight."""
        states, weight = ((grad * value).to(kind) for value, kind in zip(ctx.saved_tensors, ctx.types, strict=True))
        return states, weight, None, None

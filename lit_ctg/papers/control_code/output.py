"""Output layer on [h; c] and its cross-entropy, in which the scores of all tokens never exist at once.

[h; c] W + b = h W_h + (c W_c + b): what the code adds is a bias of the sequence, so it costs nothing a token.

Shape letters: B sequences, T positions, D hidden size, C code size, V vocabulary, M counted tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lit_ctg.papers.control_code.code_linear import CodeLinear


class CodeOutput(CodeLinear):
    """The untied output layer, sec. 3.2 and 3.3."""

    def biases(self, code_BC: Tensor | None, sequences: int) -> Tensor:
        """Return the bias of every sequence, [B, V]."""
        term_BV = self.term(code_BC)
        return self.bias.expand(sequences, -1) if term_BV is None else term_BV

    def scores(self, hidden_BTD: Tensor, code_BC: Tensor | None) -> Tensor:
        """Return the logits [B, T, V], float32 or wider."""
        bias_BV = self.biases(code_BC, len(hidden_BTD))
        return torch.stack(
            [_logits(hidden_TD, self.weight, bias_V) for hidden_TD, bias_V in zip(hidden_BTD, bias_BV, strict=True)]
        )

    def loss(self, hidden_BTD: Tensor, code_BC: Tensor | None, target_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """Return the mean cross-entropy in nats over the tokens of the mask (0 where there are none)."""
        size, length, _ = hidden_BTD.shape
        bias_BV = self.biases(code_BC, size)
        # the bias of sequence b is the weight of a feature that is 1 in b alone
        own_NB = torch.eye(size, dtype=hidden_BTD.dtype, device=hidden_BTD.device).repeat_interleave(length, 0)
        states_NK = torch.cat((hidden_BTD.flatten(0, 1), own_NB), dim=1)
        weight_VK = torch.cat((self.weight, bias_BV.to(self.weight.dtype).T), dim=1)
        return _LinearCrossEntropy.apply(states_NK, weight_VK, target_BT.flatten(), mask_BT.flatten())


def _logits(hidden_TD: Tensor, weight_VD: Tensor, bias_V: Tensor) -> Tensor:
    """Logits of one sequence: the product in the number type of autocast, the rest in float32 or wider."""
    wide = torch.promote_types(bias_V.dtype, torch.float32)
    return torch.addmm(bias_V.to(weight_VD.dtype), hidden_TD.to(weight_VD.dtype), weight_VD.T).to(wide)


# tokens whose scores exist at a time, and parts of the vocabulary whose sums are added up in float32
CHUNK = 256
PIECES = 16


class _LinearCrossEntropy(torch.autograd.Function):
    """Mean cross-entropy of softmax(W h); the gradients are made chunk by chunk in the forward pass.

    With E = exp(logits - max), n its sums over the vocabulary, r = mask / (count * n): the gradient of the logits is
    E r - onehot * mask / count. The factors r go to the small sides of the products, so the scores are passed over four
    times only. They lie as [V, M]: the products are quicker that way round.
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
                # summed in its own number type, part by part: widening first costs a copy
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

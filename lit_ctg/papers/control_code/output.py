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
        bias_BV = self.biases(code_BC, len(hidden_BTD))
        return _LinearCrossEntropy.apply(hidden_BTD, self.weight, bias_BV, target_BT, mask_BT)


def _logits(hidden_TD: Tensor, weight_VD: Tensor, bias_V: Tensor) -> Tensor:
    """Logits of one sequence: the product in the number type of autocast, the rest in float32 or wider."""
    wide = torch.promote_types(bias_V.dtype, torch.float32)
    return torch.addmm(bias_V.to(weight_VD.dtype), hidden_TD.to(weight_VD.dtype), weight_VD.T).to(wide)


class _LinearCrossEntropy(torch.autograd.Function):
    """Mean cross-entropy of softmax(h W^T + b); the gradients are made sequence by sequence in the forward pass.

    With E = exp(logits - max), n its row sums, r = mask / (count * n): the gradient of the logits is
    r E - onehot * mask / count.
    The factors r go to the small sides of the products, so [T, V] is passed over four times only.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden_BTD: Tensor, weight_VD: Tensor, bias_BV: Tensor, target_BT: Tensor, mask_BT: Tensor
    ) -> Tensor:
        device = hidden_BTD.device.type
        product = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight_VD.dtype
        wide = torch.promote_types(weight_VD.dtype, torch.float32)
        share_BT = mask_BT.to(wide) / mask_BT.sum().clamp(min=1)
        with torch.autocast(device, enabled=False):
            hidden, weight, bias = (part.to(product) for part in (hidden_BTD, weight_VD, bias_BV))
            loss = torch.zeros((), dtype=wide, device=hidden.device)
            grad_hidden, grad_bias = torch.empty_like(hidden, dtype=wide), torch.empty_like(bias, dtype=wide)
            grad_weight = torch.zeros_like(weight_VD, dtype=wide)
            for row, (target_T, share_T) in enumerate(zip(target_BT, share_BT, strict=True)):
                states_TD = hidden[row]
                mass_TV = torch.addmm(bias[row], states_TD, weight.T)
                largest_T1 = mass_TV.amax(1, keepdim=True)
                own_T = mass_TV.gather(1, target_T.unsqueeze(1)).sub_(largest_T1).squeeze(1).to(wide)
                mass_TV.sub_(largest_T1).exp_()
                sum_T = mass_TV.sum(1, dtype=wide)
                loss += ((sum_T.log() - own_T) * share_T).sum()
                ratio_T1 = (share_T / sum_T).unsqueeze(1)
                share_T1 = share_T.unsqueeze(1)
                grad_hidden[row] = (mass_TV @ weight).to(wide) * ratio_T1 - weight[target_T].to(wide) * share_T1
                grad_weight += mass_TV.T @ (states_TD * ratio_T1).to(product)
                grad_weight.index_add_(0, target_T, -(states_TD * share_T1).to(wide))
                grad_bias[row] = (mass_TV.T @ ratio_T1.to(product)).squeeze(1)
                grad_bias[row].index_add_(0, target_T, -share_T)
        ctx.save_for_backward(grad_hidden, grad_weight, grad_bias)
        ctx.types = hidden_BTD.dtype, weight_VD.dtype, bias_BV.dtype
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of hidden states, weight and biases."""
        made = zip(ctx.saved_tensors, ctx.types, strict=True)
        hidden, weight, bias = ((grad * value).to(kind) for value, kind in made)
        return hidden, weight, bias, None, None

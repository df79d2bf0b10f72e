"""Output layer on [h; c] and its cross-entropy, in which the scores of all tokens never exist at once.

[h; c] W + b = h W_h + (c W_c + b): what the code adds is a bias of the sequence, so it costs nothing a token.

Shape letters: B sequences, T positions, D hidden size, C code size, V vocabulary, M counted tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lit_ctg.backbone.code_linear import CodeLinear


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
    """Mean cross-entropy of softmax(h W^T + b); the gradients are made sequence by sequence in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any, hidden_BTD: Tensor, weight_VD: Tensor, bias_BV: Tensor, target_BT: Tensor, mask_BT: Tensor
    ) -> Tensor:
        device = hidden_BTD.device.type
        product = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight_VD.dtype
        wide = torch.promote_types(weight_VD.dtype, torch.float32)
        count = mask_BT.sum().clamp(min=1)
        with torch.autocast(device, enabled=False):
            hidden, weight = hidden_BTD.to(product), weight_VD.to(product)
            loss = torch.zeros((), dtype=wide, device=hidden.device)
            grad_hidden, grad_bias_BV = torch.empty_like(hidden), torch.empty_like(bias_BV, dtype=wide)
            grad_weight = torch.zeros_like(weight_VD, dtype=wide)
            for row, target_T in enumerate(target_BT):
                share_TV = _logits(hidden[row], weight, bias_BV[row]).log_softmax(-1)
                mask_T1 = mask_BT[row].unsqueeze(1).to(wide)
                own_T1 = target_T.unsqueeze(1)
                loss -= (share_TV.gather(1, own_T1) * mask_T1).sum()
                # d loss / d logits = softmax - onehot, on counted tokens
                share_TV.exp_().scatter_add_(1, own_T1, torch.full_like(mask_T1, -1.0)).mul_(mask_T1 / count)
                grad_bias_BV[row] = share_TV.sum(0)
                share_TV = share_TV.to(product)
                torch.mm(share_TV, weight, out=grad_hidden[row])
                grad_weight += share_TV.T @ hidden[row]
        ctx.save_for_backward(grad_hidden, grad_weight, grad_bias_BV)
        ctx.types = hidden_BTD.dtype, weight_VD.dtype, bias_BV.dtype
        return loss / count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of hidden states, weight and biases."""
        made = zip(ctx.saved_tensors, ctx.types, strict=True)
        hidden, weight, bias = ((grad * value).to(kind) for value, kind in made)
        return hidden, weight, bias, None, None

"""Linear layers on [x; c] where c is one vector a sequence: c W_c is computed once a sequence, not once a token.

Shape letters: B sequences, T positions, D input size, C code size, O output size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CODE_WEIGHT = "code_weight"


class CodeLinear(nn.Module):
    """y = [x; c] W + b, computed as x W_x + (c W_c + b).

    With ``code_dim=0`` it is ``nn.Linear``, without the word "code" in its state. ``load_state_dict`` also takes the
    concatenation form: one ``weight`` [O, D + C].
    """

    def __init__(self, in_features: int, out_features: int, code_dim: int) -> None:
        """Start from the values of ``nn.Linear(in_features + code_dim, out_features)``."""
        super().__init__()
        self.in_features, self.code_dim = in_features, code_dim
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        if code_dim:
            self.code_weight = nn.Parameter(torch.empty(out_features, code_dim))
        self.bias = nn.Parameter(torch.empty(out_features))
        self.reset(1.0 / math.sqrt(in_features + code_dim))
        nn.init.uniform_(self.bias, -self.bound, self.bound)

    def reset(self, bound: float) -> None:
        """Draw the weights uniformly from [-bound, bound]."""
        self.bound = bound
        nn.init.uniform_(self.weight, -bound, bound)
        if self.code_dim:
            nn.init.uniform_(self.code_weight, -bound, bound)

    def scale_code_weight(self, factor: float) -> None:
        """Multiply the weight of the code; nothing to do in a layer without."""
        if self.code_dim:
            with torch.no_grad():
                self.code_weight.mul_(factor)

    def term(self, code_BC: Tensor | None) -> Tensor | None:
        """Return c W_c + b, [B, O]: all that the code adds; None for a layer without code."""
        return F.linear(code_BC, self.code_weight, self.bias) if self.code_dim and code_BC is not None else None

    def forward(self, x: Tensor, term_BO: Tensor | None) -> Tensor:
        """Return [..., O] of x: [B, T, D], [B, D], or [B * T, D] with the sequences one behind the other."""
        if term_BO is None:
            return F.linear(x, self.weight, self.bias)
        y_BTO = F.linear(x, self.weight).view(len(term_BO), -1, self.weight.shape[0])
        return y_BTO.add_(term_BO.unsqueeze(1)).view(*x.shape[:-1], -1)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *arguments: Any) -> None:
        whole = state_dict.get(f"{prefix}weight")
        joined = self.code_dim and whole is not None and whole.shape[1] == self.in_features + self.code_dim
        if joined and prefix + CODE_WEIGHT not in state_dict:
            # the caller's dict stays as it is
            state_dict[f"{prefix}weight"], state_dict[prefix + CODE_WEIGHT] = whole.split(
                [self.in_features, self.code_dim], dim=1
            )
        super()._load_from_state_dict(state_dict, prefix, *arguments)


def concatenated(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state with every pair of ``weight`` and ``code_weight`` as the one weight of [x; c]."""
    joined = {name: value for name, value in state_dict.items() if not name.endswith(CODE_WEIGHT)}
    for name, value in state_dict.items():
        if name.endswith(CODE_WEIGHT):
            weight = name.removesuffix(CODE_WEIGHT) + "weight"
            joined[weight] = torch.cat((state_dict[weight], value), dim=1)
    return joined

"""Layers of GRU cells that may take a vector which is constant along a sequence; no Python loop over time.

Source: control-code paper, sec. 3.2: h_t^n = RU([h_t^{n-1}; c], h_{t-1}^n).
Shape letters: B sequences, T positions, D hidden size, C code size.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class CodeGRUBackbone(nn.Module):
    """torch's own GRU, layer by layer; the code is part of the input of the layers that take it."""

    def __init__(
        self,
        *,
        dim: int,
        layers: int,
        dropout: float,
        code_dim: int = 0,
        code_layers: Collection[int] = (),
    ) -> None:
        """Make the layers.

        Args:
            dim: size D of the embedded input and of every hidden state.
            layers: number of layers.
            dropout: probability, on the output of every layer but the last.
            code_dim: size C of the code.
            code_layers: layers (from 1) that take the code.
        """
        super().__init__()
        self.dim, self.dropout, self.causal = dim, dropout, True
        self.coded = [bool(code_dim) and number in code_layers for number in range(1, layers + 1)]
        sizes = [dim + code_dim * coded for coded in self.coded]
        self.layers = nn.ModuleList([nn.GRU(size, dim, batch_first=True) for size in sizes])

    def scale_code_weights(self, factor: float) -> None:
        """Multiply the weights of the code in all layers that take it."""
        with torch.no_grad():
            for layer in self.layers:
                layer.weight_ih_l0[:, self.dim :].mul_(factor)

    def terms(self, code_BC: Tensor | None) -> list[Tensor | None]:
        """Return the code for the layers that take it, None for the others."""
        return [code_BC if coded else None for coded in self.coded]

    def forward(self, hidden_BTD: Tensor, terms: list[Tensor | None], causal: bool = True) -> Tensor:
        """Return the last hidden states [B, T, D]; a GRU is causal whatever ``causal`` says."""
        return self._run(hidden_BTD, terms, None)[0]

    def step(
        self, hidden_BD: Tensor, terms: list[Tensor | None], cache: list[Tensor] | None
    ) -> tuple[Tensor, list[Tensor]]:
        """Run the newest position on the carried states; equal to ``forward``'s last column."""
        hidden_B1D, states = self._run(hidden_BD.unsqueeze(1), terms, cache)
        return hidden_B1D.squeeze(1), states

    def _run(
        self, hidden_BTD: Tensor, terms: list[Tensor | None], states: list[Tensor] | None
    ) -> tuple[Tensor, list[Tensor]]:
        carried = []
        for number, (layer, code_BC) in enumerate(zip(self.layers, terms, strict=True)):
            if code_BC is not None:
                along_BTC = code_BC.unsqueeze(1).expand(-1, hidden_BTD.shape[1], -1)
                hidden_BTD = torch.cat((hidden_BTD, along_BTC.to(hidden_BTD.dtype)), dim=2)
            hidden_BTD, state = layer(hidden_BTD, None if states is None else states[number])
            carried.append(state)
            if number + 1 < len(self.layers):
                hidden_BTD = F.dropout(hidden_BTD, self.dropout, self.training)
        return hidden_BTD, carried

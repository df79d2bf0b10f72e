"""LSTM from embedded inputs to hidden states whose state is carried from one stretch of text to the next.

Shape letters: B streams, T positions, D hidden size, L layers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

# hidden and cell state, [L, B, D] each
State = tuple[Tensor, Tensor]


class RecurrentBackbone(nn.Module):
    """Regularised LSTM of Zaremba et al. (2014): dropout on non-recurrent connections only, input and output included.

    Args:
        dim: size D of inputs, states and outputs.
        layers: number of layers.
        dropout: probability, in front of every layer and behind the last.
        init_range: weights and biases start uniform in [-init_range, init_range].

    Raises:
        ValueError: a size below 1, or a dropout outside [0, 1).
    """

    causal = True

    def __init__(self, *, dim: int, layers: int, dropout: float, init_range: float) -> None:
        super().__init__()
        if dim < 1 or layers < 1:
            raise ValueError(f"dim={dim} and layers={layers} must be at least 1")
        if not 0.0 <= dropout < 1.0:
            raise ValueError(f"dropout={dropout}: choose a probability in [0, 1)")
        self.dim = dim
        self.dropout = nn.Dropout(dropout)
        # torch warns about dropout between the layers of a single one
        self.lstm = nn.LSTM(dim, dim, layers, dropout=dropout if layers > 1 else 0.0, batch_first=True)
        for parameter in self.lstm.parameters():
            nn.init.uniform_(parameter, -init_range, init_range)

    def forward(self, embedded_BTD: Tensor) -> Tensor:
        """Return hidden states [B, T, D] of texts that begin here (zero state)."""
        return self.run(embedded_BTD, None)[0]

    def run(self, embedded_BTD: Tensor, state: State | None) -> tuple[Tensor, State]:
        """Return hidden states [B, T, D] and the state after the last position.

        Args:
            embedded_BTD: embedded inputs.
            state: what the stretch before ended in; None begins anew.
        """
        hidden_BTD, state = self.lstm(self.dropout(embedded_BTD), state)
        return self.dropout(hidden_BTD), state

    def step(self, embedded_BD: Tensor, cache: State | None) -> tuple[Tensor, State]:
        """Run one position (generation); equal to the last column of ``forward`` on the whole prefix."""
        hidden_B1D, state = self.run(embedded_BD.unsqueeze(1), cache)
        return hidden_B1D.squeeze(1), state


def forget(state: State, reset_B: Tensor) -> State:
    """Return the state with the streams where ``reset_B`` holds set to zero, cut off from the graph."""
    keep_B1 = (~reset_B).unsqueeze(-1)
    hidden, cell = (torch.where(keep_B1, part.detach(), 0.0) for part in state)
    return hidden, cell

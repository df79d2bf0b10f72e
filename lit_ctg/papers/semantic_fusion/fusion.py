"""Early gated fusion of token embeddings and features (Eq. 2-4), and the auxiliary head (sec. 2).

Shape letters: N positions, D hidden size, F features.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def fuse(embedding_ND: Tensor, projected_ND: Tensor, gate_ND: Tensor | None) -> Tensor:
    """Eq. 4: h0 = e + u + g * u; without a gate (ablation) h0 = e + u."""
    fused_ND = embedding_ND + projected_ND
    return fused_ND if gate_ND is None else fused_ND + gate_ND * projected_ND


class GatedFusion(nn.Module):
    """u = W_s s (Eq. 2), g = sigmoid(W_g [e ; s]) (Eq. 3), h0 = e + u + g * u (Eq. 4).

    Both maps have biases, as the authors' have.

    Args:
        dim: D.
        features: F.
        gate: False leaves Eq. 3 out.
    """

    def __init__(self, dim: int, features: int, gate: bool) -> None:
        super().__init__()
        self.project = nn.Linear(features, dim)
        self.gate = nn.Linear(dim + features, dim) if gate else None

    def forward(self, embedding_ND: Tensor, features_NF: Tensor) -> Tensor:
        """Return h0 [.., D]."""
        gate_ND = None
        if self.gate is not None:
            gate_ND = torch.sigmoid(self.gate(torch.cat([embedding_ND, features_NF], dim=-1)))
        return fuse(embedding_ND, self.project(features_NF), gate_ND)


def auxiliary_head(dim: int, features: int) -> nn.Sequential:
    """Linear(D, max(64, 2F)), ReLU, Linear(., F); its sigmoid predicts the features."""
    width = max(64, 2 * features)
    return nn.Sequential(nn.Linear(dim, width), nn.ReLU(), nn.Linear(width, features))

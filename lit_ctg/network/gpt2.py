"""GPT-2's decoder stack (Radford et al. 2019), from embedded tokens to hidden states.

Learned positions, dropout, pre-norm blocks with GELU (tanh form) and a final norm. Embedding and output head belong to
the model. Parameters are named as in Hugging Face's ``GPT2Model``; ``from_hugging_face`` reads its weights.

Shape letters: B rows, T positions, t positions so far, D hidden size, H heads, E = D / H.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lit_ctg.errors import UserError
from lit_ctg.limits import Count, Dropout, checked
from lit_ctg.network.backbone import ModuleListOf
from lit_ctg.network.dropout import dropout, dropout_add

# keys and values so far, [B, H, t, E] each: of one layer, of all layers
KeysValues = tuple[Tensor, Tensor]
Cache = list[KeysValues]

INITIAL_STD = 0.02  # of GPT-2's initial weights


@checked
class GPT2Backbone(nn.Module):
    """Causal stack; ``dim`` is D and ``context`` the maximum number of positions."""

    causal = True

    def __init__(
        self,
        *,
        dim: Count,
        layers: Count,
        heads: Count,
        context: Count,
        dropout: Dropout,
        attention_dropout: Dropout | None = None,
        branch_dropout: Dropout | None = None,
        feedforward_dim: Count | None = None,
    ) -> None:
        """Build the layers.

        Args:
            dim: hidden size D.
            heads: attention heads; must divide ``dim``.
            context: number of positions with a vector.
            dropout: probability, on the embedded input, attention weights and both branches of a block.
            attention_dropout: that on attention weights; ``dropout`` by default. 0 is several times faster on a CPU.
            branch_dropout: that on both branches; ``dropout`` by default.
            feedforward_dim: inner size of the feed-forward parts; 4 * ``dim`` by default.

        Raises:
            ValueError: sizes that do not fit.
        """
        super().__init__()
        if dim % heads:
            raise ValueError(f"dim={dim} is not a multiple of heads={heads}")
        attention_dropout = dropout if attention_dropout is None else attention_dropout
        self.branch_dropout = dropout if branch_dropout is None else branch_dropout
        self.dim, self.context, self.dropout = dim, context, dropout
        self.wpe = nn.Embedding(context, dim)
        inner = feedforward_dim or 4 * dim
        self.h = ModuleListOf(
            GPT2Block(dim, heads, inner, self.branch_dropout, attention_dropout) for _ in range(layers)
        )
        self.ln_f = nn.LayerNorm(dim)
        # GPT-2's initial values: N(0, 0.02), residual projections smaller by sqrt(2 * layers)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif "c_proj" in name:
                nn.init.normal_(parameter, std=INITIAL_STD / (2 * layers) ** 0.5)
            elif "ln_" not in name:
                nn.init.normal_(parameter, std=INITIAL_STD)

    def from_hugging_face(self, state: Mapping[str, Tensor]) -> None:
        """Load the weights of a ``GPT2Model`` of the same shape (its ``state_dict``; ``wte`` is left out)."""
        self.load_state_dict({name: _transposed(name, state[name]) for name in self.state_dict()})

    def to_hugging_face(self) -> dict[str, Tensor]:
        """Return the weights as a ``GPT2Model`` of the same shape has them, its ``wte`` left out."""
        return {name: _transposed(name, value).contiguous() for name, value in self.state_dict().items()}

    def sizes(self) -> dict[str, Any]:
        """Return the arguments of a ``GPT2Config`` for the same stack."""
        first = self.h[0]
        return {
            "n_embd": self.dim,
            "n_positions": self.context,
            "n_layer": len(self.h),
            "n_head": first.attn.heads,
            "n_inner": first.mlp.c_fc.out_features,
            "activation_function": "gelu_new",
            "layer_norm_epsilon": self.ln_f.eps,
            "embd_pdrop": self.dropout,
            "resid_pdrop": self.branch_dropout,
            "attn_pdrop": first.attn.dropout,
        }

    def _check(self, length: int) -> None:
        if length > self.context:
            raise UserError(f"backbone: {length} positions, but backbone.context={self.context}: shorten the text")

    def forward(self, embedded_BTD: Tensor) -> Tensor:
        """Return the hidden states [B, T, D] after the final norm; position t sees positions 0 .. t.

        Raises:
            UserError: T is above ``context``.
        """
        length = embedded_BTD.shape[1]
        self._check(length)
        p = self.dropout if self.training else 0.0
        hidden_BTD = dropout(embedded_BTD + self.wpe.weight[:length], p)
        for block in self.h:
            hidden_BTD = block(hidden_BTD)
        return self.ln_f(hidden_BTD)

    def step(self, embedded_BD: Tensor, cache: Cache | None) -> tuple[Tensor, Cache]:
        """Run the newest position of each row on cached keys and values (generation: without dropout).

        Args:
            cache: what the previous step returned; None at the first position. It is not changed.

        Returns:
            Hidden states [B, D], equal to ``forward``'s last column, and the cache for the next step.

        Raises:
            UserError: the position is not below ``context``.
        """
        position = cache[0][0].shape[2] if cache else 0
        self._check(position + 1)
        caches: list[KeysValues | None] = list(cache) if cache else [None] * len(self.h)
        hidden_BD, grown = embedded_BD + self.wpe.weight[position], []
        for block, old in zip(self.h, caches, strict=True):
            hidden_BD, new = block.step(hidden_BD, old)
            grown.append(new)
        return self.ln_f(hidden_BD), grown


def _transposed(name: str, value: Tensor) -> Tensor:
    """Return a weight, transposed if it is a linear layer's: Hugging Face's GPT-2 stores these the other way round."""
    matrices = tuple(f"{layer}.weight" for layer in ("c_attn", "c_proj", "c_fc"))
    return value.T if name.endswith(matrices) else value


class GPT2Block(nn.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x))."""

    def __init__(self, dim: int, heads: int, feedforward_dim: int, dropout: float, attention_dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.ln_1 = nn.LayerNorm(dim)
        self.attn = GPT2Attention(dim, heads, attention_dropout)
        self.ln_2 = nn.LayerNorm(dim)
        self.mlp = GPT2FeedForward(dim, feedforward_dim)

    def forward(self, x_BTD: Tensor) -> Tensor:
        p = self.dropout if self.training else 0.0
        x_BTD = dropout_add(self.attn(self.ln_1(x_BTD)), x_BTD, p)
        return dropout_add(self.mlp(self.ln_2(x_BTD)), x_BTD, p)

    def step(self, x_BD: Tensor, cache: KeysValues | None) -> tuple[Tensor, KeysValues]:
        """Return the next hidden states of the newest position, and the grown cache."""
        attended_BD, cache = self.attn.step(self.ln_1(x_BD), cache)
        x_BD = x_BD + attended_BD
        return x_BD + self.mlp(self.ln_2(x_BD)), cache


class GPT2Attention(nn.Module):
    """Causal self-attention of all heads."""

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.c_attn = nn.Linear(dim, 3 * dim)
        self.c_proj = nn.Linear(dim, dim)

    def _project(self, x_BTD: Tensor) -> tuple[Tensor, ...]:
        """Return queries, keys and values, [B, H, T, E] each."""
        batch, length, _ = x_BTD.shape
        projected = self.c_attn(x_BTD).view(batch, length, 3, self.heads, -1)
        return projected.permute(2, 0, 3, 1, 4).unbind(0)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return the attended states [B, T, D]."""
        query, key, value = self._project(x_BTD)
        p = self.dropout if self.training else 0.0
        context_BHTE = F.scaled_dot_product_attention(query, key, value, dropout_p=p, is_causal=True)
        return self.c_proj(context_BHTE.transpose(1, 2).reshape(x_BTD.shape))

    def step(self, x_BD: Tensor, cache: KeysValues | None) -> tuple[Tensor, KeysValues]:
        """Return the attended state of the newest position, and keys and values with it."""
        query, key, value = self._project(x_BD.unsqueeze(1))
        if cache is not None:
            key, value = torch.cat((cache[0], key), dim=2), torch.cat((cache[1], value), dim=2)
        context_BH1E = F.scaled_dot_product_attention(query, key, value)
        return self.c_proj(context_BH1E.flatten(1)), (key, value)


class GPT2FeedForward(nn.Module):
    """Two layers with GELU between them."""

    def __init__(self, dim: int, feedforward_dim: int) -> None:
        super().__init__()
        self.c_fc = nn.Linear(dim, feedforward_dim)
        self.c_proj = nn.Linear(feedforward_dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))

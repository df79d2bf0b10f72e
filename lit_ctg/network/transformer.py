"""Transformer stack from hidden states to hidden states, fast on batches with padding.

It computes what ``torch.nn.TransformerEncoder`` computes, from the same parameters under the same names, but works
on the real tokens only (``packing.py``): linear layers, norms and dropout never see padding, and attention needs no
padding mask.

Shape letters: B sentences, T positions, N real tokens of the batch, D hidden size, H heads, E = D / H, L length of
the sentences of one group of equal length, G heads times sentences of that group.
"""

from __future__ import annotations

import copy
import math
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from lit_ctg.limits import Count, Dropout, checked
from lit_ctg.network.backbone import ModuleListOf
from lit_ctg.network.dropout import dropout, dropout_add, dropout_mask, relu_dropout
from lit_ctg.network.packing import Packing

# keys and values so far, [B, H, t, E] each: of one layer, of all layers
KeysValues = tuple[Tensor, Tensor]
Cache = list[KeysValues]


class SinusoidalPosition(nn.Module):
    """Position vectors of Vaswani et al. (2017), sec. 3.5: sines in even columns, cosines in odd columns."""

    table_TD: Tensor

    def __init__(self, dim: int, max_length: int = 1024) -> None:
        """Build the table for positions 0 .. max_length - 1; positions beyond raise an IndexError.

        Raises:
            ValueError: an odd ``dim``.
        """
        super().__init__()
        if dim % 2:
            raise ValueError(f"dim={dim} is odd: every sine needs its cosine")
        position = torch.arange(max_length, dtype=torch.float64)[:, None]
        frequency = torch.exp(torch.arange(0, dim, 2, dtype=torch.float64) * (-math.log(10000.0) / dim))
        angle = position * frequency
        table_TD = torch.stack((angle.sin(), angle.cos()), dim=2).flatten(1).to(torch.get_default_dtype())
        self.register_buffer("table_TD", table_TD, persistent=False)

    def forward(self, positions: Tensor) -> Tensor:
        """Return vectors [..., D] of integer positions [...]."""
        return self.table_TD[positions]


@checked
class TransformerBackbone(nn.Module):
    """Layers of self-attention and feed-forward parts; embeddings and positions belong to the model.

    ``load_state_dict`` takes the weights of a ``torch.nn.TransformerEncoder`` of the same shape (pre-norm: with
    ``norm=LayerNorm(dim)``), and outputs and gradients then agree on every real token.
    """

    def __init__(
        self,
        *,
        dim: Count,
        layers: Count,
        heads: Count,
        feedforward_dim: Count,
        dropout: Dropout,
        norm_position: Literal["post", "pre"],
        causal: bool,
        activation: Literal["relu", "gelu"] = "relu",
        identical_layers: bool = False,
    ) -> None:
        """Build the layers.

        Args:
            dim: hidden size D.
            heads: attention heads; must divide ``dim``.
            feedforward_dim: inner size of the feed-forward parts.
            dropout: probability, on attention weights, after attention and after each feed-forward half.
            norm_position: layer norm after each residual sum (post) or before each part (pre, and one at the end).
            causal: position t sees positions 0 .. t only.
            identical_layers: start all layers from the same values, as torch's encoder does, which copies one layer.

        Raises:
            ValueError: sizes or names that do not fit.
        """
        super().__init__()
        if dim % heads:
            raise ValueError(f"dim={dim} is not a multiple of heads={heads}")
        self.dim, self.heads, self.causal, self.norm_position = dim, heads, causal, norm_position

        def layer() -> TransformerLayer:
            pre = norm_position == "pre"
            return TransformerLayer(dim, heads, feedforward_dim, dropout, activation, norm_first=pre)

        first = layer()
        rest = [copy.deepcopy(first) if identical_layers else layer() for _ in range(layers - 1)]
        self.layers = ModuleListOf([first, *rest])
        self.norm = nn.LayerNorm(dim) if norm_position == "pre" else None

    def forward(self, hidden_BTD: Tensor, valid_BT: Tensor | None = None) -> Tensor:
        """Return the last hidden states [B, T, D]; zeros at padding.

        Args:
            valid_BT: True at real tokens; None when all are.
        """
        if valid_BT is None:
            valid_BT = torch.ones(hidden_BTD.shape[:2], dtype=torch.bool, device=hidden_BTD.device)
        packing = Packing.of(valid_BT)
        return packing.scatter(self.forward_packed(packing.gather(hidden_BTD), packing))

    def forward_packed(self, hidden_ND: Tensor, packing: Packing) -> Tensor:
        """Return the last hidden states of packed tokens [N, D] (rows of remaining padding are meaningless)."""
        forbidden = packing.forbidden(self.causal, hidden_ND.device)
        for layer in self.layers:
            hidden_ND = layer(hidden_ND, packing, forbidden)
        return hidden_ND if self.norm is None else self.norm(hidden_ND)

    def step(self, hidden_BD: Tensor, cache: Cache | None) -> tuple[Tensor, Cache]:
        """Run the newest position of each sentence on cached keys and values (generation: without dropout).

        Args:
            hidden_BD: embedded input of the newest position.
            cache: what the previous step returned; None at the first position.

        Returns:
            Hidden states of the newest position, equal to ``forward``'s last column, and the cache for the next.

        Raises:
            ValueError: the stack is not causal, so earlier positions would change.
        """
        if not self.causal:
            raise ValueError("a stack that is not causal has no cache: recompute the whole prefix")
        caches: list[KeysValues | None] = list(cache) if cache else [None] * len(self.layers)
        grown = []
        for layer, old in zip(self.layers, caches, strict=True):
            hidden_BD, new = layer.step(hidden_BD, old)
            grown.append(new)
        return (hidden_BD if self.norm is None else self.norm(hidden_BD)), grown


class TransformerLayer(nn.TransformerEncoderLayer):
    """torch's layer in name, parameters and initial values; the computation is packed."""

    # torch's takes the masks of a padded batch, this one a packing
    def forward(  # type: ignore[override]  # see above
        self, x_ND: Tensor, packing: Packing, forbidden: list[Tensor | None]
    ) -> Tensor:
        p = self.dropout.p if self.training else 0.0
        if self.norm_first:
            x_ND = dropout_add(self._attend(self.norm1(x_ND), packing, forbidden, p), x_ND, p)
            return dropout_add(self._feed_forward(self.norm2(x_ND), p), x_ND, p)
        x_ND = self.norm1(dropout_add(self._attend(x_ND, packing, forbidden, p), x_ND, p))
        return self.norm2(dropout_add(self._feed_forward(x_ND, p), x_ND, p))

    def step(self, x_BD: Tensor, cache: KeysValues | None) -> tuple[Tensor, KeysValues]:
        """Return the next hidden states of the newest position, and the grown cache."""
        query_BD = self.norm1(x_BD) if self.norm_first else x_BD
        attended_BD, cache = self._attend_newest(query_BD, cache)
        if self.norm_first:
            x_BD = x_BD + attended_BD
            return x_BD + self._feed_forward(self.norm2(x_BD), 0.0), cache
        x_BD = self.norm1(x_BD + attended_BD)
        return self.norm2(x_BD + self._feed_forward(x_BD, 0.0)), cache

    def _feed_forward(self, x_ND: Tensor, p: float) -> Tensor:
        inner_NF = self.linear1(x_ND)
        relu = self.activation is F.relu
        return self.linear2(relu_dropout(inner_NF, p) if relu else dropout(self.activation(inner_NF), p))

    def _attend(self, x_ND: Tensor, packing: Packing, forbidden: list[Tensor | None], p: float) -> Tensor:
        own = self.self_attn
        # a hand-written gradient needs one dtype throughout, so mixed precision is off here
        with torch.autocast(x_ND.device.type, enabled=False):
            context_ND = SelfAttention.apply(
                x_ND.to(own.in_proj_weight.dtype),
                own.in_proj_weight,
                own.in_proj_bias,
                packing,
                forbidden,
                own.num_heads,
                p,
            )
        return own.out_proj(context_ND)

    def _attend_newest(self, x_BD: Tensor, cache: KeysValues | None) -> tuple[Tensor, KeysValues]:
        own = self.self_attn
        projected = F.linear(x_BD, own.in_proj_weight, own.in_proj_bias)
        query, key, value = projected.unflatten(1, (3, own.num_heads, 1, -1)).unbind(1)
        if cache is not None:
            key, value = torch.cat((cache[0], key), 2), torch.cat((cache[1], value), 2)
        context_BD = F.scaled_dot_product_attention(query, key, value).flatten(1)
        return own.out_proj(context_BD), (key, value)


class SelfAttention(torch.autograd.Function):
    """Input projection and scaled dot-product attention with dropout on the weights, over packed sentences.

    Written by hand because autograd copies queries, keys and values several times: here they are projected directly
    into the layout of the batched products, [3 * H, tokens, E], and so are their gradients. The input may be wider than
    the H * E of the output.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x_ND: Tensor,
        weight: Tensor,
        bias: Tensor,
        packing: Packing,
        forbidden: list[Tensor | None],
        heads: int,
        p: float,
    ) -> Tensor:
        """Return the attended values [N, H * E], heads side by side."""
        context_ND = x_ND.new_empty(len(x_ND), weight.shape[0] // 3)
        saved = []
        parts = zip(packing.groups, packing.split(x_ND), packing.split(context_ND), forbidden, strict=True)
        for (sentences, length), x, context, mask in parts:
            projected = _project(x, weight, bias, heads)
            query, key, value = _by_sentence(projected, sentences, length)
            weights_GLL = _attention_weights(query, key, mask, heads)
            noise = dropout_mask(weights_GLL.shape, p, weights_GLL) if p > 0.0 else None
            kept_GLL = weights_GLL if noise is None else weights_GLL * noise
            attended = torch.bmm(kept_GLL, value).view(heads, len(x), -1)
            context.view(len(x), heads, -1).copy_(attended.transpose(0, 1))
            saved += [projected, weights_GLL, noise, kept_GLL]
        ctx.save_for_backward(x_ND, weight, *saved)
        ctx.packing, ctx.heads = packing, heads
        return context_ND

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_ND: Tensor) -> tuple[Tensor | None, ...]:
        """Return gradients of x, weight and bias."""
        x_ND, weight, *saved = ctx.saved_tensors
        heads, packing = ctx.heads, ctx.packing
        weight_by_head = weight.view(3 * heads, -1, weight.shape[1])
        grad_x_ND = torch.zeros_like(x_ND)
        grad_weight = torch.zeros_like(weight_by_head)
        grad_bias = grad_weight.new_zeros(grad_weight.shape[:2])
        parts = zip(packing.groups, packing.split(x_ND), packing.split(grad_ND), packing.split(grad_x_ND), strict=True)
        for group, ((sentences, length), x, grad, grad_x) in enumerate(parts):
            projected, weights_GLL, noise, kept_GLL = saved[4 * group : 4 * group + 4]
            query, key, value = _by_sentence(projected, sentences, length)
            grad_projected = torch.empty_like(projected)
            grad_query, grad_key, grad_value = _by_sentence(grad_projected, sentences, length)
            scale = query.shape[-1] ** -0.5
            grad_context = grad.view(len(x), heads, -1).transpose(0, 1).reshape(value.shape)
            torch.bmm(kept_GLL.mT, grad_context, out=grad_value)
            grad_GLL = torch.bmm(grad_context, value.mT)
            if noise is not None:
                grad_GLL.mul_(noise)
            # softmax: dS = P * (dP - sum(dP * P))
            grad_GLL.mul_(weights_GLL)
            grad_GLL.addcmul_(weights_GLL, grad_GLL.sum(-1, keepdim=True), value=-1.0)
            torch.baddbmm(grad_query, grad_GLL, key, beta=0, alpha=scale, out=grad_query)
            torch.baddbmm(grad_key, grad_GLL.mT, query, beta=0, alpha=scale, out=grad_key)
            grad_bias += grad_projected.sum(1)
            grad_weight.baddbmm_(grad_projected.mT, x.expand(3 * heads, *x.shape))
            for grad_head, weight_head in zip(grad_projected, weight_by_head, strict=True):
                grad_x.addmm_(grad_head, weight_head)
        return grad_x_ND, grad_weight.view_as(weight), grad_bias.flatten(), None, None, None, None


def _project(x: Tensor, weight: Tensor, bias: Tensor, heads: int) -> Tensor:
    """Return queries, keys and values of all heads, [3 * H, tokens, E]."""
    return torch.baddbmm(
        bias.view(3 * heads, 1, -1),
        x.expand(3 * heads, *x.shape),
        weight.view(3 * heads, -1, weight.shape[1]).mT,
    )


def _by_sentence(projected: Tensor, sentences: int, length: int) -> tuple[Tensor, ...]:
    """Return views [G, L, E] of queries, keys and values."""
    return projected.view(3, -1, length, projected.shape[-1]).unbind(0)


def _attention_weights(query: Tensor, key: Tensor, forbidden: Tensor | None, heads: int) -> Tensor:
    """Return softmax(query key^T / sqrt(E)), [G, L, L]."""
    groups, length, size = query.shape
    scores_GLL = query.new_empty(groups, length, length)
    torch.baddbmm(scores_GLL, query, key.mT, beta=0, alpha=size**-0.5, out=scores_GLL)
    if forbidden is not None:
        scores_GLL.view(heads, -1, length, length).masked_fill_(forbidden, -torch.inf)
    # torch.softmax does not vectorise over such a short last dimension; no row is all -inf, so this is equally safe
    scores_GLL.sub_(scores_GLL.amax(-1, keepdim=True)).exp_()
    return scores_GLL.div_(scores_GLL.sum(-1, keepdim=True))

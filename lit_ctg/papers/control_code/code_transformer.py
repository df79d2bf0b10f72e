"""Post-norm Transformer whose feed-forward parts may take a vector that is constant along a sequence.

Source: control-code paper, sec. 3.3: FFN(x) = [max(0, [x; c] W_1 + b_1); c] W_2 + b_2.
Shape letters: B sequences, T positions, D hidden size, F inner size, C code size, N = B * T.
"""

from __future__ import annotations

import copy
from collections.abc import Collection

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lit_ctg.network.dropout import dropout_add, relu_dropout
from lit_ctg.network.packing import Packing
from lit_ctg.network.transformer import KeysValues, SelfAttention, TransformerLayer
from lit_ctg.papers.control_code.code_linear import CodeLinear

# what a code adds to one layer: to both linear parts; None for a layer without code
LayerTerms = tuple[Tensor, Tensor] | None


class CodeTransformerBackbone(nn.Module):
    """Layers of causal self-attention and feed-forward parts with an optional code.

    Rows may end in padding: no real token sees it, and its own states mean nothing.
    """

    def __init__(
        self,
        *,
        dim: int,
        layers: int,
        heads: int,
        feedforward_dim: int,
        dropout: float,
        identical_layers: bool,
        code_dim: int = 0,
        code_layers: Collection[int] = (),
    ) -> None:
        """Make the layers.

        Args:
            dim: hidden size D.
            layers, heads: numbers of layers and of attention heads.
            feedforward_dim: inner size F.
            dropout: probability, as in torch's layer.
            identical_layers: start all layers with code, and all without, from the same values, as torch's own
                encoder does, which copies one.
            code_dim: size C of the code.
            code_layers: layers (from 1) that take the code.
        """
        super().__init__()
        if dim % heads:
            raise ValueError(f"dim={dim} is not a multiple of heads={heads}")
        self.dim, self.causal = dim, True
        made: dict[bool, CodeTransformerLayer] = {}

        def layer(number: int) -> CodeTransformerLayer:
            coded = number in code_layers
            if identical_layers and coded in made:
                return copy.deepcopy(made[coded])
            made[coded] = CodeTransformerLayer(dim, heads, feedforward_dim, dropout, code_dim if coded else 0)
            return made[coded]

        self.layers = nn.ModuleList([layer(number) for number in range(1, layers + 1)])

    def scale_code_weights(self, factor: float) -> None:
        """Multiply the weights of the code in all layers that take it."""
        for layer in self.layers:
            if layer.code_dim:
                layer.linear1.scale_code_weight(factor)
                layer.linear2.scale_code_weight(factor)

    def terms(self, code_BC: Tensor | None) -> list[LayerTerms]:
        """Return what the code adds to each layer; computed once a sequence."""
        return [layer.terms(code_BC) for layer in self.layers]

    def forward(self, hidden_BTD: Tensor, terms: list[LayerTerms], causal: bool = True) -> Tensor:
        """Return the last hidden states [B, T, D].

        Args:
            hidden_BTD: embedded input.
            terms: of this batch's codes.
            causal: False lets every position see the whole row.
        """
        shape = (hidden_BTD.shape[0], hidden_BTD.shape[1])
        packing = Packing(shape, None, (shape,))
        forbidden = packing.forbidden(causal, hidden_BTD.device)
        hidden_ND = hidden_BTD.flatten(0, 1)
        for layer, term in zip(self.layers, terms, strict=True):
            hidden_ND = layer(hidden_ND, packing, forbidden, term)
        return hidden_ND.unflatten(0, shape)

    def step(
        self, hidden_BD: Tensor, terms: list[LayerTerms], cache: list[KeysValues] | None
    ) -> tuple[Tensor, list[KeysValues]]:
        """Run the newest position on cached keys and values (without dropout); equal to ``forward``'s last column."""
        old: list[KeysValues | None] = list(cache) if cache else [None] * len(self.layers)
        grown = []
        for layer, term, past in zip(self.layers, terms, old, strict=True):
            hidden_BD, new = layer.coded_step(hidden_BD, term, past)
            grown.append(new)
        return hidden_BD, grown


class CodeTransformerLayer(TransformerLayer):
    """torch's post-norm layer with ``[.; c]`` in front of both linear parts of the feed-forward block."""

    def __init__(self, dim: int, heads: int, feedforward_dim: int, dropout: float, code_dim: int) -> None:
        super().__init__(dim, heads, feedforward_dim, dropout, "relu", norm_first=False)
        if code_dim:
            self.linear1 = CodeLinear(dim, feedforward_dim, code_dim)  # type: ignore[assignment]
            self.linear2 = CodeLinear(feedforward_dim, dim, code_dim)  # type: ignore[assignment]
        self.code_dim = code_dim

    def terms(self, code_BC: Tensor | None) -> LayerTerms:
        """Return c W_c + b of both linear parts, [B, F] and [B, D]."""
        if not self.code_dim:
            return None
        return self.linear1.term(code_BC), self.linear2.term(code_BC)

    def forward(  # type: ignore[override]
        self, x_ND: Tensor, packing: Packing, forbidden: list[Tensor | None], terms: LayerTerms
    ) -> Tensor:
        """Return the next hidden states of all tokens."""
        p = self.dropout.p if self.training else 0.0
        attended_ND = self._attend_all(x_ND, packing, forbidden, p)
        x_ND = self.norm1(dropout_add(attended_ND, x_ND, p))
        return self.norm2(dropout_add(self._code_feed_forward(x_ND, terms, p), x_ND, p))

    def coded_step(self, x_BD: Tensor, terms: LayerTerms, cache: KeysValues | None) -> tuple[Tensor, KeysValues]:
        """Return the next hidden states of the newest position, and the grown cache."""
        attended_BD, cache = self._attend_newest(x_BD, cache)
        x_BD = self.norm1(x_BD + attended_BD)
        return self.norm2(x_BD + self._code_feed_forward(x_BD, terms, 0.0)), cache

    def _code_feed_forward(self, x: Tensor, terms: LayerTerms, p: float) -> Tensor:
        if terms is None:
            return self._feed_forward(x, p)
        return self.linear2(relu_dropout(self.linear1(x, terms[0]), p), terms[1])

    def _attend_all(self, x_ND: Tensor, packing: Packing, forbidden: list[Tensor | None], p: float) -> Tensor:
        own, device = self.self_attn, x_ND.device.type
        if device == "cpu":
            # torch's own attention draws its dropout element by element, at half of the layer's time
            kind = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else own.in_proj_weight.dtype
            weight, bias = own.in_proj_weight.to(kind), own.in_proj_bias.to(kind)
            with torch.autocast(device, enabled=False):
                context_ND = SelfAttention.apply(x_ND.to(kind), weight, bias, packing, forbidden, own.num_heads, p)
            return own.out_proj(context_ND)
        projected = F.linear(x_ND, own.in_proj_weight, own.in_proj_bias).unflatten(0, packing.shape)
        query, key, value = projected.unflatten(2, (3, own.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        causal = forbidden[0] is not None
        context = F.scaled_dot_product_attention(query, key, value, dropout_p=p, is_causal=causal)
        return own.out_proj(context.transpose(1, 2).flatten(2).flatten(0, 1))

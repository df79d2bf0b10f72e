"""Neuron-level control codes, top to bottom: where a code enters, the two networks, the model and its training.

Sources: sec. 3.2 (GRU) and 3.3 (Transformer) of the paper; for the published regime, the authors' code. ``fast.py`` has
the same layers and loss in a faster form, selected by ``model.fast``.

Shape letters: B sequences, T positions, S sources, C code size, D hidden size, V vocabulary, O output size.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, cast

import torch
from annotated_types import Interval
from lightning.pytorch.utilities.types import OptimizerConfig, OptimizerLRSchedulerConfig
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import ExponentialLR

from lit_ctg.core.batch import require
from lit_ctg.core.model import Batch, LitLanguageModel, LMOutput, adamw_warmup_cosine
from lit_ctg.data.tokenizer import Tokenizer
from lit_ctg.errors import UserError, refuse
from lit_ctg.limits import Choice, Count, Dropout, NonNegative, Whole, check_value, checked
from lit_ctg.network.backbone import ModuleListOf, check_backbone
from lit_ctg.network.dropout import dropout, dropout_add, relu_dropout
from lit_ctg.network.packing import Packing
from lit_ctg.network.transformer import KeysValues, SelfAttention, SinusoidalPosition, TransformerLayer
from lit_ctg.papers.control_code import fast

INJECTIONS = ("prompt", "neuron", "none")
OUTPUT = "output"
LONGEST = 1024  # positions in the table of position vectors
POSITIONS = ("sinusoidal", "batch_row", "none")
CODE_STARTS = ("word", "normal")
OPTIMIZERS = ("sgd", "adam", "adamw")

# where the code enters -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Injection:
    """The places that take the code.

    Attributes:
        token: the code is a token before the sequence.
        layers: layers (from 1) that take the code.
        output: the output layer takes it.
        code_dim: size C of the code.
        attention: layers that take it also take it before self-attention.
    """

    token: bool
    layers: tuple[int, ...]
    output: bool
    code_dim: int
    attention: bool = False

    @classmethod
    @checked
    def of(
        cls,
        name: Annotated[str, Choice(INJECTIONS)],
        chosen: Sequence[int | str] | None,
        *,
        recurrent: bool,
        layers: int,
        code_dim: int,
        attention: bool = False,
    ) -> Injection:
        """Read the arm: sec. 3.2 for recurrent networks, sec. 3.3 for the Transformer.

        Args:
            name: prompt (the paper's default arm), neuron (the paper's) or none.
            chosen: for the neuron arm, numbers of the layers that take the code, and "output"; None is all of them.
            recurrent: the prompt arm's code is part of the input of layer 1 instead of a token.
            layers: of the network.
            code_dim: size of the code where it enters layers.
            attention: for the neuron arm of the Transformer, the code is also concatenated to every token before
                self-attention (sec. 3.3: "led to a significant performance drop").

        Raises:
            UserError: an unknown layer, layers for an arm without a choice, or attention where no code meets it.
        """
        places: list[int | str] = [*range(1, layers + 1), OUTPUT]
        named = places if chosen is None else list(chosen)
        unknown = [place for place in named if place not in places] or ([] if named else ["nowhere"])
        numbers = tuple(place for place in named if isinstance(place, int))
        refuse({
            f"layers={named} is for model.injection=neuron, not {name}": chosen is not None and name != "neuron",
            "attention=true is for model.injection=neuron in a Transformer; set it to false":
                attention and (name != "neuron" or recurrent),
            f"layers={named}: no place '{''.join(map(str, unknown[:1]))}'; use some of 1 to {layers} and "
            f"{OUTPUT}": unknown,
            f"attention=true, but model.injection_layers={named} has no layer; add some": attention and not numbers,
        }, "model.injection_")  # fmt: skip
        if name == "none":
            return cls(False, (), False, 0)
        if name == "prompt":
            return cls(False, (1,), False, code_dim) if recurrent else cls(True, (), False, 0)
        return cls(False, numbers, OUTPUT in named, code_dim, attention)


def small_code_factors(code_dim: int, dim: int, optimizer: str) -> tuple[float, float]:
    """Return factors for a code of C dimensions and for its weights, so that it learns like one of D.

    The learning speed of the code's contribution W c, |c|^2 per step of SGD and |c|_1 per step of Adam (whose steps
    have one size whatever the gradient), stays the same. Its initial variance stays the same in the output layer. In
    the feed-forward layers it is 1.5 to 2.6 times as large, because torch draws larger weights for fewer inputs. Both
    factors are 1 for C = D.

    Args:
        code_dim: C.
        dim: D.
        optimizer: sgd, adam or adamw.
    """
    ratio = dim / code_dim
    larger = ratio**0.5 if optimizer == "sgd" else ratio
    return larger, ratio**0.5 / larger


def transformer_parameters(
    injection: Injection, *, dim: int, layers: int, feedforward_dim: int, codes: int, vocabulary: int
) -> int:
    """Return the number of parameters of a Transformer arm: embedding, layers, output, codes."""
    places = len(injection.layers)
    attention_and_norms = 4 * dim * dim + 4 * dim + 4 * dim
    feed_forward = 2 * dim * feedforward_dim + feedforward_dim + dim
    coded = places * (feedforward_dim + dim + 3 * dim * injection.attention) + injection.output * vocabulary
    table = codes * (injection.code_dim or dim * injection.token)
    network = layers * (attention_and_norms + feed_forward)
    return vocabulary * (2 * dim + 1) + network + injection.code_dim * coded + table


def matched_width(injection: Injection, whole: Injection, sizes: dict[str, Any]) -> int:
    """Return the inner size at which an arm has as many parameters as the whole neuron arm at ``feedforward_dim``.

    Args:
        injection: the arm.
        whole: the arm with the code everywhere.
        sizes: arguments of ``transformer_parameters``.
    """
    missing = transformer_parameters(whole, **sizes) - transformer_parameters(injection, **sizes)
    # parameters of one more inner unit, over all layers
    unit = sizes["layers"] * (2 * sizes["dim"] + 1) + injection.code_dim * len(injection.layers)
    return int(sizes["feedforward_dim"]) + round(missing / unit)


# layers that take it -------------------------------------------------------------------------------------------------


class CodeLinear(nn.Linear):
    """y = [x; c] W + b, with one vector c per sequence (sec. 3.3); ``nn.Linear`` with ``code_dim=0``.

    Args:
        in_features: size D of x.
        out_features: size O of y.
        code_dim: size C of c.
        quick: compute it by ``fast.code_linear``.
    """

    def __init__(self, in_features: int, out_features: int, code_dim: int, *, quick: bool) -> None:
        self.code_dim, self.quick = code_dim, quick
        super().__init__(in_features + code_dim, out_features)

    def reset_parameters(self) -> None:
        """Initialise as torch does for a layer of D + C inputs."""
        bound = 1.0 / math.sqrt(self.in_features)
        self.reset(bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def reset(self, bound: float) -> None:
        """Draw the weights uniformly from [-bound, bound], those of x first."""
        sizes = (self.in_features - self.code_dim, self.code_dim)
        drawn = [torch.empty(self.out_features, size).uniform_(-bound, bound) for size in sizes if size]
        with torch.no_grad():
            self.weight.copy_(torch.cat(drawn, dim=1))

    def scale_code_weight(self, factor: float) -> None:
        """Multiply the weights of the code, if the layer has any."""
        with torch.no_grad():
            self.weight[:, self.in_features - self.code_dim :] *= factor

    def forward(self, x_BTD: Tensor, code_BC: Tensor | None = None) -> Tensor:
        """Return y, [B, T, O]; a layer without code ignores ``code_BC``."""
        if not self.code_dim or code_BC is None:
            return F.linear(x_BTD, self.weight, self.bias)
        if self.quick:
            return fast.code_linear(x_BTD, code_BC, self.weight, self.bias)
        along_BTC = code_BC.unsqueeze(1).expand(-1, x_BTD.shape[1], -1)
        return F.linear(torch.cat((x_BTD, along_BTC.to(x_BTD.dtype)), dim=2), self.weight, self.bias)


def keep_neurons(weight_OX: nn.Parameter, dim: int, share: float, gates: int = 1) -> None:
    """Let the first ``share`` of a layer's neurons take the code: the others' weights of it are 0 and stay so.

    Neurons start alike, so it does not matter which they are.

    Args:
        weight_OX: weights of [x; c], row by row those of a neuron.
        dim: size D of x.
        share: in (0, 1].
        gates: rows of a neuron (3 in a GRU, gate after gate).
    """
    neurons = weight_OX.shape[0] // gates
    kept_OX = torch.ones_like(weight_OX)
    kept_OX[:, dim:] = (torch.arange(neurons) < round(share * neurons)).repeat(gates).unsqueeze(1).to(weight_OX)
    with torch.no_grad():
        weight_OX.mul_(kept_OX)
    weight_OX.register_hook(lambda gradient: gradient * kept_OX.to(gradient))


def check_length(tokens: int, context: int | None) -> None:
    """Refuse a text that is longer than a network's positions.

    Raises:
        UserError: it is.
    """
    if context is not None and tokens > context:
        raise UserError(
            f"a text of {tokens} tokens is longer than the model's {context} positions: set data.length lower"
        )


def mean_cross_entropy(scores_BTV: Tensor, target_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return the mean cross-entropy in nats over the tokens of the mask (0 where there are none)."""
    nats = F.cross_entropy(scores_BTV[mask_BT], target_BT[mask_BT], reduction="sum")
    return nats / mask_BT.sum().clamp(min=1)


@checked
class CodeTransformerBackbone(nn.Module):
    """Post-norm layers of causal self-attention and feed-forward parts with an optional code (sec. 3.3).

    Rows may end in padding: no real token sees it, and its own states are meaningless.
    """

    def __init__(
        self,
        *,
        dim: Count,
        layers: Count,
        heads: Count,
        feedforward_dim: Count,
        dropout: Dropout,
        identical_layers: bool,
        code_dim: Whole = 0,
        code_layers: Collection[int] = (),
        code_attention: bool = False,
        quick: bool = True,
    ) -> None:
        """Build the layers.

        Args:
            dim: hidden size D.
            layers, heads: numbers of layers and of attention heads.
            feedforward_dim: inner size F.
            dropout: probability, as in torch's layer.
            identical_layers: start all layers with code, and all without, from the same values, as torch's encoder
                does, which copies one layer.
            code_dim: size C of the code.
            code_layers: layers (from 1) that take the code.
            code_attention: those also take it before self-attention.
            quick: see ``CodeLinear``.
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
            made[coded] = CodeTransformerLayer(
                dim,
                heads,
                feedforward_dim,
                dropout,
                code_dim=code_dim if coded else 0,
                attention=coded and code_attention,
                quick=quick,
            )
            return made[coded]

        self.layers = ModuleListOf([layer(number) for number in range(1, layers + 1)])

    def keep_neurons(self, share: float) -> None:
        """Let the first ``share`` of the neurons of both feed-forward parts take the code."""
        for linear in (part for layer in self.layers for part in (layer.linear1, layer.linear2)):
            if isinstance(linear, CodeLinear):
                keep_neurons(cast(nn.Parameter, linear.weight), linear.in_features - linear.code_dim, share)

    def scale_code_weights(self, factor: float) -> None:
        """Multiply the weights of the code in all layers that take it."""
        for layer in self.layers:
            for linear in (layer.linear1, layer.linear2):
                if isinstance(linear, CodeLinear):
                    linear.scale_code_weight(factor)
            if layer.attention:
                with torch.no_grad():
                    layer.self_attn.in_proj_weight[:, self.dim :] *= factor

    def forward(self, hidden_BTD: Tensor, code_BC: Tensor | None, causal: bool = True) -> Tensor:
        """Return the last hidden states [B, T, D].

        Args:
            hidden_BTD: embedded input.
            code_BC: codes of the sequences.
            causal: False lets every position see the whole row.
        """
        shape = (hidden_BTD.shape[0], hidden_BTD.shape[1])
        packing = Packing(shape, None, (shape,))
        forbidden = packing.forbidden(causal, hidden_BTD.device)
        for layer in self.layers:
            hidden_BTD = layer(hidden_BTD, code_BC, packing, forbidden)
        return hidden_BTD

    def step(
        self, hidden_BD: Tensor, code_BC: Tensor | None, cache: list[KeysValues] | None
    ) -> tuple[Tensor, list[KeysValues]]:
        """Run the newest position on cached keys and values (without dropout); equal to ``forward``'s last column."""
        old: list[KeysValues | None] = list(cache) if cache else [None] * len(self.layers)
        grown = []
        for layer, past in zip(self.layers, old, strict=True):
            hidden_BD, new = layer.coded_step(hidden_BD, code_BC, past)
            grown.append(new)
        return hidden_BD, grown


class CodeTransformerLayer(TransformerLayer):
    """torch's post-norm layer with FFN(x) = [max(0, [x; c] W_1 + b_1); c] W_2 + b_2 (sec. 3.3).

    With ``attention`` queries, keys and values are also those of [x; c]; the residual connection omits c.
    """

    def __init__(
        self, dim: int, heads: int, feedforward_dim: int, dropout: float, *, code_dim: int, attention: bool, quick: bool
    ) -> None:
        super().__init__(dim, heads, feedforward_dim, dropout, "relu", norm_first=False)
        if code_dim:
            self.linear1 = CodeLinear(dim, feedforward_dim, code_dim, quick=quick)
            self.linear2 = CodeLinear(feedforward_dim, dim, code_dim, quick=quick)
        self.code_dim, self.attention = code_dim, attention
        if attention:
            # as torch initialises an attention of D + C inputs
            wider = torch.empty(3 * dim, dim + code_dim)
            self.self_attn.in_proj_weight = nn.Parameter(nn.init.xavier_uniform_(wider))

    def forward(  # type: ignore[override]  # it takes a code too
        self, x_BTD: Tensor, code_BC: Tensor | None, packing: Packing, forbidden: list[Tensor | None]
    ) -> Tensor:
        """Return the next hidden states of all tokens."""
        p = self.dropout.p if self.training else 0.0
        seen_BTX = self._with_code(x_BTD, code_BC)
        attended_BTD = self._attend_all(seen_BTX.flatten(0, 1), packing, forbidden, p).view_as(x_BTD)
        x_BTD = self.norm1(dropout_add(attended_BTD, x_BTD, p))
        return self.norm2(dropout_add(self._code_feed_forward(x_BTD, code_BC, p), x_BTD, p))

    def coded_step(self, x_BD: Tensor, code_BC: Tensor | None, cache: KeysValues | None) -> tuple[Tensor, KeysValues]:
        """Return the next hidden states of the newest position, and the grown cache."""
        attended_BD, cache = self._attend_newest(self._with_code(x_BD.unsqueeze(1), code_BC).squeeze(1), cache)
        x_BD = self.norm1(x_BD + attended_BD)
        added_BD = self._code_feed_forward(x_BD.unsqueeze(1), code_BC, 0.0).squeeze(1)
        return self.norm2(x_BD + added_BD), cache

    def _with_code(self, x_BTD: Tensor, code_BC: Tensor | None) -> Tensor:
        """Return what self-attention sees, [B, T, D + C] if it takes the code."""
        if not self.attention or code_BC is None:
            return x_BTD
        along_BTC = code_BC.unsqueeze(1).expand(-1, x_BTD.shape[1], -1)
        return torch.cat((x_BTD, along_BTC.to(x_BTD.dtype)), dim=2)

    def _code_feed_forward(self, x_BTD: Tensor, code_BC: Tensor | None, p: float) -> Tensor:
        if not self.code_dim:
            return self._feed_forward(x_BTD, p)
        return self.linear2(relu_dropout(self.linear1(x_BTD, code_BC), p), code_BC)

    def _attend_all(self, x_ND: Tensor, packing: Packing, forbidden: list[Tensor | None], p: float) -> Tensor:
        own, device = self.self_attn, x_ND.device.type
        if device == "cpu":
            # torch's attention draws its dropout element by element, at half of the layer's time
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


@checked
class CodeGRUBackbone(nn.Module):
    """torch's GRU, layer by layer; those that take the code read [h_t^{n-1}; c] (sec. 3.2). No loop over time."""

    def __init__(
        self,
        *,
        dim: Count,
        layers: Count,
        dropout: Dropout,
        code_dim: Whole = 0,
        code_layers: Collection[int] = (),
    ) -> None:
        """Build the layers.

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
        self.layers = ModuleListOf([nn.GRU(size, dim, batch_first=True) for size in sizes])

    def keep_neurons(self, share: float) -> None:
        """Let the first ``share`` of the neurons take the code."""
        for layer in self.layers:
            keep_neurons(cast(nn.Parameter, layer.weight_ih_l0), self.dim, share, gates=3)

    def scale_code_weights(self, factor: float) -> None:
        """Multiply the weights of the code in all layers that take it."""
        with torch.no_grad():
            for layer in self.layers:
                cast(Tensor, layer.weight_ih_l0)[:, self.dim :].mul_(factor)

    def forward(self, hidden_BTD: Tensor, code_BC: Tensor | None, causal: bool = True) -> Tensor:
        """Return the last hidden states [B, T, D]; a GRU is causal whatever ``causal`` says."""
        return self._run(hidden_BTD, code_BC, None)[0]

    def step(
        self, hidden_BD: Tensor, code_BC: Tensor | None, cache: list[Tensor] | None
    ) -> tuple[Tensor, list[Tensor]]:
        """Run the newest position on the carried states; equal to ``forward``'s last column."""
        hidden_B1D, states = self._run(hidden_BD.unsqueeze(1), code_BC, cache)
        return hidden_B1D.squeeze(1), states

    def _run(
        self, hidden_BTD: Tensor, code_BC: Tensor | None, states: list[Tensor] | None
    ) -> tuple[Tensor, list[Tensor]]:
        carried = []
        for number, (layer, coded) in enumerate(zip(self.layers, self.coded, strict=True)):
            if coded and code_BC is not None:
                along_BTC = code_BC.unsqueeze(1).expand(-1, hidden_BTD.shape[1], -1)
                hidden_BTD = torch.cat((hidden_BTD, along_BTC.to(hidden_BTD.dtype)), dim=2)
            hidden_BTD, state = layer(hidden_BTD, None if states is None else states[number])
            carried.append(state)
            if number + 1 < len(self.layers):
                hidden_BTD = F.dropout(hidden_BTD, self.dropout, self.training)
        return hidden_BTD, carried


# the model -----------------------------------------------------------------------------------------------------------


class SourceModel(LitLanguageModel):
    """A language model of a corpus of several sources, each with its code.

    Attributes:
        corpus: name of the corpus, for run names and messages.
        codes: number of sources S.
        sources: names of the codes, from the data module or the checkpoint; empty before.
    """

    corpus: str
    codes: int
    sources: tuple[str, ...] = ()

    def bind_data(self, datamodule: Any) -> None:
        """Take the names of the sources from the data module."""
        self.bind(require(datamodule, "sources").sources)

    def bind(self, sources: Sequence[str]) -> None:
        """Set the names of the sources.

        Raises:
            UserError: fewer than two, not as many as codes, or different from those of training.
        """
        known, given = ", ".join(self.sources), ", ".join(sources)
        refuse({
            f"the corpus has one source ({given}), but codes distinguish sources: give two or more (data=folder: one "
            "file or subfolder per label)": len(sources) < 2,
            f"model.codes={self.codes} but the corpus has {len(sources)} sources ({given}): set model.codes="
            f"{len(sources)}": len(sources) != self.codes,
            f"the model was trained on {known}, the corpus has {given}: choose the corpus of its training":
                self.sources and tuple(sources) != self.sources,
        })  # fmt: skip
        self.sources = tuple(sources)

    def get_extra_state(self) -> dict[str, Any]:
        """Return the names of the sources, for the checkpoint."""
        return {"sources": list(self.sources)}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore the names of the sources from a checkpoint."""
        self.sources = tuple(state["sources"])

    def contrast(self, batch: Batch) -> tuple[Tensor, Tensor] | None:
        """Return the scores under the codes of the texts and those under the code of the next source."""
        if getattr(self, "code", self) is None:
            return None
        wrong_B = (batch["control_code_B"] + 1) % self.codes
        return self(batch).scores_BTV, self({**batch, "control_code_B": wrong_B}).scores_BTV

    def weights(self, batch: Batch) -> Tensor:
        """Return the weights [B, S] of the sources of a batch: 1 for ``control_code_B``."""
        return F.one_hot(codes_of(batch, f"the corpus {self.corpus}"), self.codes)

    def required(self, controls: Tensor | None) -> Tensor:
        """Return the weights of the sources.

        Raises:
            UserError: there are none.
        """
        if controls is None:
            raise UserError("this model needs a code for every sequence: give weights of the sources")
        return controls


def codes_of(batch: Mapping[str, Any], reader: str) -> Tensor:
    """Return the code of each row of a batch.

    Raises:
        UserError: the batch has none; names who reads it.
    """
    if "control_code_B" not in batch:
        raise UserError(f"{reader}: batches have no control_code_B; set data.by_source=true")
    return batch["control_code_B"]


@dataclass
class CodeState:
    """A batch in generation: the codes of layers, the code before the text, and the network's cache."""

    code_BC: Tensor | None = None
    token_BD: Tensor | None = None
    length: int = 0
    cache: Any = None


class ControlCodeModule(SourceModel):
    """Language model conditioned on one code per sequence (sec. 3).

    Args:
        vocabulary: of the corpus.
        backbone: builds the network from ``code_dim`` and ``code_layers`` (and, to match parameters, a
            ``feedforward_dim``); a ``functools.partial`` of one of the two classes above.
        corpus: name of the corpus, for run names and messages.
        codes: number of sources S.
        injection, injection_layers, injection_attention: see ``Injection.of``.
        injection_neurons: share of the neurons of these layers that take the code (the paper: all, or some of them).
        match_parameters: a code that enters layers has S dimensions, without loss (S codes span no more), and every
            other Transformer arm is widened to the parameters of the whole neuron arm. Otherwise the code is as large
            as an embedding, as in the paper, and the arms differ.
        position: ``"sinusoidal"``; ``"batch_row"``, the published fault (every position of row b gets vector b); or
            ``"none"`` (recurrent networks).
        code_start: ``"word"``: a code is initialised and scaled like a word's embedding; ``"normal"``: it is
            initialised from N(0, 1) and not scaled, as in the authors' code. Under SGD at rate 5 the difference is
            decisive: a scale of sqrt(d) makes a step on the code d times as large.
        scale_words: word embeddings are multiplied by sqrt(d) (the authors' Transformer; their GRU does not).
        init_range: embedding and output weights (and codes that start as words) are initialised uniformly in
            [-range, range]; None keeps torch's values, N(0, 1) and uniform in [-1, 1] / sqrt(d), as in the authors'
            GRU.
        embedding_dropout: on the sum of embedding and position.
        optimizer: one of ``optimizers``, name -> numbers, see ``configured_optimizer``.
        seed: of the weights.
        fast: use the faster forms of ``fast.py``, equal up to rounding; False computes the layers on [x; c] and the
            loss as written.

    Attributes:
        injection: the arm.

    Raises:
        UserError: an option that does not exist or does not fit.
    """

    def __init__(
        self,
        *,
        vocabulary: Tokenizer,
        backbone: partial[Any],
        corpus: str,
        codes: Count,
        injection: Annotated[str, Choice(INJECTIONS)],
        injection_layers: Sequence[int | str] | None,
        match_parameters: bool,
        position: Annotated[str, Choice(POSITIONS)],
        code_start: Annotated[str, Choice(CODE_STARTS)],
        scale_words: bool,
        init_range: NonNegative | None,
        embedding_dropout: Dropout,
        optimizer: str,
        optimizers: Mapping[str, Mapping[str, NonNegative]],
        seed: Whole,
        injection_attention: bool = False,
        injection_neurons: Annotated[float, Interval(gt=0, le=1)] = 1.0,
        fast: bool = True,
    ) -> None:
        super().__init__()
        refuse({
            f"neurons={injection_neurons} is for model.injection=neuron without attention":
                injection_neurons < 1 and (injection != "neuron" or injection_attention),
        }, "model.injection_")  # fmt: skip
        known = [option for option in OPTIMIZERS if option in optimizers]
        check_value("model.optimizer", optimizer, Annotated[str, Choice(known)])
        self.vocabulary, self.corpus, self.injection = vocabulary, corpus, injection
        self.codes, self.embedding_dropout = codes, embedding_dropout
        self.optimizer, self.settings, self.fast = optimizer, dict(optimizers[optimizer]), fast
        self.learning_rate = self.settings["learning_rate"]
        # a partial: the sizes of the network depend on where the code enters
        check_backbone(backbone, "func", "keywords")
        sizes, dim = backbone.keywords, backbone.keywords["dim"]
        code_dim = codes if match_parameters else dim
        read = partial(Injection.of, recurrent=backbone.func is CodeGRUBackbone, layers=sizes["layers"])
        self.places = read(injection, injection_layers, code_dim=code_dim, attention=injection_attention)
        wider: dict[str, Any] = {}
        if not read.keywords["recurrent"]:
            wider = {"quick": fast, "code_attention": self.places.attention}
        if match_parameters and "feedforward_dim" in sizes:
            names = ("dim", "layers", "feedforward_dim")
            counted = {name: sizes[name] for name in names} | {"codes": codes, "vocabulary": len(vocabulary)}
            whole = read("neuron", None, code_dim=code_dim)
            wider["feedforward_dim"] = matched_width(self.places, whole, counted)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embedding = nn.Embedding(len(vocabulary), dim)
            self.output = CodeLinear(dim, len(vocabulary), self.places.code_dim * self.places.output, quick=fast)
            if init_range is not None:
                nn.init.uniform_(self.embedding.weight, -init_range, init_range)
                nn.init.zeros_(self.output.bias)
                self.output.reset(init_range)
            self.backbone = backbone(code_dim=self.places.code_dim, code_layers=self.places.layers, **wider)
            self.code = None
            if size := self.places.code_dim or dim * self.places.token:
                self.code = nn.Embedding(codes, size)
                if code_start == "word" and init_range is not None:
                    nn.init.uniform_(self.code.weight, -init_range, init_range)
        self.word_scale = math.sqrt(dim) if scale_words else 1.0
        self.code_scale = self.word_scale if code_start == "word" else 1.0
        if self.places.code_dim:
            larger, smaller = small_code_factors(self.places.code_dim, dim, optimizer)
            self.code_scale *= larger
            self.output.scale_code_weight(smaller)
            self.backbone.scale_code_weights(smaller)
        if injection_neurons < 1:
            self.backbone.keep_neurons(injection_neurons)
        self.position: Callable[[Tensor], Tensor] | None = None
        self.by_row = position == "batch_row"
        if position != "none":
            self.position = SinusoidalPosition(dim, LONGEST)

    # codes -----------------------------------------------------------------------------------------------------------

    def get_extra_state(self) -> dict[str, Any]:
        """Return the names of the sources and the arm, for the checkpoint."""
        return super().get_extra_state() | {"injection": self.injection}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore the names of the sources from a checkpoint.

        Raises:
            UserError: the checkpoint is of another arm.
        """
        if state["injection"] != self.injection:
            raise UserError(
                f"the checkpoint is of model.injection={state['injection']}, this model of {self.injection}: "
                "give the injection it was trained with"
            )
        super().set_extra_state(state)

    def start(self, batch_size: int, controls: Tensor | None = None) -> CodeState:
        """Return the state of empty prefixes; ``controls`` are weights [B, S] of the sources (None only without code).

        A code that starts as a word has a word's scale (with fewer dimensions, by ``small_code_factors``); weights mix
        the embeddings.
        """
        if self.code is None:
            return CodeState()
        code_BC = self.required(controls).to(self.code.weight) @ self.code.weight * self.code_scale
        if self.places.token:
            return CodeState(token_BD=code_BC)
        return CodeState(code_BC)

    # the network -----------------------------------------------------------------------------------------------------

    def embed(self, ids_BT: Tensor) -> Tensor:
        """Return the embedded words, scaled by sqrt(d) if ``scale_words`` is set."""
        return self.embedding(ids_BT) * self.word_scale

    def hidden(self, ids_BT: Tensor, state: CodeState, *, causal: bool = True, alone: bool = False) -> Tensor:
        """Return the last states [B, T, D]; the code's own position is dropped.

        Args:
            ids_BT: tokens.
            state: of empty prefixes.
            causal: False lets every position see the whole row (published generation).
            alone: rows have the positions they would have in a batch of one; only the published positions differ.

        Raises:
            UserError: a text longer than ``context``.
        """
        check_length(ids_BT.shape[1], self.context)
        embedded_BTD = self.embed(ids_BT)
        if state.token_BD is not None:
            embedded_BTD = torch.cat((state.token_BD.unsqueeze(1), embedded_BTD), dim=1)
        if self.position is not None:
            embedded_BTD = embedded_BTD + self._positions(embedded_BTD, alone)
        embedded_BTD = dropout(embedded_BTD, self.embedding_dropout * self.training)
        hidden_BTD = self.backbone(embedded_BTD, state.code_BC, causal)
        return hidden_BTD[:, 1:] if state.token_BD is not None else hidden_BTD

    @property
    def context(self) -> int | None:
        """The maximum tokens of the network; None without a limit."""
        if self.position is None or self.by_row:
            return None
        return LONGEST - self.places.token

    def _positions(self, embedded_BTD: Tensor, alone: bool) -> Tensor:
        """Return position vectors [T, D], or with the published fault [B, 1, D]: by row of the batch."""
        assert self.position is not None
        size, width, _ = embedded_BTD.shape
        if not self.by_row:
            return self.position(torch.arange(width, device=embedded_BTD.device))
        row_B = torch.arange(size, device=embedded_BTD.device) * (not alone)
        return self.position(row_B).unsqueeze(1)

    def scores(self, hidden_BTD: Tensor, state: CodeState) -> Tensor:
        """Return the logits [B, T, V] of [h; c] W + b, float32 or wider."""
        scores_BTV = self.output(hidden_BTD.to(self.output.weight.dtype), state.code_BC)
        return scores_BTV.to(torch.promote_types(scores_BTV.dtype, torch.float32))

    def forward(self, batch: Batch) -> LMOutput:
        """Score every position; zeros at padding."""
        ids_BT, real_BT1 = batch["input_ids_BT"], batch["mask_input_BT"].unsqueeze(-1)
        state = self.start(len(ids_BT), self.weights(batch) if self.code is not None else None)
        hidden_BTD = self.hidden(ids_BT, state)
        scores_BTV = self.scores(hidden_BTD, state)
        if not bool(real_BT1.all()):
            scores_BTV, hidden_BTD = scores_BTV * real_BT1, hidden_BTD * real_BT1
        return LMOutput(scores_BTV, hidden_BTD)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return the mean cross-entropy as "loss"."""
        ids_BT = batch["input_ids_BT"]
        state = self.start(len(ids_BT), self.weights(batch) if self.code is not None else None)
        hidden_BTD = self.hidden(ids_BT, state)
        target_BT, mask_BT = batch["target_ids_BT"], batch["mask_target_BT"]
        if not self.fast:
            return {"loss": mean_cross_entropy(self.scores(hidden_BTD, state), target_BT, mask_BT)}
        code_BC = state.code_BC if self.places.output else None
        weight, bias = self.output.weight, self.output.bias
        return {"loss": fast.cross_entropy(hidden_BTD, code_BC, weight, bias, target_BT, mask_BT)}

    def configure_optimizers(self) -> Any:
        """Return the chosen optimiser for all parameters."""
        total_steps = int(self.trainer.estimated_stepping_batches)
        settings = self.settings | {"learning_rate": self.learning_rate}
        return configured_optimizer(self.optimizer, self.parameters(), settings, total_steps)

    # generation (a StepModel of decoding/loop.py) --------------------------------------------------------------------

    def step(self, ids_B1: Tensor, state: CodeState) -> tuple[Tensor, CodeState]:
        """Take the newest tokens; return the scores [B, V] of the next ones. Equal to ``forward`` with row 0's offset.

        With the published positions every row has the positions it would have in a batch of one.
        """
        cache, length = state.cache, state.length
        if state.token_BD is not None and length == 0:
            _, cache, length = self._advance(state.token_BD, state, cache, length)
        hidden_BD, cache, length = self._advance(self.embed(ids_B1[:, 0]), state, cache, length)
        scores_BV = self.scores(hidden_BD.unsqueeze(1), state).squeeze(1)
        return scores_BV, CodeState(state.code_BC, state.token_BD, length, cache)

    def _advance(self, embedded_BD: Tensor, state: CodeState, cache: Any, length: int) -> tuple[Tensor, Any, int]:
        if self.position is not None:
            place = torch.tensor(0 if self.by_row else length, device=embedded_BD.device)
            embedded_BD = embedded_BD + self.position(place)
        hidden_BD, cache = self.backbone.step(embedded_BD, state.code_BC, cache)
        return hidden_BD, cache, length + 1


# training ------------------------------------------------------------------------------------------------------------


def configured_optimizer(
    name: str, parameters: Iterable[nn.Parameter], settings: Mapping[str, float], total_steps: int
) -> OptimizerLRSchedulerConfig | OptimizerConfig:
    """Return the result of ``configure_optimizers``.

    Args:
        name: sgd (rate times ``gamma`` every epoch, sec. 4.3), adam (constant rate, sec. 4.2), adamw (warm-up, cosine).
        parameters: what to train.
        settings: ``learning_rate`` and, by optimiser, ``gamma`` or ``weight_decay`` and ``warmup_fraction``.
        total_steps: of the run.
    """
    rate = settings["learning_rate"]
    if name == "sgd":
        chosen = torch.optim.SGD(parameters, lr=rate)
        falling = ExponentialLR(chosen, gamma=settings["gamma"])
        return {"optimizer": chosen, "lr_scheduler": {"scheduler": falling, "interval": "epoch"}}
    if name == "adam":
        return {"optimizer": torch.optim.Adam(parameters, lr=rate)}
    return adamw_warmup_cosine(
        parameters,
        learning_rate=rate,
        weight_decay=settings["weight_decay"],
        warmup_fraction=settings["warmup_fraction"],
        total_steps=total_steps,
    )

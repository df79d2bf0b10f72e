"""Neuron-level control codes as a LightningModule: both arms of the paper, on the Transformer and the GRU.

Shape letters: B sequences, T positions, S sources, C code size, D hidden size, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lit_ctg.core.model import Batch, LitLanguageModel, LMOutput
from lit_ctg.data.tokenizer import Tokenizer
from lit_ctg.errors import UserError, did_you_mean
from lit_ctg.network.dropout import dropout
from lit_ctg.network.transformer import SinusoidalPosition
from lit_ctg.papers.control_code.code_gru import CodeGRUBackbone
from lit_ctg.papers.control_code.injection import Injection, matched_width, small_code_factors
from lit_ctg.papers.control_code.optimisation import check_optimizer, optimizer
from lit_ctg.papers.control_code.output import CodeOutput

LONGEST = 1024  # positions in the table
POSITIONS = ("sinusoidal", "batch_row", "none")
CODE_STARTS = ("word", "normal")


@dataclass
class CodeState:
    """A batch in generation: what its codes add everywhere, and the network's cache."""

    code_BC: Tensor | None
    token_BD: Tensor | None
    terms: list[Any]
    length: int = 0
    cache: Any = None


class ControlCodeModule(LitLanguageModel):
    """Language model conditioned on one code a sequence (sec. 3).

    Args:
        vocabulary: of the corpus.
        backbone: makes the network when told ``code_dim`` and ``code_layers`` (and, to match parameters, a
            ``feedforward_dim``); a ``functools.partial`` of a class of ``backbone/code_*.py``.
        corpus: name of the corpus, for run names and messages.
        codes: number of sources S.
        injection, injection_layers: see ``injection.Injection.of``.
        match_parameters: a code that enters layers has S dimensions, which loses nothing (S codes span no more), and
            every other Transformer arm is widened to the parameters of the whole neuron arm. Otherwise the code is as
            large as an embedding, as in the paper, and the arms differ.
        position: ``"sinusoidal"``; ``"batch_row"``, the published fault (every position of row b gets vector b); or
            ``"none"`` (recurrent networks).
        code_start: ``"word"``: a code starts and is scaled as a word's embedding is; ``"normal"``: it starts from
            N(0, 1) and is taken as it is, as in the authors' code. Under SGD at rate 5 the difference decides: a scale
            of sqrt(d) makes a step on the code d times as large.
        scale_words: word embeddings are multiplied by sqrt(d) (the authors' Transformer; their GRU does not).
        init_range: embedding and output weights (and codes that start as words) start uniform in [-range, range]; None
            leaves torch's own start, N(0, 1) and uniform in [-1, 1] / sqrt(d), as the authors' GRU does.
        embedding_dropout: on the sum of embedding and position.
        optimizer: one of ``optimizers``, name -> numbers, see ``optimisation.optimizer``.
        seed: of the weights.

    Attributes:
        sources: names behind the codes, from the data module or the checkpoint; empty before.
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
        codes: int,
        injection: str,
        injection_layers: Sequence[int | str] | None,
        match_parameters: bool,
        position: str,
        code_start: str,
        scale_words: bool,
        init_range: float | None,
        embedding_dropout: float,
        optimizer: str,
        optimizers: Mapping[str, Mapping[str, float]],
        seed: int,
    ) -> None:
        super().__init__()
        if position not in POSITIONS:
            hint = did_you_mean(str(position), POSITIONS)
            raise UserError(f"model.position={position}: use one of {', '.join(POSITIONS)}{hint}")
        if code_start not in CODE_STARTS:
            hint = did_you_mean(str(code_start), CODE_STARTS)
            raise UserError(f"model.code_start={code_start}: use one of {', '.join(CODE_STARTS)}{hint}")
        check_optimizer(optimizer, optimizers)
        self.vocabulary, self.corpus, self.injection = vocabulary, corpus, injection
        self.sources: tuple[str, ...] = ()
        self.codes, self.embedding_dropout = codes, embedding_dropout
        self.optimizer, self.settings = optimizer, dict(optimizers[optimizer])
        sizes, dim = backbone.keywords, backbone.keywords["dim"]
        code_dim = codes if match_parameters else dim
        read = partial(Injection.of, recurrent=backbone.func is CodeGRUBackbone, layers=sizes["layers"])
        self.places = read(injection, injection_layers, code_dim=code_dim)
        wider = {}
        if match_parameters and "feedforward_dim" in sizes:
            names = ("dim", "layers", "feedforward_dim")
            counted = {name: sizes[name] for name in names} | {"codes": codes, "vocabulary": len(vocabulary)}
            whole = read("neuron", None, code_dim=code_dim)
            wider = {"feedforward_dim": matched_width(self.places, whole, counted)}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embedding = nn.Embedding(len(vocabulary), dim)
            self.output = CodeOutput(dim, len(vocabulary), self.places.code_dim * self.places.output)
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
        self.position: Callable[[Tensor], Tensor] | None = None
        self.by_row = position == "batch_row"
        if position != "none":
            self.position = SinusoidalPosition(dim, LONGEST)

    # codes ---------------------------------------------------------------------------------------------------------

    def setup(self, stage: str | None = None) -> None:
        """Learn the names of the sources from the data module."""
        self.bind(self.trainer.datamodule.sources)  # type: ignore[attr-defined]

    def bind(self, sources: Sequence[str]) -> None:
        """Take the names of the sources.

        Raises:
            UserError: not as many as codes, or others than those of training.
        """
        if len(sources) != self.codes:
            raise UserError(
                f"model.codes={self.codes} but the corpus has {len(sources)} sources ({', '.join(sources)}): "
                f"set model.codes={len(sources)}"
            )
        if self.sources and tuple(sources) != self.sources:
            raise UserError(
                f"the model was trained on {', '.join(self.sources)}, the corpus has {', '.join(sources)}: "
                "choose the corpus of its training"
            )
        self.sources = tuple(sources)

    def get_extra_state(self) -> dict[str, Any]:
        """Return the names of the sources and the arm, for the checkpoint."""
        return {"sources": list(self.sources), "injection": self.injection}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Take the names of the sources from a checkpoint.

        Raises:
            UserError: it is of the other arm.
        """
        if state["injection"] != self.injection:
            raise UserError(
                f"the checkpoint is of model.injection={state['injection']}, this model of {self.injection}: "
                "give the injection it was trained with"
            )
        self.sources = tuple(state["sources"])

    def weights(self, batch: Batch) -> Tensor:
        """Return the weights [B, S] of the sources: ``control_weights_BS``, or 1 for ``control_code_B``."""
        if "control_weights_BS" in batch:
            return batch["control_weights_BS"].to(self.output.weight.dtype)
        if "control_code_B" not in batch:
            raise UserError(f"batches of {self.corpus} have no control_code_B: set data.by_source=true")
        return F.one_hot(batch["control_code_B"], self.codes).to(self.output.weight.dtype)

    def start(self, batch_size: int, controls: Tensor | None = None) -> CodeState:
        """Return the state of empty prefixes; ``controls`` are weights [B, S] of the sources (None only without code).

        A code that starts as a word has a word's scale (one of fewer dimensions has ``small_code_factors``); weights
        mix the embeddings.
        """
        if self.code is None:
            return CodeState(None, None, self.backbone.terms(None))
        if controls is None:
            raise UserError(f"a model with injection={self.injection} needs a code for every sequence")
        code_BC = controls.to(self.code.weight) @ self.code.weight * self.code_scale
        if self.places.token:
            return CodeState(None, code_BC, self.backbone.terms(None))
        return CodeState(code_BC, None, self.backbone.terms(code_BC))

    # the network ---------------------------------------------------------------------------------------------------

    def embed(self, ids_BT: Tensor) -> Tensor:
        """Return the embedded words, scaled by sqrt(d) where ``scale_words`` says so."""
        return self.embedding(ids_BT) * self.word_scale

    def hidden(self, ids_BT: Tensor, state: CodeState, *, causal: bool = True, alone: bool = False) -> Tensor:
        """Return the last states [B, T, D]; the code's own position is dropped.

        Args:
            ids_BT: tokens.
            state: of empty prefixes.
            causal: False lets every position see the whole row (published generation).
            alone: rows stand where a batch of one would put them; only the published positions know the difference.
        """
        embedded_BTD = self.embed(ids_BT)
        if state.token_BD is not None:
            embedded_BTD = torch.cat((state.token_BD.unsqueeze(1), embedded_BTD), dim=1)
        if self.position is not None:
            embedded_BTD = embedded_BTD + self._positions(embedded_BTD, alone)
        embedded_BTD = dropout(embedded_BTD, self.embedding_dropout * self.training)
        hidden_BTD = self.backbone(embedded_BTD, state.terms, causal)
        return hidden_BTD[:, 1:] if state.token_BD is not None else hidden_BTD

    def _positions(self, embedded_BTD: Tensor, alone: bool) -> Tensor:
        """Position vectors [T, D], or with the published fault [B, 1, D]: by row of the batch."""
        size, width, _ = embedded_BTD.shape
        if not self.by_row:
            return self.position(torch.arange(width, device=embedded_BTD.device))  # type: ignore[misc]
        row_B = torch.arange(size, device=embedded_BTD.device) * (not alone)
        return self.position(row_B).unsqueeze(1)  # type: ignore[misc]

    def forward(self, batch: Batch) -> LMOutput:
        """Score every position; zeros at padding."""
        ids_BT, real_BT1 = batch["input_ids_BT"], batch["mask_input_BT"].unsqueeze(-1)
        state = self.start(len(ids_BT), self.weights(batch) if self.code is not None else None)
        hidden_BTD = self.hidden(ids_BT, state)
        scores_BTV = self.output.scores(hidden_BTD, state.code_BC)
        if not bool(real_BT1.all()):
            scores_BTV, hidden_BTD = scores_BTV * real_BT1, hidden_BTD * real_BT1
        return LMOutput(scores_BTV, hidden_BTD)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return the mean cross-entropy as "loss"."""
        ids_BT = batch["input_ids_BT"]
        state = self.start(len(ids_BT), self.weights(batch) if self.code is not None else None)
        hidden_BTD = self.hidden(ids_BT, state)
        return {"loss": self.output.loss(hidden_BTD, state.code_BC, batch["target_ids_BT"], batch["mask_target_BT"])}

    def configure_optimizers(self) -> Any:
        """The chosen optimiser over all parameters."""
        total_steps = int(self.trainer.estimated_stepping_batches)
        return optimizer(self.optimizer, self.parameters(), self.settings, total_steps)

    # generation (a StepModel of decoding/loop.py) ------------------------------------------------------------------

    def step(self, ids_B1: Tensor, state: CodeState) -> tuple[Tensor, CodeState]:
        """Take the newest tokens; return the scores [B, V] of the next ones. Equal to ``forward`` with row 0's offset.

        With the published positions every row stands where a batch of one would put it.
        """
        cache, length = state.cache, state.length
        if state.token_BD is not None and length == 0:
            _, cache, length = self._advance(state.token_BD, state, cache, length)
        hidden_BD, cache, length = self._advance(self.embed(ids_B1[:, 0]), state, cache, length)
        scores_BV = self.output.scores(hidden_BD.unsqueeze(1), state.code_BC).squeeze(1)
        return scores_BV, CodeState(state.code_BC, state.token_BD, state.terms, length, cache)

    def _advance(self, embedded_BD: Tensor, state: CodeState, cache: Any, length: int) -> tuple[Tensor, Any, int]:
        if self.position is not None:
            place = torch.tensor(0 if self.by_row else length, device=embedded_BD.device)
            embedded_BD = embedded_BD + self.position(place)
        hidden_BD, cache = self.backbone.step(embedded_BD, state.terms, cache)
        return hidden_BD, cache, length + 1

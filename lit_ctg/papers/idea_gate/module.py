"""The idea-gated Transformer: token head, idea head and the gate between them (sec. 3), and its baselines.

Shape letters: B rows, T positions, N counted positions, V vocabulary, D hidden size, K window.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lit_ctg.core.model import Batch, LitLanguageModel, LMOutput, adamw_warmup_cosine
from lit_ctg.errors import UserError
from lit_ctg.papers.idea_gate.fused import GateSetting, Ideas, fused_loss
from lit_ctg.papers.idea_gate.gate import GateForm, check_strength
from lit_ctg.papers.idea_gate.stopword import authors_mask, check_rule, frequent_mask
from lit_ctg.papers.idea_gate.window import distinct, future_window

EMBEDDING_STD = 0.02  # of GPT-2
BIASES = ("zero", "base_rate")
# gated scores made at one time (64 MB in float32)
CHUNK = 1 << 24


class IdeaHead(nn.Module):
    """z_idea = W2 relu(W1 h + b1) + b2 (Eq. 2)."""

    def __init__(self, dim: int, size: int) -> None:
        """Make a head from hidden states of size ``dim`` to ``size`` tokens."""
        super().__init__()
        self.inner, self.outer = nn.Linear(dim, dim), nn.Linear(dim, size)
        for layer in (self.inner, self.outer):
            nn.init.normal_(layer.weight, std=EMBEDDING_STD)
            nn.init.zeros_(layer.bias)

    def features(self, hidden: Tensor) -> Tensor:
        """Return the input of the last layer, [..., D]."""
        return torch.relu(self.inner(hidden))

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the idea logits [..., V]."""
        return self.outer(self.features(hidden))


@dataclass
class IdeaState:
    """Generation so far: the backbone's cache, the idea logits [B, V] of the newest position (None: no head)."""

    cache: Any = None
    idea_BV: Tensor | None = None


class IdeaGateModule(LitLanguageModel):
    """A language model on a causal backbone, with idea head and gate (``gated``) or without (the baselines).

    The backbone maps embedded tokens to hidden states and has ``dim``. One with ``embed(ids)`` and ``head_weight`` (a
    Hugging Face model) brings its embedding and output head; else the two are one matrix here (tied).

    Attributes:
        alpha: strength of the gate wherever it is not training; set it to 0 for the ungated model.
        beta: its lower bound.
        form: its clamp and epsilon.
        stopword_mask_V: True at tokens that the idea loss leaves out.
    """

    def __init__(
        self,
        *,
        vocabulary: Any,
        backbone: nn.Module,
        gated: bool,
        clamp: str,
        alpha: float,
        beta: float,
        epsilon: float,
        alpha_ramp_fraction: float,
        window: int,
        window_start: int,
        positive_weight: float,
        idea_weight: float,
        idea_bias: str,
        stopwords: str,
        stopword_count: int,
        learning_rate: float,
        final_fraction: float,
        weight_decay: float,
        warmup_fraction: float,
        warmup_from_zero: bool = False,
        decay_matrices_only: bool = False,
    ) -> None:
        """Make the heads.

        Args:
            vocabulary: tokenizer of the corpus.
            backbone: causal stack.
            gated: with idea head and gate.
            clamp: after_scaling (Eq. 4, 5) or before_scaling (the authors' first code).
            alpha: strength, >= 0.
            beta: lower bound, <= 0.
            epsilon: inside the logarithm.
            alpha_ramp_fraction: share of the training run over which alpha rises from 0.
            window: K, tokens foretold at each position.
            window_start: 1: the window begins with the next token (the paper); 2: with the one after.
            positive_weight: of tokens in the window, in the idea loss.
            idea_weight: of the idea loss in the sum (Eq. 7).
            idea_bias: first value of the idea head's bias: zero, or base_rate (the log odds of a token in a window).
            stopwords: which tokens the idea loss leaves out: authors, frequent or none.
            stopword_count: how many are frequent.
            learning_rate: peak.
            final_fraction: share of it at the end of the cosine.
            weight_decay: decoupled.
            warmup_fraction: share of the run.
            warmup_from_zero, decay_matrices_only: see ``adamw_warmup_cosine``.

        Raises:
            UserError: a value that does not fit.
        """
        super().__init__()
        _check(locals())
        self.vocabulary, self.backbone, self.gated = vocabulary, backbone, gated
        self.form = GateForm(clamp=clamp, epsilon=epsilon)
        self.alpha, self.beta, self.alpha_ramp_fraction = alpha, beta, alpha_ramp_fraction
        self.ramp = 1.0
        self.window_size, self.window_start = window, window_start
        self.positive_weight, self.idea_weight = positive_weight, idea_weight
        self.stopwords, self.stopword_count = check_rule(stopwords), stopword_count
        self.optimization = {
            "learning_rate": learning_rate,
            "final_fraction": final_fraction,
            "weight_decay": weight_decay,
            "warmup_fraction": warmup_fraction,
            "warmup_from_zero": warmup_from_zero,
            "decay_matrices_only": decay_matrices_only,
        }
        self.embedding = None
        self.vocabulary_size = _vocabulary_size(vocabulary, backbone)
        if not hasattr(backbone, "embed"):
            self.embedding = nn.Embedding(self.vocabulary_size, backbone.dim)
            nn.init.normal_(self.embedding.weight, std=EMBEDDING_STD)
        if gated:
            self.idea_head = IdeaHead(backbone.dim, self.vocabulary_size)
            if idea_bias == "base_rate":
                nn.init.constant_(self.idea_head.outer.bias, math.log(positive_weight * window / self.vocabulary_size))
            if stopwords == "authors":
                mask_V = authors_mask(vocabulary, self.vocabulary_size)
            else:
                mask_V = torch.zeros(self.vocabulary_size, dtype=torch.bool)
            # kept in checkpoints: which tokens are frequent is known where the training text is
            self.register_buffer("stopword_mask_V", mask_V)

    def setup(self, stage: str) -> None:
        """Find the frequent tokens of the training text before training."""
        if self.gated and self.stopwords == "frequent" and stage == "fit":
            ids_N = self.trainer.datamodule.prepare().ids("train")
            self.stopword_mask_V.copy_(frequent_mask(ids_N, self.vocabulary_size, self.stopword_count))

    # the network ---------------------------------------------------------------------------------------------------

    @property
    def head_weight(self) -> Tensor:
        """The token head [V, D], tied to the embedding unless the backbone brings its own."""
        return self.backbone.head_weight if self.embedding is None else self.embedding.weight

    def _embed(self, ids: Tensor) -> Tensor:
        return self.backbone.embed(ids) if self.embedding is None else self.embedding(ids)

    def window(self, target_ids_BT: Tensor, mask_BT: Tensor | None = None) -> Tensor:
        """Return the tokens to foretell at each position [B, T, K], -1 beyond the row; see ``future_window``."""
        return future_window(target_ids_BT, mask_BT, size=self.window_size, start=self.window_start)

    def future_window(self, batch: Batch) -> Tensor:
        """Return ``window`` of a batch."""
        return self.window(batch["target_ids_BT"], batch["mask_target_BT"])

    def gate(
        self, idea_logits: Tensor, alpha: float | Tensor | None = None, beta: float | Tensor | None = None
    ) -> Tensor:
        """Return what the gate adds to the token logits (Eq. 4, 5); strength and bound default to the model's."""
        return self.form(idea_logits, self.alpha if alpha is None else alpha, self.beta if beta is None else beta)

    def forward(self, batch: Batch) -> LMOutput:
        """Score every position; ``extras``: "token_logits" before the gate, "idea_logits" (None without idea head)."""
        hidden_BTD = self.backbone(self._embed(batch["input_ids_BT"]))
        # the heads in full precision: metrics of half-precision logits would be of another model
        with torch.autocast(hidden_BTD.device.type, enabled=False):
            hidden_BTD = hidden_BTD.to(self.head_weight.dtype)
            token_BTV = hidden_BTD @ self.head_weight.T
            if not self.gated:
                return LMOutput(token_BTV, hidden_BTD, {"token_logits": token_BTV, "idea_logits": None})
            idea_BTV = self.idea_head(hidden_BTD)
            return LMOutput(
                self._gated(token_BTV, idea_BTV), hidden_BTD, {"token_logits": token_BTV, "idea_logits": idea_BTV}
            )

    def _gated(self, token_BTV: Tensor, idea_BTV: Tensor) -> Tensor:
        """Eq. 6, some rows at a time: the gate's intermediate values of all positions never live at once."""
        if self.alpha == 0:
            return token_BTV
        if torch.is_grad_enabled():
            return token_BTV + self.gate(idea_BTV)
        scores_BTV = torch.empty_like(token_BTV)
        rows = max(1, CHUNK // self.vocabulary_size)
        parts = (value.flatten(0, 1).split(rows) for value in (token_BTV, idea_BTV, scores_BTV))
        for token, idea, scores in zip(*parts, strict=True):
            torch.add(token, self.gate(idea), out=scores)
        return scores_BTV

    # training ------------------------------------------------------------------------------------------------------

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Raise the gate's strength with the step, and by the step alone: a resumed run equals a whole one."""
        length = self.alpha_ramp_fraction * float(self.trainer.estimated_stepping_batches)
        self.ramp = min(1.0, self.trainer.global_step / length) if length >= 1 else 1.0

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return Eq. 7 as "loss" and its parts "token_loss" and "idea_loss", over the positions that have a target."""
        hidden_ND = self.backbone(self._embed(batch["input_ids_BT"])).flatten(0, 1)
        target_N, mask_N = batch["target_ids_BT"].flatten(), batch["mask_target_BT"].flatten()
        window_NK = self.future_window(batch).flatten(0, 1) if self.gated else None
        if not bool(mask_N.all()):
            hidden_ND, target_N = hidden_ND[mask_N], target_N[mask_N]
            window_NK = None if window_NK is None else window_NK[mask_N]
        if window_NK is None:
            return fused_loss(hidden_ND, self.head_weight, target_N)
        ideas = Ideas(
            hidden_ND=self.idea_head.features(hidden_ND),
            weight_VD=self.idea_head.outer.weight,
            bias_V=self.idea_head.outer.bias,
            window_NK=distinct(window_NK, self.stopword_mask_V),
            counted_V=(~self.stopword_mask_V).to(self.idea_head.outer.weight.dtype),
            positive_weight=self.positive_weight,
            loss_weight=self.idea_weight,
        )
        gate = GateSetting(alpha=self.alpha * self.ramp, beta=self.beta, form=self.form)
        return fused_loss(hidden_ND, self.head_weight, target_N, gate, ideas)

    def configure_optimizers(self) -> Any:
        """AdamW with warm-up and cosine over the whole run."""
        if not any(parameter.requires_grad for parameter in self.parameters()):
            raise UserError(
                "nothing to train: the backbone is frozen and the model has no gate; its numbers are those of the arm "
                "gate_off of experiment=idea_gate/main; for a baseline that is trained give backbone.frozen=false"
            )
        total_steps = int(self.trainer.estimated_stepping_batches)
        return adamw_warmup_cosine(self.parameters(), total_steps=total_steps, **self.optimization)

    # generation (a StepModel of decoding/loop.py) ------------------------------------------------------------------

    def start(self, batch_size: int, controls: IdeaState | None = None) -> IdeaState:
        """Return the state of empty prefixes; one handed in is used, so that a score rule can read its idea logits."""
        return IdeaState() if controls is None else controls

    def step(self, ids_B1: Tensor, state: IdeaState) -> tuple[Tensor, IdeaState]:
        """Take the newest tokens; return the token head's scores [B, V]; the gate is a rule over ``idea_BV``."""
        hidden_BD, state.cache = self.backbone.step(self._embed(ids_B1[:, 0]), state.cache)
        state.idea_BV = self.idea_head(hidden_BD) if self.gated else None
        return hidden_BD @ self.head_weight.T, state


def _vocabulary_size(vocabulary: Any, backbone: nn.Module) -> int:
    """Return V; a backbone with a head of its own must have room for every token of the corpus.

    Raises:
        UserError: it has not.
    """
    size = getattr(backbone, "vocabulary_size", len(vocabulary))
    if size < len(vocabulary):
        raise UserError(
            f"backbone has {size} tokens, the corpus {len(vocabulary)}: they need one tokenizer (the model's own: "
            "data/tokenizer=huggingface data.tokenizer.path=<the model's folder or name>)"
        )
    return int(size)


def _check(values: dict[str, Any]) -> None:
    """Refuse settings that mean nothing."""
    check_strength(values["alpha"], values["beta"], "model")
    for name in ("window", "window_start"):
        if values[name] < 1:
            raise UserError(f"model.{name}={values[name]}: give at least 1")
    for name in ("epsilon", "positive_weight"):
        if not values[name] > 0:
            raise UserError(f"model.{name}={values[name]}: give a number above 0")
    for name in ("alpha_ramp_fraction", "warmup_fraction", "final_fraction"):
        if not 0 <= values[name] <= 1:
            raise UserError(f"model.{name}={values[name]} is outside [0, 1]")
    for name in ("idea_weight", "stopword_count"):
        if values[name] < 0:
            raise UserError(f"model.{name}={values[name]} is negative")
    if values["idea_bias"] not in BIASES:
        raise UserError(f"model.idea_bias={values['idea_bias']!r}: use {' or '.join(BIASES)}")

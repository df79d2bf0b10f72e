"""The idea-gated Transformer: the model that the equations of ``gate.py`` make, and its training (sec. 3).

They run in the paper's form on small batches; ``fast/fused.py`` computes both heads and both losses in chunks, with the
same values and gradients, for large ones (``model.fast``).

Shape letters: B rows, T positions, N counted positions, V vocabulary, D hidden size, K window.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, NoReturn, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lit_ctg.core.batch import require
from lit_ctg.core.model import AdamW, Batch, LitLanguageModel, LMOutput, datamodule_of
from lit_ctg.errors import UserError
from lit_ctg.limits import Choice, Count, Fields, Fraction, NonNegative, Positive, Whole, checked, grouped
from lit_ctg.network.backbone import Backbone, PretrainedBackbone, check_backbone, vocabulary_size
from lit_ctg.network.gpt2 import GPT2Backbone
from lit_ctg.network.huggingface import weights_digest
from lit_ctg.papers.idea_gate.fast import fused
from lit_ctg.papers.idea_gate.gate import (
    CLAMPS,
    EMBEDDING_STD,
    Bound,
    GateForm,
    IdeaHead,
    LowRankIdeaHead,
    authors_mask,
    base_rates,
    distinct,
    frequent_mask,
    future_window,
    gated_scores,
    idea_loss,
)

STOPWORDS = ("authors", "frequent", "none")
BIASES = ("zero", "base_rate", "above_clamp", "token_rate")
# with idea_bias=above_clamp the gate starts at this share of its lower bound
START = 0.9
# added to hidden states that the head's relu is to let pass as they are: normalised states lie above its negative
SHIFT = 8.0
# tokens of the training text for the mean hidden state
MEAN_OVER = 1 << 14
# at most so many of them in a row
MEAN_LENGTH = 512
FAST = ("auto", "always", "never")
# logits of both heads in a batch from which fast=auto uses the fused form
FAST_FROM = 1 << 22
# gated scores computed at a time (64 MB in float32)
CHUNK = 1 << 24

# the model -----------------------------------------------------------------------------------------------------------


@dataclass
class IdeaGateOutput(LMOutput):
    """The model's output besides scores and hidden states.

    Attributes:
        token_BTV: the token head's logits, before the gate.
        idea_BTV: the idea head's logits; None without the head.
        nll_BT: costs of the targets, cached by the first metric that computes them (``metrics.py:cost``).
    """

    token_BTV: Tensor
    idea_BTV: Tensor | None
    nll_BT: dict[str, Tensor] = field(default_factory=dict, repr=False)


@dataclass
class IdeaState:
    """Generation so far: the backbone's cache, the idea logits [B, V] of the newest position (None: no head)."""

    cache: Any = None
    idea_BV: Tensor | None = None

    def idea_logits(self) -> Tensor:
        """Return the idea logits, for ``IdeaGateRule``."""
        assert self.idea_BV is not None
        return self.idea_BV


@checked
@dataclass(frozen=True, kw_only=True)
class GateSettings:
    """The gate (sec. 3.2) and its strength in training.

    Attributes:
        clamp, epsilon: see ``GateForm``.
        alpha: strength.
        beta: lower bound.
        alpha_ramp_fraction: share of the training run during which alpha rises from 0.
        lift: the gate is log p minus the log base rate in the training text (ours), see ``GateForm``.
        neutral_stopwords: the gate keeps the stopwords' joint probability (ours), see ``gated_scores``.
    """

    clamp: Annotated[str, Choice(CLAMPS)]
    alpha: NonNegative
    beta: Bound
    epsilon: Positive
    alpha_ramp_fraction: Fraction
    lift: bool = False
    neutral_stopwords: bool = False


@checked
@dataclass(frozen=True, kw_only=True)
class IdeaSettings:
    """The idea head: what it predicts, how it starts, and its loss (sec. 3.3).

    Attributes:
        window: K, tokens predicted at each position.
        window_start: 1: the window begins with the next token (the paper); 2: with the one after.
        positive_weight: of tokens in the window, in the idea loss.
        idea_weight: of the idea loss in the sum (Eq. 7).
        idea_bias: initial value of the idea head's bias: zero, base_rate (the log odds of a token in a window),
            above_clamp (the probability at which the gate is 0.9 of its lower bound: below the bound a token's loss
            gives its idea logit no gradient) or token_rate (each token's own rate in the training text).
        stopwords: which tokens the idea loss ignores: authors, frequent or none.
        stopword_count: how many tokens count as frequent.
        from_token_head: the idea logits begin as their bias and this share of what the token logits have above their
            mean over the training text (ours; for a trained ``start_from``); 0: from random weights.
        rank: of a ``LowRankIdeaHead`` on a pretrained model; 0: the paper's head.
    """

    window: Count
    window_start: Count
    positive_weight: Positive
    idea_weight: NonNegative
    idea_bias: Annotated[str, Choice(BIASES)]
    stopwords: Annotated[str, Choice(STOPWORDS)]
    stopword_count: Whole
    from_token_head: NonNegative = 0.0
    rank: Whole = 0


class IdeaGateModule(LitLanguageModel):
    """A language model on a causal backbone, with idea head and gate (``gated``) or without (the baselines).

    The backbone maps embedded tokens to hidden states and has ``dim``. One with ``embed(ids)`` and ``head_weight`` (a
    Hugging Face model) has its own embedding and output head; otherwise the two are one matrix here (tied).

    Args:
        vocabulary: tokenizer of the corpus.
        backbone: causal stack.
        gated: with idea head and gate.
        start_from: folder of a Hugging Face GPT-2 whose embedding and stack initialise ours.
        fast: use the fused form of the losses: auto (for large batches), always or never.
        settings: fields of ``GateSettings``, ``IdeaSettings`` and ``AdamW``.

    Attributes:
        alpha: strength of the gate outside training; set it to 0 for the ungated model.
        beta: its lower bound.
        form: its clamp and epsilon.
        ideas: settings of the idea head.
        stopword_mask_V: True at tokens that the idea loss ignores.
        given_weights: SHA-256 of the model of ``start_from``; only with one.

    Raises:
        UserError: a backbone, ``start_from`` or vocabulary that does not fit.
    """

    base_V: Tensor
    stopword_mask_V: Tensor

    def __init__(
        self,
        *,
        vocabulary: Any,
        backbone: Backbone,
        gated: bool,
        start_from: str | None = None,
        fast: Annotated[str, Choice(FAST)] = "auto",
        **settings: Annotated[Any, Fields(GateSettings), Fields(IdeaSettings), Fields(AdamW)],
    ) -> None:
        super().__init__()
        check_backbone(backbone, "dim", "step")
        self.vocabulary, self.backbone, self.gated, self.fast = vocabulary, backbone, gated, fast
        gate: GateSettings
        ideas: IdeaSettings
        gate, ideas, self.adamw = grouped({"decay_matrices_only": False, **settings}, GateSettings, IdeaSettings, AdamW)
        self.form = GateForm(clamp=gate.clamp, epsilon=gate.epsilon)
        self.alpha, self.beta, self.alpha_ramp_fraction = gate.alpha, gate.beta, gate.alpha_ramp_fraction
        self.lift, self.neutral_stopwords, self.ideas = gate.lift, gate.neutral_stopwords, ideas
        self.ramp, self._counted = 1.0, False
        if fast == "always" and not getattr(backbone, "matrix_head", True):
            raise UserError("model.fast=always: this model's logits have a bias, a scale or a cap; set model.fast=auto")
        self.embedding = None
        self.vocabulary_size = vocabulary_size(vocabulary, backbone)
        if not hasattr(backbone, "embed"):
            self.embedding = nn.Embedding(self.vocabulary_size, backbone.dim)
            nn.init.normal_(self.embedding.weight, std=EMBEDDING_STD)
        if ideas.rank and self.embedding is not None:
            raise UserError("model.rank is for backbone=<pretrained model>, whose output head it uses: set it to 0")
        if gated:
            size = backbone.dim, self.vocabulary_size
            self.idea_head = LowRankIdeaHead(*size, ideas.rank) if ideas.rank else IdeaHead(*size)
            if ideas.idea_bias == "base_rate":
                odds = ideas.positive_weight * ideas.window / self.vocabulary_size
                nn.init.constant_(self.idea_head.bias, math.log(odds))
            elif ideas.idea_bias == "above_clamp":
                log_p = START * self.form.floor(gate.alpha, gate.beta) if gate.alpha > 0 else math.log(0.5)
                # a bound of 0 closes the gate at every probability, one of -inf at none: no bias is above it
                bias = log_p - math.log(-math.expm1(log_p)) if -math.inf < log_p < 0 else 0.0
                nn.init.constant_(self.idea_head.bias, bias)
            if gate.lift:
                self.register_buffer("base_V", torch.zeros(self.vocabulary_size))
            if ideas.stopwords == "authors":
                mask_V = authors_mask(vocabulary, self.vocabulary_size)
            else:
                mask_V = torch.zeros(self.vocabulary_size, dtype=torch.bool)
            # stored in checkpoints, because the frequent tokens are those of the training text
            self.register_buffer("stopword_mask_V", mask_V)
        if start_from is not None:
            self._start_from(start_from)

    def _start_from(self, path: str) -> None:
        """Load embedding and stack of a pretrained GPT-2 of the same shape and tokens.

        Raises:
            UserError: none there, another shape, other tokens, a gated model, or a backbone with its own weights.
        """
        from transformers import AutoTokenizer, GPT2LMHeadModel

        embedding, stack = self.embedding, cast(GPT2Backbone, self.backbone)

        def refuse(why: str, cause: Exception | None = None) -> NoReturn:
            raise UserError(f"model.start_from={path} {why}") from cause

        if embedding is None or not hasattr(stack, "from_hugging_face"):
            refuse("needs backbone=gpt2, as no other can start from weights: leave it out")
        try:
            table = AutoTokenizer.from_pretrained(path, trust_remote_code=False).get_vocab()
            gpt2, found = GPT2LMHeadModel.from_pretrained(
                path, dtype=torch.float32, trust_remote_code=False, output_loading_info=True
            )
            given = gpt2.transformer.state_dict()
            self.given_weights = weights_digest(gpt2)
        except (OSError, ValueError, KeyError) as error:
            reason = str(error).strip().splitlines()[0][:160]
            refuse(f"cannot be loaded ({reason}): give a folder that data export-base wrote", error)
        if more := sorted(found["unexpected_keys"]) or sorted(found["missing_keys"]):
            refuse(f"is not a plain GPT-2 ({more[0]}): a gated model has left part of its token head to the gate; give "
                   "a folder that data export-base wrote")  # fmt: skip
        if sorted(table, key=table.__getitem__) != list(self.vocabulary.tokens):
            refuse("has other tokens than the corpus: give it the corpus it was trained on")
        try:
            stack.from_hugging_face(given)
            embedding.load_state_dict({"weight": given["wte.weight"]})
        except (RuntimeError, KeyError) as error:
            reason = " ".join(str(error).split())[:160]
            refuse(f"has another shape than backbone ({reason}): make them equal", error)

    def setup(self, stage: str) -> None:
        """See ``bind_data``, without which there is no training.

        Raises:
            UserError: the Trainer has no data module.
        """
        if self.counts_text and not self._counted:
            self.bind_data(datamodule_of(self.trainer))

    def bind_data(self, datamodule: Any) -> None:
        """Count frequent tokens and base rates in the training text, unless the weights hold what was counted."""
        if self.counts_text and not self._counted:
            self.count_text(require(datamodule, "prepare").prepare().ids("train"))

    def load_state_dict(self, *args: Any, **options: Any) -> Any:
        """Load weights, which hold what was counted."""
        self._counted = True
        return super().load_state_dict(*args, **options)

    @property
    def counts_text(self) -> bool:
        """Whether anything has to be counted before training."""
        counted = self.ideas.stopwords == "frequent" or self.lift or self.ideas.idea_bias == "token_rate"
        return self.gated and (counted or self.ideas.from_token_head > 0)

    def count_text(self, ids_N: Any, reference_N: Any = None) -> None:
        """Set stopwords, base rates, the initial bias and, if asked for, the head's initial weights from token ids.

        Args:
            ids_N: what will be trained on; its rates are the initial bias (``idea_bias=token_rate``).
            reference_N: a text whose frequent tokens are the stopwords and whose rates the lift gate subtracts, if not
                the same: then a head trained on some of a corpus raises what is more frequent there.
        """
        self._counted = True
        reference_N = ids_N if reference_N is None else reference_N
        if self.ideas.stopwords == "frequent":
            self.stopword_mask_V.copy_(frequent_mask(reference_N, self.vocabulary_size, self.ideas.stopword_count))
        if self.lift:
            odds_V = self._odds(reference_N)
            self.base_V.copy_((odds_V / (1 + odds_V)).log())
        if self.ideas.idea_bias == "token_rate":
            self.idea_head.bias.data.copy_(self._odds(ids_N).log())
        if self.ideas.from_token_head > 0:
            self._start_as_token_head(ids_N)

    @torch.no_grad()
    def _start_as_token_head(self, ids_N: Any) -> None:
        """Let the idea logits be bias + share * W (h - mean h), W the token head; relu(h + shift) is h + shift."""
        length = min(getattr(self.backbone, "context", None) or self.ideas.window, MEAN_LENGTH)
        ids_N = np.asarray(ids_N[:MEAN_OVER], dtype=np.int64)
        text_BT = torch.from_numpy(ids_N[: len(ids_N) // length * length or None].reshape(-1, min(length, len(ids_N))))
        backbone = cast(nn.Module, self.backbone)
        was_training = backbone.training
        backbone.eval()
        hidden_ND = backbone(self._embed(text_BT.to(self.head_weight.device))).flatten(0, 1)
        backbone.train(was_training)
        mean_D, share = hidden_ND.mean(0), self.ideas.from_token_head * getattr(self.backbone, "scale", 1.0)
        if isinstance(head := self.idea_head, LowRankIdeaHead):
            head.share.fill_(share)
            head.bias.sub_(share * self.head_weight @ mean_D)
            return
        # of a real model some coordinates reach -25
        shift_D = (-2 * hidden_ND.min(0).values).clamp(min=SHIFT)
        head.inner.weight.copy_(torch.eye(len(mean_D)))
        head.inner.bias.copy_(shift_D)
        head.outer.weight.copy_(share * self.head_weight)
        head.outer.bias.sub_(head.outer.weight @ (mean_D + shift_D))

    def _odds(self, ids_N: Any) -> Tensor:
        """Return the idea head's optimum without context [V], odds: positives count ``positive_weight`` times."""
        rate_V = base_rates(ids_N, self.vocabulary_size, self.ideas.window)
        # unseen tokens half a time
        return self.ideas.positive_weight * rate_V.clamp(min=0.5 / len(ids_N)) / (1 - rate_V).clamp(min=1e-6)

    # the network ---------------------------------------------------------------------------------------------------

    @property
    def head_weight(self) -> Tensor:
        """The token head [V, D], tied to the embedding unless the backbone has its own."""
        return cast(PretrainedBackbone, self.backbone).head_weight if self.embedding is None else self.embedding.weight

    @property
    def head(self) -> IdeaHead:
        """The idea head; one of low rank with the token head as it is now."""
        if isinstance(self.idea_head, LowRankIdeaHead):
            self.idea_head.token_weight = self.head_weight.detach()
        return self.idea_head

    def _token_logits(self, hidden: Tensor) -> Tensor:
        """Return the token head's logits [..., V] of hidden states [..., D]."""
        own = self.embedding is None
        return cast(PretrainedBackbone, self.backbone).head(hidden) if own else hidden @ self.head_weight.T

    def _embed(self, ids: Tensor) -> Tensor:
        return cast(PretrainedBackbone, self.backbone).embed(ids) if self.embedding is None else self.embedding(ids)

    def window(self, target_ids_BT: Tensor, mask_BT: Tensor | None = None) -> Tensor:
        """Return the tokens to predict at each position [B, T, K], -1 beyond the row; see ``future_window``."""
        return future_window(target_ids_BT, mask_BT, size=self.ideas.window, start=self.ideas.window_start)

    def future_window(self, batch: Batch) -> Tensor:
        """Return ``window`` of a batch."""
        return self.window(batch["target_ids_BT"], batch["mask_target_BT"])

    def gate(
        self, idea_logits: Tensor, alpha: float | Tensor | None = None, beta: float | Tensor | None = None
    ) -> Tensor:
        """Return the gate's addition to the token logits (Eq. 4, 5); strength and bound default to the model's."""
        alpha, beta = self.alpha if alpha is None else alpha, self.beta if beta is None else beta
        return self.form(idea_logits, alpha, beta, self.base_rate)

    @property
    def base_rate(self) -> Tensor | None:
        """``base_V`` of the lift gate; None for the paper's."""
        return self.base_V if self.lift else None

    @property
    def neutral(self) -> Tensor | None:
        """The tokens whose joint probability the gate keeps, [V] bool; None for the paper's gate."""
        return self.stopword_mask_V if self.neutral_stopwords else None

    def forward(self, batch: Batch) -> IdeaGateOutput:
        """Score every position."""
        hidden_BTD = self.backbone(self._embed(batch["input_ids_BT"]))
        # the heads in full precision: half-precision logits would give the metrics of another model
        with torch.autocast(hidden_BTD.device.type, enabled=False):
            hidden_BTD = hidden_BTD.to(self.head_weight.dtype)
            token_BTV = self._token_logits(hidden_BTD)
            if not self.gated:
                return IdeaGateOutput(token_BTV, hidden_BTD, token_BTV, None)
            idea_BTV = self.head(hidden_BTD)
            return IdeaGateOutput(self._gated(token_BTV, idea_BTV), hidden_BTD, token_BTV, idea_BTV)

    def contrast(self, batch: Batch) -> tuple[Tensor, Tensor] | None:
        """Return the gated scores and the token head's."""
        output = self(batch)
        return (output.scores_BTV, output.token_BTV) if self.gated else None

    def effect_note(self, batch: Batch, metrics: Mapping[str, Mapping[str, Any]]) -> str:
        """Return the share of tokens at the gate's bound, and whether the head ranks better than word frequency."""
        idea_BTV = self(batch).idea_BTV
        flat = float(self.form.clamped(idea_BTV, self.alpha, self.beta, self.base_rate).double().mean())
        note = f"{flat:.2%} of tokens are at the gate's bound"
        ranked, frequent = (metrics.get(f"val/idea/{name}average_precision") for name in ("", "unigram_"))
        if ranked and frequent:
            ours, theirs = ranked["value"], frequent["value"]
            note += f"; average precision of the coming words {ours:.4f}, of word frequency {theirs:.4f}"
            note += ": the head has learned no topic, train longer (trainer.max_epochs)" * (ours <= theirs)
        return note

    def _gated(self, token_BTV: Tensor, idea_BTV: Tensor) -> Tensor:
        """Eq. 6, some rows at a time, so that the gate's intermediate values of all positions never coexist."""
        if self.alpha == 0:
            return token_BTV
        if torch.is_grad_enabled():
            return gated_scores(token_BTV, self.gate(idea_BTV), self.neutral)
        scores_BTV = torch.empty_like(token_BTV)
        rows = max(1, CHUNK // self.vocabulary_size)
        parts = (value.flatten(0, 1).split(rows) for value in (token_BTV, idea_BTV, scores_BTV))
        for token, idea, scores in zip(*parts, strict=True):
            scores.copy_(gated_scores(token, self.gate(idea), self.neutral))
        return scores_BTV

    # training ------------------------------------------------------------------------------------------------------

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Set the gate's strength from the step alone, so that a resumed run equals an uninterrupted one."""
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
        if self._fused(len(target_N)):
            return self._fused_losses(hidden_ND, target_N, window_NK)
        token_NV = _working(self._token_logits(hidden_ND))
        if window_NK is None:
            token_loss = F.cross_entropy(token_NV, target_N)
            return {"loss": token_loss, "token_loss": token_loss.detach()}
        idea_NV = _working(self.head(hidden_ND))
        if self.alpha * self.ramp > 0:
            gate_NV = self.gate(idea_NV, self.alpha * self.ramp)
            token_NV = gated_scores(token_NV, gate_NV, self.neutral)
        token = F.cross_entropy(token_NV, target_N)
        idea = idea_loss(
            idea_NV, window_NK, positive_weight=self.ideas.positive_weight, stopword_mask=self.stopword_mask_V
        )
        return {"loss": token + self.ideas.idea_weight * idea, "token_loss": token.detach(), "idea_loss": idea.detach()}

    def _fused(self, positions: int) -> bool:
        """Say whether the fused form computes this batch."""
        if self.fast != "auto" or not getattr(self.backbone, "matrix_head", True):
            return self.fast == "always"
        heads = 2 if self.gated else 1
        return heads * positions * self.vocabulary_size >= FAST_FROM

    def _fused_losses(self, hidden_ND: Tensor, target_N: Tensor, window_NK: Tensor | None) -> dict[str, Tensor]:
        if window_NK is None:
            return fused.fused_loss(hidden_ND, self.head_weight, target_N)
        head = self.head
        ideas = fused.Ideas(
            hidden_ND=head.features(hidden_ND),
            weight_VD=head.weight,
            bias_V=head.bias,
            window_NK=distinct(window_NK, self.stopword_mask_V),
            counted_V=(~self.stopword_mask_V).to(head.weight.dtype),
            positive_weight=self.ideas.positive_weight,
            loss_weight=self.ideas.idea_weight,
        )
        alpha = self.alpha * self.ramp
        floor = self.form.floor(alpha, self.beta) if alpha > 0 else 0.0
        gate = fused.GateSetting(
            alpha=alpha, floor=floor, epsilon=self.form.epsilon, base_V=self.base_rate, neutral_V=self.neutral
        )
        return fused.fused_loss(hidden_ND, self.head_weight, target_N, gate, ideas)

    def configure_optimizers(self) -> Any:
        """AdamW with warm-up and cosine over the whole run."""
        if not any(parameter.requires_grad for parameter in self.parameters()):
            raise UserError(
                "nothing to train: the backbone is frozen and the model has no gate; use the gate_off results of "
                "experiment=idea_gate/main instead; for a baseline that is trained give backbone.frozen=false"
            )
        return self.adamw.configure(self)

    # generation (a StepModel of decoding/loop.py) ------------------------------------------------------------------

    def start(self, batch_size: int, controls: IdeaState | None = None) -> IdeaState:
        """Return the state of empty prefixes; a given one is used, so that a score rule can read its idea logits."""
        return IdeaState() if controls is None else controls

    def step(self, ids_B1: Tensor, state: IdeaState) -> tuple[Tensor, IdeaState]:
        """Take the newest tokens; return the token head's scores [B, V]; the gate is a rule over ``idea_BV``."""
        hidden_BD, state.cache = self.backbone.step(self._embed(ids_B1[:, 0]), state.cache)
        state.idea_BV = self.head(hidden_BD) if self.gated else None
        return self._token_logits(hidden_BD), state


def _working(logits: Tensor) -> Tensor:
    """Return logits in the dtype of the losses: half precision is only for matrix products."""
    return logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits

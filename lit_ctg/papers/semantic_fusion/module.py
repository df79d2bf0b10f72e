"""Semantic fusion as a LightningModule, and its baseline (``fusion=False``).

Shape letters: B sentences, T positions, N packed positions, D hidden size, F features, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lit_ctg.core.model import Batch, LitLanguageModel, LMOutput, adamw_warmup_cosine
from lit_ctg.errors import UserError
from lit_ctg.network.packing import Packing
from lit_ctg.network.transformer import Cache, SinusoidalPosition, TransformerBackbone
from lit_ctg.papers.semantic_fusion.channel import ChannelSetting, drop_and_replace, hindsight
from lit_ctg.papers.semantic_fusion.clause_vocabulary import ClauseVocabulary
from lit_ctg.papers.semantic_fusion.features import NAMES, ClauseAnnotator, Memberships, assemble
from lit_ctg.papers.semantic_fusion.fusion import GatedFusion, auxiliary_head
from lit_ctg.papers.semantic_fusion.losses import auxiliary_loss, token_loss, uniformizer_loss

LONGEST = 512  # positions in the table, as the authors have
TARGETS = ("current", "next")
MASKS = ("target", "input")


@dataclass
class GenerationState:
    """Prefix and cache of a batch in generation."""

    ids_BT: Tensor
    channel: ChannelSetting | None
    cache: Cache | None = None


class SemanticFusionModule(LitLanguageModel):
    """Transformer LM with a gated channel of fuzzy features (sec. 2).

    Args:
        vocabulary: of the clause corpus.
        backbone: its ``causal`` must be this module's.
        fusion: False is the baseline: no channel, no auxiliary head.
        gate: Eq. 3; False is the ablation h0 = e + u.
        causal: see ``LitLanguageModel``.
        prefix_only_features: corrected features, see ``ClauseAnnotator``.
        loss_mask: positions the loss counts: ``"target"`` (target is not pad) or ``"input"`` (the authors').
        embedding_std, embedding_scale: of the tied embedding at initialisation, and what it is multiplied by at the
            input.
        feature_dropout: see ``channel.drop_and_replace``; 1 never trains the channel as a control.
        auxiliary_target: features of the ``"current"`` token (Eq. 7) or of the ``"next"`` one.
        label_smoothing, auxiliary_weight, uniformizer_weight: of Eq. 5 and 6.
        membership_centres, membership_temperature, learnable_memberships: Eq. 1, see ``Memberships``.
        exclamation_nudge: see ``ClauseAnnotator``.
        learning_rate, weight_decay, warmup_fraction, warmup_from_zero, decay_matrices_only: see
            ``adamw_warmup_cosine``.
        seed: of the weights and of the channel's draws.

    Raises:
        UserError: an unknown option, a share outside [0, 1], a backbone that disagrees about causality.
    """

    def __init__(
        self,
        *,
        vocabulary: ClauseVocabulary,
        backbone: TransformerBackbone,
        fusion: bool,
        gate: bool,
        causal: bool,
        prefix_only_features: bool,
        loss_mask: str,
        embedding_std: float,
        embedding_scale: float,
        feature_dropout: float,
        auxiliary_target: str,
        label_smoothing: float,
        auxiliary_weight: float,
        uniformizer_weight: float,
        membership_centres: Sequence[float],
        membership_temperature: float,
        learnable_memberships: bool,
        exclamation_nudge: float,
        learning_rate: float,
        weight_decay: float,
        warmup_fraction: float,
        warmup_from_zero: bool,
        decay_matrices_only: bool,
        seed: int,
    ) -> None:
        super().__init__()
        _check(auxiliary_target, TARGETS, "auxiliary_target")
        _check(loss_mask, MASKS, "loss_mask")
        for name, share in {
            "feature_dropout": feature_dropout,
            "label_smoothing": label_smoothing,
            "warmup_fraction": warmup_fraction,
        }.items():
            if not 0 <= share <= 1:
                raise UserError(f"model.{name}={share} is outside [0, 1]")
        if backbone.causal != causal:
            raise UserError(f"model.causal={causal} but backbone.causal={backbone.causal}: set only model.causal")
        self.vocabulary, self.causal, self.fusion = vocabulary, causal, fusion
        self.loss_mask, self.embedding_scale = loss_mask, embedding_scale
        self.feature_dropout, self.auxiliary_target = feature_dropout, auxiliary_target
        self.label_smoothing = label_smoothing
        self.auxiliary_weight, self.uniformizer_weight = auxiliary_weight, uniformizer_weight
        self.optimization = {
            "learning_rate": learning_rate,
            "weight_decay": weight_decay,
            "warmup_fraction": warmup_fraction,
            "warmup_from_zero": warmup_from_zero,
            "decay_matrices_only": decay_matrices_only,
        }
        self.seed = seed
        self.channel_generator = torch.Generator()
        self.backbone = backbone
        self.position = SinusoidalPosition(backbone.dim, LONGEST)
        for name in ("positive", "negative"):
            ids = torch.tensor(vocabulary.ids(f"adjective_{name}"))
            self.register_buffer(f"{name}_ids", ids, persistent=False)
        # a generator each: baseline and fusion of one seed share the values of all parameters they share
        weight_VD = torch.empty(len(vocabulary), backbone.dim)
        nn.init.normal_(weight_VD, std=embedding_std, generator=torch.Generator().manual_seed(seed))
        self.embedding = nn.Embedding(len(vocabulary), backbone.dim, _weight=weight_VD)
        if fusion:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed + 1)
                self.fuse = GatedFusion(backbone.dim, len(NAMES), gate)
                self.auxiliary = auxiliary_head(backbone.dim, len(NAMES))
            self.annotator = ClauseAnnotator(
                vocabulary, prefix_only=prefix_only_features, exclamation_nudge=exclamation_nudge
            )
            low, med, high = membership_centres
            self.memberships = Memberships(
                centres=(low, med, high), temperature=membership_temperature, learnable=learnable_memberships
            )

    @property
    def has_channel(self) -> bool:
        """Whether the channel path exists: features can be set from a control, position by position."""
        return self.fusion and self.causal

    # features ------------------------------------------------------------------------------------------------------

    def corpus_transform(self, ids_NT: Tensor, lengths_N: Tensor) -> dict[str, Tensor]:
        """Return what the features of a corpus are made of, [N, T, ..] each; called once, not per item and epoch.

        With fixed memberships the features themselves, with learnable ones the predicates and scalars under them.
        Names with ``next_`` hold the features of the token after (the last column, which no batch keeps, wraps round).
        """
        if not self.fusion:
            return {}
        parts = self._feature_parts(ids_NT, lengths_N)
        if self.feature_dropout < 1:
            parts["hindsight_BTF"] = hindsight(ids_NT, self.vocabulary)
        extras = dict(parts)
        if self.auxiliary_target == "next":
            shifted = {name: value.roll(-1, dims=1) for name, value in parts.items() if name != "hindsight_BTF"}
            extras |= {f"next_{name}": value for name, value in shifted.items()}
        return extras

    def _feature_parts(self, ids_NT: Tensor, aligned_N: Tensor) -> dict[str, Tensor]:
        predicates, scalars = self.annotator(ids_NT, aligned_N)
        if self.memberships.learnable:
            return {"predicates_BTP": predicates, "scalars_BT3": scalars}
        valid_NT1 = (ids_NT != self.vocabulary.pad_id).unsqueeze(-1)
        return {"features_BTF": assemble(predicates, self.memberships(scalars)) * valid_NT1}

    def _features(self, batch: Mapping[str, Tensor], prefix: str = "") -> Tensor:
        """Return features [B, T, F] of a batch, from the corpus if it was transformed, else from its ids."""
        if f"{prefix}features_BTF" in batch:
            return batch[f"{prefix}features_BTF"]
        if f"{prefix}predicates_BTP" in batch:
            return assemble(batch[f"{prefix}predicates_BTP"], self.memberships(batch[f"{prefix}scalars_BT3"]))
        ids_BT = batch["input_ids_BT"]
        last_B1 = batch["target_ids_BT"][:, -1:]
        whole_BT = torch.cat([ids_BT, last_B1], dim=1)
        transformed = self.corpus_transform(whole_BT, (whole_BT != self.vocabulary.pad_id).sum(1))
        width = ids_BT.shape[1]
        return self._features({name: value[:, :width] for name, value in transformed.items()}, prefix)

    # the network ---------------------------------------------------------------------------------------------------

    def _embed(self, ids_N: Tensor, features_NF: Tensor | None, position_N: Tensor) -> Tensor:
        """Embedding, fusion (Eq. 2-4), position."""
        embedding_ND = self.embedding(ids_N) * self.embedding_scale
        if features_NF is not None:
            embedding_ND = self.fuse(embedding_ND, features_NF)
        return embedding_ND + self.position(position_N)

    def _hidden(self, batch: Batch, packing: Packing, features_BTF: Tensor | None) -> Tensor:
        features_NF = None if features_BTF is None else packing.gather(features_BTF)
        embedded_ND = self._embed(packing.gather(batch["input_ids_BT"]), features_NF, packing.positions(self.device))
        return self.backbone.forward_packed(embedded_ND, packing)

    def _logits(self, hidden_ND: Tensor) -> Tensor:
        """Tied head: H E^T."""
        return hidden_ND @ self.embedding.weight.T

    def forward(self, batch: Batch) -> LMOutput:
        """Score every position of the input that is not padding; features are the batch's own, no control."""
        packing = Packing.of(batch["mask_input_BT"])
        features_BTF = self._features(batch) if self.fusion else None
        hidden_ND = self._hidden(batch, packing, features_BTF)
        extras: dict[str, Any] = {}
        if features_BTF is not None:
            target_BTF = features_BTF if self.auxiliary_target == "current" else self._features(batch, "next_")
            real_BT1 = batch["mask_input_BT"].unsqueeze(-1)  # memberships of padding are not 0
            extras = {
                "features_BTF": features_BTF * real_BT1,
                "aux_BTF": packing.scatter(torch.sigmoid(self.auxiliary(hidden_ND))),
                "aux_target_BTF": target_BTF.detach() * real_BT1,
            }
        return LMOutput(packing.scatter(self._logits(hidden_ND)), packing.scatter(hidden_ND), extras)

    # training ------------------------------------------------------------------------------------------------------

    def on_train_epoch_start(self) -> None:
        """Give the channel's draws a stream that depends on (seed, epoch) only."""
        self.channel_generator.manual_seed((self.seed << 20) + self.current_epoch)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return Eq. 5 as "loss" and its three parts, over the positions of the loss mask."""
        packing = Packing.of(batch["mask_target_BT"] if self.loss_mask == "target" else batch["mask_input_BT"])
        features_BTF = self._features(batch) if self.fusion else None
        controlled_BTF = features_BTF
        if features_BTF is not None and self.feature_dropout < 1:
            controlled_BTF = drop_and_replace(
                features_BTF,
                batch["hindsight_BTF"],
                feature_dropout=self.feature_dropout,
                generator=self.channel_generator,
            )
        counted = _counted(packing)
        hidden_ND = counted(self._hidden(batch, packing, controlled_BTF))
        logits_NV, target_N = self._logits(hidden_ND), counted(packing.gather(batch["target_ids_BT"]))
        token = token_loss(logits_NV, target_N, label_smoothing=self.label_smoothing)
        uniformizer = uniformizer_loss(logits_NV, target_N, (self.positive_ids, self.negative_ids))
        losses = {"token_loss": token, "uniformizer_loss": uniformizer}
        loss = token + self.uniformizer_weight * uniformizer
        if features_BTF is not None:
            target_BTF = features_BTF if self.auxiliary_target == "current" else self._features(batch, "next_")
            losses["auxiliary_loss"] = auxiliary_loss(self.auxiliary(hidden_ND), counted(packing.gather(target_BTF)))
            loss = loss + self.auxiliary_weight * losses["auxiliary_loss"]
        return {"loss": loss, **losses}

    def configure_optimizers(self) -> Any:
        """AdamW with warm-up and cosine over the whole run, a step a batch."""
        total_steps = int(self.trainer.estimated_stepping_batches)
        return adamw_warmup_cosine(self.parameters(), total_steps=total_steps, **self.optimization)

    # generation (a StepModel of decoding/loop.py) ------------------------------------------------------------------

    def start(self, batch_size: int, controls: Sequence[Mapping[str, float]] | None = None) -> GenerationState:
        """Return the state of empty prefixes; ``controls`` (checked, one a row) go through the feature channel."""
        channel = ChannelSetting.of(controls, self.embedding.weight) if controls else None
        ids_BT = torch.zeros(batch_size, 0, dtype=torch.long, device=self.device)
        return GenerationState(ids_BT, channel)

    def step(self, ids_B1: Tensor, state: GenerationState) -> tuple[Tensor, GenerationState]:
        """Take the newest tokens; return the scores [B, V] of the next ones."""
        ids_BT = torch.cat([state.ids_BT, ids_B1], dim=1)
        if not self.causal:
            return self._scores_of_prefix(ids_BT), GenerationState(ids_BT, state.channel)
        features_BF = None
        if self.fusion:
            features_BF = self._prefix_features(ids_BT)[:, -1]
            if state.channel is not None:
                features_BF = state.channel.apply(features_BF)
        position_B = torch.full_like(ids_B1[:, 0], ids_BT.shape[1] - 1)
        hidden_BD, cache = self.backbone.step(self._embed(ids_B1[:, 0], features_BF, position_B), state.cache)
        return self._logits(hidden_BD), GenerationState(ids_BT, state.channel, cache)

    def _prefix_features(self, ids_BT: Tensor) -> Tensor:
        """Features of prefixes, each annotated as a sentence that ends there (as published generation does)."""
        aligned_B = (ids_BT != self.vocabulary.pad_id).sum(1) + 1
        parts = self._feature_parts(ids_BT, aligned_B)
        return self._features(parts)

    def _scores_of_prefix(self, ids_BT: Tensor) -> Tensor:
        """Scores [B, V] after the last column, the whole prefix recomputed."""
        valid_BT = ids_BT != self.vocabulary.pad_id
        packing = Packing.of(valid_BT)
        features_BTF = self._prefix_features(ids_BT) if self.fusion else None
        hidden_ND = self._hidden({"input_ids_BT": ids_BT}, packing, features_BTF)
        return self._logits(packing.scatter(hidden_ND)[:, -1])


def _counted(packing: Packing) -> Callable[[Tensor], Tensor]:
    """Return what drops the rows of padding from packed values, where the packing has left some in."""
    if packing.valid_BT is None:
        return lambda values_N: values_N
    valid_N = packing.valid_BT.flatten()
    return lambda values_N: values_N[valid_N]


def _check(value: str, options: tuple[str, ...], name: str) -> None:
    if value not in options:
        raise UserError(f"model.{name}={value!r}: use {' or '.join(options)}")

"""Semantic fusion from top to bottom: features, losses, the LightningModule and its baseline.

``channel.py`` has the features' names and memberships, the channel as a control, and the gated fusion.

Published features depend on the whole sentence and on fixed positions; corrected ones are functions of the tokens up to
their own position. A baseline is the same module with ``fusion=False``.

The feature channel as a control is in the paper's text, but its code never calls it. A control names features of three
groups. A named group is replaced as a whole at the current position (the named features get their values, the others of
the group 0). Other groups keep their prefix-only features. In training a sentence's own future is the control
(hindsight). Each of its groups is dropped with probability ``feature_dropout``, so that the model also works without
control.

Shape letters: B, N sentences (N: packed positions in fusion and losses), T positions, P predicates (13), F features
(22), D hidden size, V vocabulary, C words of a class.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, cast

import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn
from torch.nn import functional

from lit_ctg.core.model import AdamW, Batch, LitLanguageModel, LMOutput
from lit_ctg.errors import UserError
from lit_ctg.limits import Choice, Fields, Fraction, NonNegative, Positive, Whole, checked, grouped
from lit_ctg.network.backbone import check_backbone
from lit_ctg.network.packing import Packing
from lit_ctg.network.transformer import SinusoidalPosition, TransformerBackbone
from lit_ctg.papers.semantic_fusion.channel import (
    COLUMN,
    GROUPS,
    LEADING,
    NAMES,
    ChannelSetting,
    GatedFusion,
    at_next,
    membership,
)
from lit_ctg.papers.semantic_fusion.clause import ClauseVocabulary

# the feature bank (Eq. 1, Appendix A) ---------------------------------------------------------------------------------


class FusionBatch(Batch, total=False):
    """A batch with the results of ``corpus_transform`` for the whole corpus; names may have the prefix ``next_``.

    Attributes:
        features_BTF: the feature bank.
        predicates_BTP, scalars_BT3, real_BT1: instead of it, where memberships are learned; the last is 0 at padding.
        hindsight_BTF: see ``hindsight``.
    """

    features_BTF: Tensor
    predicates_BTP: Tensor
    scalars_BT3: Tensor
    real_BT1: Tensor
    hindsight_BTF: Tensor


class ClauseAnnotator(nn.Module):
    """Maps token ids to predicates [.., 13] and the scalars [.., 3] positive, negative, strength.

    Args:
        vocabulary: of the clause corpus.
        prefix_only: corrected features (each a function of the tokens up to its position) instead of the published.
        exclamation_nudge: added to the strength where "!" counts (0.2, sec. 2 "Strength instantiation"), capped at 1.
    """

    static_PV: Tensor  # 0 or 1 for each property and token
    polarity_V: Tensor
    intensity_V: Tensor

    def __init__(self, vocabulary: ClauseVocabulary, *, prefix_only: bool, exclamation_nudge: float) -> None:
        super().__init__()
        self.prefix_only, self.exclamation_nudge = prefix_only, exclamation_nudge
        self.exclamation_id, self.pad_id = vocabulary.id("!"), vocabulary.pad_id
        groups = {name: set(vocabulary.ids(name)) for name in ("subject", "verb", "object", "pronoun")}
        tokens = vocabulary.tokens
        adjectives = {vocabulary.id(word) for word in vocabulary.polarity}

        words = {index for index, token in enumerate(tokens) if token.isalpha()}
        published_nouns = words - adjectives - groups["verb"] - groups["subject"] - groups["pronoun"]
        nouns = groups["object"] | groups["subject"] if prefix_only else published_nouns
        # properties of a token, independent of its context
        static = {
            "is_noun": nouns,
            "is_verb": groups["verb"],
            "is_adj": adjectives,
            "is_subject": groups["subject"] | groups["pronoun"],
            "is_object": groups["object"],
            "is_head": groups["verb"],
            "is_bos": {vocabulary.bos_id},
            "is_eos": {vocabulary.eos_id},
            "is_comma": set(vocabulary.ids("comma")),
            "is_question": {vocabulary.id("?")},
            "is_name": groups["subject"],
            "is_capitalized": {index for index, token in enumerate(tokens) if token[0].isupper()},
            "is_pronoun": groups["pronoun"],
        }
        self.static = tuple(static)
        rows = [[float(index in members) for index in range(len(tokens))] for members in static.values()]
        self.register_buffer("static_PV", torch.tensor(rows), persistent=False)
        polarity_V = torch.tensor([float(vocabulary.polarity.get(token, 0)) for token in tokens])
        self.register_buffer("polarity_V", polarity_V, persistent=False)
        intensity_V = torch.tensor([float(vocabulary.intensity.get(token, 0.0)) for token in tokens])
        self.register_buffer("intensity_V", intensity_V, persistent=False)

    def forward(self, ids_NT: Tensor, aligned_N: Tensor) -> tuple[Tensor, Tensor]:
        """Annotate sentences.

        Args:
            ids_NT: tokens, ``<bos>`` first, padding last.
            aligned_N: length of ``<bos> words <eos>`` of each sentence, even where the ids stop before ``<eos>`` (a
                prefix in generation is annotated as if it were a whole sentence); only published features use it.

        Returns:
            predicates [N, T, 13] in {0, 1} and scalars [N, T, 3] in [0, 1]; rows of padding are zero.
        """
        valid_NT = (ids_NT != self.pad_id).float()
        found = dict(zip(self.static, self.static_PV[:, ids_NT], strict=True))
        if not self.prefix_only:
            found |= self._roles_of_positions(ids_NT, aligned_N)
        # no pronoun is a name
        found["coref_subject"] = found["is_pronoun"] * found["is_name"].cumsum(1).clamp(max=1)
        columns = [found[name] for name in NAMES if name in found]
        polarity_NT = self.polarity_V[ids_NT]
        scalars = [polarity_NT.clamp(min=0), (-polarity_NT).clamp(min=0), self._strength(ids_NT, aligned_N)]
        mask_NT1 = valid_NT.unsqueeze(-1)
        return torch.stack(columns, dim=-1) * mask_NT1, torch.stack(scalars, dim=-1) * mask_NT1

    def _roles_of_positions(self, ids_NT: Tensor, aligned_N: Tensor) -> dict[str, Tensor]:
        """Return subject, object and head at the authors' fixed positions, which shift in short prefixes."""
        position_T = torch.arange(ids_NT.shape[1], device=ids_NT.device)
        length_N1 = aligned_N.to(ids_NT.device).unsqueeze(1)
        places = {
            "is_subject": torch.ones_like(length_N1),
            "is_object": torch.where(length_N1 > 4, 4, length_N1 - 2),
            "is_head": torch.where(length_N1 > 2, 2, 1),
        }
        return {name: (position_T == where_N1).float() for name, where_N1 in places.items()}

    def _strength(self, ids_NT: Tensor, aligned_N: Tensor) -> Tensor:
        """Return the intensity of the previous token, plus the nudge of "!"."""
        before_NT = functional.pad(self.intensity_V[ids_NT][:, :-1], (1, 0))
        exclaims_NT = (ids_NT == self.exclamation_id).float()
        if self.prefix_only:
            nudged_NT = exclaims_NT.cummax(dim=1).values
        else:
            # the last word of the sentence decides for all its positions
            last_N1 = (aligned_N.to(ids_NT.device) - 2).clamp(min=0).unsqueeze(1)
            nudged_NT = exclaims_NT.gather(1, last_N1).expand_as(exclaims_NT)
        return (before_NT + self.exclamation_nudge * nudged_NT).clamp(max=1.0)


class Memberships(nn.Module):
    """Low, medium and high membership of each scalar (Eq. 1).

    Args:
        centres: of low, medium, high; ascending.
        temperature: tau.
        learnable: temperature and centres become parameters, one set per scalar; tau stays positive and the centres
            ascending whatever the optimiser does.
    """

    fixed_33: Tensor
    fixed_temperature_31: Tensor
    # only for learned ones
    first_31: Tensor
    raw_gap_32: Tensor
    raw_temperature_31: Tensor

    def __init__(self, *, centres: tuple[float, float, float], temperature: float, learnable: bool) -> None:
        super().__init__()
        self.learnable = learnable
        centres_3 = torch.tensor(centres)
        gaps_2 = centres_3.diff()
        # per scalar (rows): first centre, then gaps and temperature through softplus
        for name, value in {
            "first_31": centres_3[:1].repeat(3, 1),
            "raw_gap_32": _softplus_inverse(gaps_2).repeat(3, 1),
            "raw_temperature_31": _softplus_inverse(torch.tensor([temperature])).repeat(3, 1),
        }.items():
            if learnable:
                self.register_parameter(name, nn.Parameter(value))
        self.register_buffer("fixed_33", centres_3.repeat(3, 1), persistent=False)
        self.register_buffer("fixed_temperature_31", torch.full((3, 1), float(temperature)), persistent=False)

    @property
    def centres_33(self) -> Tensor:
        """The centres, one row per scalar."""
        if not self.learnable:
            return self.fixed_33
        gaps_32 = functional.softplus(self.raw_gap_32)
        return torch.cat([self.first_31, self.first_31 + gaps_32.cumsum(1)], dim=1)

    @property
    def temperature_31(self) -> Tensor:
        """The temperatures, one row per scalar."""
        return functional.softplus(self.raw_temperature_31) if self.learnable else self.fixed_temperature_31

    def forward(self, scalars: Tensor) -> Tensor:
        """Return the memberships [.., 9] of scalars [.., 3]: low, med, high of positive, negative, strength."""
        return membership(scalars.unsqueeze(-1), self.centres_33, self.temperature_31).flatten(-2)


def check_centres(centres: Sequence[float]) -> None:
    """Refuse anything but three ascending centres.

    Raises:
        UserError: names the setting.
    """
    if len(centres) != 3 or not centres[0] < centres[1] < centres[2]:
        raise UserError(f"model.membership_centres={list(centres)}: give low, medium and high, ascending")


def assemble(predicates: Tensor, memberships: Tensor) -> Tensor:
    """Arrange predicates [.., 13] and memberships [.., 9] in the order of the bank [.., 22]."""
    return torch.cat([predicates[..., :LEADING], memberships, predicates[..., LEADING:]], dim=-1)


def _softplus_inverse(value: Tensor) -> Tensor:
    return value + torch.log(-torch.expm1(-value))


# the channel as a control ---------------------------------------------------------------------------------------------

# the control that corresponds to an intensifier, by strength: slightly (.2); moderately (.5); very (.8), extremely (1)
STRENGTHS = {"str_high": 0.65, "str_med": 0.35, "str_low": 0.0}
# smallest value of a hindsight control; the largest is 1
LOWEST_VALUE = 0.6


def hindsight(ids_NT: Tensor, vocabulary: ClauseVocabulary) -> Tensor:
    """Return what a user would have asked for at each position, [N, T, F] in {0, 1}.

    Polarity: pos_high or neg_high by the next adjective (or the last one). Strength: str_low, str_med or str_high by
    the next intensifier (slightly; moderately; very, extremely). Question: is_question at every position of a sentence
    that ends in "?".
    """
    wanted = {"pos_high": vocabulary.ids("adjective_positive"), "neg_high": vocabulary.ids("adjective_negative")}
    strength: dict[str, list[int]] = {"str_low": [], "str_med": [], "str_high": []}
    for word, value in vocabulary.intensity.items():
        strength[next(name for name, above in STRENGTHS.items() if value > above)].append(vocabulary.id(word))
    table_NTF = ids_NT.new_zeros(*ids_NT.shape, len(NAMES), dtype=torch.float32)
    for choice in (wanted, strength):
        said_NT = torch.zeros_like(ids_NT)
        for number, ids in enumerate(choice.values(), start=1):
            said_NT = torch.where(torch.isin(ids_NT, ids_NT.new_tensor(ids)), number, said_NT)
        to_come_NT = at_next(said_NT, said_NT > 0)
        for number, name in enumerate(choice, start=1):
            table_NTF[..., COLUMN[name]] = (to_come_NT == number).float()
    asks_N1 = (ids_NT == vocabulary.id("?")).any(1, keepdim=True)
    table_NTF[..., COLUMN["is_question"]] = asks_N1.float()
    return table_NTF


def drop_and_replace(
    features_BTF: Tensor,
    hindsight_BTF: Tensor,
    *,
    feature_dropout: float,
    generator: torch.Generator,
    names: Sequence[str] = NAMES,
    groups: Mapping[str, Sequence[str]] = GROUPS,
) -> Tensor:
    """Insert hindsight controls into a training batch's features.

    Per sentence and group: dropped with probability ``feature_dropout`` (features stay), else the group is replaced by
    its hindsight control times a uniform value in [0.6, 1].

    Args:
        features_BTF: prefix-only features.
        hindsight_BTF: see ``hindsight``.
        feature_dropout: in [0, 1]; 1 returns the features unchanged.
        generator: a separate CPU generator, so that the draws do not advance another random stream.
        names, groups: of the bank, and which of its features are set together.
    """
    if feature_dropout >= 1:
        return features_BTF
    batch = len(features_BTF)
    kept_BG = torch.rand(batch, len(groups), generator=generator) >= feature_dropout
    value_BG = LOWEST_VALUE + (1 - LOWEST_VALUE) * torch.rand(batch, len(groups), generator=generator)
    kept_BF = torch.zeros(batch, len(names), dtype=torch.bool)
    value_BF = torch.zeros(batch, len(names))
    column = {name: index for index, name in enumerate(names)}
    for group, members in enumerate(groups.values()):
        columns = [column[name] for name in members]
        kept_BF[:, columns] = kept_BG[:, group : group + 1]
        value_BF[:, columns] = value_BG[:, group : group + 1]
    kept_B1F, value_B1F = (
        kept_BF.to(features_BTF.device, non_blocking=True).unsqueeze(1),
        value_BF.to(features_BTF).unsqueeze(1),
    )
    return torch.where(kept_B1F, hindsight_BTF * value_B1F, features_BTF)


# the auxiliary head -------------------------------------------------------------------------------------------------


def auxiliary_head(dim: int, features: int) -> nn.Sequential:
    """Linear(D, max(64, 2F)), ReLU, Linear(., F); its sigmoid predicts the features."""
    width = max(64, 2 * features)
    return nn.Sequential(nn.Linear(dim, width), nn.ReLU(), nn.Linear(width, features))


# losses (Eq. 5-8) -----------------------------------------------------------------------------------------------------


def token_loss(
    logits_NV: Tensor, target_N: Tensor, *, label_smoothing: float, weight_N: Tensor | None = None
) -> Tensor:
    """Eq. 6: mean cross-entropy in nats against targets smoothed over the whole vocabulary; weighted, if asked for."""
    if weight_N is None:
        return functional.cross_entropy(logits_NV, target_N, label_smoothing=label_smoothing)
    each_N = functional.cross_entropy(logits_NV, target_N, label_smoothing=label_smoothing, reduction="none")
    return (weight_N * each_N).sum() / weight_N.sum()


def auxiliary_loss(predicted_NF: Tensor, features_NF: Tensor) -> Tensor:
    """Eq. 7: mean binary cross-entropy in nats over position-feature pairs.

    Args:
        predicted_NF: logits of the auxiliary head (before the sigmoid).
        features_NF: soft targets in [0, 1]; no gradient flows into them, because learnable memberships would otherwise
            become easy to predict.
    """
    return functional.binary_cross_entropy_with_logits(predicted_NF, features_NF.detach())


def uniformizer_loss(logits_NV: Tensor, target_N: Tensor, classes: Sequence[Tensor]) -> Tensor:
    """Eq. 8: KL(softmax of the logits within the target's class || uniform) in nats.

    Mean over the positions of each class, then over the classes that have any, as in the authors' code; 0 where none
    has. The paper prints the mean over all adjective positions (deviation 12).

    Args:
        logits_NV: logits over the vocabulary.
        target_N: target ids.
        classes: ids of the words of each class, [C] long each.
    """
    parts = []
    for ids_C in classes:
        chosen_N = torch.isin(target_N, ids_C).nonzero().squeeze(1)
        if len(chosen_N):
            log_p = logits_NV[chosen_N][:, ids_C].log_softmax(-1)
            parts.append((log_p.exp() * (log_p + math.log(len(ids_C)))).sum(-1).mean())
    return torch.stack(parts).mean() if parts else logits_NV.new_zeros(())


# the module -----------------------------------------------------------------------------------------------------------

LONGEST = 512  # positions in the table, as in the authors' code
TARGETS = ("current", "next")
MASKS = ("target", "input")
UNIFORMIZED = ("all", "trained")


@dataclass
class FusionOutput(LMOutput):
    """The output of a model with fused features besides scores and hidden states; zeros at padding.

    Attributes:
        features_BTF: the fused memberships.
        aux_BTF: the auxiliary head's prediction, after the sigmoid.
        aux_target_BTF: its target; carries no gradient.
    """

    features_BTF: Tensor
    aux_BTF: Tensor
    aux_target_BTF: Tensor


@dataclass
class GenerationState:
    """Prefix and cache of a batch in generation."""

    ids_BT: Tensor
    channel: ChannelSetting | None
    cache: Any = None


@checked
@dataclass(frozen=True, kw_only=True)
class LossSettings:
    """Settings of the losses in Eq. 5 and 6."""

    label_smoothing: Fraction
    auxiliary_weight: NonNegative
    uniformizer_weight: NonNegative


class FusionModule(LitLanguageModel):
    """Training of the models with a feature channel.

    Attributes:
        seed: of the weights and of the channel's draws.
        channel_generator: generator of the channel's draws.
        weights: of the losses.
        adamw: settings of the optimiser.
    """

    seed: int
    channel_generator: torch.Generator
    weights: LossSettings
    adamw: AdamW

    def weighted(
        self,
        logits_NV: Tensor,
        target_N: Tensor,
        classes: Sequence[Tensor],
        auxiliary: tuple[Tensor, Tensor] | None,
        weight_N: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Return Eq. 5 as "loss" and its parts.

        Args:
            logits_NV, target_N: of the counted positions.
            classes: of Eq. 8; none: without the uniformizer.
            auxiliary: logits and target of the auxiliary head, or None for the baseline.
            weight_N: see ``token_loss``.
        """
        smoothing = self.weights.label_smoothing
        losses = {"token_loss": token_loss(logits_NV, target_N, label_smoothing=smoothing, weight_N=weight_N)}
        loss = losses["token_loss"]
        if classes:
            losses["uniformizer_loss"] = uniformizer_loss(logits_NV, target_N, classes)
            loss = loss + self.weights.uniformizer_weight * losses["uniformizer_loss"]
        if auxiliary is not None:
            losses["auxiliary_loss"] = auxiliary_loss(*auxiliary)
            loss = loss + self.weights.auxiliary_weight * losses["auxiliary_loss"]
        return {"loss": loss, **losses}

    def __getstate__(self) -> dict[str, Any]:
        """Return the state with the stream as an array: a tensor that pickling makes is gone before it is received."""
        return {**vars(self), "channel_generator": self.channel_generator.get_state().numpy()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the stream."""
        generator = torch.Generator()
        generator.set_state(torch.from_numpy(state["channel_generator"]))
        super().__setstate__({**state, "channel_generator": generator})

    def on_train_epoch_start(self) -> None:
        """Give the channel's draws a stream that depends only on (seed, epoch)."""
        self.channel_generator.manual_seed((self.seed << 20) + self.current_epoch)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the state of the stream: a run that is resumed inside an epoch does not begin that epoch again."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["channel_draws"] = self.channel_generator.get_state()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Continue the stream."""
        if "channel_draws" in checkpoint:
            self.channel_generator.set_state(checkpoint["channel_draws"])

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """AdamW with warm-up and cosine over the whole run, one step per batch."""
        return self.adamw.configure(self)


class SemanticFusionModule(FusionModule):
    """Transformer LM with a gated channel of fuzzy features (sec. 2).

    Args:
        vocabulary: of the clause corpus.
        backbone: its ``causal`` must be this module's.
        fusion: False is the baseline: no channel, no auxiliary head.
        gate: Eq. 2; False is the ablation h0 = e + u.
        causal: see ``LitLanguageModel``.
        prefix_only_features: corrected features, see ``ClauseAnnotator``.
        loss_mask: positions the loss counts: ``"target"`` (target is not pad) or ``"input"`` (the authors').
        embedding_std, embedding_scale: of the tied embedding at initialisation, and its factor at the input.
        feature_dropout: see ``drop_and_replace``; 1 never trains the channel as a control.
        auxiliary_target: features of the ``"current"`` token (Eq. 7) or of the ``"next"`` one.
        uniformizer_words: words of the classes in Eq. 8: ``"all"`` adjectives (the paper's) or the ``"trained"`` ones.
        membership_centres, membership_temperature, learnable_memberships: Eq. 1, see ``Memberships``.
        exclamation_nudge: see ``ClauseAnnotator``.
        seed: of the weights and of the channel's draws.
        settings: fields of ``LossSettings`` and ``AdamW``.

    Raises:
        UserError: an unknown option, a share outside [0, 1], a backbone that disagrees about causality.
    """

    positive_ids: Tensor
    negative_ids: Tensor

    def __init__(
        self,
        *,
        vocabulary: ClauseVocabulary,
        backbone: TransformerBackbone,
        fusion: bool,
        gate: bool,
        causal: bool,
        prefix_only_features: bool,
        loss_mask: Annotated[str, Choice(MASKS)],
        embedding_std: NonNegative,
        embedding_scale: float,
        feature_dropout: Fraction,
        auxiliary_target: Annotated[str, Choice(TARGETS)],
        membership_centres: Sequence[float],
        membership_temperature: Positive,
        learnable_memberships: bool,
        exclamation_nudge: NonNegative,
        seed: Whole,
        uniformizer_words: Annotated[str, Choice(UNIFORMIZED)] = "all",
        **settings: Annotated[Any, Fields(LossSettings), Fields(AdamW)],
    ) -> None:
        super().__init__()
        if not isinstance(vocabulary, ClauseVocabulary):
            raise UserError(
                f"model SemanticFusionModule reads the clause corpora, not a {type(vocabulary).__name__}: give "
                "data=clause or data=clause_coupled; on your own text use experiment=semantic_fusion/reviews"
            )
        check_centres(membership_centres)
        check_backbone(backbone, "causal", "forward_packed")
        if backbone.causal != causal:
            raise UserError(f"model.causal={causal} but backbone.causal={backbone.causal}: set only model.causal")
        self.vocabulary, self.causal, self.fusion = vocabulary, causal, fusion
        self.loss_mask, self.embedding_scale = loss_mask, embedding_scale
        self.feature_dropout, self.auxiliary_target = feature_dropout, auxiliary_target
        self.weights, self.adamw = grouped(settings, LossSettings, AdamW)
        self.seed = seed
        self.channel_generator = torch.Generator()
        self.backbone = backbone
        self.position = SinusoidalPosition(backbone.dim, LONGEST)
        for name in ("positive", "negative"):
            words = vocabulary.groups[f"adjective_{name}"]
            ids = [vocabulary.id(w) for w in words if uniformizer_words == "all" or w not in vocabulary.held_out]
            self.register_buffer(f"{name}_ids", torch.tensor(ids), persistent=False)
        # separate generators: baseline and fusion of one seed have equal initial values of all common parameters
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
        """Return the features of a corpus or their basis, [N, T, ..] each; called once, not per item and epoch.

        With fixed memberships these are the features themselves, with learnable ones what they are computed from.
        Names with ``next_`` are the features of the next token (the last column, which no batch keeps, wraps around).
        """
        if not self.fusion:
            return {}
        parts = self._feature_parts(ids_NT, lengths_N)
        if self.feature_dropout < 1:
            parts["hindsight_BTF"] = hindsight(ids_NT, self.vocabulary)
        transformed = dict(parts)
        if self.auxiliary_target == "next":
            shifted = {name: value.roll(-1, dims=1) for name, value in parts.items() if name != "hindsight_BTF"}
            transformed |= {f"next_{name}": value for name, value in shifted.items()}
        return transformed

    def _feature_parts(self, ids_NT: Tensor, aligned_N: Tensor) -> dict[str, Tensor]:
        predicates, scalars = self.annotator(ids_NT, aligned_N)
        real_NT1 = (ids_NT != self.vocabulary.pad_id).unsqueeze(-1)
        parts = {"predicates_BTP": predicates, "scalars_BT3": scalars, "real_BT1": real_NT1}
        return parts if self.memberships.learnable else {"features_BTF": self._assembled(parts)}

    def _assembled(self, parts: Mapping[str, Tensor], prefix: str = "") -> Tensor:
        # padding has no features, but the memberships of its scalars, 0, are not 0
        predicates, scalars, real = (parts[f"{prefix}{name}"] for name in ("predicates_BTP", "scalars_BT3", "real_BT1"))
        return assemble(predicates, self.memberships(scalars)) * real

    def _features(self, batch: Mapping[str, Any], prefix: str = "") -> Tensor:
        """Return the features [B, T, F] of a batch, from the corpus if it was transformed, else from its ids."""
        if f"{prefix}features_BTF" in batch:
            return batch[f"{prefix}features_BTF"]
        if f"{prefix}predicates_BTP" in batch:
            return self._assembled(batch, prefix)
        ids_BT = batch["input_ids_BT"]
        last_B1 = batch["target_ids_BT"][:, -1:]
        whole_BT = torch.cat([ids_BT, last_B1], dim=1)
        transformed = self.corpus_transform(whole_BT, (whole_BT != self.vocabulary.pad_id).sum(1))
        width = ids_BT.shape[1]
        return self._features({name: value[:, :width] for name, value in transformed.items()}, prefix)

    def _hindsight(self, batch: Batch) -> Tensor:
        """Return the hindsight control [B, T, F] of a batch, from its ids if its corpus was not transformed."""
        if "hindsight_BTF" in batch:
            return cast(FusionBatch, batch)["hindsight_BTF"]
        whole_BT = torch.cat([batch["input_ids_BT"], batch["target_ids_BT"][:, -1:]], dim=1)
        return hindsight(whole_BT, self.vocabulary)[:, :-1]

    # the network ---------------------------------------------------------------------------------------------------

    def _embed(self, ids_N: Tensor, features_NF: Tensor | None, position_N: Tensor) -> Tensor:
        """Embedding, fusion (Eq. 2, 3), position."""
        embedding_ND = self.embedding(ids_N) * self.embedding_scale
        if features_NF is not None:
            embedding_ND = self.fuse(embedding_ND, features_NF)
        return embedding_ND + self.position(position_N)

    def _hidden(self, ids_BT: Tensor, packing: Packing, features_BTF: Tensor | None) -> Tensor:
        features_NF = None if features_BTF is None else packing.gather(features_BTF)
        embedded_ND = self._embed(packing.gather(ids_BT), features_NF, packing.positions(self.device))
        return self.backbone.forward_packed(embedded_ND, packing)

    def _logits(self, hidden_ND: Tensor) -> Tensor:
        """Tied head: H E^T."""
        return hidden_ND @ self.embedding.weight.T

    def forward(self, batch: Batch) -> LMOutput:
        """Score every position of the input that is not padding, with the batch's own features and no control."""
        packing = Packing.of(batch["mask_input_BT"])
        features_BTF = self._features(batch) if self.fusion else None
        hidden_ND = self._hidden(batch["input_ids_BT"], packing, features_BTF)
        scores_BTV, hidden_BTD = packing.scatter(self._logits(hidden_ND)), packing.scatter(hidden_ND)
        if features_BTF is None:
            return LMOutput(scores_BTV, hidden_BTD)
        target_BTF = features_BTF if self.auxiliary_target == "current" else self._features(batch, "next_")
        return FusionOutput(
            scores_BTV,
            hidden_BTD,
            features_BTF=features_BTF,
            aux_BTF=packing.scatter(torch.sigmoid(self.auxiliary(hidden_ND))),
            aux_target_BTF=target_BTF.detach(),
        )

    # training ------------------------------------------------------------------------------------------------------

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return Eq. 5 as "loss" and its three parts, over the positions of the loss mask."""
        packing = Packing.of(batch["mask_target_BT"] if self.loss_mask == "target" else batch["mask_input_BT"])
        features_BTF = self._features(batch) if self.fusion else None
        controlled_BTF = features_BTF
        if features_BTF is not None and self.feature_dropout < 1:
            controlled_BTF = drop_and_replace(
                features_BTF,
                self._hindsight(batch),
                feature_dropout=self.feature_dropout,
                generator=self.channel_generator,
            )
        counted = _counted(packing)
        hidden_ND = counted(self._hidden(batch["input_ids_BT"], packing, controlled_BTF))
        logits_NV, target_N = self._logits(hidden_ND), counted(packing.gather(batch["target_ids_BT"]))
        auxiliary = None
        if features_BTF is not None:
            target_BTF = features_BTF if self.auxiliary_target == "current" else self._features(batch, "next_")
            auxiliary = self.auxiliary(hidden_ND), counted(packing.gather(target_BTF))
        return self.weighted(logits_NV, target_N, (self.positive_ids, self.negative_ids), auxiliary)

    # generation (a StepModel of decoding/loop.py) ------------------------------------------------------------------

    def start(self, batch_size: int, controls: Sequence[Mapping[str, float]] | None = None) -> GenerationState:
        """Return the state of empty prefixes; ``controls`` (checked, one per row) go through the feature channel."""
        channel = ChannelSetting.of_rows(controls, self.embedding.weight) if controls else None
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
        """Return the features of prefixes, each annotated as a sentence that ends there, as in published generation."""
        aligned_B = (ids_BT != self.vocabulary.pad_id).sum(1) + 1
        parts = self._feature_parts(ids_BT, aligned_B)
        return self._features(parts)

    def _scores_of_prefix(self, ids_BT: Tensor) -> Tensor:
        """Return the scores [B, V] after the last column, recomputing the whole prefix."""
        valid_BT = ids_BT != self.vocabulary.pad_id
        packing = Packing.of(valid_BT)
        features_BTF = self._prefix_features(ids_BT) if self.fusion else None
        hidden_ND = self._hidden(ids_BT, packing, features_BTF)
        return self._logits(packing.scatter(hidden_ND)[:, -1])


def _counted(packing: Packing) -> Callable[[Tensor], Tensor]:
    """Return a function that drops rows of padding from packed values, if the packing has kept some."""
    if packing.valid_BT is None:
        return lambda values_N: values_N
    valid_N = packing.valid_BT.flatten()
    return lambda values_N: values_N[valid_N]

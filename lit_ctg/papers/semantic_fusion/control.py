"""Controls of semantic fusion and what they do to scores: steering, hard control, group mixture (sec. 2, Appendix A).

Each is a pure function of scores and settings, and a score rule that finds the slot by the grammar. Numbers the paper
states come from ``conf/decoding/semantic_fusion.yaml``. Shape suffixes: B rows, T prefix tokens, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from lit_ctg.decoding.filters import nucleus
from lit_ctg.decoding.grammar import FiniteStateGrammar
from lit_ctg.decoding.rule import PerRow, ScoreRule, per_row
from lit_ctg.errors import UserError, did_you_mean
from lit_ctg.papers.semantic_fusion.clause_vocabulary import ClauseVocabulary

# what the score rules read, and what the feature channel can be set to
SCORE_CONTROLS = ("pos_high", "neg_high", "str_high", "str_med", "is_question")
CHANNEL_CONTROLS = (
    *("pos_low", "pos_med", "pos_high"),
    *("neg_low", "neg_med", "neg_high"),
    *("str_low", "str_med", "str_high"),
    "is_question",
)


def check_control(control: Mapping[str, Any] | None, *, channel: bool = False) -> dict[str, float]:
    """Return a control as plain floats; an empty one is no control.

    Args:
        control: feature name -> value in [0, 1].
        channel: also allow the names that only the feature channel can follow.

    Raises:
        UserError: an unknown name, a value that is not a number or is outside [0, 1].
    """
    names = CHANNEL_CONTROLS if channel else SCORE_CONTROLS
    checked = {}
    for name, value in (control or {}).items():
        if name not in names:
            hint = "; this one needs the channel path" if name in CHANNEL_CONTROLS else did_you_mean(name, names)
            raise UserError(f"unknown control '{name}'{hint}; there are {', '.join(names)}")
        if isinstance(value, bool) or not isinstance(value, Real):
            raise UserError(f"control.{name}={value!r} is not a number: pass one from 0 to 1")
        if not 0 <= value <= 1:  # NaN fails too
            raise UserError(f"control.{name}={value} is outside [0, 1]: pass a number from 0 to 1")
        checked[name] = float(value)
    return checked


@dataclass(frozen=True)
class ControlRows:
    """Controls of a batch, float64 tensors ``[B]`` (or ``[1]``, meant for every row).

    Attributes:
        polarity_B: pos_high - neg_high, in [-1, 1]; above 0 asks for a positive adjective.
        strength_B: max(str_high, str_med).
        str_high_B, question_B: as given.
        given_B: bool, any value above 0.
    """

    polarity_B: Tensor
    strength_B: Tensor
    str_high_B: Tensor
    question_B: Tensor
    given_B: Tensor

    @classmethod
    def of(cls, controls: Sequence[Mapping[str, float]]) -> ControlRows:
        """Gather checked controls, one a row."""
        values = {
            name: torch.tensor([c.get(name, 0.0) for c in controls], dtype=torch.float64) for name in SCORE_CONTROLS
        }
        return cls(
            polarity_B=values["pos_high"] - values["neg_high"],
            strength_B=torch.maximum(values["str_high"], values["str_med"]),
            str_high_B=values["str_high"],
            question_B=values["is_question"],
            given_B=torch.stack(list(values.values())).amax(dim=0) > 0,
        )


def add_to_class(scores_BV: Tensor, ids: Collection[int], amount: PerRow) -> Tensor:
    """Add ``amount`` (one number or one a row) to the scores of some ids."""
    return scores_BV + class_mask(ids, scores_BV) * per_row(amount, scores_BV)


def class_mask(ids: Collection[int], scores_BV: Tensor) -> Tensor:
    """Return ``[V]`` bool, True at ``ids``, on the device of the scores."""
    position_V = torch.arange(scores_BV.shape[-1], device=scores_BV.device)
    return torch.isin(position_V, torch.tensor(list(ids), device=scores_BV.device))


def steer_adjective(
    scores_BV: Tensor,
    polarity_B: Tensor,
    *,
    positive_ids: Collection[int],
    negative_ids: Collection[int],
    boost: float,
    damp: float,
) -> Tensor:
    """Slot ADJ: raise the asked polarity by ``boost * |polarity|``, lower the other one by ``damp * |polarity|``."""
    towards_B, away_B = polarity_B.clamp(min=0), (-polarity_B).clamp(min=0)
    scores_BV = add_to_class(scores_BV, positive_ids, boost * towards_B - damp * away_B)
    return add_to_class(scores_BV, negative_ids, boost * away_B - damp * towards_B)


def steer_punctuation(
    scores_BV: Tensor,
    polarity_B: Tensor,
    strength_B: Tensor,
    question_B: Tensor,
    *,
    exclamation_id: int,
    question_id: int,
    gain: float,
) -> Tensor:
    """Slot PUNCT: "!" gains ``gain * strength * max(0, polarity)``, "?" gains ``gain * question``."""
    scores_BV = add_to_class(scores_BV, [exclamation_id], gain * strength_B * polarity_B.clamp(min=0))
    return add_to_class(scores_BV, [question_id], gain * question_B)


def steer_intensifier(
    scores_BV: Tensor, strength_B: Tensor, *, intensifier_ids: Collection[int], gain: float, offset: float
) -> Tensor:
    """Slot INTENS: all intensifiers gain ``gain * (offset + strength)``, as published.

    It has no effect after the grammar mask: where only intensifiers are allowed, the same number added to all of
    them leaves their distribution as it was.
    """
    return add_to_class(scores_BV, intensifier_ids, gain * (offset + strength_B))


def group_mixture(scores_BV: Tensor, class_BV: Tensor, *, weight: PerRow, temperature: PerRow) -> Tensor:
    """Return log q with q = (1 - a) softmax(l_C / T) + a Unif(C) (Eq. 9), ``-inf`` outside the class.

    Args:
        scores_BV: raw logits of the model (nothing masked, steered or penalised, as published).
        class_BV: bool, the class C of each row; at least one id a row.
        weight: a in [0, 1], one number or one a row.
        temperature: T > 0, one number or one a row.
    """
    inside_BV = (scores_BV / per_row(temperature, scores_BV)).masked_fill(~class_BV, -math.inf).softmax(dim=-1)
    uniform_BV = class_BV.to(scores_BV) / class_BV.sum(dim=-1, keepdim=True)
    weight_B1 = per_row(weight, scores_BV)
    return ((1 - weight_B1) * inside_BV + weight_B1 * uniform_BV).log()


@dataclass(frozen=True, kw_only=True)
class SteeringNumbers:
    """Strengths of the steering (in logits per unit of control)."""

    intensifier_gain: float
    intensifier_offset: float
    adjective_boost: float
    adjective_damp: float
    punctuation_gain: float


@dataclass(frozen=True, kw_only=True)
class MixtureNumbers:
    """Group mixture of one polarity: weight a of the uniform part, temperature T and nucleus p."""

    weight: float
    temperature: float
    top_p: float


def sampler_held_out_rate(numbers: MixtureNumbers, *, seen: int, held_out: int, keep_crossing: bool) -> float:
    """How often the group mixture draws a held-out word when the model gives held-out words no mass at all.

    Computed from the whole distribution, not sampled. Table 4's rates follow from this alone.

    Args:
        numbers: a, T and p of the class.
        seen: words of the class in training, alike to the model.
        held_out: words of the class it never saw.
        keep_crossing: nucleus rule, see :func:`lit_ctg.decoding.filters.nucleus`.
    """
    scores_BV = torch.tensor([[0.0] * seen + [-math.inf] * held_out], dtype=torch.float64)
    everything_BV = torch.ones_like(scores_BV, dtype=torch.bool)
    log_q_BV = group_mixture(scores_BV, everything_BV, weight=numbers.weight, temperature=numbers.temperature)
    mass_BV = nucleus(log_q_BV, numbers.top_p, keep_crossing=keep_crossing).softmax(dim=-1)
    return float(mass_BV[0, seen:].sum())


class ClauseRule(ScoreRule):
    """What the three rules below share: the controls of the rows, the grammar's slots, the classes of tokens."""

    def __init__(self, controls: ControlRows, grammar: FiniteStateGrammar, vocabulary: ClauseVocabulary):
        self.controls, self.grammar = controls, grammar
        self.positive_ids = vocabulary.ids("adjective_positive")
        self.negative_ids = vocabulary.ids("adjective_negative")
        self.intensifier_ids = vocabulary.ids("intensifier")
        self.punctuation_ids = vocabulary.ids("punctuation")
        self.exclamation_id, self.question_id = vocabulary.id("!"), vocabulary.id("?")

    def in_slot(self, input_ids: Tensor, slot: str) -> Tensor:
        """Return ``[B, 1]`` bool: the next token fills the slot."""
        return self.grammar.in_slot(input_ids, slot).unsqueeze(1)

    def above(self, values_B: Tensor, threshold: float, scores_BV: Tensor) -> Tensor:
        """Return ``[B, 1]`` or ``[1, 1]`` bool: values above the threshold (compared in float64)."""
        return per_row((values_B > threshold).double(), scores_BV) > 0


class Steering(ClauseRule):
    """Soft control: small shifts of the scores at INTENS, ADJ and PUNCT; a row without a control keeps its scores."""

    def __init__(
        self,
        controls: ControlRows,
        grammar: FiniteStateGrammar,
        vocabulary: ClauseVocabulary,
        *,
        numbers: SteeringNumbers,
    ):
        super().__init__(controls, grammar, vocabulary)
        self.numbers = numbers

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        numbers, rows = self.numbers, self.controls
        at_intensifier = steer_intensifier(
            scores,
            rows.strength_B,
            intensifier_ids=self.intensifier_ids,
            gain=numbers.intensifier_gain,
            offset=numbers.intensifier_offset,
        )
        at_adjective = steer_adjective(
            scores,
            rows.polarity_B,
            positive_ids=self.positive_ids,
            negative_ids=self.negative_ids,
            boost=numbers.adjective_boost,
            damp=numbers.adjective_damp,
        )
        at_punctuation = steer_punctuation(
            scores,
            rows.polarity_B,
            rows.strength_B,
            rows.question_B,
            exclamation_id=self.exclamation_id,
            question_id=self.question_id,
            gain=numbers.punctuation_gain,
        )
        steered = scores.where(~self.in_slot(input_ids, "INTENS"), at_intensifier)
        steered = steered.where(~self.in_slot(input_ids, "ADJ"), at_adjective)
        steered = steered.where(~self.in_slot(input_ids, "PUNCT"), at_punctuation)
        return steered.where(self.above(rows.given_B.double(), 0, scores), scores)


class HardControl(ClauseRule):
    """Hard control: beyond ``threshold`` only the asked adjective class at ADJ, only "?" or "!" of the marks at PUNCT.

    Polarity counts as pos_high - neg_high. "?" (is_question) goes before "!" (polarity and str_high). A conjunction
    that the two-clause grammar allows where a mark may stand stays allowed.
    """

    def __init__(
        self, controls: ControlRows, grammar: FiniteStateGrammar, vocabulary: ClauseVocabulary, *, threshold: float
    ):
        super().__init__(controls, grammar, vocabulary)
        self.threshold = threshold

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        rows, at_mark = self.controls, self.in_slot(input_ids, "PUNCT")
        question = self.above(rows.question_B, self.threshold, scores)
        exclamation = self.above(rows.polarity_B, self.threshold, scores) & ~question
        exclamation = exclamation & self.above(rows.str_high_B, self.threshold, scores)
        marks_V = class_mask(self.punctuation_ids, scores)
        outside_BV = self.in_slot(input_ids, "ADJ") & self.asked(scores).any(-1, keepdim=True) & ~self.asked(scores)
        outside_BV = outside_BV | (at_mark & question & marks_V & ~class_mask([self.question_id], scores))
        outside_BV = outside_BV | (at_mark & exclamation & marks_V & ~class_mask([self.exclamation_id], scores))
        return scores.masked_fill(outside_BV, -math.inf)

    def asked(self, scores_BV: Tensor) -> Tensor:
        """Return ``[B, V]`` bool: the adjective class a row asks for; all False where it asks for none."""
        positive = self.above(self.controls.polarity_B, self.threshold, scores_BV)
        negative = self.above(-self.controls.polarity_B, self.threshold, scores_BV)
        wanted = positive & class_mask(self.positive_ids, scores_BV)
        return (wanted | (negative & class_mask(self.negative_ids, scores_BV))).expand(scores_BV.shape)


class GroupMixture(HardControl):
    """At ADJ, rows under hard control draw from the group mixture of the raw scores and its nucleus (Eq. 9).

    All other rows and slots go through ``otherwise``. As the mixture acts on the model's own logits, as published, this
    rule comes first and holds the others.
    """

    def __init__(
        self,
        controls: ControlRows,
        grammar: FiniteStateGrammar,
        vocabulary: ClauseVocabulary,
        *,
        threshold: float,
        positive: MixtureNumbers,
        negative: MixtureNumbers,
        keep_crossing: bool,
        otherwise: ScoreRule,
    ):
        super().__init__(controls, grammar, vocabulary, threshold=threshold)
        self.positive, self.negative = positive, negative
        self.keep_crossing, self.otherwise = keep_crossing, otherwise

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        class_BV = self.asked(scores)
        mixed_B1 = self.in_slot(input_ids, "ADJ") & class_BV.any(dim=-1, keepdim=True)
        changed = self.otherwise(input_ids, scores)
        if not bool(mixed_B1.any()):
            return changed
        some_BV = class_BV | ~mixed_B1  # rows that are not mixed need a class too, for a finite answer that is dropped
        log_q = group_mixture(scores, some_BV, weight=self._of("weight"), temperature=self._of("temperature"))
        return nucleus(log_q, self._of("top_p"), keep_crossing=self.keep_crossing).where(mixed_B1, changed)

    def _of(self, name: str) -> Tensor:
        """One of the mixture's numbers, for the polarity of each row."""
        positive_B = self.controls.polarity_B > 0
        return torch.where(positive_B, getattr(self.positive, name), getattr(self.negative, name))

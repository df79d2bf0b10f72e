"""Generation of clauses: grammar, controls and their effect on scores, and generation (sec. 2, Appendix A).

Each control is a pure function of scores and settings, and a score rule that finds the slot by the grammar. The paper's
numbers come from ``conf/decoding/semantic_fusion.yaml``. Shape suffixes: B rows, T prefix tokens, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from lit_ctg import limits
from lit_ctg.core.generation import ControlSetting, GeneratedText, Generator
from lit_ctg.decoding.filters import Nucleus, RepetitionPenalty, Temperature, TopK, nucleus
from lit_ctg.decoding.grammar import FiniteStateGrammar, GrammarMask
from lit_ctg.decoding.rule import PerRow, RuleList, ScoreRule, per_row
from lit_ctg.errors import UserError, refuse
from lit_ctg.limits import Choice, Count, Fields, Fraction, Gain, Positive, Whole, checked
from lit_ctg.papers.semantic_fusion.clause import PRONOUNS, ClauseVocabulary
from lit_ctg.papers.semantic_fusion.grammar import CompiledGrammar, Lexis, compile_grammar, load_grammar

# grammar --------------------------------------------------------------------------------------------------------------


def build_grammar(name: str, vocabulary: ClauseVocabulary) -> CompiledGrammar:
    """Return the grammar that ``decoding.grammar`` names: the paper's ``one_clause``, ``two_clause``, or a YAML file.

    Raises:
        UserError: no such grammar, or a file that ``grammar.compile_grammar`` refuses.
    """
    where, content = load_grammar(name)
    lexis = Lexis(
        tokens=vocabulary.tokens,
        spell=lambda word: [(vocabulary.id(word),)] if word in vocabulary.tokens else [],
        groups=vocabulary.groups,
        agreement={"pronoun": {**vocabulary.pronoun_of, **{pronoun: pronoun for pronoun in PRONOUNS}}},
        bos_id=vocabulary.bos_id,
        eos_id=vocabulary.eos_id,
        pad_id=vocabulary.pad_id,
    )
    return compile_grammar(where, content, lexis)


# controls and their effect on scores ----------------------------------------------------------------------------------

# controls of the score rules; the feature channel has more
SCORE_CONTROLS = ("pos_high", "neg_high", "str_high", "str_med", "is_question")
CONTROLS = {
    "pos_high": "a positive adjective",
    "neg_high": "a negative adjective",
    "str_high": "a strong intensifier (and with pos_high an exclamation mark)",
    "str_med": "a moderate intensifier",
    "is_question": "a question mark",
    "pos_low": "little positive polarity",
    "pos_med": "some positive polarity",
    "neg_low": "little negative polarity",
    "neg_med": "some negative polarity",
    "str_low": "a weak intensifier",
}


@dataclass(frozen=True)
class ControlRows:
    """Controls of a batch, float64 tensors ``[B]`` (or ``[1]``, for every row).

    Attributes:
        polarity_B: pos_high - neg_high, in [-1, 1]; above 0 requests a positive adjective.
        strength_B: max(str_high, str_med).
        given_B: bool, any value above 0.
    """

    polarity_B: Tensor
    strength_B: Tensor
    str_high_B: Tensor
    question_B: Tensor
    given_B: Tensor

    @classmethod
    def of(cls, controls: Sequence[Mapping[str, float]]) -> ControlRows:
        """Gather checked controls, one per row."""
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


def class_mask(ids: Collection[int], scores_BV: Tensor) -> Tensor:
    """Return ``[V]`` bool, True at ``ids``, on the device of the scores."""
    position_V = torch.arange(scores_BV.shape[-1], device=scores_BV.device)
    return torch.isin(position_V, torch.tensor(list(ids), device=scores_BV.device))


def group_mixture(scores_BV: Tensor, class_BV: Tensor, *, weight: PerRow, temperature: PerRow) -> Tensor:
    """Return log q with q = (1 - a) softmax(l_C / T) + a Unif(C) (Eq. 9), ``-inf`` outside the class.

    Args:
        scores_BV: raw logits of the model (nothing masked, steered or penalised, as published).
        class_BV: bool, the class C of each row; at least one id per row.
        weight: a in [0, 1], one number or one per row.
        temperature: T > 0, one number or one per row.
    """
    inside_BV = (scores_BV / per_row(temperature, scores_BV)).masked_fill(~class_BV, -math.inf).softmax(dim=-1)
    uniform_BV = class_BV.to(scores_BV) / class_BV.sum(dim=-1, keepdim=True)
    weight_B1 = per_row(weight, scores_BV)
    return ((1 - weight_B1) * inside_BV + weight_B1 * uniform_BV).log()


@checked
@dataclass(frozen=True, kw_only=True)
class SteeringNumbers:
    """Strengths of the steering (in logits per unit of control)."""

    intensifier_gain: Gain
    intensifier_offset: Gain
    adjective_boost: Gain
    adjective_damp: Gain
    punctuation_gain: Gain


@checked
@dataclass(frozen=True, kw_only=True)
class MixtureNumbers:
    """Group mixture of one polarity: weight a of the uniform part, temperature T and nucleus p."""

    weight: Fraction
    temperature: Positive
    top_p: limits.Nucleus


@dataclass(eq=False)
class ClauseRule(ScoreRule):
    """Common base of the three rules below: the controls of the rows, the grammar's slots, the classes of tokens."""

    controls: ControlRows
    grammar: FiniteStateGrammar
    vocabulary: ClauseVocabulary

    def __post_init__(self) -> None:
        vocabulary = self.vocabulary
        self.positive_ids = vocabulary.ids("adjective_positive")
        self.negative_ids = vocabulary.ids("adjective_negative")
        self.intensifier_ids = vocabulary.ids("intensifier")
        self.punctuation_ids = vocabulary.ids("punctuation")
        self.exclamation_id, self.question_id = vocabulary.id("!"), vocabulary.id("?")

    def in_slot(self, input_ids: Tensor, slot: str) -> Tensor:
        """Return ``[B, 1]`` bool: the next token fills the slot; a user's grammar may lack it."""
        if not self.grammar.has_slot(slot):
            return torch.zeros(len(input_ids), 1, dtype=torch.bool, device=input_ids.device)
        return self.grammar.in_slot(input_ids, slot).unsqueeze(1)

    def above(self, values_B: Tensor, threshold: float, scores_BV: Tensor) -> Tensor:
        """Return ``[B, 1]`` or ``[1, 1]`` bool: values above the threshold (compared in float64)."""
        return per_row((values_B > threshold).double(), scores_BV) > 0


@dataclass(eq=False)
class Steering(ClauseRule):
    """Soft control: small shifts of the scores at INTENS, ADJ and PUNCT; a row without a control keeps its scores.

    All intensifiers gain the same, as published, which has no effect after the grammar mask: where only intensifiers
    are allowed, it does not change their distribution.
    """

    _: KW_ONLY
    numbers: SteeringNumbers

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        numbers, rows = self.numbers, self.controls
        towards_B, away_B = rows.polarity_B.clamp(min=0), (-rows.polarity_B).clamp(min=0)
        boost, damp, gain = numbers.adjective_boost, numbers.adjective_damp, numbers.punctuation_gain
        stronger_B = numbers.intensifier_gain * (numbers.intensifier_offset + rows.strength_B)
        slots: dict[str, list[tuple[Collection[int], Tensor]]] = {
            "INTENS": [(self.intensifier_ids, stronger_B)],
            "ADJ": [
                (self.positive_ids, boost * towards_B - damp * away_B),
                (self.negative_ids, boost * away_B - damp * towards_B),
            ],
            "PUNCT": [
                ([self.exclamation_id], gain * rows.strength_B * towards_B),
                ([self.question_id], gain * rows.question_B),
            ],
        }
        steered = scores
        for slot, gains in slots.items():
            shifted = scores
            for ids, amount_B in gains:
                shifted = shifted + class_mask(ids, scores) * per_row(amount_B, scores)
            steered = steered.where(~self.in_slot(input_ids, slot), shifted)
        return steered.where(self.above(rows.given_B.double(), 0, scores), scores)


@dataclass(eq=False)
class HardControl(ClauseRule):
    """Hard control: above ``threshold`` only the requested adjective class at ADJ, only "?" or "!" at PUNCT.

    Polarity is pos_high - neg_high. "?" (is_question) takes precedence over "!" (polarity and str_high). A conjunction
    that the two-clause grammar allows in place of a mark stays allowed.
    """

    _: KW_ONLY
    threshold: float

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        rows, at_mark = self.controls, self.in_slot(input_ids, "PUNCT")
        question = self.above(rows.question_B, self.threshold, scores)
        exclamation = self.above(rows.polarity_B, self.threshold, scores) & ~question
        exclamation = exclamation & self.above(rows.str_high_B, self.threshold, scores)
        marks_V = class_mask(self.punctuation_ids, scores)
        wanted_BV = self.wanted(input_ids, scores)
        outside_BV = self.in_slot(input_ids, "ADJ") & wanted_BV.any(-1, keepdim=True) & ~wanted_BV
        outside_BV = outside_BV | (at_mark & question & marks_V & ~class_mask([self.question_id], scores))
        outside_BV = outside_BV | (at_mark & exclamation & marks_V & ~class_mask([self.exclamation_id], scores))
        return scores.masked_fill(outside_BV, -math.inf)

    def wanted(self, input_ids: Tensor, scores_BV: Tensor) -> Tensor:
        """Return ``[B, V]`` bool: the words of ``asked`` among those that the grammar allows next."""
        asked_BV = self.asked(scores_BV)
        if not bool((self.in_slot(input_ids, "ADJ") & asked_BV).any()):
            return asked_BV
        return asked_BV & self.grammar.allowed(input_ids, scores_BV.shape[1])

    def asked(self, scores_BV: Tensor) -> Tensor:
        """Return ``[B, V]`` bool: the adjective class that a row requests; all False if it requests none."""
        positive = self.above(self.controls.polarity_B, self.threshold, scores_BV)
        negative = self.above(-self.controls.polarity_B, self.threshold, scores_BV)
        wanted = positive & class_mask(self.positive_ids, scores_BV)
        return (wanted | (negative & class_mask(self.negative_ids, scores_BV))).expand(scores_BV.shape)


@dataclass(eq=False)
class GroupMixture(HardControl):
    """At ADJ, rows under hard control draw from the group mixture of the raw scores and its nucleus (Eq. 9).

    All other rows and slots go through ``otherwise``. Because the mixture acts on the model's own logits, as published,
    this rule comes first and contains the others.
    """

    _: KW_ONLY
    positive: MixtureNumbers
    negative: MixtureNumbers
    keep_crossing: bool
    otherwise: ScoreRule

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        class_BV = self.wanted(input_ids, scores)
        mixed_B1 = self.in_slot(input_ids, "ADJ") & class_BV.any(dim=-1, keepdim=True)
        changed = self.otherwise(input_ids, scores)
        if not bool(mixed_B1.any()):
            return changed
        some_BV = class_BV | ~mixed_B1  # unmixed rows also need a class, for a finite result that is dropped
        log_q = group_mixture(scores, some_BV, weight=self._of("weight"), temperature=self._of("temperature"))
        return nucleus(log_q, self._of("top_p"), keep_crossing=self.keep_crossing).where(mixed_B1, changed)

    def _of(self, name: str) -> Tensor:
        """Return one of the mixture's numbers, for the polarity of each row."""
        positive_B = self.controls.polarity_B > 0
        return torch.where(positive_B, getattr(self.positive, name), getattr(self.negative, name))


# generation -----------------------------------------------------------------------------------------------------------

# the routes of a control; "published" decoding is hard and soft together
ROUTES = ("hard", "soft", "channel")
NUCLEUS_RULES = {"keep_crossing": True, "drop_crossing": False}


@dataclass(frozen=True, kw_only=True)
class GeneratedClause(GeneratedText):
    """One generated sentence (``ids`` with ``<bos>`` first) and what it realized; only words after the prompt count.

    Attributes:
        polarity: ``"positive"`` or ``"negative"`` if all generated adjectives are, else ``"other"``.
        adjective: the first generated adjective, or None; then ``adjective_id`` is -1.
        punctuation: the generated closing mark, or None.
        held_out: a generated adjective was kept out of training.
    """

    polarity: str
    adjective: str | None
    adjective_id: int
    punctuation: str | None
    held_out: bool


@checked
class ClauseDecoding:
    """The paper's decoding settings, as in ``conf/decoding/semantic_fusion.yaml``.

    They are from Appendix A, and from the authors' code where it is silent.

    Args:
        grammar: ``"one_clause"``, ``"two_clause"`` or the path of a YAML file, see ``grammar``.
        nucleus: ``"keep_crossing"`` (usual) or ``"drop_crossing"`` (as published).
        temperature, top_p: neutral sampling, for every token that the group mixture does not draw.
        baseline_top_k: only for the baseline model ("fair" decoding).
        penalty: repetition penalty by model, keys ``baseline`` and ``fusion``.
        punctuation_penalty: further penalty on the last id when it is punctuation.
        hard_threshold: control value above which hard control applies.
        mixture: group mixture by polarity, keys ``positive`` and ``negative``, see :class:`MixtureNumbers`.
        routes: the default routes of a control.
        max_tokens: maximum length of a text in a grammar without a longest sentence.
    """

    def __init__(
        self,
        *,
        grammar: str,
        nucleus: Annotated[str, Choice(NUCLEUS_RULES)],
        temperature: Positive,
        top_p: limits.Nucleus,
        baseline_top_k: Whole,
        penalty: Mapping[str, Positive],
        penalty_window: Whole,
        punctuation_penalty: Positive,
        steering: Annotated[Mapping[str, float], Fields(SteeringNumbers)],
        hard_threshold: Fraction,
        mixture: Mapping[str, Annotated[Mapping[str, float], Fields(MixtureNumbers)]],
        routes: Sequence[str] = ("hard", "soft"),
        max_tokens: Count | None = None,
    ):
        load_grammar(grammar)
        self.routes, self.max_tokens = tuple(routes), max_tokens
        self.grammar, self.keep_crossing = grammar, NUCLEUS_RULES[nucleus]
        self.temperature, self.top_p, self.baseline_top_k = temperature, top_p, baseline_top_k
        self.penalty = {"baseline": penalty["baseline"], "fusion": penalty["fusion"]}
        self.penalty_window, self.punctuation_penalty = penalty_window, punctuation_penalty
        self.steering, self.hard_threshold = SteeringNumbers(**steering), hard_threshold
        self.mixture = {name: MixtureNumbers(**mixture[name]) for name in ("positive", "negative")}

    def rules(
        self,
        controls: Sequence[Mapping[str, float]],
        grammar: FiniteStateGrammar,
        vocabulary: ClauseVocabulary,
        *,
        fusion: bool,
        hard: bool,
        soft: bool,
    ) -> ScoreRule:
        """Return the rule for a batch: mask, steering, penalty, hard control, sampling, with the mixture around them.

        Args:
            controls: checked controls, one per row, or one for all rows.
            fusion: the model has the feature channel; False gives the baseline's "fair" settings.
            hard, soft: whether these control routes are on.
        """
        rows = ControlRows.of(controls)
        rules: list[ScoreRule] = [GrammarMask(grammar)]
        if soft:
            rules.append(Steering(rows, grammar, vocabulary, numbers=self.steering))
        rules.append(
            RepetitionPenalty(
                self.penalty["fusion" if fusion else "baseline"],
                window=self.penalty_window,
                last_ids=vocabulary.ids("punctuation"),
                last_penalty=self.punctuation_penalty,
            )
        )
        if hard:
            rules.append(HardControl(rows, grammar, vocabulary, threshold=self.hard_threshold))
        rules.append(Temperature(self.temperature))
        if not fusion:
            rules.append(TopK(self.baseline_top_k))
        rules.append(Nucleus(self.top_p, keep_crossing=self.keep_crossing))
        if not hard:
            return RuleList(rules)
        return GroupMixture(
            rows,
            grammar,
            vocabulary,
            threshold=self.hard_threshold,
            **self.mixture,
            keep_crossing=self.keep_crossing,
            otherwise=RuleList(rules),
        )

    def generator(self, module: Any, datamodule: Any) -> ClauseGenerator:
        """Combine these settings with a model and its corpus (a data module with ``vocabulary``, ``held_out_ids``)."""
        return ClauseGenerator(module, self, datamodule.vocabulary, datamodule.held_out_ids)


class ClauseGenerator(Generator[GeneratedClause]):
    """Generates clauses from a semantic-fusion module or its baseline; ``routes`` default to the decoding's.

    Args:
        module: a ``StepModel`` (see ``decoding/loop.py``) with the attributes ``fusion`` (bool) and ``has_channel``
            (bool: its features can be set from a control).
        held_out_ids: adjectives kept out of training.

    Raises:
        UserError: a grammar that does not fit the vocabulary, or one without a longest sentence and no
            ``decoding.max_tokens``.
    """

    routes = ROUTES

    def __init__(
        self,
        module: Any,
        decoding: ClauseDecoding,
        vocabulary: ClauseVocabulary,
        held_out_ids: Collection[int],
    ):
        self.decoding, self.vocabulary = decoding, vocabulary
        compiled = build_grammar(decoding.grammar, vocabulary)
        longest = decoding.max_tokens or compiled.longest
        if longest is None:
            raise UserError(
                f"decoding.grammar={decoding.grammar} knows no longest sentence: give the most tokens of a text, "
                "+decoding.max_tokens=<number>"
            )
        super().__init__(module, max_new_tokens=longest)
        self.grammar = compiled.machine
        self.held_out_ids = frozenset(held_out_ids)
        self.eos_id, self.pad_id = vocabulary.eos_id, vocabulary.pad_id

    @property
    def has_channel(self) -> bool:
        """Whether the route ``channel`` exists for this model."""
        return bool(self.module.has_channel)

    @property
    def context(self) -> int | None:
        return None  # a sentence is much shorter than the table of positions

    @property
    def controls(self) -> tuple[ControlSetting, ...]:
        return tuple(ControlSetting(name, meaning, low=0.0, high=1.0) for name, meaning in CONTROLS.items())

    def checked_routes(self, routes: Collection[str] | None) -> tuple[str, ...]:
        on = super().checked_routes(self.decoding.routes if routes is None else routes)
        if "channel" in on and not self.has_channel:
            raise UserError(
                "this model has no feature channel that follows a control (a baseline, or regime=as_published): "
                "use the routes hard and soft"
            )
        return on

    def prompt_ids(self, text: str) -> list[int]:
        """Return ``<bos>`` and the ids of a prompt that the grammar can continue.

        Raises:
            UserError: a word outside the vocabulary, or one that does not fit the grammar at its position.
        """
        ids = [self.vocabulary.bos_id, *self.vocabulary.encode(text)]
        self.grammar.state_after(ids)
        return ids

    def state(self, controls: Sequence[dict[str, Any]], routes: Collection[str]) -> Any:
        if "channel" in routes:
            return controls
        others = sorted({name for control in controls for name in control} - set(SCORE_CONTROLS))
        refuse(f"control.{name} needs the route channel: only the feature channel can follow it" for name in others)
        return None

    def rules(self, controls: Sequence[dict[str, Any]], routes: Collection[str], state: Any) -> ScoreRule:
        return self.decoding.rules(
            controls,
            self.grammar,
            self.vocabulary,
            fusion=self.module.fusion,
            hard="hard" in routes,
            soft="soft" in routes,
        )

    def text(self, ids: list[int], prompt_length: int, control: dict[str, Any]) -> GeneratedClause:
        """Return the sentence with what its words after the prompt realised."""
        tokens = [self.vocabulary.tokens[i] for i in ids]
        new = tokens[prompt_length:]
        adjectives = [token for token in new if token in self.vocabulary.polarity]
        signs = {self.vocabulary.polarity[token] for token in adjectives}
        marks = [token for token in new if self.vocabulary.id(token) in self.vocabulary.ids("punctuation")]
        return GeneratedClause(
            text=self.vocabulary.decode(ids),
            ids=tuple(ids),
            prompt_length=prompt_length,
            control=control,
            polarity={frozenset({1}): "positive", frozenset({-1}): "negative"}.get(frozenset(signs), "other"),
            adjective=adjectives[0] if adjectives else None,
            adjective_id=self.vocabulary.id(adjectives[0]) if adjectives else -1,
            punctuation=marks[-1] if marks else None,
            held_out=any(self.vocabulary.id(token) in self.held_out_ids for token in adjectives),
        )

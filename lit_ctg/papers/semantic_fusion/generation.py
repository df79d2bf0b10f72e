"""Controlled generation of clauses: grammar, control paths and sampling settings tied to one model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning import LightningModule

from lit_ctg.core.model import evaluating
from lit_ctg.decoding.filters import Nucleus, RepetitionPenalty, Temperature, TopK
from lit_ctg.decoding.grammar import FiniteStateGrammar, GrammarMask
from lit_ctg.decoding.loop import generate
from lit_ctg.decoding.rule import RuleList, ScoreRule
from lit_ctg.errors import UserError, did_you_mean
from lit_ctg.papers.semantic_fusion.clause_vocabulary import ClauseVocabulary
from lit_ctg.papers.semantic_fusion.control import (
    ControlRows,
    GroupMixture,
    HardControl,
    MixtureNumbers,
    Steering,
    SteeringNumbers,
    check_control,
)
from lit_ctg.papers.semantic_fusion.grammar import LENGTHS, build_grammar

# the ways a control can reach the text; "published" decoding is hard and soft together
PATHS = ("hard", "soft", "channel")
NUCLEUS_RULES = {"keep_crossing": True, "drop_crossing": False}

Control = Mapping[str, Any]


@dataclass(frozen=True)
class GeneratedClause:
    """One generated sentence and what it realized; only words after the prompt count.

    Attributes:
        text: prompt and continuation.
        ids: the same, ``<bos>`` first.
        polarity: ``"positive"`` or ``"negative"`` when all generated adjectives are, else ``"other"``.
        adjective: the first generated adjective; None when there is none. ``adjective_id`` is -1 then.
        punctuation: the generated closing mark, or None.
        held_out: a generated adjective was kept out of training.
    """

    text: str
    ids: tuple[int, ...]
    polarity: str
    adjective: str | None
    adjective_id: int
    punctuation: str | None
    held_out: bool


class ClauseDecoding:
    """The paper's decoding settings (FACTS and Appendix A), as ``conf/decoding/semantic_fusion.yaml`` gives them.

    Args:
        grammar: ``"one_clause"`` or ``"two_clause"``.
        nucleus: ``"keep_crossing"`` (usual) or ``"drop_crossing"`` (as published).
        temperature, top_p: neutral sampling, for every token that the group mixture does not draw.
        baseline_top_k: of the baseline model only ("fair" decoding).
        penalty: repetition penalty by model, keys ``baseline`` and ``fusion``.
        penalty_window: number of last ids penalised.
        punctuation_penalty: further penalty on the last id when it is punctuation.
        steering: see :class:`SteeringNumbers`.
        hard_threshold: control value above which hard control sets in.
        mixture: group mixture by polarity, keys ``positive`` and ``negative``, see :class:`MixtureNumbers`.
        routes: the ways a control takes where the caller names none.

    Raises:
        UserError: no such grammar or nucleus rule.
    """

    def __init__(
        self,
        *,
        grammar: str,
        nucleus: str,
        temperature: float,
        top_p: float,
        baseline_top_k: int,
        penalty: Mapping[str, float],
        penalty_window: int,
        punctuation_penalty: float,
        steering: Mapping[str, float],
        hard_threshold: float,
        mixture: Mapping[str, Mapping[str, float]],
        routes: Collection[str] = ("hard", "soft"),
    ):
        self.routes = tuple(routes)
        if nucleus not in NUCLEUS_RULES:
            hint = did_you_mean(str(nucleus), NUCLEUS_RULES)
            raise UserError(f"decoding.nucleus={nucleus!r}{hint}: use {' or '.join(NUCLEUS_RULES)}")
        build_grammar(grammar, ClauseVocabulary())
        self.grammar, self.keep_crossing = grammar, NUCLEUS_RULES[nucleus]
        self.temperature, self.top_p, self.baseline_top_k = temperature, top_p, baseline_top_k
        self.penalty = {"baseline": penalty["baseline"], "fusion": penalty["fusion"]}
        self.penalty_window, self.punctuation_penalty = penalty_window, punctuation_penalty
        self.steering, self.hard_threshold = SteeringNumbers(**steering), hard_threshold
        self.mixture = {name: MixtureNumbers(**mixture[name]) for name in ("positive", "negative")}

    def rules(
        self,
        controls: Sequence[Control],
        grammar: FiniteStateGrammar,
        vocabulary: ClauseVocabulary,
        *,
        fusion: bool,
        hard: bool,
        soft: bool,
    ) -> ScoreRule:
        """Return the rule for a batch: mask, steer, penalise, hard control, sample settings; the mixture around them.

        Args:
            controls: checked controls, one a row, or one for all rows.
            grammar, vocabulary: of the corpus.
            fusion: the model has the feature channel; False gives the baseline's "fair" settings.
            hard, soft: which control paths are on.
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

    def generator(self, module: LightningModule, datamodule: Any) -> ClauseGenerator:
        """Tie these settings to a model and its corpus (``vocabulary`` and ``held_out_ids`` of the data module)."""
        return ClauseGenerator(module, self, datamodule.vocabulary, datamodule.held_out_ids)


class ClauseGenerator:
    """Generates clauses from a semantic-fusion module or its baseline.

    Args:
        module: a ``StepModel`` (see ``decoding/loop.py``) with the attributes ``fusion`` (bool) and ``has_channel``
            (bool: its features can be set from a control).
        decoding: settings.
        vocabulary: of the clause corpus.
        held_out_ids: adjectives kept out of training.
    """

    def __init__(
        self,
        module: Any,
        decoding: ClauseDecoding,
        vocabulary: ClauseVocabulary,
        held_out_ids: Collection[int],
    ):
        self.module, self.decoding, self.vocabulary = module, decoding, vocabulary
        self.grammar = build_grammar(decoding.grammar, vocabulary)
        self.held_out_ids = frozenset(held_out_ids)

    @property
    def has_channel(self) -> bool:
        """Whether the channel path exists for this model."""
        return bool(self.module.has_channel)

    def generate(
        self,
        n: int,
        prompt: str | Sequence[str] = "",
        control: Control | Sequence[Control] | None = None,
        *,
        paths: Mapping[str, bool] | None = None,
        seed: int | None,
        rows: Sequence[int] | None = None,
    ) -> list[GeneratedClause]:
        """Generate ``n`` sentences in one batch.

        Args:
            n: sentences.
            prompt: beginning of the sentence(s), ``""`` for none; one for all, or one each.
            control: feature name -> value in [0, 1]; one for all, or one each; None for no control.
            paths: which of ``hard``, ``soft``, ``channel`` are on; those left out are off.
            seed: sentence i is a function of (seed, rows[i]); None takes the likeliest token everywhere.
            rows: row numbers, default 0 .. n-1.

        Raises:
            UserError: an unknown control or path, a value out of range, a prompt outside the grammar or the
                vocabulary, the channel path on a model without one.
        """
        on = self._paths(paths or {})
        controls = [check_control(c, channel=on["channel"]) for c in _each(control or {}, n, "control")]
        prompts = [self.prompt_ids(text) for text in _each(prompt, n, "prompt")]
        rules = self.decoding.rules(
            controls, self.grammar, self.vocabulary, fusion=self.module.fusion, hard=on["hard"], soft=on["soft"]
        )
        with evaluating(self.module):
            generated = generate(
                self.module,
                prompts,
                rules,
                seed=seed,
                max_new_tokens=LENGTHS[self.decoding.grammar],
                eos_id=self.vocabulary.eos_id,
                pad_id=self.vocabulary.pad_id,
                rows=rows,
                channel=controls if on["channel"] else None,
            )
        return [self._judge(ids, len(p)) for ids, p in zip(generated, prompts, strict=True)]

    def prompt_ids(self, text: str) -> list[int]:
        """Return ``<bos>`` and the ids of a prompt that the grammar can continue.

        Raises:
            UserError: a word outside the vocabulary, or one that does not fit the grammar where it stands.
        """
        ids = [self.vocabulary.bos_id, *self.vocabulary.encode(text)]
        self.grammar.state_after(ids)
        return ids

    def _paths(self, paths: Mapping[str, bool]) -> dict[str, bool]:
        for name in paths:
            if name not in PATHS:
                raise UserError(
                    f"unknown control path '{name}'{did_you_mean(name, PATHS)}; there are {', '.join(PATHS)}"
                )
        on = {name: bool(paths.get(name, False)) for name in PATHS}
        if on["channel"] and not self.has_channel:
            raise UserError(
                "this model has no feature channel that follows a control (a baseline, or regime=as_published): "
                "use the paths hard and soft"
            )
        return on

    def _judge(self, ids: list[int], prompt_length: int) -> GeneratedClause:
        tokens = [self.vocabulary.tokens[i] for i in ids]
        new = tokens[prompt_length:]
        adjectives = [token for token in new if token in self.vocabulary.polarity]
        signs = {self.vocabulary.polarity[token] for token in adjectives}
        marks = [token for token in new if self.vocabulary.id(token) in self.vocabulary.ids("punctuation")]
        return GeneratedClause(
            text=self.vocabulary.decode(ids),
            ids=tuple(ids),
            polarity={frozenset({1}): "positive", frozenset({-1}): "negative"}.get(frozenset(signs), "other"),
            adjective=adjectives[0] if adjectives else None,
            adjective_id=self.vocabulary.id(adjectives[0]) if adjectives else -1,
            punctuation=marks[-1] if marks else None,
            held_out=any(self.vocabulary.id(token) in self.held_out_ids for token in adjectives),
        )


def _each(given: Any, n: int, what: str) -> list[Any]:
    """One value for all, or a sequence of ``n``."""
    if isinstance(given, str | Mapping):
        return [given] * n
    if len(given) != n:
        raise ValueError(f"{len(given)} values of {what} for {n} sentences: give one for all or one each")
    return list(given)

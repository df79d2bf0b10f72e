"""Generation with the gate: one batch, cached, with a strength per row (sec. 3.2, 5.5).

Shape letters: B rows, T positions, V vocabulary, D hidden size.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from torch import Tensor

from lit_ctg.core.generation import ControlSetting, GeneratedText, Generator
from lit_ctg.decoding.filters import Temperature
from lit_ctg.decoding.rule import RuleList, ScoreRule
from lit_ctg.errors import UserError
from lit_ctg.limits import Choice, Count, Positive, checked
from lit_ctg.papers.idea_gate.control import of_run
from lit_ctg.papers.idea_gate.model import IdeaGateModule, IdeaState

PENALTIES = ("logits", "log_probabilities")


class DividingPenalty(ScoreRule):
    """Scores of all tokens in the prefix are divided (positive) or multiplied (negative) by ``penalty``.

    Hugging Face's processor as a rule; ``decoding/filters.py`` has semantic fusion's, which subtracts.

    Args:
        penalty: above 0.
        normalised: apply it to log-probabilities, so that adding a number to all scores changes nothing.
        compounds: once for every place of a token in the prefix, so by penalty^n (the authors' first code), not once.
    """

    def __init__(self, penalty: float, *, normalised: bool = False, compounds: bool = False) -> None:
        from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

        self.processor, self.normalised = RepetitionPenaltyLogitsProcessor(float(penalty)), normalised
        self.penalty, self.compounds = penalty, compounds

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        scores = scores.log_softmax(-1) if self.normalised else scores
        if not self.compounds:
            return self.processor(input_ids, scores)
        count_BV = torch.zeros_like(scores).scatter_add_(1, input_ids, torch.ones_like(input_ids).to(scores))
        factor_BV = self.penalty**count_BV
        return torch.where(scores < 0, scores * factor_BV, scores / factor_BV)


@checked
class IdeaGateDecoding:
    """The paper's sampling settings, as in ``conf/decoding/idea_gate.yaml``.

    Args:
        temperature: > 0.
        repetition_penalty: >= 1, see ``DividingPenalty``; 1 changes nothing.
        max_new_tokens: length of a continuation.
        penalty_on: what the penalty divides or multiplies: the logits (sec. 5.2; also None), where adding a number to
            all of them changes the draws; or log_probabilities (ours), where it does not.
        penalty_compounds: see ``DividingPenalty``.
        slide: texts may be longer than the context: each time it is full, the model continues from only the newest
            ``slide`` tokens. None refuses longer texts.
    """

    def __init__(
        self,
        *,
        temperature: Positive,
        repetition_penalty: Positive,
        max_new_tokens: Count,
        penalty_on: Annotated[str, Choice(PENALTIES)] | None = None,
        penalty_compounds: bool | None = None,
        slide: Count | None = None,
    ) -> None:
        penalty_on = PENALTIES[0] if penalty_on is None else penalty_on
        self.temperature, self.repetition_penalty = temperature, repetition_penalty
        self.max_new_tokens, self.penalty_on, self.slide = max_new_tokens, penalty_on, slide
        self.penalty_compounds = bool(penalty_compounds)

    def rules(self) -> list[ScoreRule]:
        """Return the rules after the gate: penalty, temperature."""
        rules: list[ScoreRule] = []
        if self.repetition_penalty != 1:
            normalised = self.penalty_on == "log_probabilities"
            rules.append(
                DividingPenalty(self.repetition_penalty, normalised=normalised, compounds=self.penalty_compounds)
            )
        return [*rules, Temperature(self.temperature)]

    def generator(self, module: IdeaGateModule, datamodule: Any) -> IdeaGateGenerator:
        """Combine these settings with a model and its tokenizer."""
        return IdeaGateGenerator(module, self, datamodule.vocabulary)


class IdeaGateGenerator(Generator[GeneratedText]):
    """Continues prompts; ``control.alpha`` and ``control.beta`` replace the model's strength and bound.

    Raises:
        UserError: ``decoding.slide`` is not a number of tokens below the model's context.
    """

    def __init__(self, module: IdeaGateModule, decoding: IdeaGateDecoding, vocabulary: Any) -> None:
        super().__init__(module, max_new_tokens=decoding.max_new_tokens)
        self.decoding, self.vocabulary = decoding, vocabulary
        whole = super().context
        if decoding.slide is not None and whole is not None and decoding.slide >= whole:
            raise UserError(f"decoding.slide={decoding.slide}: keep fewer tokens than the context of {whole}")

    @property
    def controls(self) -> tuple[ControlSetting, ...]:
        return of_run(self.module, None, None).settings if self.module.gated else ()

    @property
    def context(self) -> int | None:
        return None if self.decoding.slide is not None else super().context

    def prompt_ids(self, text: str) -> list[int]:
        ids = self.vocabulary.encode(text)
        if ids:
            return ids
        if self.vocabulary.bos_id is None:
            raise UserError("the prompt is empty and the tokenizer has no token to begin with: pass prompt=...")
        return [self.vocabulary.bos_id]

    def model(self, prompts: Sequence[Sequence[int]], routes: Collection[str]) -> Any:
        whole = super().context
        if self.decoding.slide is None or whole is None:
            return self.module
        return SlidingWindow(self.module, context=whole, keep=self.decoding.slide)

    def state(self, controls: Sequence[dict[str, Any]], routes: Collection[str]) -> IdeaState:
        return IdeaState()

    def rules(self, controls: Sequence[dict[str, Any]], routes: Collection[str], state: IdeaState) -> ScoreRule:
        rules = self.decoding.rules()
        if any(control.get("alpha", 0.0) > 0 for control in controls):
            alpha, beta = ([control[name] for control in controls] for name in ("alpha", "beta"))
            gate = of_run(self.module, None, None).gate(state.idea_logits, alpha, beta, self.module.head_weight)
            rules.insert(0, gate)
        return RuleList(rules)

    def text(self, ids: list[int], prompt_length: int, control: dict[str, Any]) -> GeneratedText:
        return GeneratedText(self.vocabulary.decode(ids), tuple(ids), prompt_length, control)


@dataclass
class SlidingState:
    """Generation beyond the context: the model's state, the tokens in it, and those before them."""

    inner: IdeaState
    read: list[Tensor] = field(default_factory=list)


class SlidingWindow:
    """A step model of unlimited length: when the context is full it rereads the newest ``keep`` tokens and continues.

    Args:
        module: with ``start`` and ``step``.
        context: its number of positions.
        keep: tokens to keep; fewer than ``context``.
    """

    def __init__(self, module: IdeaGateModule, *, context: int, keep: int) -> None:
        self.module, self.context, self.keep = module, context, keep

    @property
    def device(self) -> torch.device:
        """The device of the ids."""
        return self.module.device

    def start(self, batch_size: int, controls: IdeaState) -> SlidingState:
        """Return the state of empty prefixes."""
        return SlidingState(self.module.start(batch_size, controls))

    def step(self, ids_B1: Tensor, state: SlidingState) -> tuple[Tensor, SlidingState]:
        """Take the newest tokens; return the scores [B, V] of the tokens after them."""
        if len(state.read) == self.context:
            state.read = state.read[-self.keep :]
            state.inner.cache = None
            for old_B1 in state.read:
                _, state.inner = self.module.step(old_B1, state.inner)
        state.read.append(ids_B1)
        scores_BV, state.inner = self.module.step(ids_B1, state.inner)
        return scores_BV, state

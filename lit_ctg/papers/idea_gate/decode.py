"""Generation with the gate: one batch, cached, a strength for every row (sec. 3.2, 5.5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Real
from typing import Any

from torch import Tensor, nn

from lit_ctg.core.model import evaluating
from lit_ctg.decoding.filters import Temperature
from lit_ctg.decoding.loop import generate
from lit_ctg.decoding.rule import PerRow, RuleList, ScoreRule, per_row
from lit_ctg.errors import UserError, did_you_mean
from lit_ctg.papers.idea_gate.model import GateForm, IdeaGateModule, IdeaState, check_strength, gated_scores

CONTROLS = ("alpha", "beta")
NO_END = -1  # the paper's texts have a fixed length: no token ends one

Control = Mapping[str, Any]


class DividingPenalty(ScoreRule):
    """Scores of all tokens in the prefix are divided (positive) or multiplied (negative) by ``penalty``.

    Hugging Face's processor, as a rule; ``decoding/filters.py`` has semantic fusion's, which subtracts.
    """

    def __init__(self, penalty: float) -> None:
        from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

        self.processor = RepetitionPenaltyLogitsProcessor(penalty)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return self.processor(input_ids, scores)


class IdeaGateRule(ScoreRule):
    """The gate as a score rule; with ``alpha`` 0 the scores stay as they are.

    Works in ``decoding/loop.py`` and in ``model.generate(logits_processor=[rule])`` of a Hugging Face causal LM.

    Args:
        idea_logits: called once a step, gives the idea logits [B, V] of the newest position of every row.
        alpha, beta: one number for all rows or one a row.
        form: clamp and epsilon.
        base_V: base rates of the lift gate, see ``GateForm``.
        neutral_V: tokens whose common probability stays, see ``gated_scores``.
    """

    def __init__(
        self,
        idea_logits: Callable[[], Tensor],
        *,
        alpha: PerRow,
        beta: PerRow,
        form: GateForm,
        base_V: Tensor | None = None,
        neutral_V: Tensor | None = None,
    ) -> None:
        check_strength(alpha, beta, "gate")
        self.idea_logits, self.alpha, self.beta, self.form = idea_logits, alpha, beta, form
        self.base_V, self.neutral_V = base_V, neutral_V

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        strength = per_row(self.alpha, scores), per_row(self.beta, scores)
        gate_BV = self.form(self.idea_logits().to(scores), *strength, self.base_V)
        return gated_scores(scores, gate_BV, self.neutral_V)


@contextmanager
def watch_idea_logits(model: Any, head: nn.Module) -> Iterator[Callable[[], Tensor]]:
    """Give the idea logits of the newest positions of a Hugging Face causal LM while it generates.

    Args:
        model: a ``PreTrainedModel`` with a ``base_model`` that gives ``last_hidden_state``.
        head: idea head, hidden states [B, D] to logits [B, V].

    Yields:
        a callable for ``IdeaGateRule``; it raises RuntimeError before the model has run.
    """
    newest: list[Tensor] = []

    def keep(_module: nn.Module, _inputs: Any, output: Any) -> None:
        newest[:] = [output[0][:, -1]]

    def idea_logits() -> Tensor:
        if not newest:
            raise RuntimeError("the language model has not run yet, so there are no hidden states to gate from")
        return head(newest[0])

    handle = model.base_model.register_forward_hook(keep)
    try:
        yield idea_logits
    finally:
        handle.remove()


@dataclass(frozen=True)
class GeneratedText:
    """One text.

    Attributes:
        text: prompt and continuation.
        continuation: what was generated.
        ids, prompt_length: tokens of ``text``, and how many of them are the prompt's.
    """

    text: str
    continuation: str
    ids: tuple[int, ...]
    prompt_length: int


class IdeaGateDecoding:
    """The paper's sampling settings, as ``conf/decoding/idea_gate.yaml`` gives them.

    Args:
        temperature: > 0.
        repetition_penalty: >= 1, see ``DividingPenalty``; 1 changes nothing.
        max_new_tokens: length of a continuation.

    Raises:
        UserError: a value out of range.
    """

    def __init__(self, *, temperature: float, repetition_penalty: float, max_new_tokens: int) -> None:
        if temperature <= 0 or repetition_penalty <= 0 or max_new_tokens < 1:
            raise UserError(
                f"decoding: temperature={temperature} and repetition_penalty={repetition_penalty} must be above 0, "
                f"max_new_tokens={max_new_tokens} at least 1"
            )
        self.temperature, self.repetition_penalty = temperature, repetition_penalty
        self.max_new_tokens = max_new_tokens

    def rules(self) -> list[ScoreRule]:
        """Return what follows the gate: penalty, temperature."""
        penalty: list[ScoreRule] = [] if self.repetition_penalty == 1 else [DividingPenalty(self.repetition_penalty)]
        return [*penalty, Temperature(self.temperature)]

    def generator(self, module: IdeaGateModule, datamodule: Any) -> IdeaGateGenerator:
        """Tie these settings to a model and its tokenizer."""
        return IdeaGateGenerator(module, self, datamodule.vocabulary)


class IdeaGateGenerator:
    """Continues prompts; ``control.alpha`` and ``control.beta`` replace the model's strength and bound."""

    def __init__(self, module: IdeaGateModule, decoding: IdeaGateDecoding, vocabulary: Any) -> None:
        self.module, self.decoding, self.vocabulary = module, decoding, vocabulary

    @property
    def has_gate(self) -> bool:
        """Whether ``control`` means anything to this model."""
        return self.module.gated

    def generate(
        self,
        n: int,
        prompt: str | Sequence[str] = "",
        control: Control | Sequence[Control] | None = None,
        paths: Mapping[str, bool] | None = None,
        seed: int | None = None,
        *,
        rows: Sequence[int] | None = None,
        max_new_tokens: int | None = None,
    ) -> list[GeneratedText]:
        """Generate ``n`` texts in one batch.

        Args:
            n: texts.
            prompt: one for all, or one each; ``""`` begins with the tokenizer's ``bos_id``.
            control: ``alpha`` and ``beta``, one for all or one each; what is left out is the model's.
            paths: not used, the gate is the only path.
            seed: text i is a function of (seed, rows[i]); None takes the likeliest token everywhere.
            rows: row numbers, default 0 .. n-1.
            max_new_tokens: instead of the decoding's.

        Raises:
            UserError: an unknown control, a value out of range, a control on a model without gate, an empty prompt
                where no token can stand for it, a text longer than the backbone's context.
        """
        length = max_new_tokens or self.decoding.max_new_tokens
        prompts = [self._ids(text) for text in _each(prompt, n, "prompt")]
        self._fits(max(map(len, prompts)) + length)
        state = IdeaState()
        rules = self.decoding.rules()
        controls = [self._control(each) for each in _each(control or {}, n, "control")]
        if self.module.gated and any(each["alpha"] > 0 for each in controls):
            rules.insert(0, self._gate(state, controls))
        with evaluating(self.module):
            generated = generate(
                self.module,
                prompts,
                RuleList(rules),
                seed=seed,
                max_new_tokens=length,
                eos_id=NO_END,
                rows=rows,
                channel=state,
            )
        return [self._text(ids, len(p)) for ids, p in zip(generated, prompts, strict=True)]

    def _gate(self, state: IdeaState, controls: Sequence[Mapping[str, float]]) -> IdeaGateRule:
        def idea_logits() -> Tensor:
            assert state.idea_BV is not None
            return state.idea_BV

        strength = {name: [control[name] for control in controls] for name in CONTROLS}
        module = self.module
        kind = {"form": module.form, "base_V": module.base_rate, "neutral_V": module.neutral}
        return IdeaGateRule(idea_logits, **strength, **kind)

    def _control(self, control: Control) -> dict[str, float]:
        """Return alpha and beta of a row, checked."""
        for name, value in control.items():
            if name not in CONTROLS:
                raise UserError(f"unknown control '{name}'{did_you_mean(str(name), CONTROLS)}; there are alpha, beta")
            if isinstance(value, bool) or not isinstance(value, Real):
                raise UserError(f"control.{name}={value!r} is not a number")
        if control and not self.module.gated:
            raise UserError("this model has no gate (a baseline): leave control out, or use experiment=idea_gate/main")
        values = {"alpha": self.module.alpha, "beta": self.module.beta} | {k: float(v) for k, v in control.items()}
        check_strength(values["alpha"], values["beta"], "control")
        return values

    def _ids(self, text: str) -> list[int]:
        ids = self.vocabulary.encode(text)
        if ids:
            return ids
        if self.vocabulary.bos_id is None:
            raise UserError("the prompt is empty and the tokenizer has no token to begin with: pass prompt=...")
        return [self.vocabulary.bos_id]

    def _fits(self, length: int) -> None:
        context = getattr(self.module.backbone, "context", None)
        # the last token is drawn, not fed
        if context is not None and length - 1 > context:
            raise UserError(
                f"prompt and continuation are {length} tokens together, backbone.context={context}: "
                "shorten the prompt or lower decoding.max_new_tokens"
            )

    def _text(self, ids: list[int], prompt_length: int) -> GeneratedText:
        decode = self.vocabulary.decode
        return GeneratedText(decode(ids), decode(ids[prompt_length:]), tuple(ids), prompt_length)


def _each(given: Any, n: int, what: str) -> list[Any]:
    """One value for all, or a sequence of ``n``."""
    if isinstance(given, str | Mapping):
        return [given] * n
    if len(given) != n:
        raise UserError(f"{len(given)} values of {what} for {n} texts: give one for all or one each")
    return list(given)

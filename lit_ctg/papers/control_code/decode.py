"""Generation under control codes: each row has its own code, codes can be mixed in embedding or distribution.

Shape letters: B rows, S sources, K codes of a row's blend, V vocabulary, T columns.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from torch import Tensor

from lit_ctg import limits
from lit_ctg.core.generation import NO_END, Controls, ControlSetting, GeneratedText, Generator, evaluating, one_each
from lit_ctg.decoding.filters import MINUS_INFINITY, Nucleus, Temperature, TopK
from lit_ctg.decoding.loop import generate
from lit_ctg.decoding.rule import RuleList, ScoreRule
from lit_ctg.errors import UserError, did_you_mean
from lit_ctg.limits import Choice, Count, Positive, Weight, Whole, check_value, checked
from lit_ctg.papers.control_code.model import CodeState, ControlCodeModule

CHOICES = ("greedy", "sample", "uniform_top_k")
# (share, weights of the sources) of each distribution in the sum
Blend = list[tuple[float, list[float]]]


@checked
@dataclass(frozen=True, kw_only=True)
class CodeDecoding:
    """Decoding settings, as in ``conf/decoding/control_code.yaml``.

    Attributes:
        choice: greedy (stated in the paper, sec. 4.4), sample, or uniform_top_k (used in its code).
        top_k: number of tokens from which uniform_top_k draws.
        forget_prompt: published fault: the prompt is dropped after the first new token.
        causal: False is the published fault: no mask in generation.
        start: the token before an empty prompt; it is not part of the text.
    """

    choice: Annotated[str, Choice(CHOICES)]
    top_k: Whole
    temperature: Positive
    top_p: limits.Nucleus
    new_tokens: Count
    forget_prompt: bool
    causal: bool
    start: str

    def greedy(self) -> CodeDecoding:
        """Return these settings with the best token instead of draws."""
        return dataclasses.replace(self, choice="greedy")

    def rules(self, excluded: Sequence[int]) -> ScoreRule:
        """Return the rule of continuations; greedy ones need only the exclusion."""
        rules: list[ScoreRule] = [Exclude(excluded)]
        if self.choice == "uniform_top_k":
            rules += [TopK(self.top_k), Flatten()]
        elif self.choice == "sample":
            rules += [Temperature(self.temperature), Nucleus(self.top_p, keep_crossing=True)]
        return RuleList(rules)

    def generator(self, module: ControlCodeModule, datamodule: Any) -> CodeGenerator:
        """Combine these settings with a model and its corpus (``vocabulary`` and ``sources`` of the data module)."""
        return CodeGenerator(module, self, datamodule)


class CodeGenerator(Generator[GeneratedText]):
    """Continues prompts under codes, one per row; without a control rows take the sources in turn.

    Raises:
        UserError: the sources of the corpus are not those of training.
    """

    def __init__(self, module: ControlCodeModule, decoding: CodeDecoding, datamodule: Any) -> None:
        super().__init__(module, max_new_tokens=decoding.new_tokens)
        module.bind(datamodule.sources)
        self.decoding, self.vocabulary = decoding, module.vocabulary

    @property
    def controls(self) -> tuple[ControlSetting, ...]:
        """One of source, mix and blend per text; none for a model without codes."""
        if self.module.injection == "none":
            return ()
        return (
            ControlSetting("source", "the source whose code the text has", choices=self.module.sources),
            ControlSetting("mix", "weights of sources: the weighted sum of their codes", of_names=True),
            ControlSetting("blend", "weights of sources: the weighted sum of the distributions", of_names=True),
        )

    def row(self, control: dict[str, Any], number: int) -> dict[str, Any]:
        """Return the row's control, checked in combination; an empty one takes the sources in turn."""
        if self.module.injection == "none":
            return {}
        if not control:
            return {"source": self.module.sources[number % len(self.module.sources)]}
        self.blend(control)
        return control

    def generate(
        self,
        n: int,
        prompt: str | Sequence[str] = "",
        control: Controls | Sequence[Controls] | None = None,
        *,
        seed: int | None,
        **options: Any,
    ) -> list[GeneratedText]:
        """Generate ``n`` texts in one batch, see ``Generator.generate``.

        ``seed=None`` takes the best token, even with ``as_published`` settings. A text without a prompt starts after a
        token (``decoding.start``) that is not part of it.
        """
        chosen = self
        if seed is None and self.decoding.choice != "greedy":
            chosen = copy.copy(self)
            chosen.decoding = self.decoding.greedy()
        texts = super(CodeGenerator, chosen).generate(n, prompt, control, seed=seed, **options)
        prompts = one_each(prompt, n, "prompts")
        return [
            text if given.strip() else self._without_start(text) for text, given in zip(texts, prompts, strict=True)
        ]

    def rules(self, controls: Sequence[dict[str, Any]], routes: Collection[str], state: Any) -> ScoreRule:
        """Return the rule for drawn or best tokens; ``<unk>`` is never generated."""
        return self.decoding.rules(self._excluded())

    def draws(self, seed: int | None) -> int | None:
        """Return the seed, or None for greedy settings."""
        return None if self.decoding.choice == "greedy" else seed

    def state(self, controls: Sequence[dict[str, Any]], routes: Collection[str]) -> list[Blend]:
        """Return each row's distributions; a model without codes has one, whatever the weights."""
        alike = [(1.0, [1.0 / len(self.module.sources)] * len(self.module.sources))]
        return [self.blend(control) if control else alike for control in controls]

    def model(self, prompts: Sequence[Sequence[int]], routes: Collection[str]) -> CodeSteps:
        lengths = [len(prompt) for prompt in prompts] if self.decoding.forget_prompt else None
        return CodeSteps(self.module, lengths, self.decoding.causal)

    def text(self, ids: list[int], prompt_length: int, control: dict[str, Any]) -> GeneratedText:
        return GeneratedText(self.vocabulary.decode(ids), tuple(ids), prompt_length, control)

    @property
    def context(self) -> int | None:
        """The maximum tokens of the network, or None without a limit."""
        return self.module.context

    def _without_start(self, text: GeneratedText) -> GeneratedText:
        ids = text.ids[1:]
        return dataclasses.replace(text, text=self.vocabulary.decode(list(ids)), ids=ids, prompt_length=0)

    def _excluded(self) -> list[int]:
        unknown = self.vocabulary.unknown_id
        return [] if unknown is None else [unknown]

    def continue_ids(
        self, prompts: Sequence[Sequence[int]], codes_BS: Tensor, *, seed: int | None, max_new_tokens: int
    ) -> list[list[int]]:
        """Return prompt and continuation of each row.

        Args:
            prompts: at least one id each.
            codes_BS: weights of the sources, one row per prompt.
            seed: of the draws; None takes the best token (even with ``as_published`` settings).

        Raises:
            UserError: a text is longer than the network's positions.
        """
        self.check_room(max(map(len, prompts), default=0), max_new_tokens)
        blends = [[(1.0, weights)] for weights in codes_BS.tolist()]
        decoding = self.decoding.greedy() if seed is None else self.decoding
        rules = decoding.rules(self._excluded())
        with evaluating(self.module):
            return generate(
                self.model(prompts, ()),
                prompts,
                rules,
                seed=seed,
                max_new_tokens=max_new_tokens,
                eos_id=NO_END,
                channel=blends,
            )

    def blend(self, control: Mapping[str, Any]) -> Blend:
        """Return a control as (share, weights of the sources) of each distribution in the sum."""
        if len(control) != 1:
            raise UserError(
                f"control {dict(control)}: give one of control.source=<name>, control.mix.<name>=<weight> and "
                "control.blend.<name>=<weight>"
            )
        kind, value = next(iter(control.items()))
        if kind == "source":
            return [(1.0, self._weights({str(value): 1.0}))]
        if kind == "mix":
            return [(1.0, self._weights(value))]
        whole = self._weights(value)
        rows = torch.eye(len(whole)).tolist()
        return [(share, row) for share, row in zip(whole, rows, strict=True) if share > 0]

    def _weights(self, given: Mapping[str, Any]) -> list[float]:
        """Return weights of all sources that sum to 1."""
        sources = self.module.sources
        for name, weight in given.items():
            check_value(f"control code of {self.module.corpus}", str(name), Annotated[str, Choice(sources)])
            check_value(f"control.{name}", weight, Weight)
        total = sum(given.values())
        if total <= 0:
            raise UserError(f"weights {dict(given)} of the sources are all 0: give one of them more")
        return [given.get(name, 0.0) / total for name in sources]

    def prompt_ids(self, prompt: str) -> list[int]:
        """Return the ids of a prompt, or of the token for an empty one.

        Raises:
            UserError: a word outside the model's vocabulary.
        """
        if not prompt.strip():
            return [self.vocabulary.id(self.decoding.start)]
        for word in prompt.split():
            if self.vocabulary.unknown_id in self.vocabulary.encode(word):
                hint = did_you_mean(word.lower(), self.vocabulary.tokens)
                raise UserError(f"'{word}' of the prompt is not in the vocabulary of {self.module.corpus}{hint}")
        return self.vocabulary.encode(prompt)


@dataclass
class StepsState:
    """Rows of the network (one per distribution of each text), their texts, and the prefix if it is needed."""

    network: CodeState
    row_N: Tensor
    log_share_N: Tensor
    texts: int
    ids: list[Tensor] = field(default_factory=list)


class CodeSteps:
    """A ControlCodeModule as a ``StepModel`` under blends of codes.

    Args:
        forget_after: lengths of prompts that are dropped after the first new token; None keeps them.
        causal: False lets earlier positions see later ones; the prefix is then reread for every token.
    """

    def __init__(self, module: ControlCodeModule, forget_after: Sequence[int] | None, causal: bool) -> None:
        self.module, self.causal = module, causal
        self.forget_after = list(forget_after) if forget_after is not None else None
        self.anew = not causal or forget_after is not None

    @property
    def device(self) -> torch.device:
        return self.module.device

    def start(self, batch_size: int, controls: Sequence[Blend]) -> StepsState:
        """Return the state of empty prefixes under one blend per row."""
        rows = [row for row, blend in enumerate(controls) for _ in blend]
        shares = [share for blend in controls for share, _ in blend]
        weights = [source for blend in controls for _, source in blend]
        like = self.module.output.weight
        network = self.module.start(len(rows), like.new_tensor(weights))
        row_N = torch.tensor(rows, device=like.device)
        return StepsState(network, row_N, like.new_tensor(shares).log(), batch_size)

    def step(self, ids_B1: Tensor, state: StepsState) -> tuple[Tensor, StepsState]:
        """Take the newest tokens; return the log-probabilities [B, V] of the next ones."""
        ids_N1 = ids_B1[state.row_N]
        if self.anew:
            state.ids.append(ids_N1)
            ids_NT = torch.cat(state.ids, dim=1)
            column, network = ids_NT.shape[1], state.network
            dropped = [0] * state.texts
            if self.forget_after is not None:
                dropped = [length if column > length else 0 for length in self.forget_after]
            first_N = torch.tensor(dropped, device=ids_NT.device)[state.row_N]
            parts: list[tuple[Tensor, Tensor]] = []
            for first in first_N.unique().tolist():
                rows = (first_N == first).nonzero().squeeze(1)
                code, token = (None if part is None else part[rows] for part in (network.code_BC, network.token_BD))
                alike = CodeState(code, token)
                hidden_BTD = self.module.hidden(ids_NT[rows, first:], alike, causal=self.causal, alone=True)
                parts.append((rows, self.module.scores(hidden_BTD[:, -1:], alike).squeeze(1)))
            rows_N, scores_NV = (torch.cat(part) for part in zip(*parts, strict=True))
            scores_NV = scores_NV[rows_N.argsort()]
        else:
            scores_NV, state.network = self.module.step(ids_N1, state.network)
        if len(state.row_N) == state.texts:
            return scores_NV, state
        shared_NV = scores_NV.log_softmax(-1) + state.log_share_N.unsqueeze(1)
        # log of the sum over each text's distributions
        blended = [shared_NV[state.row_N == row].logsumexp(0) for row in range(state.texts)]
        return torch.stack(blended), state


class Exclude(ScoreRule):
    """Forbids some tokens."""

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids = list(ids)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if not self.ids:
            return scores
        return scores.index_fill(-1, torch.tensor(self.ids, device=scores.device), MINUS_INFINITY)


class Flatten(ScoreRule):
    """Makes all remaining tokens equally likely."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return torch.where(scores > MINUS_INFINITY, 0.0, scores)

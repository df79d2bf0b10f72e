"""Text from a language model through graphmax or any other variant: ``lit-ctg generate experiment=graphmax/main``.

A run generates through the control that it exports (``control.py``).

Shape suffixes: B rows, T prefix tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lightning import LightningModule
from torch import Tensor

from lit_ctg import limits
from lit_ctg.control.base import Prefix
from lit_ctg.core.generation import NO_END, ControlSetting, GeneratedText, Generator, one_each
from lit_ctg.decoding.filters import Nucleus, Temperature, TopK
from lit_ctg.decoding.rule import RuleList, ScoreRule
from lit_ctg.errors import UserError
from lit_ctg.limits import Count, NonNegative, Positive, Whole, checked
from lit_ctg.papers.graphmax.control import Graphmax
from lit_ctg.papers.graphmax.variant import NAMES, VariantName


@checked
@dataclass(frozen=True, kw_only=True)
class GraphmaxDecoding:
    """The sampling settings.

    Attributes:
        variant: output layer, a name of ``variant.NAMES``.
        strength: lambda (sec. 5.1 sets 1).
        temperature, top_k, top_p: applied to the output layer's distribution; top_k 0 and top_p 1 keep all of it.
        max_new_tokens: maximum length of a continuation (the model's context also bounds it).
    """

    variant: VariantName
    strength: NonNegative
    temperature: Positive = 1.0
    top_k: Whole = 0
    top_p: limits.Nucleus = 1.0
    max_new_tokens: Count = 100

    def rules(self, layer: ScoreRule | None = None) -> ScoreRule:
        """Return output layer (None: softmax), temperature, top-k and nucleus as one rule."""
        rules: list[ScoreRule] = [] if layer is None else [layer]
        if self.temperature != 1.0:
            rules.append(Temperature(self.temperature))
        if self.top_k > 0:
            rules.append(TopK(self.top_k))
        if self.top_p < 1.0:
            rules.append(Nucleus(self.top_p, keep_crossing=True))
        return RuleList(rules)

    def generator(self, module: LightningModule, datamodule: Any) -> GraphmaxGenerator:
        """Combine these settings with a model and its vocabulary."""
        return GraphmaxGenerator(module, self, datamodule.vocabulary)


class EachRow(ScoreRule):
    """A rule for some of the rows each; the other rows keep their scores."""

    def __init__(self, parts: Sequence[tuple[list[int], ScoreRule]]) -> None:
        self.parts = parts

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        # in half precision the result would differ from the certified distribution
        changed = scores.clone() if scores.dtype == torch.float64 else scores.float()
        for rows, rule in self.parts:
            changed[rows] = rule(input_ids[rows], scores[rows]).to(changed)
        return changed


class GraphmaxGenerator(Generator[GeneratedText]):
    """Continues prompts; ``module`` is a ``GraphmaxModule``, or a step model with a ``graph`` and ``published``."""

    def __init__(self, module: Any, decoding: GraphmaxDecoding, vocabulary: Any):
        super().__init__(module, max_new_tokens=decoding.max_new_tokens)
        self.decoding, self.vocabulary = decoding, vocabulary
        self.eos_id = NO_END if vocabulary.eos_id is None else vocabulary.eos_id
        self._layers: dict[str, Graphmax] = {}

    @property
    def controls(self) -> tuple[ControlSetting, ...]:
        """Strength and output layer, instead of the decoding's own."""
        return (
            ControlSetting(
                "strength", "lambda, the pull towards the word pairs", self.decoding.strength, low=0.0, off=0.0
            ),
            ControlSetting("variant", "the output layer", self.decoding.variant, choices=tuple(NAMES)),
        )

    def generate(self, n: int, prompt: str | Sequence[str] = "", *args: Any, **options: Any) -> list[GeneratedText]:
        """As in the contract; a continuation ends where the model's context is full."""
        if self.context is not None:
            longest = max((len(self.prompt_ids(text)) for text in one_each(prompt, n, "prompts")), default=0)
            room = self.context + 1 - longest
            if room < 1:
                raise UserError(f"the prompt leaves no room in {self.context} positions: shorten it")
            options["max_new_tokens"] = min(options.get("max_new_tokens") or self.max_new_tokens, room)
        return super().generate(n, prompt, *args, **options)

    def prompt_ids(self, text: str) -> list[int]:
        """Return the ids of a prompt after ``<bos>``, if there is one."""
        start = [] if self.vocabulary.bos_id is None else [self.vocabulary.bos_id]
        ids = [*start, *self.vocabulary.encode(text)]
        if not ids:
            raise UserError("this vocabulary has no <bos> to start from: give a prompt")
        return ids

    def rules(self, controls: Sequence[dict[str, Any]], routes: Collection[str], state: Any) -> ScoreRule:
        """Return the rows' output layers with their sampling; softmax needs no graph."""
        parts: list[tuple[list[int], ScoreRule]] = []
        for name in dict.fromkeys(each["variant"] for each in controls if each["variant"] != "softmax"):
            rows = [row for row, each in enumerate(controls) if each["variant"] == name]
            if name not in self._layers:
                self._layers[name] = Graphmax(self.module.graph, variant=name, published=self.module.published)
            strength_B = torch.tensor([controls[row]["strength"] for row in rows], dtype=torch.float64)
            parts.append((rows, self._layers[name].rule({"strength": strength_B}, Prefix())))
        return self.decoding.rules(EachRow(parts) if parts else None)

    def text(self, ids: list[int], prompt_length: int, control: dict[str, Any]) -> GeneratedText:
        """Return the text of a row without ``<bos>`` and ``<eos>``, which stay in its ids."""
        ends = {self.vocabulary.bos_id, self.vocabulary.eos_id}
        said = self.vocabulary.decode([number for number in ids if number not in ends])
        return GeneratedText(said, tuple(ids), prompt_length, control)

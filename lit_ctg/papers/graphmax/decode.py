"""Decoding through graphmax: the score rule, and text by ``lit-ctg generate experiment=graphmax/main``.

Shape suffixes: B rows, T prefix tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from lightning import LightningModule
from torch import Tensor

from lit_ctg import limits
from lit_ctg.core.generation import NO_END, ControlSetting, GeneratedText, Generator, one_each
from lit_ctg.decoding.filters import Nucleus, Temperature, TopK
from lit_ctg.decoding.filters import top_k as keep_top_k
from lit_ctg.decoding.rule import PerRow, RuleList, ScoreRule, per_row
from lit_ctg.errors import UserError
from lit_ctg.limits import Count, NonNegative, Positive, Whole, checked
from lit_ctg.papers.graphmax.equation import MAX_ITERATIONS, graphmax, warn_uncertified
from lit_ctg.papers.graphmax.graph import CooccurrenceGraph
from lit_ctg.papers.graphmax.published import AlgorithmOne
from lit_ctg.papers.graphmax.variant import NAMES, Variant, VariantName, VariantRule, chosen

# Graphmax as a score rule: in our decoding loop and in Hugging Face's ``generate(logits_processor=[rule])``.


@checked
class GraphmaxRule(ScoreRule):
    """Replaces the scores by graphmax's log-probabilities, so that softmax of them is graphmax.

    Put it before temperature, top-k and nucleus, which then act on graphmax's distribution. Beam search needs no change
    (log-probabilities stay log-probabilities).

    Args:
        graph: A~ over the language model's vocabulary.
        strength: lambda, one number or one per row; a row with 0 keeps its scores.
        top_k: solve only over the k best tokens of each row, all others become -inf; None takes the whole vocabulary.
        tol, max_iterations, solver: as in :func:`~lit_ctg.papers.graphmax.equation.graphmax`.
        strict: raise if a row is not certified (set it to False for Algorithm 1, which never is); otherwise a warning
            counts such rows of the certified solver.
    """

    def __init__(
        self,
        graph: CooccurrenceGraph,
        strength: PerRow = 1.0,
        *,
        top_k: Count | None = None,
        tol: Positive = 1e-6,
        max_iterations: Count = MAX_ITERATIONS,
        strict: bool = True,
        solver: str | AlgorithmOne = "certified",
    ):
        self.graph, self.strength, self.top_k = graph, strength, top_k
        self.settings: dict[str, Any] = {
            "tol": tol,
            "max_iterations": max_iterations,
            "strict": strict,
            "solver": solver,
        }

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return log-probabilities ``[B, V]``; the prefix ``input_ids`` is not used.

        They are float32 for half-precision scores: rounded further they would differ from the certified distribution.
        """
        kept_BV = scores if self.top_k is None else keep_top_k(scores, self.top_k)
        strength_B1 = per_row(self.strength, scores)
        # Algorithm 1 does not arrive at softmax
        certified = self.settings["solver"] == "certified"
        if certified and (strength_B1 == 0).all():
            return kept_BV
        with torch.no_grad():
            result = graphmax(kept_BV, self.graph, strength_B1, **self.settings)
        if not certified:
            return result.log_probs_BV
        warn_uncertified(result, "the graphmax rule")
        return torch.where(strength_B1 == 0, kept_BV.to(result.log_probs_BV), result.log_probs_BV)


# Text from a language model through graphmax or any other variant: `lit-ctg generate experiment=graphmax/main`.


@checked
class GraphmaxDecoding:
    """The sampling settings.

    Args:
        variant: output layer, a name of ``variant.NAMES``.
        strength: lambda (sec. 5.1 sets 1).
        temperature, top_k, top_p: applied to the output layer's distribution; top_k 0 and top_p 1 keep all of it.
        max_new_tokens: maximum length of a continuation (the model's context also bounds it).
    """

    def __init__(
        self,
        *,
        variant: VariantName,
        strength: NonNegative,
        temperature: Positive = 1.0,
        top_k: Whole = 0,
        top_p: limits.Nucleus = 1.0,
        max_new_tokens: Count = 100,
    ):
        self.variant, self.strength, self.max_new_tokens = variant, strength, max_new_tokens
        self.temperature, self.top_k, self.top_p = temperature, top_k, top_p

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


class EachVariant(ScoreRule):
    """An output layer for each row, by name and strength; rows with the same name are processed together.

    Strength 0 switches any of them off.
    """

    def __init__(self, variants: Mapping[str, Variant], names: Sequence[str], strengths: Sequence[float]) -> None:
        self.parts = []
        for name in dict.fromkeys(names):
            rows = [row for row, own in enumerate(names) if own == name]
            if name != "softmax":
                self.parts.append((rows, VariantRule(chosen(name, variants), [strengths[row] for row in rows])))

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        # in half precision the result would differ from the certified distribution
        changed = scores.clone() if scores.dtype == torch.float64 else scores.float()
        for rows, rule in self.parts:
            changed[rows] = rule(input_ids[rows], scores[rows]).to(changed)
        return changed


class GraphmaxGenerator(Generator[GeneratedText]):
    """Continues prompts; ``module`` is a ``GraphmaxModule`` (or any step model with ``variants``)."""

    def __init__(self, module: Any, decoding: GraphmaxDecoding, vocabulary: Any):
        super().__init__(module, max_new_tokens=decoding.max_new_tokens)
        self.decoding, self.vocabulary = decoding, vocabulary
        self.eos_id = NO_END if vocabulary.eos_id is None else vocabulary.eos_id

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
        """As in the contract; a continuation ends where the model's context is full.

        Raises:
            UserError: see ``Writer.generate``; a prompt that fills the context.
        """
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
        names = [each["variant"] for each in controls]
        if set(names) == {"softmax"}:
            return self.decoding.rules()
        return self.decoding.rules(EachVariant(self.module.variants, names, [each["strength"] for each in controls]))

    def text(self, ids: list[int], prompt_length: int, control: dict[str, Any]) -> GeneratedText:
        """Return the text of a row without ``<bos>`` and ``<eos>``, which stay in its ids."""
        ends = {self.vocabulary.bos_id, self.vocabulary.eos_id}
        said = self.vocabulary.decode([number for number in ids if number not in ends])
        return GeneratedText(said, tuple(ids), prompt_length, control)

"""Decoding through graphmax: the score rule, and text by ``lit-ctg generate experiment=graphmax/main``.

Shape suffixes: B rows, T prefix tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lightning import LightningModule
from torch import Tensor

from lit_ctg.core.model import evaluating
from lit_ctg.decoding.filters import Nucleus, Temperature, TopK
from lit_ctg.decoding.filters import top_k as keep_top_k
from lit_ctg.decoding.loop import generate
from lit_ctg.decoding.rule import PerRow, RuleList, ScoreRule, per_row
from lit_ctg.errors import UserError, did_you_mean
from lit_ctg.papers.graphmax.equation import MAX_ITERATIONS, graphmax, warn_uncertified
from lit_ctg.papers.graphmax.graph import CooccurrenceGraph
from lit_ctg.papers.graphmax.published import AlgorithmOne
from lit_ctg.papers.graphmax.variant import VariantRule, checked_name, chosen

# Graphmax as a score rule: in our decoding loop and in Hugging Face's ``generate(logits_processor=[rule])``.
#
# Shape suffixes: B rows, T prefix tokens, V vocabulary.


class GraphmaxRule(ScoreRule):
    """Replace the scores by graphmax's log-probabilities, so that softmax of them is graphmax.

    Put it before temperature, top-k and nucleus, which then act on graphmax's distribution. Beam search takes it as it
    is (log-probabilities stay log-probabilities).

    Args:
        graph: A~ over the language model's vocabulary.
        strength: lambda, one number or one a row; a row with 0 keeps its scores untouched.
        top_k: solve over the k best tokens of each row only, all others become -inf; None takes the whole vocabulary.
        tol, max_iterations, solver: as in :func:`~lit_ctg.papers.graphmax.equation.graphmax`.
        strict: raise when a row is not certified (with Algorithm 1, which never is, set it to False); else such rows of
            the certified solver are counted in a warning.
    """

    def __init__(
        self,
        graph: CooccurrenceGraph,
        strength: PerRow = 1.0,
        *,
        top_k: int | None = None,
        tol: float = 1e-6,
        max_iterations: int = MAX_ITERATIONS,
        strict: bool = True,
        solver: str | AlgorithmOne = "certified",
    ):
        if top_k is not None and top_k < 1:
            raise UserError(f"graphmax over the top_k best tokens needs top_k >= 1, not {top_k}")
        self.graph, self.strength, self.top_k = graph, strength, top_k
        self.settings = {"tol": tol, "max_iterations": max_iterations, "strict": strict, "solver": solver}

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return log-probabilities ``[B, V]``; the prefix ``input_ids`` plays no part.

        They are float32 for half-precision scores: rounded further they would be another distribution than the
        certified one.
        """
        kept_BV = scores if self.top_k is None else keep_top_k(scores, self.top_k)
        strength_B1 = per_row(self.strength, scores)
        if (strength_B1 == 0).all():
            return kept_BV
        with torch.no_grad():
            result = graphmax(kept_BV, self.graph, strength_B1, **self.settings)
        if self.settings["solver"] == "certified":
            warn_uncertified(result, "the graphmax rule")
        return torch.where(strength_B1 == 0, kept_BV.to(result.log_probs_BV), result.log_probs_BV)


# Text from a language model through graphmax or any other variant: `lit-ctg generate experiment=graphmax/main`.


CONTROLS = ("strength", "variant")
UNBOUNDED = 1 << 20  # positions of a backbone that names no limit


@dataclass(frozen=True)
class GeneratedText:
    """One text: prompt and continuation, and the ids of both (the leading ``<bos>`` too)."""

    text: str
    ids: tuple[int, ...]


class GraphmaxDecoding:
    """How to sample.

    Args:
        variant: output layer, a name of ``variant.NAMES``.
        strength: lambda (sec. 5.1 sets 1).
        temperature, top_k, top_p: of the distribution that the output layer gives; top_k 0 and top_p 1 take all of it.
        max_new_tokens: length of a continuation at most (the model's context bounds it too).
    """

    def __init__(
        self,
        *,
        variant: str,
        strength: float,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        max_new_tokens: int = 100,
    ):
        _check(variant, strength)
        self.variant, self.strength, self.max_new_tokens = variant, strength, max_new_tokens
        self.temperature, self.top_k, self.top_p = temperature, top_k, top_p

    def rules(self, module: Any, variant: str, strength: float) -> ScoreRule:
        """Return output layer, temperature, top-k and nucleus as one rule; softmax needs no graph."""
        rules: list[ScoreRule] = []
        if variant != "softmax":
            rules.append(VariantRule(chosen(variant, module.variants), strength))
        if self.temperature != 1.0:
            rules.append(Temperature(self.temperature))
        if self.top_k > 0:
            rules.append(TopK(self.top_k))
        if self.top_p < 1.0:
            rules.append(Nucleus(self.top_p, keep_crossing=True))
        return RuleList(rules)

    def generator(self, module: LightningModule, datamodule: Any) -> GraphmaxGenerator:
        """Tie these settings to a model and its vocabulary."""
        return GraphmaxGenerator(module, self, datamodule.vocabulary)


class GraphmaxGenerator:
    """Continues prompts; ``module`` is a ``GraphmaxModule`` (or any step model with ``variants``)."""

    def __init__(self, module: Any, decoding: GraphmaxDecoding, vocabulary: Any):
        self.module, self.decoding, self.vocabulary = module, decoding, vocabulary

    def generate(
        self,
        n: int,
        prompt: str | Sequence[str] = "",
        control: Mapping[str, Any] | None = None,
        paths: Mapping[str, bool] | None = None,
        seed: int | None = 0,
    ) -> list[GeneratedText]:
        """Return ``n`` continuations; text i is a function of (seed, i), greedy where seed is None.

        Args:
            n: how many.
            prompt: one for all, or one each.
            control: ``strength`` and ``variant``, in place of the decoding's own.
            paths: not used; there is one way of control.
            seed: of the draws.

        Raises:
            UserError: an unknown control or variant, a strength below 0, a prompt that fills the model's context, or
                none where the vocabulary has no ``<bos>``.
        """
        given = dict(control or {})
        for name in given:
            if name not in CONTROLS:
                raise UserError(f"no control '{name}'{did_you_mean(name, CONTROLS)}; there are {', '.join(CONTROLS)}")
        variant = str(given.get("variant", self.decoding.variant))
        strength = given.get("strength", self.decoding.strength)
        _check(variant, strength)
        prompts = [self._ids(text) for text in ([prompt] * n if isinstance(prompt, str) else prompt)]
        positions = getattr(self.module.backbone, "context", None) or UNBOUNDED
        room = positions + 1 - max(map(len, prompts), default=0)
        if room < 1:
            raise UserError(f"the prompt leaves no room in {positions} positions: shorten it")
        with evaluating(self.module):
            rows = generate(
                self.module,
                prompts,
                self.decoding.rules(self.module, variant, float(strength)),
                seed=seed,
                max_new_tokens=min(self.decoding.max_new_tokens, room),
                eos_id=-1 if self.vocabulary.eos_id is None else self.vocabulary.eos_id,
            )
        return [GeneratedText(self._text(ids), tuple(ids)) for ids in rows]

    def _ids(self, prompt: str) -> list[int]:
        start = [] if self.vocabulary.bos_id is None else [self.vocabulary.bos_id]
        ids = [*start, *self.vocabulary.encode(prompt)]
        if not ids:
            raise UserError("this vocabulary has no <bos> to start from: give a prompt")
        return ids

    def _text(self, ids: list[int]) -> str:
        ends = {self.vocabulary.bos_id, self.vocabulary.eos_id}
        return self.vocabulary.decode([number for number in ids if number not in ends])


def _check(variant: str, strength: Any) -> None:
    checked_name(variant, "variant")
    if isinstance(strength, bool) or not isinstance(strength, int | float) or not strength >= 0:
        raise UserError(f"the strength of graphmax is a number >= 0, not {strength!r}")

"""Graphmax as a score rule: in our decoding loop and in Hugging Face's ``generate(logits_processor=[rule])``.

Shape suffixes: B rows, T prefix tokens, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lit_ctg.decoding.filters import top_k as keep_top_k
from lit_ctg.decoding.rule import PerRow, ScoreRule, per_row
from lit_ctg.errors import UserError
from lit_ctg.papers.graphmax.function import MAX_ITERATIONS, graphmax, warn_uncertified
from lit_ctg.papers.graphmax.graph import CooccurrenceGraph
from lit_ctg.papers.graphmax.published import AlgorithmOne


class GraphmaxRule(ScoreRule):
    """Replace the scores by graphmax's log-probabilities, so that softmax of them is graphmax.

    Put it before temperature, top-k and nucleus, which then act on graphmax's distribution. Beam search takes it as it
    is (log-probabilities stay log-probabilities).

    Args:
        graph: A~ over the language model's vocabulary.
        strength: lambda, one number or one a row; a row with 0 keeps its scores untouched.
        top_k: solve over the k best tokens of each row only, all others become -inf; None takes the whole vocabulary.
        tol, max_iterations, solver: as in :func:`~lit_ctg.papers.graphmax.function.graphmax`.
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

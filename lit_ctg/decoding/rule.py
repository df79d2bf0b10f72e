"""Score rules: how the scores of the next token are changed before a token is drawn.

A rule is a pure function ``(input_ids_BT, scores_BV) -> scores_BV`` of the prefix and the scores, so the same object
works in :func:`lit_ctg.decoding.loop.generate` and in ``model.generate(logits_processor=[rule])`` of a Hugging Face
causal language model.

Shape suffixes: B rows, T prefix tokens, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from lit_ctg.errors import UserError


class ScoreRule(ABC):
    """A change of the next-token scores, never in place; a row's result does not depend on the rest of the batch."""

    @abstractmethod
    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return the changed scores.

        Args:
            input_ids: ``[B, T]`` long, the prefixes (ids to the left of the token that the scores are about).
            scores: ``[B, V]`` logits or log-probabilities of the next token.

        Returns:
            ``[B, V]``, ``-inf`` for a token that may not be drawn.
        """


class RuleList(ScoreRule):
    """Rules applied in order; an empty list leaves the scores as they are."""

    def __init__(self, rules: Iterable[ScoreRule] = ()):
        self.rules = tuple(rules)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        for rule in self.rules:
            scores = rule(input_ids, scores)
        return scores

    def __iter__(self) -> Iterator[ScoreRule]:
        return iter(self.rules)

    def __len__(self) -> int:
        return len(self.rules)


PerRow = float | Sequence[float] | Tensor


def per_row(value: PerRow, scores_BV: Tensor) -> Tensor:
    """Return ``value`` as a column ``[B, 1]`` or ``[1, 1]`` with the dtype and device of ``scores_BV``.

    Hugging Face's ``generate`` repeats every prompt for beams and for several sequences, with a prompt's copies next to
    each other: its setting then applies to all of them.

    Args:
        value: one number for all rows, one per row, or one per group of neighbouring rows of equal size.
        scores_BV: the scores over which it is broadcast.

    Raises:
        UserError: the scores are no tensor.
        ValueError: B is not a multiple of the number of values.
    """
    if not isinstance(scores_BV, Tensor):
        raise UserError(f"scores are a torch tensor [B, V], not a {type(scores_BV).__name__}: use torch.as_tensor(...)")
    column = torch.as_tensor(value, dtype=scores_BV.dtype, device=scores_BV.device).reshape(-1, 1)
    if len(column) == 0 or len(scores_BV) % len(column):
        raise ValueError(f"{len(column)} settings for {len(scores_BV)} rows: give one for all or one per row")
    return column if len(column) == 1 else column.repeat_interleave(len(scores_BV) // len(column), dim=0)

"""Density: different domain terms in 100 tokens of what a model writes (idea gate, sec. 4.3)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from lit_ctg.papers.idea_gate.sample_mean import SampleMean


class Density(SampleMean):
    """Number of different terms of the domain's list in a sample, for 100 of its tokens; mean over samples.

    Args:
        terms: the domain's list, lower case.
    """

    unit = "terms per 100 tokens"
    direction = "higher"

    def __init__(self, *, terms: Collection[str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.terms = frozenset(terms)

    def update(self, words_N: Sequence[Sequence[str]], tokens_N: Sequence[int], group: int = 0) -> None:
        """Add samples of one prompt: the words of each, and how many new tokens it has (0: it is left out)."""
        counts = [len(self.terms.intersection(found)) for found in words_N]
        values = [
            100.0 * count / tokens if tokens else float("nan") for count, tokens in zip(counts, tokens_N, strict=True)
        ]
        self.add_samples(values, group)

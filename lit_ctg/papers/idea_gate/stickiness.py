"""Stickiness: how much of what a model writes stays with the topic (idea gate, sec. 4.3, Eq. 8)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from lit_ctg.papers.idea_gate.sample_mean import SampleMean
from lit_ctg.papers.idea_gate.words import content_words


class Stickiness(SampleMean):
    """Share of a sample's content words that are in the domain's list; mean over samples.

    A sample without a content word has no share and is left out.

    Args:
        terms: the domain's list, lower case.
        function_words: words that are no content words.
    """

    unit = "share of content words"
    direction = "higher"

    def __init__(self, *, terms: Collection[str], function_words: Collection[str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.terms, self.function_words = frozenset(terms), frozenset(function_words)

    def share(self, found: Sequence[str]) -> float:
        """Return the share of one sample, given its words; NaN without a content word."""
        content = content_words(found, self.function_words)
        return sum(word in self.terms for word in content) / len(content) if content else float("nan")

    def update(self, words_N: Sequence[Sequence[str]], group: int = 0) -> None:
        """Add samples, each as its words (``metric.words.words``), that share a prompt ``group``."""
        self.add_samples([self.share(found) for found in words_N], group)

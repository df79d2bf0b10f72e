"""Distinct-n (Li et al. 2016): different n-grams of words among all of them (idea gate, sec. 4.3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lit_ctg.papers.idea_gate.sample_mean import SampleMean


def distinct(found: Sequence[str], order: int) -> float:
    """Return the share of different n-grams among all n-grams of one text; NaN when it is shorter than one."""
    grams = list(zip(*(found[shift:] for shift in range(order)), strict=False))
    return len(set(grams)) / len(grams) if grams else float("nan")


class DistinctN(SampleMean):
    """Distinct-n inside each sample, mean over samples: tells repetition, not sameness of different samples.

    Args:
        order: n.
    """

    unit = "share of n-grams"
    direction = "higher"

    def __init__(self, *, order: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.order = order

    def update(self, words_N: Sequence[Sequence[str]], group: int = 0) -> None:
        """Add samples of one prompt, each as its words."""
        self.add_samples([distinct(found, self.order) for found in words_N], group)

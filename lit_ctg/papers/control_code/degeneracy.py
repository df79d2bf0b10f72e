"""Degeneracy: how often a generation says its commonest token (control codes, sec. 4.4, Table 3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

from lit_ctg.papers.control_code.generation_mean import GenerationMean


class Degeneracy(GenerationMean):
    """Count of a generation's most frequent token, averaged over generations (sec. 4.4; lower is better).

    A count, so it grows with the length: compare generations of equal length only.
    """

    unit = "count"
    direction = "lower"

    def update(self, generations: Sequence[Sequence[Hashable]]) -> None:
        """Add generations as sequences of tokens or ids; empty ones are left out."""
        self.add_values([max(Counter(tokens).values()) for tokens in generations if tokens])

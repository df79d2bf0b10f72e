"""Variation: how many of a generation's tokens are different ones (control codes, sec. 4.4)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from lit_ctg.papers.control_code.generation_mean import GenerationMean


class Variation(GenerationMean):
    """Unique tokens divided by all tokens of a generation, averaged over generations (sec. 4.4).

    In (0, 1]; it falls with the length, so compare generations of equal length only. Saying one token over and over
    gives 1 / length.
    """

    unit = "unique share"
    direction = "higher"

    def update(self, generations: Sequence[Sequence[Hashable]]) -> None:
        """Add generations as sequences of tokens or ids; empty ones have no variation and are left out."""
        self.add_values([len(set(tokens)) / len(tokens) for tokens in generations if tokens])

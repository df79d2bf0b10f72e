"""Perplexity of groups of tokens (classes, rarity, first occurrence) from log-probabilities of the targets alone.

Shape letters: N tokens, G groups, R stretches of tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lit_ctg.core.metric import RatioMetric, float64
from lit_ctg.core.result import MetricResult

STRETCH = 500  # tokens that the interval takes for one sentence


class ClassPerplexity(RatioMetric):
    """exp of the mean -log P(w) over the tokens of each group; a token may be in several groups or in none.

    Log-probabilities must be those of a model normalised over the whole vocabulary: a class's perplexity says how well
    its tokens are predicted among all words, not within the class. NaN for a group without tokens. The interval is the
    delta method's over stretches of 500 tokens.

    Args:
        groups: names of the groups.
    """

    unit = "perplexity"
    direction = "lower"

    def __init__(self, *, groups: Sequence[str], **kwargs: Any) -> None:
        super().__init__(mask="target", groups=len(groups), **kwargs)
        self.names = tuple(groups)

    def update(self, log_prob_N: Tensor, member_NG: Tensor) -> None:
        """Add tokens: log-probability of each in nats, and the groups it is in (bool)."""
        self.follow(log_prob_N)
        member_NG = float64(member_NG)
        # a token of no group may have no probability: 0 * inf is no number
        nll_NG = torch.where(member_NG > 0, -float64(log_prob_N).unsqueeze(1), 0.0)
        row_N = torch.arange(len(log_prob_N), device=nll_NG.device) // STRETCH
        rows = int(row_N[-1]) + 1 if len(row_N) else 0
        total_RG = nll_NG.new_zeros(rows, len(self.names)).index_add(0, row_N, nll_NG)
        self.add_rows(total_RG, nll_NG.new_zeros(total_RG.shape).index_add(0, row_N, member_NG))

    def update_from(self, output: Any, batch: Mapping[str, Tensor]) -> None:
        """Read ``log_prob_N`` and ``member_NG`` of an output that has them."""
        self.update(output.log_prob_N, output.member_NG)

    def compute(self) -> Tensor:
        """Return the perplexity of each group, float64, (G,)."""
        return self.ratio().exp()

    def _result(self) -> dict[str, MetricResult]:
        results = {}
        for name, value, count, nats in zip(
            self.names, self.ratio().exp().tolist(), self.count.tolist(), self.intervals(), strict=True
        ):
            finite = nats is not None and math.isfinite(nats[1])
            ci95 = (math.exp(nats[0]), math.exp(min(nats[1], 700.0))) if finite and nats else None
            results[name] = MetricResult(value, self.unit, self.direction, int(count), ci95, self.version)
        return results

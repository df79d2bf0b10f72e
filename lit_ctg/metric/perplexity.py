"""Next-token perplexity: one sum of float64 log-probabilities over the corpus, one division, one exp."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lit_ctg.core.metric import Mask, RatioMetric, pick_mask, token_nll
from lit_ctg.core.result import MetricResult


class Perplexity(RatioMetric):
    """exp of the mean cross-entropy over counted positions, without label smoothing (Appendix A, Metrics).

    NaN where no position was counted; infinite where the model gives a target zero probability. The interval is by the
    delta method over sentences, on the log scale.

    Args:
        mask: ``"target"`` counts positions whose target is a token; ``"input"`` is the authors' mask, built from
            the input, which also counts the pad target after ``<eos>``.
    """

    unit = "perplexity"
    direction = "lower"

    def __init__(self, *, mask: Mask = "target", **kwargs: Any) -> None:
        super().__init__(mask=mask, **kwargs)

    def update(self, scores_BTV: Tensor, target_BT: Tensor, mask_BT: Tensor) -> None:
        """Add sentences: scores (logits or log-probabilities), target ids, and True where a position counts."""
        self.follow(scores_BTV)
        counted_BT = self.keep(target_BT, mask_BT)
        self.add_rows(token_nll(scores_BTV, target_BT, counted_BT).sum(1), counted_BT.sum(1))

    def update_from(self, output: Any, batch: Mapping[str, Tensor]) -> None:
        self.update(output.scores_BTV, batch["target_ids_BT"], pick_mask(batch, self.mask))

    def keep(self, target_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """Return which of the masked positions count: here, all of them."""
        return mask_BT

    def compute(self) -> Tensor:
        """Return the perplexity, float64, ()."""
        return self.transform(self.ratio())

    def transform(self, nats: Tensor) -> Tensor:
        """Convert a mean cross-entropy in nats to the reported unit."""
        return nats.exp()

    def _result(self) -> MetricResult | dict[str, MetricResult]:
        (nats,) = self.intervals()
        ci95 = None
        if nats is not None:
            low, high = self.transform(torch.tensor(nats, dtype=torch.float64)).tolist()
            ci95 = (low, high) if math.isfinite(high) else None
        value = float(self.transform(self.ratio()))
        return MetricResult(value, self.unit, self.direction, int(self.count), ci95, self.version)

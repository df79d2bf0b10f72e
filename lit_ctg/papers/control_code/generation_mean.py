"""A mean of one number a generated text: what variation, degeneracy and BERTScore have in common."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lit_ctg.core.metric import LitMetric
from lit_ctg.core.result import MetricResult
from lit_ctg.statistics import ratio_interval


class GenerationMean(LitMetric):
    """Mean over generations with Student's t interval; NaN before the first one.

    The interval takes generations as independent draws of one model: it does not cover what another seed would have
    learned.
    """

    def __init__(self, **kwargs: object) -> None:
        super().__init__(**kwargs)
        for name in ("total", "total_sq", "count"):
            self.add_sum(name)

    def add_values(self, values: Sequence[float]) -> None:
        """Add one number for each of N generations."""
        value_N = torch.tensor(values, dtype=torch.float64)
        self.add(total=value_N.sum(), total_sq=value_N.square().sum(), count=torch.tensor(len(values)))

    def compute(self) -> Tensor:
        """Return the mean, float64, ()."""
        return self.total / self.count

    def _result(self) -> MetricResult:
        total, total_sq, count = float(self.total), float(self.total_sq), float(self.count)
        ci95 = ratio_interval(total=total, count=count, total_sq=total_sq, cross=total, count_sq=count, rows=int(count))
        return MetricResult(float(self.compute()), self.unit, self.direction, int(count), ci95, self.version)

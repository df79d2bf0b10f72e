"""Code-swap gap: what a wrong control code costs. A model that ignores its code has a gap of 0.

Ours: the paper measures loss only, which says nothing about control.
Shape suffixes: B rows, K sources, 3: cost under wrong codes, cost under the right one, count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lit_ctg.core.metric import LitMetric, float64
from lit_ctg.core.result import MetricResult
from lit_ctg.statistics import t_quantile


class CodeSwapGap(LitMetric):
    """Cost of a token under a wrong code minus its cost under the right one, over the same text.

    ``nats`` is the difference of the mean costs, ``perplexity`` that of their exponentials; a row's wrong cost is the
    mean over all wrong codes. ``nats/<source>`` is the gap on the text of one source. Intervals are paired, by the
    delta method with rows as the independent units.

    Args:
        sources: names behind the codes, in order.
    """

    unit = "nats"
    direction = "higher"

    def __init__(self, *, sources: Sequence[str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.sources = tuple(sources)
        self.add_sum("sums", (len(self.sources), 3))
        self.add_sum("moments", (len(self.sources), 3, 3))
        self.add_sum("rows", (len(self.sources),))

    def update(self, wrong_B: Tensor, right_B: Tensor, count_B: Tensor, source_B: Tensor) -> None:
        """Add rows: summed cost in nats under wrong codes (their mean) and under the right one, tokens, and source."""
        self.follow(wrong_B)
        row_B3 = torch.stack([float64(wrong_B), float64(right_B), float64(count_B)], dim=1)
        mine_BK = torch.nn.functional.one_hot(source_B, len(self.sources)).double()
        self.add(
            sums=torch.einsum("bk,bi->ki", mine_BK, row_B3),
            moments=torch.einsum("bk,bi,bj->kij", mine_BK, row_B3, row_B3),
            rows=torch.einsum("bk,b->k", mine_BK, (row_B3[:, 2] > 0).double()),
        )

    def compute(self) -> Tensor:
        """Return the gap over all sources in nats a token, float64, ()."""
        wrong, right, count = self.sums.sum(0)
        return (wrong - right) / count

    def perplexity(self) -> float:
        """Return the perplexity under the right codes."""
        _, right, count = self.sums.sum(0).tolist()
        return math.exp(right / count) if count else math.nan

    def _result(self) -> dict[str, MetricResult]:
        named = {"nats": self._gap(self.sums.sum(0), self.moments.sum(0), float(self.rows.sum()))}
        wrong, right, count = self.sums.sum(0).tolist()
        a, b = (wrong / count, right / count) if count else (math.nan, math.nan)
        high, low = torch.tensor([a, b], dtype=torch.float64).exp().tolist()
        slope = [high, -low, -(a * high - b * low)]
        half = _half(slope, self.moments.sum(0), count, float(self.rows.sum()))
        named["perplexity"] = _pack(high - low, "perplexity", half, count, self.version)
        for source, sums_3, moments_33, rows in zip(
            self.sources, self.sums, self.moments, self.rows.tolist(), strict=True
        ):
            named[f"nats/{source}"] = self._gap(sums_3, moments_33, rows)
        return named

    def _gap(self, sums_3: Tensor, moments_33: Tensor, rows: float) -> MetricResult:
        wrong, right, count = sums_3.tolist()
        gap = (wrong - right) / count if count else math.nan
        return _pack(gap, self.unit, _half([1.0, -1.0, -gap], moments_33, count, rows), count, self.version)


def _half(slope: Sequence[float], moments_33: Tensor, count: float, rows: float) -> float | None:
    """Half-width of the delta-method interval of a function of (wrong, right) / count with this slope times count."""
    if rows < 2 or not all(map(math.isfinite, slope)):
        return None
    slope_3 = torch.tensor(slope, dtype=torch.float64, device=moments_33.device)
    # rounding may leave a tiny negative rest when all rows agree
    square = max(0.0, float(slope_3 @ moments_33 @ slope_3))
    return t_quantile(int(rows) - 1) * math.sqrt(rows / (rows - 1) * square) / count


def _pack(value: float, unit: str, half: float | None, count: float, version: int) -> MetricResult:
    ci95 = None if half is None or not math.isfinite(half) else (value - half, value + half)
    return MetricResult(value, unit, "higher", int(count), ci95, version)

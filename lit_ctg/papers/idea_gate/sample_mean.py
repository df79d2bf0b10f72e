"""Means over generated samples that come in groups (prompts), with a bootstrap over groups and samples.

Shape letters: N samples, G groups, R resamples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_ctg.core.metric import LitMetric
from lit_ctg.core.result import MetricResult
from lit_ctg.statistics import Interval

# values drawn at one time
_BLOCK = 1 << 22


def grouped_bootstrap(
    values: Sequence[float],
    groups: Sequence[int],
    *,
    confidence: float = 0.95,
    resamples: int = 4000,
    seed: int = 0,
) -> Interval | None:
    """Percentile interval of the mean of ``values``: groups are drawn anew, then samples inside each drawn group.

    With one group only the samples are drawn, so the interval then says nothing about other prompts. Few groups make
    it too narrow rather than too wide (five prompts show little of how prompts differ). NaN values are left out.

    Args:
        values: one number a sample.
        groups: which group each sample is of.
        confidence: of the interval.
        resamples: R.
        seed: the same seed gives the same interval.

    Returns:
        (low, high), or None below two values.
    """
    value_N, group_N = np.asarray(values, dtype=np.float64), np.asarray(groups)
    kept_N = np.isfinite(value_N)
    value_N, group_N = value_N[kept_N], group_N[kept_N]
    if value_N.size < 2:
        return None
    members = [value_N[group_N == group] for group in np.unique(group_N)]
    size_G = np.array([len(member) for member in members])
    first_G = np.concatenate([[0], np.cumsum(size_G)[:-1]])
    flat_N = np.concatenate(members)
    rng = np.random.default_rng(seed)
    means = []
    rows = max(1, _BLOCK // value_N.size)
    for start in range(0, resamples, rows):
        count = min(rows, resamples - start)
        drawn_RG = rng.integers(0, len(members), size=(count, len(members)))
        total_R, size_R = np.zeros(count), np.zeros(count)
        for column in range(len(members)):
            group_R = drawn_RG[:, column]
            place_RN = (rng.random((count, int(size_G.max()))) * size_G[group_R][:, None]).astype(np.int64)
            inside_RN = np.arange(place_RN.shape[1]) < size_G[group_R][:, None]
            total_R += np.where(inside_RN, flat_N[first_G[group_R][:, None] + place_RN], 0.0).sum(1)
            size_R += size_G[group_R]
        means.append(total_R / size_R)
    tail = (1 - confidence) / 2
    low, high = np.quantile(np.concatenate(means), [tail, 1 - tail])
    return float(low), float(high)


class SampleMean(LitMetric):
    """Mean of one number a sample, with ``grouped_bootstrap``'s interval. Samples without a value (NaN) do not count.

    Subclasses turn texts into numbers in their ``update`` and call ``add_samples``.
    """

    value: list[Tensor]
    group: list[Tensor]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("value", [], dist_reduce_fx="cat")
        self.add_state("group", [], dist_reduce_fx="cat")

    def add_samples(self, values: Sequence[float], group: int) -> None:
        """Add the samples of one group (prompt)."""
        self.value.append(torch.tensor(list(values), dtype=torch.float64, device=self.device))
        self.group.append(torch.full((len(values),), float(group), dtype=torch.float64, device=self.device))

    def samples(self) -> tuple[Tensor, Tensor]:
        """Return value_N and group_N, float64."""
        if not len(self.value):
            return torch.empty(0, dtype=torch.float64), torch.empty(0, dtype=torch.float64)
        joined = [torch.cat(state) if isinstance(state, list) else state for state in (self.value, self.group)]
        return joined[0], joined[1]

    def compute(self) -> Tensor:
        """Return the mean over samples, float64, (); NaN without one."""
        return self.samples()[0].nanmean()

    def _result(self) -> MetricResult:
        value_N, group_N = self.samples()
        interval = grouped_bootstrap(value_N.tolist(), group_N.tolist())
        count = int(value_N.isfinite().sum())
        return MetricResult(float(value_N.nanmean()), self.unit, self.direction, count, interval, self.version)

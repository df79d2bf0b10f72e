"""Asked polarity against realized polarity (semantic fusion, Table 3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lit_ctg.core.metric import LitMetric
from lit_ctg.core.result import MetricResult
from lit_ctg.figure import Drawing, heat_map

CLASSES = ("positive", "negative", "other")
POSITIVE, NEGATIVE, OTHER = range(3)


def class_of_polarity(polarity_N: Tensor | Sequence[int]) -> Tensor:
    """Turn lexicon polarities (+1, -1, 0 for none) into class numbers (positive 0, negative 1, other 2), long (N,)."""
    sign_N = torch.sign(torch.as_tensor(polarity_N))
    return torch.where(sign_N > 0, POSITIVE, torch.where(sign_N < 0, NEGATIVE, OTHER))


class PolarityConfusion(LitMetric):
    """Counts of (intended, realized) polarity over positive, negative and other: rows intended, columns realized.

    ``result`` gives a dict keyed ``"<intended>/<realized>"`` with all nine counts; ``n`` is the row's number of trials.
    """

    unit = "count"
    direction = "none"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_sum("counts_33", (3, 3))

    def update(self, intended_N: Tensor | Sequence[int], realized_N: Tensor | Sequence[int]) -> None:
        """Add N generations as class numbers (``class_of_polarity`` makes them from lexicon polarities).

        Raises:
            ValueError: lengths differ or a class number is not 0, 1 or 2.
        """
        intended_N = torch.as_tensor(intended_N, dtype=torch.long, device=self.device)
        realized_N = torch.as_tensor(realized_N, dtype=torch.long, device=self.device)
        if intended_N.shape != realized_N.shape:
            raise ValueError(f"{intended_N.numel()} intended but {realized_N.numel()} realized polarities")
        both = torch.cat([intended_N, realized_N])
        if both.numel() and not 0 <= int(both.min()) <= int(both.max()) < len(CLASSES):
            raise ValueError(f"polarity classes are 0, 1, 2 ({', '.join(CLASSES)}), got {sorted(set(both.tolist()))}")
        self.add(counts_33=_confusion(intended_N, realized_N))

    def compute(self) -> Tensor:
        """Return the counts, float64 (3, 3), rows intended."""
        return self.counts_33

    def _result(self) -> dict[str, MetricResult]:
        return {
            f"{intended}/{realized}": MetricResult(count, self.unit, self.direction, int(sum(row)), None, self.version)
            for intended, row in zip(CLASSES, self.counts_33.tolist(), strict=True)
            for realized, count in zip(CLASSES, row, strict=True)
        }

    def plot(self, values: Sequence[Any] | None = None) -> Drawing:
        """Draw the counts as a matrix: the present ones, or the last of ``values``."""
        counts_33 = (self.compute() if values is None else torch.as_tensor(values[-1])).tolist()
        counts = {(row, column): counts_33[i][j] for i, row in enumerate(CLASSES) for j, column in enumerate(CLASSES)}
        title = type(self).__name__
        return Drawing((heat_map(title, CLASSES, CLASSES, counts, x="realized", y="intended", kind="series0"),))


def _confusion(intended_N: Tensor, realized_N: Tensor) -> Tensor:
    return torch.bincount(3 * intended_N + realized_N, minlength=9).reshape(3, 3)

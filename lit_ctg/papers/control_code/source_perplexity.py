"""Perplexity of each source of a corpus (control codes)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lit_ctg.core.metric import RatioMetric, pick_mask, token_nll
from lit_ctg.core.result import MetricResult
from lit_ctg.errors import UserError


class SourcePerplexity(RatioMetric):
    """exp of the mean cross-entropy over the counted positions of each source; NaN for one that was not met.

    Args:
        sources: names behind the control codes, in order; left out, ``bind`` takes them from the data module.
        mask: as for ``Perplexity``.
    """

    unit = "perplexity"
    direction = "lower"

    def __init__(self, *, sources: Sequence[str] = (), mask: str = "target", **kwargs: Any) -> None:
        super().__init__(mask=mask, groups=len(sources), **kwargs)
        self.sources = tuple(sources)

    def bind(self, datamodule: Any, module: Any = None) -> SourcePerplexity:
        """Take the names of the sources from the data module, unless they were given to the constructor."""
        if not self.sources:
            self.sources = tuple(datamodule.sources)
            for name in self._SUMS:
                self.add_sum(name, (len(self.sources),))
        return self

    def update(self, scores_BTV: Tensor, target_BT: Tensor, mask_BT: Tensor, code_B: Tensor) -> None:
        """Add rows: scores, target ids, True where a position counts, and the source of each row.

        Raises:
            UserError: ``bind`` was not called, or a code has no source.
        """
        self.follow(scores_BTV)
        if code_B.numel() and not 0 <= int(code_B.min()) <= int(code_B.max()) < len(self.sources):
            raise UserError(
                f"metric SourcePerplexity: a batch has source {int(code_B.max())}, known are {self.sources}"
            )
        mine_BK = torch.nn.functional.one_hot(code_B, len(self.sources)).double()
        nll_B = token_nll(scores_BTV, target_BT, mask_BT).sum(1)
        # not a product: an infinite nll of one source times 0 would be NaN for the others
        nll_BK = torch.where(mine_BK.bool(), nll_B.unsqueeze(1), 0.0)
        self.add_rows(nll_BK, mine_BK * mask_BT.sum(1, keepdim=True))

    def update_from(self, output: Any, batch: Mapping[str, Tensor]) -> None:
        """Read ``output.scores_BTV`` and the batch's targets, mask and control codes."""
        if "control_code_B" not in batch:
            raise UserError("metric SourcePerplexity: batches have no control_code_B; set data.by_source=true")
        mask_BT = pick_mask(batch, self.mask)
        self.update(output.scores_BTV, batch["target_ids_BT"], mask_BT, batch["control_code_B"])

    def compute(self) -> dict[str, Tensor]:
        """Return source -> perplexity, float64, ()."""
        return dict(zip(self.sources, self.ratio().exp().unbind(), strict=True))

    def _result(self) -> dict[str, MetricResult]:
        named = {}
        for source, value, n, nats in zip(
            self.sources, self.ratio().exp().tolist(), self.count.tolist(), self.intervals(), strict=True
        ):
            ci95 = None if nats is None else (math.exp(nats[0]), math.exp(min(nats[1], 700.0)))
            named[source] = MetricResult(value, self.unit, self.direction, int(n), ci95, self.version)
        return named

"""How well the idea head foretells the words of the next window (idea gate, sec. 3.1 and 3.3).

Shape letters: B rows, T positions, K window, V vocabulary, P measured positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_ctg.core.metric import BatchMetric, pick_mask
from lit_ctg.core.result import MetricResult
from lit_ctg.papers.idea_gate.gated_perplexity import has_gate
from lit_ctg.statistics import ratio_interval

# scores ranked at one time
_CHUNK = 1 << 22
_RATIOS = ("precision", "recall", "average_precision", "unigram_average_precision")
# of each ratio: the sums RatioMetric keeps, here over rows of the batch
_SUMS = ("total", "count", "total_sq", "cross", "count_sq")


def coming_tokens(window_PK: Tensor, stopword_V: Tensor) -> Tensor:
    """Return each window's tokens once, (P, K); -1 in place of padding, repetitions and stopwords."""
    tokens_PK = window_PK.sort(dim=1).values
    again_PK = torch.zeros_like(tokens_PK, dtype=torch.bool)
    again_PK[:, 1:] = tokens_PK[:, 1:] == tokens_PK[:, :-1]
    return tokens_PK.masked_fill(again_PK | stopword_V[tokens_PK.clamp(min=0)], -1)


def average_precision(scores_PV: Tensor, tokens_PK: Tensor) -> Tensor:
    """Return the average precision of each position's ranking, float64 (P,); NaN where nothing is to be found.

    Mean over the tokens to be found of: how many of them score at least as much, among all tokens that do.

    Args:
        scores_PV: or (1, V), one ranking for all positions; ``-inf`` takes a token out of the ranking.
        tokens_PK: what is to be found, distinct; -1 pads.
    """
    padding_PK = tokens_PK < 0
    found_PK = scores_PV.expand(len(tokens_PK), -1).gather(1, tokens_PK.clamp(min=0))
    # rising order, so that a place in it is the number of tokens that score at least as much
    wanted_PK = (-found_PK).masked_fill(padding_PK, float("inf")).sort(dim=1).values.contiguous()
    order = (-scores_PV).sort(dim=1).values
    rank_PK = torch.searchsorted(order[0] if len(order) == 1 else order, wanted_PK, right=True)
    hits_PK = torch.searchsorted(wanted_PK, wanted_PK, right=True)
    precision_PK = (hits_PK.double() / rank_PK.double()).masked_fill(wanted_PK.isinf(), 0.0)
    return precision_PK.sum(1) / (~padding_PK).sum(1)


class IdeaHead(BatchMetric):
    """Precision and recall of the tokens the head says are coming, and the average precision of its ranking.

    ``precision`` and ``recall`` count (position, token) pairs with a probability above ``threshold``;
    ``average_precision`` is a mean over positions, stopwords left out of the ranking; ``unigram_average_precision`` is
    that of ranking by frequency in the training split at every position: what a head that sees no context gets. Every
    ``stride``-th position is measured; one without a token to be found has no average precision. A model without an
    idea head gives no results. Intervals take rows as independent.

    Args:
        threshold: a probability.
        stride: positions from one measured position to the next.
    """

    unit = "rate"
    direction = "higher"

    def __init__(self, *, threshold: float = 0.5, stride: int = 16, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.threshold, self.stride = threshold, stride
        for ratio in _RATIOS:
            for name in (*_SUMS, "rows"):
                self.add_sum(f"{ratio}_{name}")
        self.frequency_V: Tensor | None = None
        self._module: list[Any] = []  # a list: a module in an attribute would become a part of the metric

    def bind(self, datamodule: Any, module: Any) -> IdeaHead:
        """Take the model, which knows window, stopwords and its output rows, and count the training split."""
        self._module = [module]
        if self.frequency_V is None:
            ids = np.asarray(datamodule.packed.ids("train"))
            # a pretrained head can have more rows than its tokenizer has tokens
            self.frequency_V = torch.from_numpy(np.bincount(ids, minlength=module.vocabulary_size)).float()
        return self

    def update_from(self, output: Any, batch: Mapping[str, Tensor]) -> None:
        """Measure every ``stride``-th position of a batch; each row counts as one unit of the interval."""
        if not has_gate(output):
            return
        (module,) = self._module
        self.follow(batch["target_ids_BT"])
        places = slice(self.stride - 1, None, self.stride)
        counted_BT = pick_mask(batch, "target")[:, places]
        logits_BTV = output.extras["idea_logits"][:, places]
        window_BTK = module.window(batch["target_ids_BT"], batch["mask_target_BT"])[:, places]
        for row in range(len(counted_BT)):
            kept = counted_BT[row]
            if bool(kept.any()):
                self.update(logits_BTV[row][kept], window_BTK[row][kept], module.stopword_mask_V)

    def update(self, logits_PV: Tensor, window_PK: Tensor, stopword_V: Tensor) -> None:
        """Add the positions of one row: idea logits, the tokens of their windows (-1 pads), the stopwords."""
        sums = torch.zeros(len(_RATIOS), 2, dtype=torch.float64)
        rows = max(1, _CHUNK // logits_PV.shape[1])
        for logits, window in zip(logits_PV.float().split(rows), window_PK.split(rows), strict=True):
            sums += self._count(logits, coming_tokens(window, stopword_V), stopword_V)
        for ratio, (total, count) in zip(_RATIOS, sums, strict=True):
            values = (total, count, total * total, total * count, count * count, (count > 0).double())
            self.add(**{f"{ratio}_{name}": value for name, value in zip((*_SUMS, "rows"), values, strict=True)})

    def _count(self, logits_PV: Tensor, tokens_PK: Tensor, stopword_V: Tensor) -> Tensor:
        """Return (total, count) of every ratio."""
        said_PV = (logits_PV.sigmoid() > self.threshold) & ~stopword_V
        there_PK = tokens_PK >= 0
        right = (said_PV.gather(1, tokens_PK.clamp(min=0)) & there_PK).sum()
        some_P = there_PK.any(1)
        ranked_P = average_precision(logits_PV[some_P].masked_fill(stopword_V, float("-inf")), tokens_PK[some_P])
        assert self.frequency_V is not None, "call bind(datamodule, module) first"
        unigram_1V = self.frequency_V.to(logits_PV).masked_fill(stopword_V, float("-inf")).unsqueeze(0)
        unigram_P = average_precision(unigram_1V, tokens_PK[some_P])
        positions = some_P.sum()
        pairs = [
            (right, said_PV.sum()),
            (right, there_PK.sum()),
            (ranked_P.sum(), positions),
            (unigram_P.sum(), positions),
        ]
        return torch.tensor([[float(total), float(count)] for total, count in pairs], dtype=torch.float64)

    def compute(self) -> dict[str, Tensor]:
        """Return each ratio, float64, ()."""
        return {ratio: getattr(self, f"{ratio}_total") / getattr(self, f"{ratio}_count") for ratio in _RATIOS}

    def _result(self) -> dict[str, MetricResult]:
        if not any(float(getattr(self, f"{ratio}_rows")) for ratio in _RATIOS):
            return {}
        results = {}
        for ratio, value in self.compute().items():
            sums = {name: float(getattr(self, f"{ratio}_{name}")) for name in _SUMS}
            interval = ratio_interval(**sums, rows=int(getattr(self, f"{ratio}_rows")))
            count = int(sums["count"])
            results[ratio] = MetricResult(float(value), self.unit, self.direction, count, interval, self.version)
        return results

"""The control-code paper's measures of a model and of its generations, and our measures of control.

Sources: sec. 4.4 and Table 3 (loss, perplexity, variation, degeneracy, BERTScore); the code-swap gap and the source
classifier are ours: the paper measures loss, which does not measure control.

Shape suffixes: B rows, T positions, V vocabulary, K sources, N generations, 3: cost under wrong codes, cost under the
right one, count.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from torch import Tensor

from lit_ctg.core.metric import LitMetric, Mask, RatioMetric, TokenLoss, float64, pick_mask, token_nll
from lit_ctg.core.result import MetricResult
from lit_ctg.papers.control_code.model import codes_of
from lit_ctg.statistics import exp_or_inf, ratio_interval, t_quantile

# of a model ----------------------------------------------------------------------------------------------------------


class CrossEntropy(TokenLoss):
    """Mean cross-entropy of the counted positions in nats, the paper's "loss"."""


class SourcePerplexity(RatioMetric):
    """exp of the mean cross-entropy over the counted positions of each source; NaN for one without text.

    Args:
        sources: names of the control codes, in order; by default ``bind`` takes them from the data module.
    """

    unit = "perplexity"
    direction = "lower"

    def __init__(self, *, sources: Sequence[str] = (), mask: Mask = "target", **kwargs: Any) -> None:
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
        """Add rows: scores, target ids, True where a position counts, and the source of each row."""
        self.follow(scores_BTV)
        mine_BK = torch.nn.functional.one_hot(code_B, len(self.sources)).double()
        nll_B = token_nll(scores_BTV, target_BT, mask_BT).sum(1)
        # no product: an infinite nll of one source times 0 would be NaN for the others
        nll_BK = torch.where(mine_BK.bool(), nll_B.unsqueeze(1), 0.0)
        self.add_rows(nll_BK, mine_BK * mask_BT.sum(1, keepdim=True))

    def update_from(self, output: Any, batch: Mapping[str, Tensor]) -> None:
        code_B = codes_of(batch, "metric SourcePerplexity")
        self.update(output.scores_BTV, batch["target_ids_BT"], pick_mask(batch, self.mask), code_B)

    def compute(self) -> dict[str, Tensor]:
        """Return source -> perplexity, float64, ()."""
        return dict(zip(self.sources, self.ratio().exp().unbind(), strict=True))

    def _result(self) -> dict[str, MetricResult]:
        named = self.results(*self.sources)
        for source, value in zip(self.sources, self.ratio().exp().tolist(), strict=True):
            nats = named[source].ci95
            ci95 = None if nats is None else (exp_or_inf(nats[0]), exp_or_inf(nats[1]))
            named[source] = replace(named[source], value=value, ci95=ci95)
        return named


class CodeSwapGap(LitMetric):
    """Cost of a token under a wrong code minus its cost under the right one; 0 for a model that ignores its code.

    ``nats`` is the difference of the mean costs, ``perplexity`` that of their exponentials; a row's wrong cost is the
    mean over all wrong codes. ``nats/<source>`` is the gap on the text of one source. Intervals are paired, by the
    delta method with rows as the independent units.

    Args:
        sources: names of the codes, in order.
    """

    unit = "nats"
    direction = "higher"
    sums: Tensor
    moments: Tensor
    rows: Tensor

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
        moments_B33 = row_B3.unsqueeze(2) * row_B3.unsqueeze(1)
        mine_BK1 = torch.nn.functional.one_hot(source_B, len(self.sources)).bool().to(row_B3.device).unsqueeze(2)
        # no product: an infinite cost of one source times 0 would be NaN for the others
        self.add(
            sums=torch.where(mine_BK1, row_B3.unsqueeze(1), 0.0).sum(0),
            moments=torch.where(mine_BK1.unsqueeze(3), moments_B33.unsqueeze(1), 0.0).sum(0),
            rows=(mine_BK1[:, :, 0] & (row_B3[:, 2:] > 0)).double().sum(0),
        )

    def compute(self) -> Tensor:
        """Return the gap over all sources in nats per token, float64, ()."""
        wrong, right, count = self.sums.sum(0)
        return (wrong - right) / count

    def perplexity(self) -> float:
        """Return the perplexity under the right codes."""
        _, right, count = self.sums.sum(0).tolist()
        return exp_or_inf(right / count) if count else math.nan

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
    """Return the half-width of the delta-method interval of f of (wrong, right) / count, given slope times count."""
    if rows < 2 or not all(map(math.isfinite, slope)):
        return None
    slope_3 = torch.tensor(slope, dtype=torch.float64, device=moments_33.device)
    # rounding may leave a tiny negative number when all rows agree
    square = max(0.0, float(slope_3 @ moments_33 @ slope_3))
    return t_quantile(int(rows) - 1) * math.sqrt(rows / (rows - 1) * square) / count


def _pack(value: float, unit: str, half: float | None, count: float, version: int) -> MetricResult:
    ci95 = None if half is None or not math.isfinite(half) else (value - half, value + half)
    return MetricResult(value, unit, "higher", int(count), ci95, version)


# of generations ------------------------------------------------------------------------------------------------------


class GenerationMean(LitMetric):
    """Mean over generations with Student's t interval; NaN before the first one.

    The interval treats generations as independent draws of one model: it does not cover what another seed would have
    learned.
    """

    total: Tensor
    total_sq: Tensor
    count: Tensor

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


class Variation(GenerationMean):
    """Unique tokens divided by all tokens of a generation, averaged over generations (sec. 4.4).

    In (0, 1]; it decreases with the length, so compare only generations of equal length. Repeating one token gives
    1 / length.
    """

    unit = "unique share"
    direction = "higher"

    def update(self, generations: Sequence[Sequence[Hashable]]) -> None:
        """Add generations as sequences of tokens or ids; empty ones have no variation and are left out."""
        self.add_values([len(set(tokens)) / len(tokens) for tokens in generations if tokens])


class Degeneracy(GenerationMean):
    """Count of a generation's most frequent token, averaged over generations (sec. 4.4; lower is better).

    A count, so it grows with the length: compare only generations of equal length.
    """

    unit = "count"
    direction = "lower"

    def update(self, generations: Sequence[Sequence[Hashable]]) -> None:
        """Add generations as sequences of tokens or ids; empty ones are left out."""
        self.add_values([max(Counter(tokens).values()) for tokens in generations if tokens])


class BertScore(GenerationMean):
    """BERTScore F1, averaged over texts; rescaled with the encoder's baseline if its table is given.

    Rescaling makes most scores of poor text negative, as the paper notes (sec. 4.4). Texts without a word are left out.

    Args:
        path: folder of a BERT-like encoder with its tokenizer (Hugging Face layout); nothing is downloaded.
        layers: hidden layer to compare (17 for roberta-large, bert-score's choice); the last one by default.
        baseline: bert-score's ``rescale_baseline/<language>/<model>.tsv``; without it scores are not rescaled.
    """

    unit = "F1"
    direction = "higher"

    def __init__(
        self,
        *,
        path: str | Path | None,
        layers: int | None = None,
        baseline: str | Path | None = None,
        batch_size: int = 64,
        **kwargs: object,
    ) -> None:
        super().__init__(**kwargs)
        self.path, self.layers, self.baseline, self.batch_size = path, layers, baseline, batch_size

    @property
    def missing(self) -> str | None:
        """The reason why nothing can be scored, or None."""
        if self.path is None:
            return "BERTScore not measured: no folder of an encoder given (bertscore.path)"
        if not (Path(self.path) / "config.json").is_file():
            return f"BERTScore not measured: {self.path} has no config.json of an encoder"
        if self.baseline is not None and not Path(self.baseline).is_file():
            return f"BERTScore not measured: no baseline table {self.baseline}"
        return None

    def update(self, texts: Sequence[str], references: Sequence[str]) -> None:
        """Score each text against its reference (``ValueError``: not as many references as texts)."""
        from torchmetrics.functional.text import bert_score

        pairs = [(t, r) for t, r in zip(texts, references, strict=True) if t.strip() and r.strip()]
        if not pairs:
            return
        mine, theirs = zip(*pairs, strict=True)
        scores = bert_score(
            list(mine),
            list(theirs),
            model_name_or_path=str(self.path),
            num_layers=self.layers,
            batch_size=self.batch_size,
            rescale_with_baseline=self.baseline is not None,
            baseline_path=None if self.baseline is None else str(self.baseline),
            truncation=True,
        )
        self.add_values(torch.atleast_1d(torch.as_tensor(scores["f1"])).tolist())


Ids = Sequence[int] | np.ndarray


class SourceClassifier:
    """Classifies a text by source: logistic regression on TF-IDF, with equal weight per source.

    A token that a text contains n times has the term frequency 1 + ln n.

    Args:
        ignored: ids that do not count, e.g. ``<unk>``, which training text lacks.
    """

    def __init__(self, vocabulary_size: int, ignored: Sequence[int] = ()) -> None:
        self.vocabulary_size = vocabulary_size
        self.ignored = np.array(sorted(ignored), dtype=np.int64)
        self.pipeline: Pipeline = make_pipeline(
            TfidfTransformer(sublinear_tf=True), LogisticRegression(max_iter=1000, class_weight="balanced")
        )

    def fit(self, chunks: Sequence[Ids], source_N: Sequence[int]) -> SourceClassifier:
        """Learn from chunks of known source; return the classifier itself."""
        self.pipeline.fit(self.counts(chunks), np.asarray(source_N))
        return self

    def predict(self, chunks: Sequence[Ids]) -> np.ndarray:
        """Return the most likely source of each chunk, (N,)."""
        return np.asarray(self.pipeline.predict(self.counts(chunks)))

    def counts(self, chunks: Sequence[Ids]) -> csr_matrix:
        """Return how often each chunk contains each token, (N, V) sparse."""
        kept = [np.asarray(chunk)[~np.isin(chunk, self.ignored)] for chunk in chunks]
        row_P = np.repeat(np.arange(len(kept)), [len(chunk) for chunk in kept])
        id_P = np.concatenate(kept) if kept else np.empty(0)
        shape = (len(kept), self.vocabulary_size)
        return csr_matrix((np.ones(len(row_P)), (row_P, id_P.astype(np.int64))), shape=shape)

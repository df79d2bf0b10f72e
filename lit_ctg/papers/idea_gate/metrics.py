"""Metrics of the idea gate, by input: a validation batch (cost, idea head) or a generated text (the topic).

Shape letters: B rows, T positions, N samples or counted positions, K window, V vocabulary, P measured positions,
G groups, R resamples, S spans.
"""

from __future__ import annotations

import math
import re
import string
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from lit_ctg.core.metric import LitMetric, Mask, RatioMetric, pick_mask, token_nll
from lit_ctg.core.result import MetricResult
from lit_ctg.data.tokenizer import texts_behind
from lit_ctg.limits import Count, Fraction
from lit_ctg.metric.perplexity import Perplexity
from lit_ctg.network.backbone import ModuleListOf
from lit_ctg.papers.idea_gate.gate import distinct
from lit_ctg.papers.idea_gate.model import IdeaGateOutput
from lit_ctg.statistics import Interval

GATED, UNGATED = "gated", "ungated"


def has_gate(output: Any) -> bool:
    """Say whether a model's output has a gate that could be left out."""
    return isinstance(output, IdeaGateOutput) and output.idea_BTV is not None


def cost(output: IdeaGateOutput, batch: Mapping[str, Tensor], which: str) -> Tensor:
    """Return the negative log-probability of each counted target in nats, float64 (B, T).

    Computed once per batch and cached in ``output.nll_BT``: several metrics read it, and with 50,257 tokens it is most
    of the cost of a validation.

    Args:
        output: the model's.
        batch: with targets and their mask.
        which: ``"gated"`` (the model's scores) or ``"ungated"``.
    """
    # without a gate both are the same
    ungated = which == UNGATED and has_gate(output)
    key = UNGATED if ungated else GATED
    if key not in output.nll_BT:
        scores_BTV = output.token_BTV if ungated else output.scores_BTV
        output.nll_BT[key] = token_nll(scores_BTV, batch["target_ids_BT"], batch["mask_target_BT"])
    return output.nll_BT[key]


class GatedPerplexity(Perplexity):
    """Mean cost in nats (``loss``) and its exp (``perplexity``) of one pair of scores, over counted targets.

    Args:
        scores: ``"gated"``, as in training and evaluation, or ``"ungated"``: the token head alone, without the gate at
            inference. Both are the same for a model without a gate.
    """

    def __init__(self, *, scores: str, mask: Mask = "target", **kwargs: Any) -> None:
        super().__init__(mask=mask, **kwargs)
        self.scores = scores

    def update_from(self, output: Any, batch: Mapping[str, Tensor]) -> None:
        """Add a batch's costs."""
        mask_BT = pick_mask(batch, self.mask)
        self.follow(mask_BT)
        self.add_rows(cost(output, batch, self.scores).sum(1), mask_BT.sum(1))

    def _result(self) -> dict[str, MetricResult]:
        nats = replace(self.results("loss")["loss"], unit="nats")
        perplexity = super()._result()
        assert isinstance(perplexity, MetricResult)
        return {"loss": nats, "perplexity": perplexity}


class WordPerplexity(GatedPerplexity):
    """exp of the total cost divided by the number of words of the targets.

    Words are runs without whitespace in the targets' text. A token continues a word if the token before it (the
    position's input) does not end in whitespace and it does not begin with any, so a row that starts inside a word does
    not count that word again. The end-of-text token is not a word, but its cost counts. Where tokens are words (without
    spaces in the tokens), every token except the line end is one.
    """

    unit = "perplexity a word"
    words_V: Tensor | None = None

    def bind(self, datamodule: Any, module: Any = None) -> WordPerplexity:
        """Take the text of every token from the data module's vocabulary."""
        if self.words_V is None:
            vocabulary = datamodule.vocabulary
            texts = token_texts(vocabulary)
            self.words_V = torch.tensor([len(text.split()) for text in texts])
            self.opens_V = torch.tensor([text[:1].isspace() or not text for text in texts])
            self.closes_V = torch.tensor([text[-1:].isspace() or not text for text in texts])
        return self

    def words(self, input_BT: Tensor, target_BT: Tensor) -> Tensor:
        """Return how many words begin in each target, (B, T)."""
        assert self.words_V is not None, "call bind(datamodule) first"
        tables = (self.words_V, self.opens_V, self.closes_V)
        words_V, opens_V, closes_V = (table.to(target_BT.device) for table in tables)
        goes_on_BT = ~opens_V[target_BT] & ~closes_V[input_BT]
        return words_V[target_BT] - goes_on_BT.long()

    def update_from(self, output: Any, batch: Mapping[str, Tensor]) -> None:
        """Add a batch's costs and words."""
        mask_BT = pick_mask(batch, self.mask)
        self.follow(mask_BT)
        words_BT = self.words(batch["input_ids_BT"], batch["target_ids_BT"]).masked_fill(~mask_BT, 0)
        self.add_rows(cost(output, batch, self.scores).sum(1), words_BT.sum(1))

    def _result(self) -> Any:
        return Perplexity._result(self)


def token_texts(vocabulary: Any) -> list[str]:
    """Return the text of every token inside a text, including white space; a special token has none."""
    special = {vocabulary.eos_id, vocabulary.bos_id, vocabulary.pad_id}
    texts = texts_behind(vocabulary, special)
    return ["" if number in special and not text.isspace() else text for number, text in enumerate(texts)]


# scores ranked at a time
_CHUNK = 1 << 22


def average_precision(scores_PV: Tensor, tokens_PK: Tensor) -> Tensor:
    """Return the average precision of each position's ranking, float64 (P,); NaN where there is nothing to find.

    Mean over the tokens to find of: how many of them score at least as much, among all tokens that do.

    Args:
        scores_PV: or (1, V), one ranking for all positions; ``-inf`` removes a token from the ranking.
        tokens_PK: the tokens to find, distinct; -1 pads.
    """
    padding_PK = tokens_PK < 0
    found_PK = scores_PV.expand(len(tokens_PK), -1).gather(1, tokens_PK.clamp(min=0))
    # ascending order, so that an index is the number of tokens that score at least as much
    wanted_PK = (-found_PK).masked_fill(padding_PK, float("inf")).sort(dim=1).values.contiguous()
    order = (-scores_PV).sort(dim=1).values
    rank_PK = torch.searchsorted(order[0] if len(order) == 1 else order, wanted_PK, right=True)
    hits_PK = torch.searchsorted(wanted_PK, wanted_PK, right=True)
    precision_PK = (hits_PK.double() / rank_PK.double()).masked_fill(wanted_PK.isinf(), 0.0)
    return precision_PK.sum(1) / (~padding_PK).sum(1)


class HeadMetric(RatioMetric):
    """Ratios at every ``stride``-th position of a model with an idea head; a model without one gives no results.

    Each row counts as one unit of the interval.

    Args:
        stride: distance between measured positions.

    Attributes:
        names: of the ratios.
        model: the model, after ``bind``.
        counts_V: how often each token occurs in the training split, after ``bind``.
    """

    unit = "rate"
    direction = "higher"
    names: ClassVar[tuple[str, ...]]

    def __init__(self, *, stride: Count = 16, mask: Mask = "target", **kwargs: Any) -> None:
        super().__init__(mask=mask, groups=len(self.names), **kwargs)
        self.stride = stride
        self.counts_V: Tensor | None = None
        self._model: list[Any] = []  # in a list: a module in an attribute would become part of the metric

    @property
    def model(self) -> Any:
        return self._model[0]

    def bind(self, datamodule: Any, module: Any = None) -> Any:
        """Take window, stopwords and output rows from the model, and count the training split."""
        self._model = [module]
        if self.counts_V is None:
            ids = np.asarray(datamodule.packed.ids("train"))
            # a pretrained head can have more rows than its tokenizer has tokens
            self.counts_V = torch.from_numpy(np.bincount(ids, minlength=module.vocabulary_size))
        return self

    def measured(self, output: Any, batch: Mapping[str, Tensor]) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield (row, places_P, window_PK) of each row with a counted position among the measured ones."""
        if not has_gate(output):
            return
        self.follow(batch["target_ids_BT"])
        window_BTK = self.model.window(batch["target_ids_BT"], batch["mask_target_BT"])
        for row, counted_T in enumerate(pick_mask(batch, self.mask)):
            places = torch.arange(self.stride - 1, len(counted_T), self.stride, device=counted_T.device)
            places = places[counted_T[places]]
            if len(places):
                yield row, places, window_BTK[row, places]

    def _result(self) -> dict[str, MetricResult]:
        return self.results(*self.names) if bool(self.rows.any()) else {}


class IdeaHead(HeadMetric):
    """Precision and recall of the tokens that the head predicts, and the average precision of its ranking.

    ``precision`` and ``recall`` count (position, token) pairs with a probability above ``threshold``;
    ``average_precision`` is a mean over positions, with stopwords left out of the ranking;
    ``unigram_average_precision`` is that of ranking by frequency in the training split at every position: what a head
    without context gets. A position without a token to find has no average precision.

    Args:
        threshold: a probability.
        options: see ``HeadMetric``.
    """

    names = ("precision", "recall", "average_precision", "unigram_average_precision")

    def __init__(self, *, threshold: Fraction = 0.5, **options: Any) -> None:
        super().__init__(**options)
        self.threshold = threshold

    def update_from(self, output: Any, batch: Mapping[str, Tensor]) -> None:
        """Measure a batch."""
        for row, places, window_PK in self.measured(output, batch):
            self.update(output.idea_BTV[row, places], window_PK, self.model.stopword_mask_V)

    def update(self, logits_PV: Tensor, window_PK: Tensor, stopword_V: Tensor) -> None:
        """Add the positions of one row: idea logits, the tokens of their windows (-1 pads), the stopwords."""
        sums_42 = torch.zeros(len(self.names), 2, dtype=torch.float64)
        rows = max(1, _CHUNK // logits_PV.shape[1])
        for logits, window in zip(logits_PV.float().split(rows), window_PK.split(rows), strict=True):
            sums_42 += self._count(logits, distinct(window, stopword_V), stopword_V)
        self.add_rows(sums_42[None, :, 0], sums_42[None, :, 1])

    def _count(self, logits_PV: Tensor, tokens_PK: Tensor, stopword_V: Tensor) -> Tensor:
        """Return (total, count) of every ratio."""
        said_PV = (logits_PV.sigmoid() > self.threshold) & ~stopword_V
        there_PK = tokens_PK >= 0
        right = (said_PV.gather(1, tokens_PK.clamp(min=0)) & there_PK).sum()
        some_P = there_PK.any(1)
        ranked_P = average_precision(logits_PV[some_P].masked_fill(stopword_V, float("-inf")), tokens_PK[some_P])
        assert self.counts_V is not None, "call bind(datamodule, module) first"
        unigram_1V = self.counts_V.to(logits_PV).masked_fill(stopword_V, float("-inf")).unsqueeze(0)
        unigram_P = average_precision(unigram_1V, tokens_PK[some_P])
        positions = some_P.sum()
        pairs = [
            (right, said_PV.sum()),
            (right, there_PK.sum()),
            (ranked_P.sum(), positions),
            (unigram_P.sum(), positions),
        ]
        return torch.tensor([[float(total), float(count)] for total, count in pairs], dtype=torch.float64)


_RUN = re.compile(r"\S+")
# punctuation around words in running text
_AROUND = string.punctuation + "“”‘’«»–—…"


def words(text: str, start: int = 0, stop: int | None = None) -> list[str]:
    """Return the words of ``text`` that begin at a character in [start, stop).

    The text is split into words as a whole: a word that begins before ``start`` does not belong to the range, even if
    part of it is inside. Runs of only punctuation are not words.
    """
    stop = len(text) if stop is None else stop
    found = (run.group().strip(_AROUND).lower() for run in _RUN.finditer(text) if start <= run.start() < stop)
    return [word for word in found if word]


def authors_words(text: str) -> list[str]:
    """Return the words of a text as the authors' code splits it: without full stops and commas, at white space."""
    return text.lower().replace(".", "").replace(",", "").split()


def content_words(found: Iterable[str], function_words: Collection[str]) -> list[str]:
    """Return the words that are not function words."""
    return [word for word in found if word not in function_words]


# values drawn at a time
_BLOCK = 1 << 22


def grouped_bootstrap(
    values: Sequence[float],
    groups: Sequence[int],
    *,
    confidence: float = 0.95,
    resamples: int = 4000,
    seed: int = 0,
) -> Interval | None:
    """Percentile interval of the mean of ``values``: groups are resampled, then samples within each drawn group.

    With one group only the samples are resampled, so the interval does not cover other prompts. Few groups make it
    too narrow rather than too wide (five prompts show little of how prompts differ). NaN values are left out.

    Args:
        values: one number per sample.
        groups: the group of each sample.
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
    """Mean of one number per sample, with ``grouped_bootstrap``'s interval. Samples without a value (NaN) do not count.

    Subclasses convert texts to numbers in ``update`` and call ``add_samples``.
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


class GivenMean(SampleMean):
    """``SampleMean`` of given numbers."""

    def update(self, values: Sequence[float], group: int = 0) -> None:
        """Add the samples of one group (prompt, document); NaN for a sample without a value."""
        self.add_samples(values, group)


class Stickiness(SampleMean):
    """Share of a sample's content words that are in the domain's list; mean over samples.

    By default a sample without a content word has no share and is left out.

    Args:
        terms: the domain's list, lower case.
        function_words: words that are not content words.
        empty: share of a sample without content words.
    """

    unit = "share of content words"
    direction = "higher"

    def __init__(
        self, *, terms: Collection[str], function_words: Collection[str], empty: float = math.nan, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.terms, self.function_words, self.empty = frozenset(terms), frozenset(function_words), empty

    def share(self, found: Sequence[str]) -> float:
        """Return the share of one sample, given its words; ``empty`` without a content word."""
        content = content_words(found, self.function_words)
        return sum(word in self.terms for word in content) / len(content) if content else self.empty

    def update(self, words_N: Sequence[Sequence[str]], group: int = 0) -> None:
        """Add samples, each as its words (``words``), that share a prompt ``group``."""
        self.add_samples([self.share(found) for found in words_N], group)


class Density(SampleMean):
    """Number of distinct terms of the domain's list in a sample, per 100 of its tokens; mean over samples.

    Args:
        terms: the domain's list, lower case.
    """

    unit = "terms per 100 tokens"
    direction = "higher"

    def __init__(self, *, terms: Collection[str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.terms = frozenset(terms)

    def update(self, words_N: Sequence[Sequence[str]], tokens_N: Sequence[int], group: int = 0) -> None:
        """Add samples of one prompt: the words of each, and its number of new tokens (0: it is left out)."""
        counts = [len(self.terms.intersection(found)) for found in words_N]
        values = [
            100.0 * count / tokens if tokens else float("nan") for count, tokens in zip(counts, tokens_N, strict=True)
        ]
        self.add_samples(values, group)


def distinct_share(found: Sequence[str], order: int) -> float:
    """Return the share of distinct n-grams among all n-grams of one text; NaN if it is shorter than one."""
    grams = list(zip(*(found[shift:] for shift in range(order)), strict=False))
    return len(set(grams)) / len(grams) if grams else float("nan")


class DistinctN(SampleMean):
    """Distinct-n within each sample, mean over samples: shows repetition within, not similarity between samples.

    Args:
        order: n.
    """

    unit = "share of n-grams"
    direction = "higher"

    def __init__(self, *, order: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.order = order

    def update(self, words_N: Sequence[Sequence[str]], group: int = 0) -> None:
        """Add samples of one prompt, each as its words."""
        self.add_samples([distinct_share(found, self.order) for found in words_N], group)


Span = tuple[int, int]


def span_name(span: Span) -> str:
    """Return e.g. ``51-100`` for tokens 51 to 100 (both included)."""
    return f"{span[0]}-{span[1]}"


class StickinessFall(GivenMean):
    """Decrease of a sample's stickiness between two spans (NaN: one has no words); mean over samples."""

    unit = "share of content words"
    direction = "lower"


class TopicDrift(LitMetric):
    """Stickiness in each span of new tokens, and ``fall``: first span minus last, sample by sample.

    Args:
        spans: first and last new token of each span, counted from 1.
        terms: the domain's list, lower case.
        function_words: words that are not content words.
    """

    unit = "share of content words"
    direction = "higher"

    def __init__(
        self, *, spans: Sequence[Span], terms: Collection[str], function_words: Collection[str], **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.spans = [(int(first), int(last)) for first, last in spans]
        self.parts = ModuleListOf(Stickiness(terms=terms, function_words=function_words, **kwargs) for _ in self.spans)
        self.fall = StickinessFall(**kwargs)

    def update(self, words_SN: Sequence[Sequence[Sequence[str]]], group: int = 0) -> None:
        """Add samples of one prompt: for every span, the words of each sample in it.

        A sample that ends before a span has no words there, and thus no value.
        """
        for part, words_N in zip(self.parts, words_SN, strict=True):
            part.update(words_N, group)
        share = self.parts[0].share
        pairs = zip(words_SN[0], words_SN[-1], strict=True)
        self.fall.update([share(near) - share(far) for near, far in pairs], group)

    def compute(self) -> Tensor:
        """Return the stickiness of every span, float64, (S,)."""
        return torch.stack([part.compute() for part in self.parts])

    def reset(self) -> None:
        """Forget all samples."""
        super().reset()
        for part in (*self.parts, self.fall):
            part.reset()

    def merge_state(self, incoming_state: Any) -> None:
        """Add another drift's samples."""
        pairs = zip((*self.parts, self.fall), (*incoming_state.parts, incoming_state.fall), strict=True)
        for part, incoming in pairs:
            part.merge_state(incoming)

    def _result(self) -> dict[str, MetricResult]:
        named = {span_name(span): part.number() for span, part in zip(self.spans, self.parts, strict=True)}
        return {**named, "fall": self.fall.number()}

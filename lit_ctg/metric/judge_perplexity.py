"""How likely a judge finds generated texts: a language model that neither wrote them nor steered them.

The judge here is an interpolated n-gram model with Witten-Bell weights, fitted on held-out text of the scene: closed
vocabulary, a proper distribution after every prefix, no download.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from lit_ctg.errors import UserError
from lit_ctg.metric.result import MetricResult
from lit_ctg.statistics import ratio_interval

Ids = Sequence[int]


class NgramJudge:
    """Interpolated n-gram model (Witten & Bell 1991).

    ``p(w | h) = (c(h w) + t(h) p(w | h')) / (c(h) + t(h))`` with t(h) the number of distinct words after h and h' the
    history without its oldest word; below the unigrams stands the uniform distribution.

    Args:
        sequences: token ids of each text; n-grams never span two texts.
        vocab_size: V.
        order: n, at least 1.

    Raises:
        UserError: no token at all, or an order below 1.
    """

    def __init__(self, sequences: Iterable[Ids], vocab_size: int, *, order: int = 3) -> None:
        if order < 1:
            raise UserError(f"the judge needs an order of at least 1, not {order}")
        self.vocab_size, self.order = vocab_size, order
        self.followers: dict[tuple[int, ...], dict[int, int]] = defaultdict(lambda: defaultdict(int))
        for ids in sequences:
            for place, token in enumerate(ids):
                for length in range(min(order, place + 1)):
                    self.followers[tuple(ids[place - length : place])][token] += 1
        if not self.followers:
            raise UserError("the judge has no text to be fitted on")
        self.totals = {history: sum(after.values()) for history, after in self.followers.items()}

    def prob(self, token: int, history: Ids) -> float:
        """Return p(token | history); only the last ``order - 1`` ids of the history count."""
        history = tuple(history)[max(0, len(history) - self.order + 1) :]
        value = 1.0 / self.vocab_size
        for start in range(len(history), -1, -1):
            after = self.followers.get(history[start:])
            if after is None:
                break  # a longer history was not met either
            total, kinds = self.totals[history[start:]], len(after)
            value = (after.get(token, 0) + kinds * value) / (total + kinds)
        return value

    def nll(self, ids: Ids, start: int = 0) -> tuple[float, int]:
        """Return (nats, tokens) of ``ids[start:]`` after what stands before them."""
        nats = -sum(math.log(self.prob(ids[place], ids[:place])) for place in range(start, len(ids)))
        return nats, max(0, len(ids) - start)


def text_perplexity(nats_N: Sequence[float], tokens_N: Sequence[int], version: int = 1) -> MetricResult:
    """Return exp(sum of nats / sum of tokens) over texts, with the delta-method interval over texts."""
    total, count = math.fsum(nats_N), sum(tokens_N)
    if count == 0:
        return MetricResult(math.nan, "perplexity", "lower", 0, None, version)
    pairs = list(zip(nats_N, tokens_N, strict=True))
    interval = ratio_interval(
        total=total,
        count=count,
        total_sq=math.fsum(n * n for n, _ in pairs),
        cross=math.fsum(n * t for n, t in pairs),
        count_sq=math.fsum(t * t for _, t in pairs),
        rows=sum(t > 0 for _, t in pairs),
    )
    ci95 = None if interval is None else (_exp(interval[0]), _exp(interval[1]))
    return MetricResult(_exp(total / count), "perplexity", "lower", count, ci95, version)


def _exp(nats: float) -> float:
    return math.exp(nats) if nats < 700 else math.inf

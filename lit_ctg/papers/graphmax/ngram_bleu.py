"""BLEU-2 to BLEU-5 and n-gram precision of free generations against many references (graphmax, Tables 2, 5 and 8).

The paper does not say what its references are nor how orders are weighted. Here a protocol is a set of references: a
whole held-out corpus, or some texts drawn from it. Every hypothesis is held against all of them: an n-gram counts at
most as often as it stands in one of them (Papineni et al. 2002), but the references are counted once, not once a
hypothesis. Shape suffix: O orders.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from lit_ctg.core.metric import LitMetric
from lit_ctg.core.result import MetricResult
from lit_ctg.errors import UserError

_WORD = re.compile(r"\w+|[^\w\s]")

Words = Sequence[str]


def words_of(text: str) -> list[str]:
    """Return runs of letters and digits, and every other sign by itself; case is kept."""
    return _WORD.findall(text)


def ngrams(words: Words, order: int) -> Counter[tuple[str, ...]]:
    """Count the n-grams of one text."""
    return Counter(zip(*(words[start:] for start in range(order)), strict=False))


class References:
    """Texts to compare with: for each n-gram the most often it stands in one of them, and their lengths.

    Args:
        texts: words of each reference.
        orders: the largest n.

    Raises:
        UserError: there is no text.
    """

    def __init__(self, texts: Iterable[Words], orders: int = 5) -> None:
        self.most: list[dict[tuple[str, ...], int]] = [{} for _ in range(orders)]
        lengths = set()
        for words in texts:
            lengths.add(len(words))
            for order, most in enumerate(self.most, start=1):
                for gram, count in ngrams(words, order).items():
                    if count > most.get(gram, 0):
                        most[gram] = count
        if not lengths:
            raise UserError("BLEU has no reference texts: the held-out corpus is empty")
        self.lengths = sorted(lengths)

    def matches(self, words: Words, order: int) -> tuple[int, int]:
        """Return (clipped matches, n-grams) of one hypothesis."""
        most, found = self.most[order - 1], ngrams(words, order)
        return sum(min(count, most.get(gram, 0)) for gram, count in found.items()), sum(found.values())

    def closest_length(self, length: int) -> int:
        """Return the reference length nearest to ``length``, the shorter one of two."""
        place = bisect_left(self.lengths, length)
        near = self.lengths[max(0, place - 1) : place + 1]
        return min(near, key=lambda other: (abs(other - length), other))


class NgramBleu(LitMetric):
    """Corpus BLEU-n for n = 2 .. ``orders`` (uniform weights over 1..n, brevity penalty), and precision of each n.

    Args:
        references: what to compare with.
        orders: the largest n.
    """

    unit = "rate"
    direction = "higher"

    def __init__(self, references: References, *, orders: int = 5, **kwargs: object) -> None:
        super().__init__(**kwargs)
        if orders > len(references.most):
            raise UserError(f"BLEU-{orders} needs references counted up to {orders}-grams, not {len(references.most)}")
        self.references, self.orders = references, orders
        self.add_sum("matches_O", (orders,))
        self.add_sum("totals_O", (orders,))
        self.add_sum("length")
        self.add_sum("reference_length")
        self.add_sum("texts")

    def update(self, hypotheses: Iterable[Words]) -> None:
        """Add generated texts, each as words."""
        for words in hypotheses:
            pairs = [self.references.matches(words, order) for order in range(1, self.orders + 1)]
            matches_O, totals_O = torch.tensor(pairs, dtype=torch.float64).unbind(1)
            closest = self.references.closest_length(len(words))
            self.add(
                matches_O=matches_O,
                totals_O=totals_O,
                length=torch.tensor(len(words)),
                reference_length=torch.tensor(closest),
                texts=torch.tensor(1),
            )

    def precisions(self) -> Tensor:
        """Return the modified precision of each order, float64, (O,); 0 where all texts are too short for one."""
        return self.matches_O / self.totals_O.clamp(min=1)

    def compute(self) -> Tensor:
        """Return BLEU-1 .. BLEU-orders, float64, (O,): 0 where an order has no match."""
        logs_O = self.precisions().log().cumsum(0) / torch.arange(1, self.orders + 1, device=self.matches_O.device)
        shortfall = 1 - self.reference_length / self.length
        return (logs_O + shortfall.clamp(max=0)).exp()

    def _result(self) -> dict[str, MetricResult]:
        bleu, precision, n = self.compute().tolist(), self.precisions().tolist(), int(self.texts)

        def entry(value: float) -> MetricResult:
            value = math.nan if n == 0 else value
            return MetricResult(value, self.unit, self.direction, n, None, self.version)

        orders = range(2, self.orders + 1)
        return {f"bleu_{order}": entry(bleu[order - 1]) for order in orders} | {
            f"precision_{order}": entry(precision[order - 1]) for order in orders
        }

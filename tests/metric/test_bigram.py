"""Models of counts, by hand."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from lit_ctg.metric.bigram import Bigrams, Unigrams

SIZE = 12
DISCOUNT = 0.75  # committed records were counted with it
TEXT = np.array([1, 2, 3, 1, 2, 4, 1, 2, 3, 5, 5, 5, 1, 6, 2, 3])


def test_word_frequencies_have_one_count_more() -> None:
    model = Unigrams(TEXT, SIZE)
    first, second = np.zeros(SIZE, dtype=np.int64), np.arange(SIZE)
    found = np.exp(-model.nll(first, second))
    assert found.sum() == pytest.approx(1.0, rel=1e-12)
    assert found[[1, 2, 0]] == pytest.approx([5 / 28, 5 / 28, 1 / 28], rel=1e-12)


def test_bigrams_are_kneser_ney_by_hand_and_sum_to_one() -> None:
    model = Bigrams(TEXT, SIZE)
    pairs = Counter(zip(TEXT[:-1].tolist(), TEXT[1:].tolist(), strict=True))
    before = Counter(second for _, second in pairs)
    unigram = {v: (before[v] + 1) / (len(pairs) + SIZE) for v in range(SIZE)}
    for first in range(SIZE):
        total = sum(n for (a, _), n in pairs.items() if a == first)
        kinds = sum(a == first for a, _ in pairs)
        found = np.exp(-model.nll(np.full(SIZE, first), np.arange(SIZE)))
        for second in range(SIZE):
            expected = unigram[second]
            if total:
                expected = max(pairs[first, second] - DISCOUNT, 0) / total + DISCOUNT * kinds / total * unigram[second]
            assert found[second] == pytest.approx(expected, rel=1e-12)
        assert found.sum() == pytest.approx(1.0, rel=1e-12)

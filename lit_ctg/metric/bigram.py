"""Count-based models of a text of token ids: word frequencies and a bigram model.

A language model must beat them before anything can be said about it. They differ from ``decoding/ngram.py``, which
serves as a memory of a user's texts: it estimates its discount, knows where a text starts and backs off to the uniform
distribution; these read a corpus as one stream with a fixed discount, and committed records hold their numbers.
Shape letters: N tokens of the text, V vocabulary.
"""

from __future__ import annotations

import numpy as np

DISCOUNT = 0.75  # of Kneser-Ney smoothing, the usual value


class Unigrams:
    """Word frequencies with add-one smoothing, so that every token has a probability.

    Args:
        size: V.
    """

    def __init__(self, ids_N: np.ndarray, size: int) -> None:
        count_V = np.bincount(np.asarray(ids_N).astype(np.int64), minlength=size) + 1.0
        self.nll_V = -np.log(count_V / count_V.sum())

    def nll(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Return the negative log-probability of each second token, nats, float64; the first ones are ignored."""
        return self.nll_V[np.asarray(second).astype(np.int64)]


class Bigrams:
    """A counted bigram model with interpolated Kneser-Ney smoothing (Kneser and Ney 1995; one discount).

    Args:
        size: V.
    """

    def __init__(self, ids_N: np.ndarray, size: int) -> None:
        ids_N = np.asarray(ids_N).astype(np.int64)
        self.size = size
        pair_N, self.count_N = np.unique(ids_N[:-1] * size + ids_N[1:], return_counts=True)
        self.pair_N = pair_N
        first_N, second_N = pair_N // size, pair_N % size
        self.total_V = np.bincount(first_N, weights=self.count_N, minlength=size)
        self.followers_V = np.bincount(first_N, minlength=size)
        # how many different tokens precede each, plus one so that every token has a probability
        before_V = np.bincount(second_N, minlength=size) + 1.0
        self.unigram_V = before_V / before_V.sum()

    def nll(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Return the negative log-probability of each second token after the first one, nats, float64."""
        key = np.asarray(first).astype(np.int64) * self.size + second
        place = np.minimum(np.searchsorted(self.pair_N, key), len(self.pair_N) - 1)
        count = np.where(self.pair_N[place] == key, self.count_N[place], 0)
        total = self.total_V[first]
        seen = np.maximum(total, 1)
        rest = np.where(total > 0, DISCOUNT * self.followers_V[first] / seen, 1.0)
        return -np.log(np.maximum(count - DISCOUNT, 0) / seen + rest * self.unigram_V[second])

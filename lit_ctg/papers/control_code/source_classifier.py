"""Which source a text sounds like: the judge of controlled generations (ours; the paper has no such measure)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline

Ids = Sequence[int] | np.ndarray


class SourceClassifier:
    """Logistic regression on TF-IDF of token counts, sources weighted equally.

    Args:
        vocabulary_size: number of token ids.
        ignored: ids that do not count, e.g. ``<unk>``, which training text has none of.
    """

    def __init__(self, vocabulary_size: int, ignored: Sequence[int] = ()) -> None:
        self.vocabulary_size = vocabulary_size
        self.ignored = np.array(sorted(ignored), dtype=np.int64)
        self.pipeline: Pipeline = make_pipeline(
            TfidfTransformer(sublinear_tf=True), LogisticRegression(max_iter=1000, class_weight="balanced")
        )

    def fit(self, chunks: Sequence[Ids], source_N: Sequence[int]) -> SourceClassifier:
        """Learn from chunks of known source; returns itself."""
        self.pipeline.fit(self.counts(chunks), np.asarray(source_N))
        return self

    def predict(self, chunks: Sequence[Ids]) -> np.ndarray:
        """Return the likeliest source of each chunk, (N,)."""
        return np.asarray(self.pipeline.predict(self.counts(chunks)))

    def counts(self, chunks: Sequence[Ids]) -> csr_matrix:
        """Return how often each chunk holds each token, (N, V) sparse."""
        kept = [np.asarray(chunk)[~np.isin(chunk, self.ignored)] for chunk in chunks]
        row_P = np.repeat(np.arange(len(kept)), [len(chunk) for chunk in kept])
        id_P = np.concatenate(kept) if kept else np.empty(0)
        shape = (len(kept), self.vocabulary_size)
        return csr_matrix((np.ones(len(row_P)), (row_P, id_P.astype(np.int64))), shape=shape)

from __future__ import annotations

import numpy as np

from lit_ctg.papers.control_code.source_classifier import SourceClassifier


def draw(n, seed):
    """Source 0 prefers ids 1..5, source 1 ids 4..8; id 0 tells them apart in training only."""
    rng = np.random.default_rng(seed)
    source_N = rng.integers(0, 2, n)
    return [rng.integers(1 + 3 * s, 6 + 3 * s, 20).tolist() for s in source_N], source_N


def test_it_learns_which_tokens_a_source_prefers():
    chunks, source_N = draw(200, 0)
    unseen, unseen_source_N = draw(200, 1)
    judge = SourceClassifier(9).fit(chunks, source_N)
    assert (judge.predict(unseen) == unseen_source_N).mean() > 0.97
    assert (judge.predict(unseen) == judge.predict([chunk[::-1] for chunk in unseen])).all()  # a bag of tokens


def test_counts_are_counts_and_ignored_ids_are_nobodys_mark():
    judge = SourceClassifier(9, ignored=[0])
    counts = judge.counts([[1, 1, 0, 8], [], [0, 0]]).toarray()
    assert counts.tolist() == [[0, 2, 0, 0, 0, 0, 0, 0, 1], [0] * 9, [0] * 9]
    chunks, source_N = draw(200, 0)
    marked = [[0] * 50 + chunk if source == 0 else chunk for chunk, source in zip(chunks, source_N, strict=True)]
    judge.fit(marked, source_N)
    plain = SourceClassifier(9).fit(chunks, source_N)
    unseen, _ = draw(200, 1)
    assert (judge.predict([[0, *chunk] for chunk in unseen]) == plain.predict(unseen)).all()


def test_a_rare_source_weighs_as_much_as_a_common_one():
    rng = np.random.default_rng(0)
    chunks = [rng.integers(1, 9, 20).tolist() for _ in range(400)]  # nothing to tell them apart by
    source_N = np.array([0] * 380 + [1] * 20)
    predicted = SourceClassifier(9).fit(chunks, source_N).predict([rng.integers(1, 9, 20).tolist() for _ in range(400)])
    assert 0.25 < (predicted == 1).mean() < 0.75

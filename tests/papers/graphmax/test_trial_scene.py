"""lit_ctg.papers.graphmax.trial: folds share nothing, contexts are places of held-out reviews."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from lit_ctg.errors import UserError
from lit_ctg.papers.graphmax.trial import contexts_of, logits_of, pretty, read_scene, split_folds, tokens_of, windows_of


def test_a_scene_is_its_distinct_reviews_of_two_tokens_or_more(scene, vocabulary):
    texts, ids = read_scene(scene(), vocabulary)
    assert len(texts) == 10 == len(set(texts))
    assert [vocabulary.decode(row) for row in ids] == texts
    for none in (("ok", ""), ()):
        assert read_scene(scene(none), vocabulary) == ([], [])


def test_every_review_is_held_out_once_and_never_in_its_own_graph(scene, vocabulary):
    texts, ids = read_scene(scene(), vocabulary)
    made = list(split_folds("shop", texts, ids, folds=3, vocabulary=vocabulary, seed=0))
    assert sorted(text for fold in made for text in fold.texts) == sorted(texts)
    for fold in made:
        assert len(fold.ids) + len(fold.others) == len(texts)
        held = {tuple(row) for row in fold.ids}
        assert not held & {tuple(row) for row in fold.others}
        pairs = {(a, b) for row in fold.others for a, b in zip(row[:-1].tolist(), row[1:].tolist(), strict=True)}
        found = fold.graph.matrix.tocoo()
        assert {(int(a), int(b)) for a, b in zip(found.row, found.col, strict=True)} == pairs
    again = list(split_folds("shop", texts, ids, folds=3, vocabulary=vocabulary, seed=0))
    assert [fold.texts for fold in again] == [fold.texts for fold in made]
    other = list(split_folds("shop", texts, ids, folds=3, vocabulary=vocabulary, seed=1))
    assert [fold.texts for fold in other] != [fold.texts for fold in made], "the seed parts the reviews"
    each = split_folds("shop", texts, ids, folds=10, vocabulary=vocabulary, seed=0)
    assert [len(fold.ids) for fold in each] == [1] * 10
    with pytest.raises(UserError, match="too few for 11 folds"):
        list(split_folds("shop", texts, ids, folds=11, vocabulary=vocabulary, seed=0))


def test_windows_reach_both_ends_of_a_review_and_ask_for_a_few_places_each(folds):
    """A review of ten tokens, four of context: windows of five from each of its six places."""
    fold = replace(folds[0], ids=[np.arange(10), np.array([20, 21, 22])])
    windows, picks = windows_of(fold, contexts=600, length=4, places=2)
    long, short = ([row for row in windows if row[0] // 20 == kind] for kind in (0, 1))
    assert {tuple(row) for row in long} == {tuple(range(start, start + 5)) for start in range(6)}
    assert {tuple(row) for row in short} == {(20, 21, 22)} and abs(len(long) - len(short)) <= 1, "in turns"
    assert all(len(row) == 2 and row == sorted(set(row)) for row in picks) and sum(map(len, picks)) == 600
    assert {place for row in picks for place in row} == {0, 1, 2, 3}
    last, target, before = tokens_of(windows, picks)
    assert set(target.tolist()) == {*range(1, 10), 21, 22} and torch.equal(target, last + 1)
    assert all(own in ([-1, end], [end - 1, end]) for own, end in zip(before.tolist(), last.tolist(), strict=True))
    assert sum(map(len, windows_of(fold, contexts=5, length=4, places=2)[1])) == 5


def test_contexts_are_places_of_held_out_reviews_with_their_logits(folds, module):
    fold = folds[0]
    found = contexts_of(fold, module, contexts=30, length=5, places=3, rows=2)
    assert found.logits_NV.shape == (30, len(fold.vocabulary)) and len(found.last_N) == len(found.target_N) == 30
    # the table's logits depend on the last token alone, so they tell which it was
    torch.testing.assert_close(found.logits_NV, module.table[found.last_N])
    pairs = {(a, b) for row in fold.ids for a, b in zip(row[:-1].tolist(), row[1:].tolist(), strict=True)}
    assert set(zip(found.last_N.tolist(), found.target_N.tolist(), strict=True)) <= pairs
    again = contexts_of(fold, module, contexts=30, length=5, places=3, rows=2)
    torch.testing.assert_close(again.target_N, found.target_N)
    # padding is masked
    seen = []
    module.register_forward_pre_hook(lambda _, given: seen.append(given[0]["mask_input_BT"]))
    scores = logits_of(module, [[1, 2, 3], [4]], 3)
    assert seen[0].tolist() == [[True, True, True], [True, False, False]]
    torch.testing.assert_close(scores[0], module.table[[1, 2, 3]])


def test_draws_leave_the_global_random_state_alone(folds, module):
    torch.manual_seed(0)
    np.random.seed(0)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    contexts_of(folds[1], module, contexts=5, length=4)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()
    assert [pretty(value) for value in (0.1, 1.0, 10.0)] == ["0.1", "1", "10"]
    # draws differ by seed, fold and purpose
    fold = folds[0]
    generators = (fold.rng(1), fold.rng(2), replace(fold, number=1).rng(1), replace(fold, seed=4).rng(1))
    assert len({float(one.random()) for one in generators}) == 4 and fold.rng(1).random() == fold.rng(1).random()
    assert len({one.text_seed for one in folds}) == len(folds) and fold.text_seed == fold.text_seed

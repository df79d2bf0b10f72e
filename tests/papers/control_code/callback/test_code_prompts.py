from __future__ import annotations

import math

import numpy as np
import pytest

from lit_ctg.config import compose
from lit_ctg.errors import UserError
from lit_ctg.papers.control_code.code_prompts import cut, prompts_of, source_texts, train_judge, unigram_nats
from lit_ctg.run.build import build_datamodule


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """News and blog of the sample; a few hundred held-out tokens each."""
    root = tmp_path_factory.mktemp("cache")
    words = ["data=scripts", "size=smoke", "data.length=32", f"+data.cache_root={root}"]
    datamodule = build_datamodule(compose(words, experiment=False))
    datamodule.setup()
    return datamodule


def test_published_prompts_come_from_training_text_and_held_out_ones_do_not(corpus):
    """Deviation 3."""
    training = source_texts(corpus, "train")
    shares = {}
    for prompts_from in ("held_out", "whole_text"):
        prompts = prompts_of(corpus, n=200, prompt_tokens=4, new_tokens=12, prompts_from=prompts_from)
        joined = {source: " ".join(map(str, ids.tolist())) for source, ids in training.items()}
        texts = [" ".join(map(str, prompt.ids + prompt.reference)) for prompt in prompts]
        shares[prompts_from] = np.mean([t in joined[p.source] for t, p in zip(texts, prompts, strict=True)])
        assert {prompt.source for prompt in prompts} == {0, 1}
        assert all(len(prompt.ids) == 4 and len(prompt.reference) == 12 for prompt in prompts)
    # the sample's grammar says a few sentences twice
    assert shares["held_out"] < 0.1 and shares["whole_text"] > 0.8


def test_windows_are_evenly_spread_distinct_and_inside():
    ids_T = np.arange(100)
    windows = cut(ids_T, 5, 20)
    assert [int(w[0]) for w in windows] == [0, 20, 40, 60, 80] and all(len(w) == 20 for w in windows)
    assert len(cut(np.arange(39), 5, 20)) == 1 and cut(np.arange(19), 5, 20) == []
    crowded = cut(np.arange(97), 50, 20)
    assert len(crowded) == 4 and len(np.unique(np.concatenate(crowded))) == 80


def test_word_frequencies_give_the_reference(corpus):
    nats, tokens = unigram_nats(corpus)
    packed, size = corpus.prepare(), len(corpus.vocabulary)
    train, held_out = packed.ids("train").tolist(), packed.ids("val").tolist()
    total = len(train) + size
    slow = -sum(math.log((train.count(token) + 1) / total) for token in held_out[:50]) / 50
    assert tokens == len(held_out) and 2 < nats < math.log(size)
    counts = np.bincount(train, minlength=size) + 1
    assert slow == pytest.approx(float(-np.log(counts[held_out[:50]] / total).mean()))
    assert nats == pytest.approx(float(-np.log(counts[held_out] / total).mean()))


def test_the_judge_reads_tokens_not_unknown_words(corpus):
    judge, accuracy = train_judge(corpus, chunks=100, length=12)
    assert corpus.vocabulary.unknown_id in judge.ignored.tolist()
    assert accuracy.result().value > 0.9 and accuracy.result().ci95 is not None


def test_bad_input(corpus):
    with pytest.raises(UserError, match="did you mean 'held_out'"):
        prompts_of(corpus, n=2, prompt_tokens=4, new_tokens=4, prompts_from="heldout")
    with pytest.raises(UserError, match="fewer than 4 \\+ 1000000"):
        prompts_of(corpus, n=2, prompt_tokens=4, new_tokens=1000000, prompts_from="held_out")

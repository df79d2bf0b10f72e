"""Measures against slow restatements."""

from __future__ import annotations

import pytest
import torch

from lit_ctg.field.bench import Bench
from lit_ctg.field.measure import Overlap, distinct, repetition, text_cost, word_share


def test_counts_of_ngrams() -> None:
    assert distinct(["a b a", "a b"], 1) == 2 / 5
    assert distinct(["a b a", "a b"], 2) == 2 / 3
    assert distinct([""], 2) == 0
    assert repetition("a b c a b c a b c") == 1 - 3 / 7
    assert repetition("a b c d") == 0 == repetition("")
    assert word_share("Good, good bread.", {"good"}) == 2 / 3 and word_share("", {"good"}) == 0


def test_what_is_copied_word_for_word() -> None:
    overlap = Overlap(["One two three four five six."], order=5)
    assert overlap("and one two three four five seven") == 1 / 3
    assert overlap("one two three") == 0


def test_cost_of_a_text_is_the_sum_of_its_tokens_alone(bench: Bench) -> None:
    prompts, texts = ["We had", "The food was very"], [" a lovely time", ""]
    found = text_cost(bench.model, bench.tokenizer, prompts, texts)
    assert found[1] == (0.0, 0)
    before = [bench.tokenizer.eos_token_id, *bench.tokenizer(prompts[0]).input_ids]
    new = bench.tokenizer(texts[0]).input_ids
    with torch.no_grad():
        log_p = bench.model(input_ids=torch.tensor([before + new])).logits[0].double().log_softmax(-1)
    slow = -sum(float(log_p[len(before) - 1 + place, token]) for place, token in enumerate(new))
    assert found[0] == (pytest.approx(slow, rel=1e-5), len(new))
    # nor does padding count: beside a longer text as alone
    short, beside = (text_cost(bench.model, bench.tokenizer, [prompts[0]] * len(some), some)
                     for some in ([" food"], [" food", texts[0]]))  # fmt: skip
    assert beside == [(pytest.approx(short[0][0], rel=1e-5), short[0][1]), found[0]] and short[0][0] > 0


def test_a_text_beyond_the_positions_is_read_from_its_end(bench: Bench) -> None:
    longest = bench.model.config.max_position_embeddings
    ids = bench.tokenizer(" good food and a lovely time" * longest).input_ids[-longest:]
    with torch.no_grad():
        log_p = bench.model(input_ids=torch.tensor([ids])).logits[0].double().log_softmax(-1)
    slow = -sum(float(log_p[place, token]) for place, token in enumerate(ids[1:]))
    ((nats, tokens),) = text_cost(bench.model, bench.tokenizer, ["We had"], [" good food and a lovely time" * longest])
    assert (nats, tokens) == (pytest.approx(slow, rel=1e-5), longest - 1)

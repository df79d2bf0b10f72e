"""The n-gram memory as a control: mixtures against float64, strength 0, batches, bundles, and what fitting finds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from lit_ctg.control.memory import (
    GRIDS,
    MIXTURES,
    Fit,
    Memory,
    MemoryRule,
    allowed_log_probs,
    bucket_of,
    buckets,
    fit,
    linear,
    product,
    read_scores,
    saved,
)
from lit_ctg.decoding.ngram import Found, NgramModel
from lit_ctg.errors import UserError

SIZE = 14  # tokens of ``word_tokenizer``
TEXTS = [[1, 5, 6, 7, 8, 13], [1, 3, 4, 13], [1, 5, 6, 7, 9], [2, 4, 11, 13], [1, 5, 6, 7, 8, 13, 0]] * 3


@pytest.fixture
def ngram() -> NgramModel:
    return NgramModel.count(TEXTS, SIZE, order=3)


def weights(order: int = 3) -> dict[str, torch.Tensor]:
    """Different ones in every bucket."""
    size = buckets(order)
    return {"linear": torch.linspace(0.1, 0.9, size), "product": torch.linspace(0.8, 0.2, size)}


def slow(scores_V: torch.Tensor, ids: list[int], ngram: NgramModel, name: str, strength: float) -> torch.Tensor:
    """The mixture in float64, token by token."""
    p = scores_V.double().softmax(0)
    q = [float(ngram.prob_of(torch.tensor([ids]), torch.tensor([token]))[0]) for token in range(SIZE)]
    q = [value if p[token] > 0 else 0.0 for token, value in enumerate(q)]
    known = [n for n in (1, 2) if any(t[i : i + n] == ids[-n:] for t in TEXTS for i in range(len(t) - n))]
    bucket = 0
    if known:
        n = known[-1]
        count = sum(t[i : i + n] == ids[-n:] for t in TEXTS for i in range(len(t) - n))
        bucket = 1 + (n - 1) * 8 + min(7, int(math.log2(count)))
    w = min(1.0, strength * float(weights()[name][bucket]))
    if name == "linear":
        mixed = [(1 - w) * float(p[v]) + w * q[v] / sum(q) for v in range(SIZE)]
    else:
        mixed = [float(p[v]) ** (1 - w) * (q[v] / sum(q)) ** w if p[v] > 0 else 0.0 for v in range(SIZE)]
    return torch.tensor(mixed, dtype=torch.float64) / sum(mixed)


@pytest.mark.parametrize("name", MIXTURES)
def test_the_rule_is_the_mixture(ngram: NgramModel, name: str) -> None:
    ids_NT = torch.tensor([[1, 5], [5, 6], [6, 7], [12, 10], [2, 1], [-1, -1]])
    scores_NV = torch.randn(6, SIZE, generator=torch.Generator().manual_seed(0))
    scores_NV[2, [3, 8]] = -math.inf  # an earlier rule
    for strength in (0.5, 1.0, 3.0):
        rule = MemoryRule(ngram, weights(), MIXTURES.index(name), strength)
        made_NV = rule(ids_NT, scores_NV)
        for row in range(6):
            expected = slow(scores_NV[row], ids_NT[row].tolist(), ngram, name, strength)
            assert made_NV[row].double().exp().tolist() == pytest.approx(expected.tolist(), abs=2e-6)
            assert torch.allclose(rule(ids_NT[row : row + 1], scores_NV[row : row + 1])[0], made_NV[row], atol=1e-6)
    assert bucket_of(ngram.find(ids_NT)).tolist()[-1] == 0


def test_a_bucket_is_a_length_and_a_magnitude() -> None:
    counts = torch.tensor([0, 1, 2, 3, 4, 7, 8, 127, 128, 255, 256, 9999])
    magnitudes = [0, 0, 1, 1, 2, 2, 3, 6, 7, 7, 7, 7]
    for length in (1, 2):
        found = Found(torch.zeros(12, 3), torch.full((12,), length), counts)
        assert bucket_of(found).tolist() == [1 + 8 * (length - 1) + magnitude for magnitude in magnitudes]
    assert not bucket_of(Found(torch.zeros(12, 3), torch.zeros(12, dtype=torch.long), counts)).any()


def test_mixtures_at_their_ends_and_with_forbidden_tokens() -> None:
    log_p, log_q = torch.tensor([-math.inf, -1.0, -2.0]), torch.tensor([-0.5, -math.inf, -1.5])
    assert linear(log_p, log_q, torch.tensor(0.0)).equal(log_p) and linear(log_p, log_q, torch.tensor(1.0)).equal(log_q)
    inf = -math.inf
    for weight, expected in ((0.0, [inf, -1.0, -2.0]), (0.5, [inf, inf, -1.75]), (1.0, [inf, inf, -1.5])):
        assert product(log_p, log_q, torch.tensor(weight)).tolist() == expected
    # all that the n-grams know is forbidden: the model alone
    log_p_NV = torch.tensor([[inf, 0.25, 0.75]]).log_softmax(-1)
    assert allowed_log_probs(torch.tensor([[1.0, 0.0]]), log_p_NV).equal(log_p_NV)
    assert allowed_log_probs(torch.tensor([[0.5, 0.5]]), log_p_NV).exp().tolist() == [[0.0, 1.0, 0.0]]


def test_a_bucket_of_few_targets_takes_the_weight_of_all(ngram: NgramModel) -> None:
    """By 20 average targets: 1,000 save 0.1 nats each by weight 1, in two buckets weight 0 saves half a nat each."""
    found = Fit(Memory(ngram))
    for name, grid_G in GRIDS.items():
        found.cost[name][5] = 1000 * -0.1 * grid_G
        found.cost[name][7], found.cost[name][8] = 0.5 * grid_G, 100 * 0.5 * grid_G
    found.count_K[5], found.count_K[7], found.count_K[8] = 1000, 1, 100
    for weight_K in found.best()[0].values():
        assert weight_K[8] == 0 and weight_K[[0, 5, 7]].tolist() == [1, 1, 1]


def test_weights_are_shares_and_scores_keep_their_precision(ngram: NgramModel) -> None:
    size, ids_NT = buckets(3), torch.tensor([[5, 6]])
    for value in (0.0, 1.0):
        Memory(ngram, weights={name: torch.full((size,), value) for name in MIXTURES})
    for wrong in (torch.full((size,), 1.01), torch.full((size,), -0.01), torch.full((size - 1,), 0.5)):
        with pytest.raises(UserError, match="fit it again"):
            Memory(ngram, weights=weights() | {"product": wrong})
    for given, kind in (
        (torch.float64, torch.float64),
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float32),
    ):
        assert MemoryRule(ngram, weights())(ids_NT, torch.zeros(1, SIZE, dtype=given)).dtype == kind
    assert Memory(ngram).weights["linear"].tolist() == [0.25] * size and not Memory(ngram).fitted


def test_rows_have_settings_of_their_own_and_strength_zero_is_the_model(ngram: NgramModel) -> None:
    ids_NT = torch.tensor([[5, 6]] * 4)
    scores_NV = torch.randn(4, SIZE, generator=torch.Generator().manual_seed(1))
    made_NV = MemoryRule(ngram, weights(), [0.0, 1.0], [0.0, 1.0])(ids_NT, scores_NV)  # two prompts, two beams each
    assert torch.equal(made_NV[:2], scores_NV[:2])
    product_NV = MemoryRule(ngram, weights(), 1, 1.0)(ids_NT, scores_NV)
    assert torch.equal(made_NV[2:], product_NV[2:]) and not torch.allclose(made_NV[2:], scores_NV[2:])
    assert MemoryRule(ngram, weights(), 0, 0.0)(ids_NT, scores_NV) is scores_NV
    whole = {name: torch.ones(buckets(3)) for name in MIXTURES}
    for mixture in (0, 1):
        alone_NV = MemoryRule(ngram, whole, mixture)(ids_NT, scores_NV).exp()
        assert torch.allclose(alone_NV, ngram.probs(ids_NT), atol=1e-6), "weight 1 is the n-grams alone"


def test_heads_of_another_size(ngram: NgramModel) -> None:
    ids_NT, wide_NV = torch.tensor([[5, 6]]), torch.zeros(1, SIZE + 3)
    for mixture in (0, 1):
        made_NV = MemoryRule(ngram, weights(), mixture)(ids_NT, wide_NV)
        assert not made_NV.isnan().any() and float(made_NV.exp().sum()) == pytest.approx(1.0, abs=1e-5)
    with pytest.raises(UserError, match=f"the memory has {SIZE} tokens, the model {SIZE - 1}"):
        MemoryRule(ngram, weights())(ids_NT, torch.zeros(1, SIZE - 1))


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 15, 40])
def test_every_token_but_the_first_is_scored_once(model: Any, length: int) -> None:
    ids = np.arange(length) % SIZE
    parts = list(read_scores(model, ids, context=8))
    targets = torch.cat([part[2] for part in parts]) if parts else torch.zeros(0)
    assert targets.tolist() == ids[1:].tolist()
    if length == 15:
        scores = torch.cat([part[1] for part in parts])
        # windows begin at 0, 4 and 8; each scores what the one before it did not
        for place, begin in {0: 0, 7: 0, 8: 4, 11: 4, 12: 8, 13: 8}.items():
            with torch.inference_mode():
                alone = model(torch.tensor([ids[begin : place + 1].tolist()])).logits[0, -1]
            assert torch.allclose(scores[place], alone, atol=1e-4)


@pytest.mark.parametrize("length", [2, 7, 8, 15])
def test_every_window_begins_with_the_start(model: Any, length: int) -> None:
    """As a prompt does in decoding; the n-grams see it where they see it there, before the text."""
    ids, start = np.arange(length) % SIZE, [3, 4]
    parts = list(read_scores(model, ids, context=8, start=start))
    assert torch.cat([part[2] for part in parts]).tolist() == ids[1:].tolist()
    prefixes, scores = (torch.cat([part[k] for part in parts]) for k in (0, 1))
    whole = [*start, *ids.tolist()]
    for place in range(length - 1):
        # windows of 6 tokens of the text begin at 0, 3, 6 ...; each scores what the one before it did not
        begin = 0 if place < 6 else (place - 3) // 3 * 3
        with torch.inference_mode():
            alone = model(torch.tensor([start + ids[begin : place + 1].tolist()])).logits[0, -1]
        assert torch.allclose(scores[place], alone, atol=1e-4)
        seen = [number for number in prefixes[place].tolist() if number != -1]
        assert seen == whole[: place + 3][-prefixes.shape[1] :]
    with pytest.raises(UserError, match="give more than the 2 tokens that the tokenizer puts before a text"):
        list(read_scores(model, ids, context=2, start=start))


def test_fitting_finds_what_helps_and_tells_what_it_saves(model: Any, ngram: NgramModel) -> None:
    """The model is random and the texts are the memory's: the n-grams get nearly all the weight."""
    held_out = [np.array(text) for text in TEXTS[:5]] * 4
    memory = fit(Memory(ngram), model, held_out, context=8)
    assert memory.fitted
    known = [1 + 8 + 3]  # contexts of two tokens that stand 8 times and more
    assert all(float(memory.weights[name][bucket]) > 0.8 for name in MIXTURES for bucket in known)
    told = saved(memory, model, held_out, context=8)
    assert told.tokens == sum(len(text) - 1 for text in held_out)
    with torch.inference_mode():
        nats = [-model(torch.tensor([t.tolist()])).logits[0, :-1].log_softmax(-1).gather(1, torch.tensor(t[1:, None]))
                for t in held_out]  # fmt: skip
    assert told.model == pytest.approx(float(torch.cat(nats).mean()), rel=1e-5)
    alone = [ngram.nll(t)[1:] for t in held_out]
    assert told.ngram == pytest.approx(float(torch.cat(alone).mean()), rel=1e-5)
    for name in MIXTURES:
        value, interval = told.against_model[name]
        assert value == pytest.approx(told.model - told.mixtures[name]) and value > 1
        assert interval is not None and interval[0] < value < interval[1]
        # never worse than the better one alone by more than the grid and the prior allow
        assert told.mixtures[name] < min(told.model, told.ngram) + 0.02
    # both mixtures are the n-grams alone here, a tie: the next test has two that differ
    assert told.mixtures["linear"] == pytest.approx(told.mixtures["product"], rel=1e-6)


def test_a_memory_of_foreign_text_gets_no_weight(model: Any) -> None:
    """Held-out text drawn from the model itself: mixing anything in costs."""
    torch.manual_seed(0)
    drawn = model.generate(torch.ones(40, 1, dtype=torch.long), do_sample=True, max_new_tokens=20, min_new_tokens=20,
                           pad_token_id=0, top_k=0)  # fmt: skip
    memory = fit(Memory(NgramModel.count(TEXTS, SIZE, order=3)), model, list(drawn.numpy()), context=32)
    told = saved(memory, model, list(drawn.numpy()), context=32)
    assert told.against_model[memory.mixture][0] < 0.05
    with pytest.raises(UserError, match="no token to fit on"):
        fit(Memory(NgramModel.count(TEXTS, SIZE, order=3)), model, [np.array([1])], context=8)

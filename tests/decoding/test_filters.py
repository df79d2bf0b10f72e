from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lit_ctg.decoding import filters
from lit_ctg.decoding.filters import (
    Nucleus,
    RepetitionPenalty,
    Temperature,
    TopK,
    greedy,
    nucleus,
    repetition_penalty,
    row_noise,
    sample,
    temperature,
    top_k,
)
from lit_ctg.errors import UserError

INFINITY = float("inf")


def random_scores(rows: int, size: int, seed: int = 0) -> torch.Tensor:
    return 2 * torch.randn(rows, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def kept(scores_BV: torch.Tensor) -> list[set[int]]:
    return [{i for i, s in enumerate(row) if s > -INFINITY} for row in scores_BV.tolist()]


def log_of(*masses: float) -> torch.Tensor:
    return torch.tensor([masses], dtype=torch.float64).log()


def slow_nucleus(scores: list[float], p: float, keep_crossing: bool) -> set[int]:
    masses = [math.exp(s) for s in scores]
    total = sum(masses)
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    chosen, before = set(), 0.0
    for rank, i in enumerate(order):
        through = before + masses[i] / total
        if rank == 0 or p >= 1 or (before < p if keep_crossing else through <= p):
            chosen.add(i)
        before = through
    return chosen


def test_the_two_nucleus_conventions_differ_by_the_token_that_crosses():
    scores = log_of(0.5, 0.3, 0.15, 0.05)
    assert kept(nucleus(scores, 0.7, keep_crossing=True)) == [{0, 1}]
    assert kept(nucleus(scores, 0.7, keep_crossing=False)) == [{0}]
    assert kept(nucleus(scores, 0.96, keep_crossing=True)) == [{0, 1, 2, 3}]
    assert kept(nucleus(scores, 0.96, keep_crossing=False)) == [{0, 1, 2}]
    for keep_crossing in (True, False):
        assert kept(nucleus(scores, 0.0, keep_crossing=keep_crossing)) == [{0}]  # the best one always stays


def test_a_nucleus_that_p_hits_exactly_ends_there():
    scores = torch.zeros(1, 4, dtype=torch.float64)  # masses of exactly 0.25, so that no token crosses 0.5
    for keep_crossing in (True, False):
        assert kept(nucleus(scores, 0.5, keep_crossing=keep_crossing)) == [{0, 1}]


@pytest.mark.parametrize("keep_crossing", [True, False])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9, 0.99, 1.0])
@pytest.mark.parametrize("candidates", [512, 6])
def test_nucleus_equals_its_slow_restatement(p, keep_crossing, candidates, monkeypatch):
    """Also where it lies among the candidates, or goes beyond them in some row, and where tokens are equally likely."""
    monkeypatch.setattr(filters, "CANDIDATES", candidates)
    for scores in (random_scores(20, 11), random_scores(20, 11, seed=1).round(), random_scores(1, 11, seed=2)):
        expected = [slow_nucleus(row, p, keep_crossing) for row in scores.tolist()]
        assert kept(nucleus(scores, p, keep_crossing=keep_crossing)) == expected


@pytest.mark.parametrize("keep_crossing", [True, False])
def test_a_nucleus_of_one_keeps_everything_also_in_single_precision(keep_crossing):
    scores = torch.randn(64, 1000, generator=torch.Generator().manual_seed(1))  # the float32 sum passes 1
    assert torch.equal(nucleus(scores, 1.0, keep_crossing=keep_crossing), scores)


def test_parameters_may_differ_by_row():
    scores = random_scores(3, 6)
    p = [0.3, 0.6, 1.0]
    together = nucleus(scores, p, keep_crossing=True)
    assert torch.equal(together, torch.cat([nucleus(scores[i : i + 1], p[i], keep_crossing=True) for i in range(3)]))
    assert torch.equal(temperature(scores, [0.5, 1.0, 2.0])[2], scores[2] / 2)
    assert [len(k) for k in kept(top_k(scores, [1, 4, 0]))] == [1, 4, 6]


@pytest.mark.parametrize("rule", [TopK([1, 4, 0]), Nucleus([0.0, 0.6, 1.0], keep_crossing=True)])
def test_a_row_s_setting_is_that_of_its_copies(rule):
    """``generate`` repeats a prompt's row for beams and several sequences."""
    scores = random_scores(3, 300).half()
    twice = rule(torch.zeros(6, 1, dtype=torch.long), scores.repeat_interleave(2, dim=0))
    once = rule(torch.zeros(3, 1, dtype=torch.long), scores)
    assert torch.equal(twice, once.repeat_interleave(2, dim=0))


def test_filters_agree_with_hugging_face():
    process = pytest.importorskip("transformers.generation.logits_process")
    scores, ids = random_scores(30, 13), torch.zeros(30, 1, dtype=torch.long)
    assert torch.equal(top_k(scores, 4), process.TopKLogitsWarper(4)(ids, scores))
    assert torch.equal(nucleus(scores, 0.8, keep_crossing=True), process.TopPLogitsWarper(0.8)(ids, scores))
    assert torch.equal(temperature(scores, 0.7), process.TemperatureLogitsWarper(0.7)(ids, scores))


def test_top_k_keeps_ties_and_leaves_forbidden_tokens_forbidden():
    scores = torch.tensor([[1.0, 3.0, 1.0, -INFINITY]])
    assert kept(top_k(scores, 2)) == [{0, 1, 2}]
    assert kept(top_k(scores, 9)) == [{0, 1, 2}]


def slow_penalty(ids, scores, penalty, window, last_ids, last_penalty):
    changed = list(scores)
    for token in ids[-window:]:
        changed[token] -= math.log(penalty)
    if ids[-1] in last_ids:
        changed[ids[-1]] -= math.log(last_penalty)
    return changed


def test_the_penalty_counts_occurrences_in_the_last_ids():
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(0, 5, (40, 6), generator=generator)
    scores = random_scores(40, 5)
    changed = repetition_penalty(ids, scores, 2.5, window=3, last_ids=(1, 4), last_penalty=1.8)
    expected = [slow_penalty(i, s, 2.5, 3, (1, 4), 1.8) for i, s in zip(ids.tolist(), scores.tolist(), strict=True)]
    np.testing.assert_allclose(changed.numpy(), expected, rtol=0, atol=1e-12)
    twice = repetition_penalty(torch.tensor([[2, 0, 2]]), torch.zeros(1, 3), 2.5, window=3)
    np.testing.assert_allclose(twice, [[-math.log(2.5), 0, -2 * math.log(2.5)]], rtol=1e-6)


def test_the_start_token_counts_and_short_prefixes_are_whole():
    changed = repetition_penalty(torch.tensor([[1]]), torch.zeros(1, 3), 1.5, window=3)
    np.testing.assert_allclose(changed, [[0, -math.log(1.5), 0]], rtol=1e-6)


def test_strength_zero_is_the_bare_scores_exactly():
    ids, scores = torch.tensor([[1, 2, 2]] * 4), random_scores(4, 7).float()
    assert torch.equal(repetition_penalty(ids, scores, 1.0, window=3, last_ids=(2,)), scores)
    assert torch.equal(repetition_penalty(ids, scores, 2.5, window=0), scores)
    assert torch.equal(temperature(scores, 1.0), scores)
    assert torch.equal(top_k(scores, 0), scores)


def test_impossible_settings_are_refused():
    with pytest.raises(UserError, match="temperature=abc: pass a number"):
        Temperature("abc")
    for wrong in (0.0, float("nan")):
        with pytest.raises(UserError, match="temperature="):
            Temperature([0.7, wrong])
        with pytest.raises(UserError, match="penalty"):
            RepetitionPenalty(wrong, window=3)
        with pytest.raises(UserError, match="top_p="):
            Nucleus(wrong - 0.1, keep_crossing=True)
    with pytest.raises(UserError, match="penalty"):
        RepetitionPenalty(1.0, window=3, last_penalty=0.0)
    # a mass of 0 keeps the best token
    assert Nucleus(0.0, keep_crossing=True)(torch.zeros(1, 1).long(), torch.tensor([[0.0, 1.0]])).tolist() == [
        [-math.inf, 1.0]
    ]


def test_greedy_takes_the_first_of_the_best():
    assert greedy(torch.tensor([[0.0, 2.0, 2.0], [3.0, 1.0, 2.0]])).tolist() == [1, 0]


def test_sampling_inverts_the_cumulative_distribution():
    scores = log_of(0.2, 0.0, 0.5, 0.3, 0.0).expand(7, -1)
    uniform = torch.tensor([0.0, 0.1999, 0.2001, 0.6999, 0.7001, 0.9999, 1.0], dtype=torch.float64)
    assert sample(scores, uniform).tolist() == [0, 0, 2, 2, 3, 3, 3]  # never 1 or 4, which have no mass
    assert sample(log_of(0.0, 1.0), torch.zeros(1, dtype=torch.float64)).tolist() == [1]  # nor a first one without
    even = torch.zeros(4, 4, dtype=torch.float64)
    assert sample(even, torch.tensor([0.0, 0.25, 0.5, 0.75], dtype=torch.float64)).tolist() == [0, 1, 2, 3]


def test_a_draw_among_few_tokens_is_that_among_all():
    torch.manual_seed(0)
    scores_BV, uniform_B = torch.full((50, 400), -torch.inf), torch.rand(50, dtype=torch.float64)
    for row in range(50):
        scores_BV[row, torch.randperm(400)[: 1 + row]] = 3 * torch.randn(1 + row)
    mass_BV = scores_BV.softmax(-1).double().cumsum(-1)
    slow_B = (mass_BV <= uniform_B.unsqueeze(1) * mass_BV[:, -1:]).sum(-1)
    assert sample(scores_BV, uniform_B).tolist() == slow_B.tolist()


def test_sampled_frequencies_are_the_distribution():
    mass = [0.1, 0.2, 0.3, 0.4]
    drawn = sample(log_of(*mass).expand(20_000, -1), row_noise(0, [5], 20_000)[0])
    frequency = torch.bincount(drawn, minlength=4) / 20_000
    np.testing.assert_allclose(frequency, mass, atol=0.015)  # four standard errors


def test_noise_is_a_function_of_seed_and_row():
    noise = row_noise(7, range(5), 9)
    assert torch.equal(noise[3], row_noise(7, [3], 9)[0])
    assert torch.equal(noise[:, :4], row_noise(7, range(5), 4))
    assert not torch.equal(noise[3], row_noise(8, [3], 9)[0])
    # committed texts were drawn from these streams
    np.testing.assert_array_equal(noise[3], np.random.default_rng([7, 3]).random(9))
    assert len(torch.unique(noise)) == noise.numel()
    assert row_noise(7, [], 3).shape == (0, 3)


def test_noise_leaves_the_global_random_state_alone():
    torch.manual_seed(0)
    np.random.seed(0)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    row_noise(1, range(3), 4)
    assert torch.equal(before[0], torch.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()

"""lit_ctg.callback.graphmax_generation."""

from __future__ import annotations

import math

import pytest
import torch

from lit_ctg.callback.graphmax_generation import DecodingTime, ReviewGeneration, Sampler, own_nll

METHODS = {
    "softmax": {"variant": "softmax"},
    "graphmax": {"variant": "graphmax", "strength": 1.0},
    "copy": {"variant": "interpolation", "strength": 1e9},
}


def sampler(**changes) -> Sampler:
    return Sampler(**{"methods": METHODS, "temperature": 1.0, "top_p": 1.0, **changes})


def part(**changes) -> ReviewGeneration:
    settings = {"texts": 6, "prompt_tokens": 1, "new_tokens": 5, "sampled": 3, "judge_order": 2}
    return ReviewGeneration(sampler=sampler(), **{**settings, **changes})


def test_continuations_keep_their_prompt_and_share_their_noise(folds, module):
    prompts = [[3, 4], [5], [6]]
    plain = sampler().continue_ids(folds[0], module, "softmax", prompts, 4)
    assert [row[: len(p)] for row, p in zip(plain, prompts, strict=True)] == prompts
    assert [len(row) for row in plain] == [6, 5, 5]
    alone = sampler().continue_ids(folds[0], module, "softmax", prompts[:1], 4)
    assert alone[0] == plain[0]
    same = sampler(methods={"g": {"variant": "graphmax", "strength": 0.0}})
    assert same.continue_ids(folds[0], module, "g", prompts, 4) == plain
    assert sampler().continue_ids(folds[0], module, "graphmax", prompts, 4) != plain


def test_copying_the_graph_has_more_of_its_bigrams(folds, module):
    numbers, samples = part(texts=30).measure(folds[0], module)
    precision = {name: numbers[f"bleu/shop/{name}/precision_2"].value for name in METHODS}
    assert precision["copy"] > precision["softmax"] + 0.2
    assert numbers["perplexity_judge/shop/copy"].value < numbers["perplexity_judge/shop/softmax"].value
    # fewer references, fewer matches
    assert numbers["bleu_sampled/shop/copy/precision_2"].value < precision["copy"]
    assert {sample["method"] for sample in samples} == set(METHODS)
    assert all(sample["text"] and sample["prompt"] not in ("", sample["text"]) for sample in samples)


def test_prompts_do_not_count(folds, module):
    class Silent(type(module)):
        def step(self, ids_B1, state):
            # always <unk>, which no review has
            scores = torch.full((len(ids_B1), len(self.table)), -30.0)
            scores[:, 0] = 30.0
            return scores, state

    numbers, _ = part(prompt_tokens=4).measure(folds[0], Silent(len(module.table)))
    assert numbers["bleu/shop/softmax/precision_2"].value == 0.0


def test_own_perplexity_is_that_of_the_continuation(folds, module):
    ids = [3, 4, 5, 6]
    nats, tokens = own_nll(module, ids, 2)
    log_probs = module.table.detach().double().log_softmax(-1)
    assert tokens == 2
    assert nats == pytest.approx(-float(log_probs[4, 5] + log_probs[5, 6]), abs=1e-6)


def test_only_the_first_fold_shows_texts_and_results_repeat(folds, module):
    first, again = part().measure(folds[1], module), part().measure(folds[1], module)
    assert first == again and first[1] == []
    assert all(math.isfinite(number.value) for number in first[0].values())


def test_time_is_measured_against_softmax(folds, module):
    timed = DecodingTime(sampler=sampler(), prompts=2, prompt_tokens=1, new_tokens=3)
    numbers, _ = timed.measure(folds[0], module)
    assert numbers["time_ratio/shop/softmax"].value == 1.0
    assert numbers["time_ratio/shop/softmax/prompt_2"].value == 1.0
    assert numbers["time_ratio/shop/graphmax"].value > 1.0
    ratio = numbers["seconds/shop/graphmax/prompt_1"].value / numbers["seconds/shop/softmax/prompt_1"].value
    assert numbers["time_ratio/shop/graphmax/prompt_1"].value == pytest.approx(ratio)

"""lit_ctg.papers.graphmax.trial_parts."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lit_ctg.decoding.ngram import NgramModel
from lit_ctg.errors import UserError
from lit_ctg.papers.graphmax.metrics import NgramJudge
from lit_ctg.papers.graphmax.trial_parts import (
    GENERATED,
    DecodingTime,
    ReviewGeneration,
    Sampler,
    ngram_texts,
    own_nll,
    without_end,
)

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
    # folds draw apart
    other = sampler().continue_ids(folds[1], module, "softmax", prompts * 4, 5)
    drawn = sampler().continue_ids(folds[0], module, "softmax", prompts * 4, 5)
    assert sum(a == b for a, b in zip(drawn, other, strict=True)) < 6


def test_what_is_drawn_hangs_on_seed_temperature_and_nucleus(folds, module):
    prompts = [[3], [5], [6], [4]]
    plain = sampler().continue_ids(folds[0], module, "softmax", prompts, 6)
    assert sampler().continue_ids(replace(folds[0], seed=4), module, "softmax", prompts, 6) != plain
    best = module.table.argmax(-1)
    for changes in ({"temperature": 1e-4}, {"top_p": 1e-6}, {"model_temperature": 1e-4}):
        for row in sampler(**changes).continue_ids(folds[0], module, "softmax", prompts, 6):
            assert all(after == best[before] for before, after in pairwise(row)), changes
    strong = {"m": {"variant": "interpolation", "strength": 1e9}, "one": {"variant": "interpolation", "strength": 1.0},
              "default": {"variant": "interpolation"}}  # fmt: skip
    drawn = {name: sampler(methods=strong).continue_ids(folds[0], module, name, prompts, 6) for name in strong}
    assert drawn["default"] == drawn["one"] != drawn["m"], "the strength is 1 unless given"


def test_the_judge_knows_the_held_out_reviews_and_each_perplexity_is_its_own(folds, module, monkeypatch):
    known, scored = [], []

    class Judge:
        def __init__(self, rows, size, *, order):
            known.append((list(rows), size, order))

        def nll(self, ids, start):
            scored.append((tuple(ids), start))
            return 2.0 * (len(ids) - start), len(ids) - start

    where = "lit_ctg.papers.graphmax.trial_parts"
    monkeypatch.setattr(f"{where}.NgramJudge", Judge)
    monkeypatch.setattr(f"{where}.own_nll", lambda _, ids, start: (1.0 * (len(ids) - start), len(ids) - start))
    numbers, samples = part(samples_kept=1).measure(folds[0], module)
    held_out = ([ids.tolist() for ids in folds[0].ids], len(folds[0].vocabulary), 2)
    for name in METHODS:
        assert numbers[f"perplexity_lm/shop/{name}"].value == pytest.approx(math.e)
        assert numbers[f"perplexity_judge/shop/{name}"].value == pytest.approx(math.e**2)
        assert numbers[f"perplexity_judge/shop/{name}"].base == "perplexity_judge/shop/softmax"
        for protocol in ("bleu", "bleu_sampled"):
            assert numbers[f"{protocol}/shop/{name}/bleu_2"].base == f"{protocol}/shop/softmax/bleu_2"
    assert len(samples) == len(METHODS)
    scored.clear()
    part().references(folds[0])
    assert known == [held_out] * 2
    # real ones are of the other reviews, from the token on at which a continuation begins, as long as one
    others = {tuple(ids[:6].tolist()) for ids in folds[0].others}
    assert {ids for ids, _ in scored[:6]} <= others - {tuple(ids[:6].tolist()) for ids in folds[0].ids}
    assert {start for _, start in scored} == {1} and len(scored) == 4 * 6


def test_a_control_code_is_read_by_the_language_model_only(folds, module, monkeypatch):
    """What it writes is kept the same here, so that every measure but its own must be, too."""
    code, inner, found = "the food", Sampler.continue_ids, {}
    prefix = list(folds[0].vocabulary.encode(code))
    for front in ([], prefix):
        seen, own = [], []

        def continue_ids(self, fold, module, method, prompts, new_tokens, front=front, seen=seen):
            seen.extend(prompts)
            bare = [prompt[len(front) :] for prompt in prompts]
            return [[*front, *row] for row in inner(self, fold, module, method, bare, new_tokens)]

        def nll(_, ids, start, own=own):
            own.append((tuple(ids), start))
            return 1.0, 1

        monkeypatch.setattr("lit_ctg.papers.graphmax.trial_parts.own_nll", nll)
        monkeypatch.setattr(Sampler, "continue_ids", continue_ids)
        numbers, samples = part(samples_kept=6, prefix=code if front else None).measure(folds[0], module)
        found[len(front)] = {name: m.value for name, m in numbers.items()}, samples, seen, own
    (plain, bare, prompts, own), (numbers, coded, seen, read) = found.values()
    assert numbers == plain and coded == bare and seen == [prefix + prompt for prompt in prompts]
    assert read == [((*prefix, *ids), len(prefix) + start) for ids, start in own]
    assert part(prefix=code).positions(folds[0].vocabulary) == part().positions(folds[0].vocabulary) + len(prefix)


def test_copying_the_graph_has_more_of_its_bigrams(folds, module):
    numbers, samples = part(texts=30).measure(folds[0], module)
    precision = {name: numbers[f"bleu/shop/{name}/precision_2"].value for name in METHODS}
    assert precision["copy"] > precision["softmax"] + 0.2
    assert numbers["perplexity_judge/shop/copy"].value < numbers["perplexity_judge/shop/softmax"].value
    # fewer references, fewer matches
    assert numbers["bleu_sampled/shop/copy/precision_2"].value < precision["copy"]
    assert {sample["method"] for sample in samples} == set(METHODS)
    assert all(sample["text"] and sample["prompt"] not in ("", sample["text"]) for sample in samples)
    assert {number.version for number in numbers.values()} == {GENERATED}
    # the first fold alone shows texts
    first, again = part().measure(folds[1], module), part().measure(folds[1], module)
    assert first == again and first[1] == []
    assert all(math.isfinite(number.value) for number in first[0].values())


def test_real_reviews_and_ngram_models_give_a_scale(folds):
    found = part(texts=40, new_tokens=6).references(folds[0])
    real, unigram, bigram, trigram = (
        {name: found[f"reference/shop/{kind}/{name}"].value for name in ("bleu_2", "precision_2", "perplexity_judge")}
        for kind in ("real", "unigram", "bigram", "trigram")
    )
    assert real["bleu_2"] > 1.3 * unigram["bleu_2"] > 0 and real["perplexity_judge"] < 0.7 * unigram["perplexity_judge"]
    assert unigram["precision_2"] < bigram["precision_2"] < trigram["precision_2"]
    assert all((measure.base, measure.version) == (None, 1) for measure in found.values())
    again = part(texts=40, new_tokens=6).references(folds[0])
    assert {name: m.value for name, m in again.items()} == {name: m.value for name, m in found.items()}
    with pytest.raises(UserError, match="lower prompt_tokens"):
        part(prompt_tokens=50).references(folds[0])


def test_an_ngram_model_writes_what_it_counted():
    model = NgramModel.count([[1, 2, 3, 1, 2, 3, 1, 2, 3]], 5, order=2, smoothing="witten_bell", dtype=torch.float64)
    rng = np.random.default_rng(0)
    # after 1 comes 2 with probability 0.75 and more: a nucleus of 0.5 has nothing else
    assert ngram_texts(model, [[1], [4, 2]], 4, top_p=0.5, rng=rng) == [[2, 3, 1, 2], [3, 1, 2, 3]]
    three = NgramModel.count([[1, 2, 3, 4, 2, 1, 1]] * 9, 5, order=3, smoothing="witten_bell", dtype=torch.float64)
    # after 4 2 comes 1, after 1 2 and the rest of it 3; of a prompt of one token the shorter history counts
    assert ngram_texts(three, [[4, 2], [0, 1, 2], [3]], 2, top_p=0.3, rng=rng) == [[1, 1], [3, 4], [4, 2]]
    drawn = [row[0] for row in ngram_texts(model, [[1]] * 4000, 1, top_p=1.0, rng=rng)]
    expected = model.probs(torch.tensor([[1]]))[0]
    np.testing.assert_allclose(np.bincount(drawn, minlength=5) / 4000, expected, atol=0.03)


@pytest.fixture
def ending(folds, vocabulary):
    """A fold whose vocabulary has an <eos>, as that of a model trained on whole documents."""
    words = type(vocabulary)(lower=False, eol=None, specials=("<unk>", "<eos>"))
    words.train(folds[0].texts)
    ids = [torch.tensor(words.encode(text)).numpy() for text in folds[0].texts]
    assert words.eos_id is not None and "<eos>" in words.decode([words.eos_id])
    return replace(folds[0], vocabulary=words, ids=ids, others=ids)


class Script(torch.nn.Module):
    """Says the given ids one after the other, whatever the prompt of one token."""

    device = torch.device("cpu")

    def __init__(self, size, said):
        super().__init__()
        self.size, self.said = size, said

    def forward(self, batch):
        raise AssertionError("not asked here")

    def start(self, batch_size, controls):
        return 0

    def step(self, ids_B1, place):
        scores = torch.full((len(ids_B1), self.size), -100.0)
        scores[:, self.said[place]] = 100.0
        return scores, place + 1


def test_the_end_is_no_part_of_a_text(ending, folds, module, monkeypatch):
    """Neither text nor judge sees <eos>, nor what a row might have after it; an empty text counts nothing."""
    eos, food = ending.vocabulary.eos_id, ending.vocabulary.id("food")
    for ids, start, end, kept in (
        ([7, 1, 2, 9, 3, 9], 1, 9, [7, 1, 2]),
        ([9, 1, 2], 1, 9, [9, 1, 2]),  # a prompt may begin with it
        ([7, 9], 1, 9, [7]),
        ([7, 1], 1, None, [7, 1]),
    ):
        assert without_end(ids, start, end) == kept
    log_probs = module.table.detach().double().log_softmax(-1)
    expected = -float(log_probs[4, 5] + log_probs[5, 6])
    assert own_nll(module, [3, 4, 5, 6], 2) == (pytest.approx(expected, abs=1e-6), 2)
    plain = sampler(methods={"softmax": {"variant": "softmax"}})
    trial = ReviewGeneration(sampler=plain, texts=6, prompt_tokens=1, new_tokens=5, sampled=3, judge_order=2)
    numbers, samples = trial.measure(ending, Script(len(ending.vocabulary), [eos] * 5))
    assert [sample["text"] for sample in samples] == ["", ""] and numbers["bleu/shop/softmax/bleu_2"].value == 0.0
    for name in ("perplexity_judge", "perplexity_lm"):
        assert math.isnan(numbers[f"{name}/shop/softmax"].value) and numbers[f"{name}/shop/softmax"].n == 0
    scored = []
    monkeypatch.setattr("lit_ctg.papers.graphmax.trial_parts.own_nll", lambda _, ids, start: (1.0, len(ids) - start))
    monkeypatch.setattr(NgramJudge, "nll", lambda _, ids, start: scored.append(list(ids)) or (1.0, len(ids) - start))
    numbers, samples = part().measure(ending, Script(len(ending.vocabulary), [food, food, eos, food, food]))
    said = [row[1:] for row in scored]
    # <eos> has no successors: copying them continues otherwise
    assert said[:12] == [[food, food]] * 12, "softmax and graphmax"
    assert all(eos not in row for row in said)
    assert [sample["text"] for sample in samples if sample["method"] == "softmax"] == ["food food"] * 2
    assert all("eos" not in sample["text"] for sample in samples)
    assert numbers["perplexity_judge/shop/softmax"].n == 12


def test_time_is_measured_against_softmax(folds, module, monkeypatch):
    # the first takes 1 s, then 5 s, 9 s, ...
    ticks, where = iter(range(1000)), "lit_ctg.papers.graphmax.trial_parts.time"
    monkeypatch.setattr(where, SimpleNamespace(perf_counter=lambda: next(ticks) ** 2))
    timed = DecodingTime(sampler=sampler(), prompts=2, prompt_tokens=1, new_tokens=3)
    numbers, _ = timed.measure(folds[0], module)
    # seconds a token: of one to three new ones
    assert 1 / numbers["seconds/shop/softmax/prompt_1"].value in (1, 2, 3)
    assert 5 / numbers["seconds/shop/softmax/prompt_2"].value in (1, 2, 3)
    assert numbers["time_ratio/shop/softmax"].value == 1.0
    assert numbers["time_ratio/shop/softmax/prompt_2"].value == 1.0
    ratio = numbers["seconds/shop/graphmax/prompt_1"].value / numbers["seconds/shop/softmax/prompt_1"].value
    assert numbers["time_ratio/shop/graphmax/prompt_1"].value == pytest.approx(ratio)
    both = {name: sum(numbers[f"seconds/shop/{name}/prompt_{k}"].value for k in (1, 2)) for name in METHODS}
    assert numbers["time_ratio/shop/graphmax"].value == pytest.approx(both["graphmax"] / both["softmax"])
    # of softmax and graphmax in two rounds, by the other clock: the least time counts
    steps = iter([100 * turn + end for turn, seconds in enumerate((9.0, 4.0, 3.0, 8.0)) for end in (0, seconds)])
    monkeypatch.setattr(where, SimpleNamespace(process_time=steps.__next__))
    methods = {name: {"variant": name} for name in ("softmax", "graphmax")}
    timed = DecodingTime(sampler=sampler(methods=methods), prompts=1, prompt_tokens=1, new_tokens=1, rounds=2,
                         clock="cpu")  # fmt: skip
    numbers, _ = timed.measure(folds[0], module)
    assert numbers["seconds/shop/softmax/prompt_1"].value == 3.0
    assert numbers["time_ratio/shop/graphmax"].value == pytest.approx(4 / 3)


def test_mistakes_are_named_when_a_part_is_built():
    where = r"^callback\.graphmax_trial\.parts[^\n]*"
    with pytest.raises(UserError, match=f"{where}did you mean 'strength'"):
        sampler(methods={"g": {"variant": "graphmax", "strenght": 1}})
    alone, lengths = sampler(methods={"graphmax": {"variant": "graphmax"}}), {"prompt_tokens": 1, "new_tokens": 1}
    with pytest.raises(UserError, match=f"{where}add softmax"):
        ReviewGeneration(sampler=alone, texts=1, sampled=1, judge_order=1, **lengths)
    with pytest.raises(UserError, match=f"{where}add softmax"):
        DecodingTime(sampler=alone, prompts=1, **lengths)

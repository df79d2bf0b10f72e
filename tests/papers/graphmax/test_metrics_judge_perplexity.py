"""lit_ctg.papers.graphmax.metrics against a slow restatement."""

from __future__ import annotations

import math
import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from lit_ctg.data.huggingface_tokenizer import HuggingFaceTokenizer
from lit_ctg.errors import UserError
from lit_ctg.papers.graphmax import trial_parts
from lit_ctg.papers.graphmax.metrics import HuggingFaceJudge, NgramJudge, text_perplexity
from lit_ctg.papers.graphmax.trial_parts import ReviewGeneration, Sampler
from lit_ctg.statistics import t_quantile
from tests.llama import llama_tokenizer

V = 7


def corpus(seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(V - 1) for _ in range(rng.randint(1, 9))] for _ in range(30)]


def slow_prob(texts: list[list[int]], token: int, history: tuple[int, ...]) -> float:
    """Witten-Bell, recursively, every count made anew by scanning the texts."""
    places = [
        (t, i) for t in texts for i in range(len(history), len(t)) if tuple(t[i - len(history) : i]) == history
    ]  # fmt: skip
    lower = slow_prob(texts, token, history[1:]) if history else 1 / V
    if not places:
        return lower
    kinds = len({t[i] for t, i in places})
    return (sum(t[i] == token for t, i in places) + kinds * lower) / (len(places) + kinds)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_the_judge_is_witten_bell_after_the_prompt(order):
    texts, ids = corpus(), [0, 3, 2, 6, 1, 4, 4]
    nats, tokens = NgramJudge(texts, V, order=order).nll(ids, start=2)
    assert tokens == 5
    histories = [tuple(ids[max(0, place - order + 1) : place]) for place in range(7)]
    expected = [math.log(slow_prob(texts, ids[place], histories[place])) for place in range(2, 7)]
    assert nats == pytest.approx(-sum(expected), abs=1e-12)


def test_perplexity_divides_once_and_has_an_interval():
    result = text_perplexity([2.0, 6.0], [1, 3])
    assert result.value == pytest.approx(math.exp(2.0)) and result.n == 4
    assert result.ci95 == pytest.approx((math.exp(2.0), math.exp(2.0)))
    wide = text_perplexity([1.0, 6.0, 3.0], [1, 3, 1])
    assert wide.ci95[0] < wide.value < wide.ci95[1]
    assert math.isnan(text_perplexity([], []).value)
    assert text_perplexity([math.inf, 1.0], [1, 1]).value == math.inf
    # a text without a token is not a unit of the interval
    assert text_perplexity([1.0, 6.0, 3.0, 0.0], [1, 3, 1, 0]) == wide
    # the delta method by hand
    rows = np.array([[1.0, 1], [6.0, 3], [3.0, 1]])
    residuals = rows[:, 0] - 2.0 * rows[:, 1]
    half = t_quantile(2) * math.sqrt(3 / 2 * (residuals**2).sum()) / 5
    assert wide.ci95 == pytest.approx((math.exp(2 - half), math.exp(2 + half)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A GPT-2 of nine words with a window of six, with wide weights so that every token counts."""
    path = tmp_path_factory.mktemp("judge")
    words = ["<s>", "<unk>", "the", "food", "was", "good", "bad", "fish", "."]
    engine = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    engine.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=engine, bos_token="<s>", unk_token="<unk>").save_pretrained(path)
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=9, n_positions=6, n_embd=8, n_layer=1, n_head=2))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    model.save_pretrained(path)
    return path


def test_a_pretrained_judge_token_by_token(folder):
    judge, model = HuggingFaceJudge(str(folder)), GPT2LMHeadModel.from_pretrained(folder).eval()

    def slow(ids: list[int], first: int) -> float:
        nats = 0.0
        for place in range(first, len(ids)):
            with torch.no_grad():
                logits_V = model(input_ids=torch.tensor([ids[:place]])).logits[0, -1]
            nats -= float(logits_V.double().log_softmax(-1)[ids[place]])
        return nats

    assert judge.nll("the food ", "was good") == (pytest.approx(slow([0, 2, 3, 4, 5], 3), rel=1e-5), 2)
    assert judge.nll("", "bad fish") == (pytest.approx(slow([0, 6, 7], 1), rel=1e-5), 2)
    # beyond six positions the oldest go
    long = judge.nll("the food was good ", "the fish was bad")
    assert long == (pytest.approx(slow([4, 5, 2, 7, 4, 6], 2), rel=1e-5), 4)
    assert judge.nll("the food", "") == (0.0, 0)


def test_special_tokens_that_a_tokenizer_adds_are_no_text_and_places_in_the_text_are_needed(folder, monkeypatch):
    judge = HuggingFaceJudge(str(folder))
    expected = judge.nll("the food ", "was good")
    judge.tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A <s>", special_tokens=[("<s>", 0)]
    )
    assert judge.tokenizer("food")["input_ids"] == [0, 3, 0]
    assert judge.nll("the food ", "was good") == expected
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda *_, **__: SimpleNamespace(is_fast=False))
    with pytest.raises(UserError, match="its tokenizer gives no places in the text"):
        HuggingFaceJudge(str(folder))
    for texts, order in (([[]], 3), ([[1]], 0)):
        with pytest.raises(UserError):
            NgramJudge(texts, V, order=order)


def test_a_second_judge_is_tried_before_the_training_and_loaded_when_it_reads(folder, tmp_path, monkeypatch):
    loaded: list[str] = []
    monkeypatch.setattr(trial_parts, "HuggingFaceJudge", lambda path: loaded.append(path) or HuggingFaceJudge(path))
    softmax = Sampler(methods={"softmax": {"variant": "softmax"}}, temperature=1.0, top_p=0.9)
    lengths = {"texts": 1, "prompt_tokens": 2, "new_tokens": 3, "sampled": 1, "judge_order": 2}
    assert ReviewGeneration(sampler=softmax, **lengths).positions(None) == 4 and loaded == []
    missing = ReviewGeneration(sampler=softmax, judge_path=str(tmp_path), **lengths)
    with pytest.raises(UserError, match="no causal language model"):
        missing.positions(None)
    part = ReviewGeneration(sampler=softmax, judge_path=str(folder), **lengths)
    assert part.positions(None) == 4
    assert not any(isinstance(value, HuggingFaceJudge) for value in vars(part).values()), "nothing stays in memory"
    assert part.pretrained_judge is part.pretrained_judge and loaded == [str(tmp_path), str(folder), str(folder)]


@pytest.mark.parametrize("normalised", [True, False])
def test_a_prompt_and_what_follows_it_are_read_as_one_text(normalised):
    """Decoded alone, what follows a prompt has lost its space: the judge read "wasin"."""
    vocabulary = HuggingFaceTokenizer.of(llama_tokenizer(["it was in Paris" * 9], normalised))
    ids = vocabulary.encode("it was in Paris")
    halves = ReviewGeneration._halves(SimpleNamespace(vocabulary=vocabulary), ids, 2)
    assert "".join(halves) == "it was in Paris" and halves[1].startswith(" ")
    assert "".join(vocabulary.decode(part) for part in (ids[:2], ids[2:])) != "it was in Paris"
    fish = SimpleNamespace(vocabulary=SimpleNamespace(decode=lambda ids: "fish"[: len(ids)] if len(ids) < 3 else "bad"))
    assert ReviewGeneration._halves(fish, [0, 1, 2], 2) == ("fi", "f"), "a text that does not begin with the prompt"

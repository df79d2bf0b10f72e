"""lit_ctg.papers.graphmax.metrics against a slow restatement."""

from __future__ import annotations

import math
import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sacrebleu.metrics import BLEU
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from lit_ctg.data.huggingface_tokenizer import HuggingFaceTokenizer
from lit_ctg.errors import UserError
from lit_ctg.papers.graphmax import trial_parts
from lit_ctg.papers.graphmax.metrics import (
    HuggingFaceJudge,
    NgramBleu,
    NgramJudge,
    References,
    text_perplexity,
    words_of,
)
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


# --- lit_ctg.papers.graphmax.metrics against sacrebleu and against counts by hand -----------------------------------


def texts(seed: int, count: int, words: int = 12) -> list[list[str]]:
    rng = random.Random(seed)
    return [[rng.choice(["a", "b", "c", "d", "e"]) for _ in range(rng.randint(5, words))] for _ in range(count)]


@pytest.mark.parametrize("order", [2, 3, 4, 5])
def test_bleu_is_that_of_sacrebleu_with_every_text_a_reference(order):
    references, hypotheses = texts(0, 40), texts(1, 25, words=9)
    ours = NgramBleu(References(references))
    ours.update(hypotheses[:10])
    ours.update(hypotheses[10:])
    streams = [[" ".join(words)] * len(hypotheses) for words in references]
    theirs = BLEU(max_ngram_order=order, tokenize="none", smooth_method="none", force=True).corpus_score(
        [" ".join(words) for words in hypotheses], streams
    )
    assert ours.result()[f"bleu_{order}"].value == pytest.approx(theirs.score / 100, abs=1e-9)
    assert ours.result()[f"precision_{order}"].value == pytest.approx(theirs.precisions[order - 1] / 100, abs=1e-9)
    assert 0 < theirs.score < 100


def test_a_short_text_pays_the_brevity_penalty():
    metric = NgramBleu(References([words_of("the cat sat on the mat")]))
    metric.update([words_of("the cat sat on the")])
    assert metric.result()["precision_5"].value == 1.0
    assert metric.result()["bleu_5"].value == pytest.approx(math.exp(1 - 6 / 5))


def test_a_long_text_is_not_rewarded_and_the_shorter_of_two_lengths_counts_on_a_tie():
    metric = NgramBleu(References([words_of("the cat sat")]), orders=2)
    metric.update([words_of("the cat sat on the mat")])
    assert metric.result()["bleu_2"].value == pytest.approx(math.sqrt(3 / 6 * 2 / 5))
    tie = References([["a"] * 2, ["a"] * 4, ["a"] * 9])
    assert [tie.closest_length(length) for length in (1, 2, 3, 4, 6, 7, 20)] == [2, 2, 2, 4, 4, 9, 9]


def test_a_gram_counts_no_more_often_than_in_one_reference():
    # "the the": twice in no reference, though twice in the corpus
    metric = NgramBleu(References([words_of("the cat"), words_of("the dog")]), orders=2)
    metric.update([words_of("the the the")])
    assert metric.precisions().tolist() == pytest.approx([1 / 3, 0.0])
    assert metric.result()["bleu_2"].value == 0.0


def test_identical_texts_score_one_and_nothing_is_nan():
    reference = words_of("It's good: 5 stars, really.")
    assert reference == ["It", "'", "s", "good", ":", "5", "stars", ",", "really", "."]
    metric = NgramBleu(References([reference, ["x"]]))
    assert math.isnan(metric.result()["bleu_2"].value) and metric.result()["bleu_2"].n == 0
    metric.update([reference])
    assert all(result.value == pytest.approx(1.0) for result in metric.result().values())
    # a text that is too short for an order scores zero, and so does an empty one
    for words, second in ((["It", "'"], 1.0), ([], 0.0)):
        metric = NgramBleu(References([reference]))
        metric.update([words])
        result = metric.result()
        assert result["precision_2"].value == second and result["precision_3"].value == result["bleu_5"].value == 0.0

"""lit_ctg.papers.graphmax.metrics against sacrebleu and against counts by hand."""

from __future__ import annotations

import math
import random

import pytest
from sacrebleu.metrics import BLEU

from lit_ctg.papers.graphmax.metrics import NgramBleu, References, words_of


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

from __future__ import annotations

import math
from collections import Counter

import pytest

from lit_ctg.errors import UserError
from lit_ctg.metric.bleu import Bleu

TEXTS = ["the cat sat on the mat again today", "a dog ran across the old stone bridge", "we saw it all happen there"]
OTHERS = ["the cat sat on a mat again now", "a dog walked across the old bridge", "they saw it all happen here too"]


def slow_bleu(texts: list[str], references: list[str]) -> float:
    """BLEU-4 of Papineni et al. (2002), one reference a text, from the definition."""
    log, length, reference_length = 0.0, 0, 0
    for n in range(1, 5):
        hits = total = 0
        for text, reference in zip(texts, references, strict=True):
            words, wanted = text.split(), reference.split()
            mine = Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
            theirs = Counter(tuple(wanted[i : i + n]) for i in range(len(wanted) - n + 1))
            hits += sum(min(count, theirs[gram]) for gram, count in mine.items())
            total += sum(mine.values())
        log += math.log(hits / total) / 4
    for text, reference in zip(texts, references, strict=True):
        length, reference_length = length + len(text.split()), reference_length + len(reference.split())
    return 100 * min(1.0, math.exp(1 - reference_length / length)) * math.exp(log)


def test_aligned_references_give_the_definition_and_identical_texts_100():
    metric = Bleu(references="aligned")
    assert metric.score(TEXTS, TEXTS).value == pytest.approx(100)
    result = metric.score(TEXTS, OTHERS)
    assert result.value == pytest.approx(slow_bleu(TEXTS, OTHERS))
    assert 0 < result.value < 100 and result.n == 3
    low, high = result.ci95
    assert 0 <= low <= result.value <= high <= 100
    # one text cannot be resampled, two can
    assert metric.score(TEXTS[:1], OTHERS[:1]).ci95 is None and metric.score(TEXTS[:2], OTHERS[:2]).ci95 is not None


def test_the_interval_stays_on_the_scale() -> None:
    """Few good texts among bad ones, or the reverse, have symmetric intervals beyond an end of it."""
    metric, text = Bleu(references="aligned"), "so it is as good as it can be , one would say"
    other = "of another kind altogether , this is"
    assert metric.score([text] * 4, [text, text, text, other]).ci95[1] == 100.0
    assert metric.score([text] * 4, [text, other, other, other]).ci95[0] == 0.0


def test_flat_references_score_texts_against_letters():
    """Deviation 2: the authors' call."""
    metric = Bleu(references="flat", resamples=0)
    assert metric.score(TEXTS, TEXTS).value < 1


def test_flat_equals_sacrebleus_own_reading_of_letters():
    from sacrebleu.metrics import BLEU

    streams = [list(text) for text in OTHERS]
    expected = BLEU(force=True).corpus_score(TEXTS, streams).score
    assert Bleu(references="flat", resamples=0).score(TEXTS, OTHERS).value == pytest.approx(expected)


def test_flat_scores_as_many_texts_as_the_shortest_reference_has_letters():
    metric = Bleu(references="flat", resamples=0)
    assert metric.score(TEXTS, ["ab", *OTHERS[1:]]).n == 2
    assert metric.score(TEXTS, ["", *OTHERS[1:]]).n == 1, "an empty reference is a blank"


def test_bad_input():
    with pytest.raises(UserError, match="did you mean 'flat'"):
        Bleu(references="flatt")
    with pytest.raises(ValueError, match="2 texts for 3"):
        Bleu(references="aligned").score(TEXTS[:2], TEXTS)
    empty = Bleu(references="aligned").score([], [])
    assert math.isnan(empty.value) and empty.n == 0

"""Stickiness (Eq. 8) by hand."""

from __future__ import annotations

import math

import pytest

from lit_ctg.papers.idea_gate.stickiness import Stickiness


def make() -> Stickiness:
    return Stickiness(terms={"acid", "ion"}, function_words={"the", "of"})


def test_share_of_content_words() -> None:
    metric = make()
    metric.update([["the", "acid", "of", "rome"], ["ion", "acid"], ["the", "of"]])
    # 1 of 2, 2 of 2; a sample of function words has no share
    assert float(metric.compute()) == pytest.approx(0.75)
    assert metric.result().n == 2


def test_a_term_that_is_a_function_word_does_not_count() -> None:
    metric = Stickiness(terms={"the"}, function_words={"the"})
    metric.update([["the", "acid"]])
    assert float(metric.compute()) == 0.0


def test_nothing_measured_is_a_hole() -> None:
    assert math.isnan(make().result().value) and make().result().ci95 is None


def test_the_prompts_words_raise_the_score_of_a_text_that_left_the_domain() -> None:
    """The authors' score counts them (deviation 4)."""
    prompt, written = ["the", "acid", "ion"], ["rome", "fell"]
    honest, published = make(), make()
    honest.update([written])
    published.update([prompt + written])
    assert float(honest.compute()) == 0.0 and float(published.compute()) == 0.5

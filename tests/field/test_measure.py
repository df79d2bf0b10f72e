"""Measures against slow restatements, and the choice of a strength."""

from __future__ import annotations

from typing import Any

import pytest

from lit_ctg.field.measure import Overlap, choose, distinct, passes, repetition, summary, word_share


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


def row(text: str, number: int, hits: tuple[int, int], part: str = "choice", target: str = "a") -> dict[str, Any]:
    return {"text": text, "try": number, "part": part, "target": target, "tfidf": hits[0], "encoder": hits[1],
            "nats": 3.0, "bytes": 6, "repetition": repetition(text), "overlap": 0.5}  # fmt: skip


HUMAN = {"a": {"distinct_2": 0.8}}


def test_the_best_strength_whose_texts_are_varied_is_chosen() -> None:
    weak, strong, stuck = row("a b c d e", 0, (1, 0)), row("a b c d f", 1, (1, 1)), row("a b a b a b", 2, (1, 1))
    assert choose([weak, strong, stuck], HUMAN) == 1
    assert choose([weak, {**weak, "try": 1}], HUMAN) == 0, "of equal ones the weaker"
    assert choose([stuck, {**stuck, "try": 1}], HUMAN) == 0, "the first where none passes"
    assert passes([weak], HUMAN) and not passes([stuck], HUMAN)


def test_a_summary_is_of_the_report_by_class() -> None:
    rows = [row("a b c d e", 0, (0, 0)), *(row("a b c d e", 1, (1, hit), "report") for hit in (0, 1))]
    found = {name: result.value for name, result in summary(rows, HUMAN).items()}
    assert found["choice/success@0"] == 0 and found["chosen"] == 1
    assert (found["success/tfidf/a"], found["success/encoder/a"]) == (1, 0.5)
    assert found["nats_byte/a"] == pytest.approx(0.5) and found["overlap/a"] == 0.5 and found["distinct_2/a"] == 0.5
    assert "nats_byte/a" not in summary([{**each, "nats": None} for each in rows], HUMAN)

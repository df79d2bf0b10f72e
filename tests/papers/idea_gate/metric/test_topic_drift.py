"""Stickiness by distance."""

from __future__ import annotations

import math

import pytest

from lit_ctg.papers.idea_gate.topic_drift import TopicDrift, span_name


def make() -> TopicDrift:
    return TopicDrift(spans=[(1, 50), (51, 100)], terms={"acid"}, function_words={"the"})


def test_each_span_by_itself_and_the_fall_between_first_and_last() -> None:
    metric = make()
    metric.update([[["acid", "the"], ["acid", "x"]], [["x", "x"], []]])
    result = metric.result()
    assert result["1-50"].value == pytest.approx(0.75) and result["1-50"].n == 2
    # the second sample ended before the span
    assert result["51-100"].value == 0.0 and result["51-100"].n == 1
    assert result["fall"].value == 1.0 and result["fall"].n == 1
    assert result["fall"].direction == "lower"


def test_merges_and_resets() -> None:
    one, other = make(), make()
    one.update([[["acid"]], [["x"]]], 0)
    other.update([[["x"]], [["x"]]], 1)
    one.merge_state(other)
    assert one.result()["1-50"].value == 0.5
    assert one.compute().tolist() == [0.5, 0.0]
    one.reset()
    assert math.isnan(one.result()["1-50"].value)


def test_names() -> None:
    assert span_name((101, 200)) == "101-200"

from __future__ import annotations

import math
import statistics

import pytest

from lit_ctg.papers.control_code.variation import Variation
from lit_ctg.statistics import t_interval

# Table 4 (a), default model, first line
LINE = "i i and to to a the is a . it it and a to the is i i i and the the the the and to a the"
TABLE_4 = LINE.split()


def test_share_of_unique_tokens_averaged_over_generations():
    generations = [[1, 1, 1, 1], [1, 2, 3, 4], [5, 5, 6]]
    metric = Variation()
    metric.update(generations[:1])
    metric.update(generations[1:])
    shares = [1 / 4, 1.0, 2 / 3]
    result = metric.result()
    assert result.value == pytest.approx(statistics.fmean(shares))
    assert result.ci95 == pytest.approx(t_interval(shares)) and result.n == 3
    assert (result.unit, result.direction) == ("unique share", "higher")


def test_a_generation_printed_in_table_4():
    metric = Variation()
    metric.update([TABLE_4])
    assert metric.result().value == pytest.approx(len(set(TABLE_4)) / 29) and metric.result().ci95 is None


def test_merging_equals_one_pass_and_empty_generations_have_no_variation():
    one, other, whole = Variation(), Variation(), Variation()
    one.update([[1, 2], []])
    other.update([[3, 3, 3]])
    whole.update([[1, 2], [3, 3, 3]])
    one.merge_state(other)
    assert one.result() == whole.result()
    empty = Variation()
    empty.update([[]])
    assert math.isnan(empty.result().value) and empty.result().n == 0

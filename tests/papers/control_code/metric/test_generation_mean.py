from __future__ import annotations

import math
import statistics

import pytest

from lit_ctg.papers.control_code.generation_mean import GenerationMean
from lit_ctg.statistics import t_interval


class Length(GenerationMean):
    unit, direction = "letters", "none"

    def update(self, texts):
        self.add_values([len(text) for text in texts])


def test_mean_and_students_interval_over_all_batches():
    metric, texts = Length(), ["a", "bcd", "ef", "ghijk"]
    metric.update(texts[:1])
    metric.update(texts[1:])
    lengths = [float(len(text)) for text in texts]
    result = metric.result()
    assert result.value == pytest.approx(statistics.fmean(lengths)) == float(metric.compute())
    assert result.ci95 == pytest.approx(t_interval(lengths)) and (result.n, result.unit) == (4, "letters")


def test_nothing_measured_is_nan_and_one_value_has_no_interval():
    metric = Length()
    metric.update([])
    assert math.isnan(metric.result().value) and metric.result().n == 0
    metric.update(["abc"])
    assert metric.result().value == 3 and metric.result().ci95 is None

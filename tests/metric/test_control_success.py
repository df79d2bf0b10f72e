from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import binomtest

from lit_ctg.metric.control_success import ControlSuccess, against_base


def filled(hits, trials):
    metric = ControlSuccess()
    metric.update(torch.arange(trials) < hits)
    return metric


def test_rate_and_wilson_interval():
    metric = ControlSuccess()
    metric.update(torch.tensor([True] * 120 + [False] * 30))
    metric.update([True, False] * 25)
    result = metric.result()
    interval = binomtest(145, 200).proportion_ci(method="wilson")
    assert result.value == 145 / 200 == float(metric.compute()) and result.n == 200
    assert result.ci95 == pytest.approx((interval.low, interval.high), rel=1e-12)
    assert result.direction == "higher" and result.unit == "rate"


def test_two_hundred_of_two_hundred_is_not_certainty():
    low, high = filled(200, 200).result().ci95
    assert high == 1.0 and 0.98 < low < 0.99
    none = filled(0, 200).result()
    assert none.value == none.ci95[0] == 0.0 and 0.01 < none.ci95[1] < 0.02


def test_no_trial_is_nan():
    result = ControlSuccess().result()
    assert math.isnan(result.value) and result.n == 0 and result.ci95 is None
    empty = ControlSuccess()
    empty.update([])
    assert math.isnan(float(empty.compute()))


def test_a_probability_is_not_a_success():
    with pytest.raises(TypeError, match="must be boolean"):
        ControlSuccess().update(torch.tensor([0.9, 0.2]))


def test_against_base_reports_both_rates_and_their_difference():
    comparison = against_base(filled(56, 70), filled(48, 80))
    assert comparison.success.value == 0.8 and comparison.base.value == 0.6
    # Newcombe 1998, Table II, example (a), method 10
    assert comparison.difference.value == pytest.approx(0.2)
    assert comparison.difference.ci95 == pytest.approx((0.0524, 0.3339), abs=5e-5)
    assert comparison.difference.n == 70 and comparison.difference.unit == "rate difference"


def test_an_untrained_model_that_scores_the_same_shows_no_difference():
    low, high = against_base(filled(200, 200), filled(200, 200)).difference.ci95
    assert low < 0 < high


def test_no_base_trials_leave_a_hole():
    difference = against_base(filled(3, 4), ControlSuccess()).difference
    assert math.isnan(difference.value) and difference.ci95 is None and difference.n == 0

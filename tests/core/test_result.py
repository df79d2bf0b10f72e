from __future__ import annotations

import dataclasses
import json

import pytest

from lit_ctg.core.result import MetricResult


def test_to_dict_is_the_record_entry_and_survives_json():
    entry = MetricResult(2.5, "perplexity", "lower", 40, (2.0, 3.0), 1).to_dict()
    assert entry == {
        "value": 2.5, "unit": "perplexity", "direction": "lower", "n": 40, "ci95": [2.0, 3.0], "version": 1
    }  # fmt: skip
    assert json.loads(json.dumps(entry)) == entry


def test_a_missing_interval_stays_missing():
    assert MetricResult(1.0, "count", "none", 1, None, 1).to_dict()["ci95"] is None


def test_results_cannot_be_edited():
    with pytest.raises(dataclasses.FrozenInstanceError):
        MetricResult(1.0, "count", "none", 1, None, 1).value = 2.0

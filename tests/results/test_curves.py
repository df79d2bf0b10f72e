from __future__ import annotations

import math
import re

import pytest

from lit_ctg.results.plot import curve_metrics, training_curves
from lit_ctg.results.pool import RecordPool


def records(make_record, histories: dict[int, dict], name: str = "main") -> list:
    made = []
    for seed, history in histories.items():
        record = make_record(name, "corrected", seed)
        record.history = history
        made.append(record)
    return made


def test_one_measure_of_each_family(make_record) -> None:
    history = {
        "val/accuracy": [[1, 0.1], [2, 0.2]],
        "val/perplexity": [[1, 9.0], [2, 8.0]],
        "train/loss": [[1, 2.0], [2, 1.0]],
        "increment/unseen": [[0, 5.0], [1, 4.0]],
        "trial/bleu": [[1, 0.5]],
    }
    assert curve_metrics(records(make_record, {1: history})) == ["increment/unseen", "train/loss", "val/perplexity"]


def test_the_curve_is_the_mean_at_epochs_that_all_seeds_have(make_record) -> None:
    pool = RecordPool(
        records(
            make_record,
            {
                1: {"val/perplexity": [[1, 10.0], [2, 8.0], [3, 6.0]]},
                2: {"val/perplexity": [[1, 12.0], [2, 10.0]]},
                3: {"val/perplexity": [[1, 11.0], [2, 9.0]]},
            },
        ),
        "semantic_fusion",
        "paper",
    )
    (svg,) = training_curves(pool).values()
    assert re.findall("epoch ([0-9.]+): ([0-9.]+)", svg) == [("1", "11"), ("2", "9")]
    assert 'class="band corrected"' in svg and ">main<" in svg and "val/perplexity (log scale)" in svg


def test_runs_that_measured_once_have_no_curve(make_record) -> None:
    once = records(make_record, {1: {"val/perplexity": [[3, 10.0]]}})
    assert training_curves(RecordPool(once, "semantic_fusion", "paper")) == {}
    broken = records(make_record, {1: {"val/perplexity": [[1, math.nan], [2, 5.0]]}})
    (svg,) = training_curves(RecordPool(broken, "semantic_fusion", "paper")).values()
    assert "nan" not in svg and svg.count("<circle") == 1


@pytest.mark.parametrize("seeds", [1, 2])
def test_no_interval_below_three_seeds(make_record, seeds: int) -> None:
    history = {"val/perplexity": [[1, 10.0], [2, 8.0]]}
    pool = RecordPool(records(make_record, dict.fromkeys(range(seeds), history)), "semantic_fusion", "paper")
    (svg,) = training_curves(pool).values()
    assert "band" not in svg

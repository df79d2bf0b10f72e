"""`lit-ctg verify`: a record of two clauses, whose texts have several adjectives, and records of one's own words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lit_ctg.config import compose
from lit_ctg.papers.semantic_fusion.verify import recompute
from lit_ctg.results.record import load_record
from lit_ctg.results.verify import verify
from lit_ctg.run.train import train


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """A smoke run, which keeps every text."""
    root = tmp_path_factory.mktemp("runs")
    cfg = compose(["experiment=semantic_fusion/two_clause", "size=smoke", f"output_root={root}"])
    return load_record(train(cfg).folder / "run.json")


def changed(record, name, value):
    return replace(record, metrics=record.metrics | {name: record.metrics[name] | {"value": value}})


def test_the_texts_of_two_clauses_are_counted_as_the_trials_count_them(record) -> None:
    found = verify([record], recompute)
    assert found.differences == () and found.recomputed > 300
    # a text counts if all of its adjectives are of the class, not only the last
    texts = [s["text"] for s in record.samples if (s["path"], s["setting"]) == ("untrained/off", "positive")]
    assert any(len(text.split(",")) > 2 for text in texts)
    name = "untrained/control/off/positive/adjective"
    differs = verify([changed(record, name, record.metrics[name]["value"] + 1 / 8)], recompute).differences
    assert any(name in str(one) for one in differs)


def test_no_trials_and_other_words_have_nothing_to_recount(record) -> None:
    none = {name: entry | {"n": 0, "value": None, "ci95": None} for name, entry in record.metrics.items()
            if "control/" in name and entry["unit"] == "rate" and not name.endswith("_gain")}  # fmt: skip
    list(recompute(replace(record, metrics={k: v for k, v in record.metrics.items() if "_gain" not in k} | none)))
    config = record.config | {"data": dict(record.config["data"]) | {"words": {"subject": ["Ada"]}}}
    counted = [one.metric for one in recompute(replace(record, config=config)) if "texts" in one.how]
    assert not counted

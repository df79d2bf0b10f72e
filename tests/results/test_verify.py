"""`lit-ctg verify`: what records say twice is the same, and a changed number or text is found."""

from __future__ import annotations

import dataclasses
import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from lit_ctg.errors import UserError
from lit_ctg.results.record import RunRecord, load_records
from lit_ctg.results.spec import papers
from lit_ctg.results.verify import Recomputed, exactly, from_mean, main, recompute_of, verify

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"


@pytest.mark.parametrize("paper", papers(EXPERIMENTS))
def test_committed_records_hold(paper: str) -> None:
    records = load_records([EXPERIMENTS / paper / "results"])
    outcome = verify(records, recompute_of(paper))
    assert outcome.differences == ()
    assert outcome.recomputed > 0


def first(paper: str, name: str, regime: str = "corrected") -> RunRecord:
    folder = EXPERIMENTS / paper / "results" / name
    return load_records([min(folder.glob(f"{regime}-*.json"))])[0]


def changed(record: RunRecord, metric: str, **entry: object) -> RunRecord:
    return dataclasses.replace(record, metrics={**record.metrics, metric: {**record.metrics[metric], **entry}})


@pytest.mark.parametrize(
    ("paper", "name", "metric"),
    [
        ("semantic_fusion", "main", "control/channel/positive/adjective"),
        ("semantic_fusion", "main", "control/hard/negative/adjective_gain"),
        ("semantic_fusion", "main", "control/soft/confusion/positive/positive"),
        ("semantic_fusion", "main", "control/hard/positive/ood_hit"),
        ("semantic_fusion", "main", "val/perplexity"),
        ("idea_gate", "main", "topic/gated/all/long/stickiness"),
        ("idea_gate", "main", "topic/gate_gain/war/long/stickiness"),
        ("idea_gate", "main", "topic/gated/war/long/drift/fall"),
        ("idea_gate", "main", "val/gated/perplexity"),
        ("graphmax", "review", "nll/yelp/graphmax/1_change"),
        ("graphmax", "review", "bleu/amazon/softmax/bleu_2"),
        ("nslm", "numbers", "test/nslm/numbers"),
        ("nslm", "places", "share/train/all"),
        ("nslm", "increment_n100", "increment/uniform"),
        ("control_code", "transformer_scripts_l2_h128_neuron", "val/perplexity"),
        ("control_code", "transformer_scripts_l2_h128_neuron", "code_swap/nats"),
        ("control_code", "transformer_scripts_l2_h128_neuron", "trial/learned"),
    ],
)
def test_a_changed_number_is_found(paper: str, name: str, metric: str) -> None:
    record = first(paper, name)
    assert verify([record], recompute_of(paper)).differences == ()
    value = record.metrics[metric]["value"]
    found = verify([changed(record, metric, value=value + 0.01 * (abs(value) or 1.0))], recompute_of(paper))
    assert any(metric in line for line in found.differences)


def test_a_text_that_was_not_as_recorded_is_found() -> None:
    """All 200 are said to be as asked, so no text may be otherwise."""
    record = first("semantic_fusion", "main")
    at = next(i for i, s in enumerate(record.samples) if (s["path"], s["setting"]) == ("hard", "positive"))
    samples = [dict(sample) for sample in record.samples]
    samples[at]["text"] = "Alice cooks the meal, very bad?"
    found = verify([dataclasses.replace(record, samples=samples)], recompute_of("semantic_fusion"))
    assert any("control/hard/positive/adjective: recorded 1, recomputed" in line for line in found.differences)
    assert any("control/hard/positive/punctuation" in line for line in found.differences)


def test_the_held_out_words_of_a_published_run_are_drawn_from_its_seed() -> None:
    record, metric = first("semantic_fusion", "main", "as_published"), "control/hard/positive/ood_hit"
    assert record.config["data"]["held_out"] == "shuffled"
    found = verify([changed(record, metric, value=0.0)], recompute_of("semantic_fusion"))
    assert any(f"{metric}: recorded 0, recomputed" in line and "texts" in line for line in found.differences)
    other = dataclasses.replace(record, seed=record.seed + 1)
    found = verify([other], recompute_of("semantic_fusion"))
    assert any("ood_hit" in line and "texts" in line for line in found.differences), "another seed, other words"


def test_a_variation_that_the_texts_exclude_is_found() -> None:
    record = first("control_code", "transformer_scripts_l2_h128_neuron")
    found = verify([changed(record, "trial/greedy/variation", value=0.9999)], recompute_of("control_code"))
    assert any("trial/greedy/variation" in line and "texts" in line for line in found.differences)


def test_bounds_from_some_of_the_values() -> None:
    assert from_mean("m", [1.0, 0.0], 4, 0.0, 1.0) == Recomputed("m", 0.25, 0.75, "2 of 4 texts")
    assert from_mean("m", [1.0, 0.0], 2, 0.0, 1.0) == Recomputed("m", 0.5, 0.5, "2 of 2 texts")
    assert exactly("m", 1.0, "x").part == "value"


def test_command(tmp_path: Path) -> None:
    console = Console(file=StringIO(), width=200)
    assert main("idea_gate", console=console) == 0
    count = len(list((EXPERIMENTS / "idea_gate" / "results").rglob("*.json")))
    assert f"idea_gate: {count} records" in console.file.getvalue() and " 0 differ" in console.file.getvalue()  # type: ignore[attr-defined]
    path = min((EXPERIMENTS / "idea_gate" / "results" / "main").glob("corrected-*.json"))
    data = json.loads(path.read_text(encoding="utf-8"))
    data["metrics"]["val/gated/perplexity"]["value"] += 1
    (tmp_path / "run.json").write_text(json.dumps(data), encoding="utf-8")
    assert main("idea_gate", records=[tmp_path], console=console) == 1
    assert "val/gated/perplexity: recorded" in console.file.getvalue()  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="did you mean 'idea_gate'"):
        main("idea_gat", console=console)


def test_a_paper_without_code_is_verified_by_what_holds_of_any() -> None:
    assert recompute_of("no_such_paper") is None
    record = first("graphmax", "review")
    assert verify([record], None).recomputed == sum("folds" in entry for entry in record.metrics.values())

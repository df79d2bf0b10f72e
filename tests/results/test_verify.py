"""`lit-ctg verify`: what records say twice is the same, and a changed number or text is found."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import shutil
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lit_ctg.errors import UserError
from lit_ctg.results.record import DIGESTS, RECORDS, RunRecord, load_records
from lit_ctg.results.spec import papers
from lit_ctg.results.verify import (
    Recomputed,
    difference,
    digests_of,
    exactly,
    from_mean,
    history_end,
    main,
    pooled,
    rate_intervals,
    recompute_of,
    verify,
)
from lit_ctg.statistics import wilson_interval
from tests.committed import data_of, records_of

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"


@pytest.mark.parametrize("paper", papers(EXPERIMENTS))
def test_committed_records_hold(paper: str) -> None:
    records = load_records([EXPERIMENTS / paper / RECORDS])
    outcome = verify(records, recompute_of(paper))
    assert outcome.differences == ()
    assert outcome.recomputed > 0 or not records, "a new paper has none"


def first(paper: str, name: str, regime: str = "corrected") -> RunRecord:
    return records_of(paper, name, regime)[0]


def changed(record: RunRecord, metric: str, **entry: object) -> RunRecord:
    return dataclasses.replace(record, metrics={**record.metrics, metric: {**record.metrics[metric], **entry}})


@pytest.mark.parametrize(
    ("paper", "name", "metric"),
    [
        ("semantic_fusion", "main", "control/channel/positive/adjective"),
        ("semantic_fusion", "main", "control/hard/negative/adjective_gain"),
        ("semantic_fusion", "main", "control/soft/confusion/positive/positive"),
        ("semantic_fusion", "main", "control/hard/positive/ood_hit"),
        ("semantic_fusion", "doses", "control/channel/dose/str_high/fall"),
        ("semantic_fusion", "doses", "control/channel/dose/str_high/largest_step"),
        ("semantic_fusion", "main", "val/perplexity"),
        ("idea_gate", "main", "topic/gated/all/long/stickiness"),
        ("idea_gate", "main", "topic/gate_gain/war/long/stickiness"),
        ("idea_gate", "main", "topic/gated/war/long/drift/fall"),
        ("idea_gate", "main", "val/gated/perplexity"),
        ("graphmax", "review", "nll/yelp/graphmax/1_change"),
        ("graphmax", "review", "bleu/amazon/softmax/bleu_2"),
        ("nslm", "numbers", "test/nslm/numbers"),
        ("nslm", "places", "share/train/all"),
        ("nslm", "awd_lstm", "test/nslm/numbers"),
        ("nslm", "increment_n100", "increment/uniform"),
        ("control_code", "transformer_scripts_l2_h128_neuron", "val/perplexity"),
        ("control_code", "converged_scripts_l6_h128_neuron", "val/cross_entropy"),
        ("control_code", "converged_scripts_l6_h128_neuron", "best_epoch"),
        ("control_code", "converged_scripts_l6_h128_neuron", "test/perplexity"),
        ("control_code", "converged_scripts_l6_h128_neuron", "test/code_swap/nats"),
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


def first_number(node: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the first number of a configuration that counts in its hash, as (mapping, key)."""
    for key in sorted(node):
        if isinstance(node[key], dict) and key in ("trainer", "data", "model", "backbone"):
            return first_number(node[key])
        if isinstance(node[key], (int, float)) and not isinstance(node[key], bool):
            return node, key
    raise LookupError("no number")


def other_configuration(record: RunRecord) -> None:
    node, key = first_number(record.config)
    node[key] += 1


def narrow_interval(record: RunRecord) -> None:
    name, entry = next((name, entry) for name, entry in record.metrics.items() if entry["ci95"])
    middle = sum(entry["ci95"]) / 2
    record.metrics[name]["ci95"] = [(middle + 3 * end) / 4 for end in entry["ci95"]]


def other_texts(record: RunRecord) -> None:
    for sample in record.samples:
        sample["text"] = sample["text"][::-1]


TAMPERED = {
    "another configuration": other_configuration,
    "a narrower interval": narrow_interval,
    "a removed text": lambda record: record.samples.pop(),
    "no texts": lambda record: record.samples.clear(),
    "other texts": other_texts,
    "another end of a history": lambda record: next(iter(record.history.values()))[-1].__setitem__(1, 0.25),
}


def unnoticed(paper: str, records: list[RunRecord]) -> list[str]:
    digests = digests_of([EXPERIMENTS / paper / RECORDS])
    missed, tried = [], 0
    for original in records:
        for kind, tamper in TAMPERED.items():
            record = copy.deepcopy(original)
            try:
                tamper(record)
            except (LookupError, StopIteration):  # a record without texts, intervals or history
                continue
            if record == original:
                continue
            tried += 1
            if not verify([record], None, digests).differences:
                missed.append(f"{record.name}: {kind}")
    assert tried >= len(records)
    return missed


@pytest.mark.parametrize(
    ("paper", "name"),
    [
        ("control_code", "transformer_scripts_l2_h128_neuron"),
        ("graphmax", "review"),
        ("idea_gate", "main"),
        ("nslm", "increment_n100"),
        ("semantic_fusion", "two_clause"),
    ],
)
def test_a_tampered_record_is_noticed(paper: str, name: str) -> None:
    assert unnoticed(paper, [first(paper, name)]) == []


@pytest.mark.long
@pytest.mark.parametrize("paper", papers(EXPERIMENTS))
def test_no_tampered_record_passes(paper: str) -> None:
    records = load_records([EXPERIMENTS / paper / RECORDS])
    assert unnoticed(paper, records[:: max(1, len(records) // 10)]) == []


def test_what_changed_is_found_without_a_digest() -> None:
    """A run of the user's has none."""
    for paper, name in (("semantic_fusion", "two_clause"), ("graphmax", "review")):
        record = first(paper, name)
        other_configuration(record)
        assert any("config_hash" in line for line in verify([record], None).differences)
    record = first("graphmax", "review")
    for metric in ("nll/yelp/softmax", "nll/yelp/graphmax/1_change"):
        low, high = record.metrics[metric]["ci95"]
        found = verify([changed(record, metric, ci95=[low, (low + high) / 2])], recompute_of("graphmax"))
        assert [metric in line and "high end" in line for line in found.differences] == [True]


def test_a_lost_or_an_added_record_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(EXPERIMENTS / "graphmax", tmp_path / "experiments" / "graphmax")
    monkeypatch.chdir(tmp_path)
    console = Console(file=StringIO(), width=200)
    assert main("graphmax", console=console) == 0
    (tmp_path / "experiments/graphmax/records/bayesian_corrected_small.tar.xz").unlink()
    assert main("graphmax", console=console) == 1
    assert "bayesian/corrected-small-seed0: a committed record is missing" in console.file.getvalue()  # type: ignore[attr-defined]
    # and one that was put there
    digests = tmp_path / "experiments/graphmax/records" / DIGESTS
    digests.write_text("".join(line for line in digests.open() if not line.startswith("bayesian/")))
    shutil.copy(EXPERIMENTS / "graphmax/records/bayesian_corrected_small.tar.xz", digests.parent)
    assert main("graphmax", console=console) == 1
    assert "bayesian/corrected-small-seed0: no digest" in console.file.getvalue()  # type: ignore[attr-defined]


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


def made_up(metrics: dict[str, tuple[float, tuple[float, float] | None]]) -> RunRecord:
    entries = {name: {"value": value, "unit": "u", "direction": "lower", "n": 4, "ci95": interval, "version": 1}
               for name, (value, interval) in metrics.items()}  # fmt: skip
    return dataclasses.replace(first("graphmax", "review"), metrics=entries)


@pytest.mark.parametrize(
    ("found", "differs"),
    [
        (exactly("m", 2.0, ""), False),
        (exactly("m", 2.0 + 1.9e-6, ""), False),
        (exactly("m", 2.0 + 2.2e-6, ""), True),
        (exactly("m", 2.0 - 2.2e-6, ""), True),
        (exactly("tiny", 1e-9, ""), False),
        (exactly("tiny", 2.3e-9, ""), True),
        (Recomputed("m", 1.5, 2.0, ""), False),
        (Recomputed("m", 2.0, 2.5, ""), False),
        (Recomputed("m", 2.1, 2.5, ""), True),
        (Recomputed("m", 1.5, 1.9, ""), True),
        (exactly("m", 1.0, "", "low"), False),
        (exactly("m", 3.0, "", "high"), False),
        (exactly("m", 3.0, "", "low"), True),
        (exactly("tiny", 0.0, "", "low"), True),
        (exactly("none", 0.0, ""), True),
        (exactly("m", math.nan, ""), True),
        (exactly("nan", math.nan, ""), False),
        (exactly("nan", 0.0, ""), True),
        (exactly("inf", math.inf, ""), False),
        (exactly("inf", 1e300, ""), True),
        (exactly("m", math.inf, ""), True),
    ],
)
def test_a_number_is_the_same_to_rounding_and_within_its_bounds(found: Recomputed, differs: bool) -> None:
    record = made_up({"m": (2.0, (1.0, 3.0)), "tiny": (1.2e-9, None), "nan": (math.nan, None), "inf": (math.inf, None)})
    outcome = verify([record], lambda one: iter([found]))
    assert len(outcome.differences) == differs
    assert (outcome.recomputed, outcome.bounded) == ((0, 1) if found.low < found.high else (1, 0))
    assert outcome.records == 1 and outcome.left == (4 if found.metric == "none" else 3)


def test_a_whole_follows_from_its_parts() -> None:
    record = made_up({"whole": (0.0, None), "a": (1.0, None), "b": (math.e**4, None), "c": (5.0, None)})
    record.metrics["b"]["n"], record.metrics["c"]["n"] = 12, 0
    (mean,) = pooled(record, "whole", ["a", "b"])
    assert mean.low == mean.high == pytest.approx((4 * 1 + 12 * math.e**4) / 16)
    (log,) = pooled(record, "whole", ["a", "b"], log=True)
    assert log.low == pytest.approx(math.e**3)
    assert not [*pooled(record, "whole", ["a", "d"]), *pooled(record, "d", ["a"]), *pooled(record, "whole", [])]
    (gain,) = difference(record, "whole", "c", "a")
    assert gain.low == gain.high == 4.0 and not [*difference(record, "whole", "c", "d")]
    record.config["trainer"] = {"max_epochs": 3}
    record.history = {"a": [[1, 9.0], [3, 7.0]], "b": [[2, 9.0]], "d": [[3, 1.0]], "c": []}
    assert [(found.metric, found.low) for found in history_end(record)] == [("a", 7.0)], "the last epoch, where it ran"


def test_a_rate_counts_its_trials() -> None:
    record = made_up({"r": (0.5, (0.15, 0.85)), "x_gain": (0.5, (0.0, 1.0)), "none": (0.5, None), "m": (2.0, (1, 3))})
    for entry in record.metrics.values():
        entry["unit"] = "rate"
    found = list(rate_intervals(record))
    low, high = wilson_interval(2, 4)
    assert [(one.metric, one.part, one.low) for one in found] == [
        ("r", "value", 0.5), ("r", "low", low), ("r", "high", high),
    ]  # fmt: skip
    record.metrics["r"]["value"] = 0.3
    assert next(rate_intervals(record)).low == 0.25, "no rate of four trials is 0.3"


def test_only_finished_records_of_the_paper_are_read_and_ten_differences_told(tmp_path: Path) -> None:
    data = data_of(first("idea_gate", "main"))
    for name, entry in data["metrics"].items():
        if name.startswith("topic/") and entry["value"] is not None:
            entry["value"] += 0.5
    for name, changes in {"one": {}, "other": {"paper": "nslm"}, "failed": {"status": "FAILED"}}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(json.dumps(data | changes), encoding="utf-8")
    console = Console(file=StringIO(), width=200)
    assert main("idea_gate", records=[tmp_path], console=console) == 1
    first_line, *lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert first_line.startswith("idea_gate: 1 records, ") and len(lines) == 11
    assert lines[-1] == f"  and {int(first_line.split(' differ')[0].split()[-1].replace(',', '')) - 10} more"
    with pytest.raises(UserError, match="no records at nowhere"):
        main("idea_gate", records=["nowhere"], console=console)
    with pytest.raises(UserError, match="did you mean 'idea_gate'"):
        main("idea_gat", console=console)


def test_a_paper_without_code_is_verified_by_what_holds_of_any() -> None:
    assert recompute_of("no_such_paper") is None
    record = first("graphmax", "review")
    folds = sum("folds" in entry for entry in record.metrics.values())
    assert verify([record], None).recomputed == 3 * folds, "each mean with both ends of its interval"

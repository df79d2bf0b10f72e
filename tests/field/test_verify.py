"""The field's records: what is said of their texts is what the texts give, and a changed number or text is found."""

from __future__ import annotations

import dataclasses
import re
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from scipy.stats import kendalltau

from lit_ctg.errors import UserError
from lit_ctg.field.page import report
from lit_ctg.field.verify import recompute
from lit_ctg.results.record import RunRecord, load_records, write_record
from lit_ctg.results.verify import Outcome, folders_of, main, recompute_of, verify
from tests.committed import EXPERIMENTS, records_of

FIELD = EXPERIMENTS / "field"


def first(name: str) -> RunRecord:
    return records_of("field", name)[0]


def outcome(record: RunRecord, **changes: object) -> Outcome:
    return verify([dataclasses.replace(record, **changes)], recompute)


@pytest.mark.long
def test_committed_records_hold() -> None:
    assert recompute_of("field") is recompute
    found = verify(load_records(folders_of(EXPERIMENTS, "field")), recompute)
    assert found.differences == () and found.records == 432


@pytest.mark.long
@pytest.mark.parametrize("folder", ["", "held_out", "reviews", "truncated"])
def test_committed_tables_are_those_of_the_records(folder: str, tmp_path: Path) -> None:
    place = FIELD / folder
    report([str(place / "records")], str(tmp_path), console=Console(file=StringIO()))
    assert (tmp_path / "tables.md").read_text(encoding="utf-8") == (place / "tables.md").read_text(encoding="utf-8")


def test_the_held_out_task_is_as_close_to_the_ranking_as_the_pages_say() -> None:
    """Kendall's tau between mean ranks over the tasks and areas on the held-out one, from the committed tables."""

    def first_numbers(text: str) -> dict[str, float]:
        found = re.finditer(r"^\| (\w+) \| ([0-9.]+) \[", text, re.MULTILINE)
        return {row[1]: float(row[2]) for row in found}

    tables = (FIELD / "tables.md").read_text(encoding="utf-8")
    held_out = (FIELD / "held_out" / "tables.md").read_text(encoding="utf-8")
    rank = first_numbers(tables.split("## Over tasks")[1].split("\n## ")[0])
    area = first_numbers(held_out.split("| method at strength")[0])
    assert len(rank) == len(area) == 19
    tau = kendalltau([rank[name] for name in area], [-value for value in area.values()]).statistic
    page = (EXPERIMENTS.parent / "docs" / "field.md").read_text(encoding="utf-8")
    (said,) = re.findall(r"Kendall's tau between the areas there[^.]*? (\d\.\d\d)\b", page)
    assert said == f"{tau:.2f}"


@pytest.mark.parametrize("name", ["keywords-log_odds", "topic-memory"])
def test_all_but_costs_and_judges_by_class_is_recomputed(name: str) -> None:
    record = first(name)
    found = outcome(record)
    assert found.differences == ()
    left = {"cost/seconds_ratio", "cost/training_seconds", "cost/parameters"}
    left |= {metric for metric in record.metrics if metric.endswith("/balanced_accuracy")}
    assert found.left == len(left) and len(left) == 5


@pytest.mark.parametrize(
    "metric", ["success/exact@1", "perplexity@1", "distinct_2@1", "repetition@1", "overlap@1", "judge/exact/accuracy"]
)
def test_a_changed_number_is_found(metric: str) -> None:
    record = first("keywords-log_odds")
    value = record.metrics[metric]["value"]
    changed = {**record.metrics, metric: {**record.metrics[metric], "value": value - 0.01 * (abs(value) or 1.0)}}
    assert any(metric in line for line in outcome(record, metrics=changed).differences)


@pytest.mark.parametrize("text", ["", "the food the food the food the food"])
def test_a_changed_text_is_found_whatever_stands_beside_it(text: str) -> None:
    record = first("keywords-log_odds")
    at = next(i for i, row in enumerate(record.samples) if row["target"] == "food" and row["exact"] == int(not text))
    rows = [row if i != at else {**row, "text": text} for i, row in enumerate(record.samples)]
    told = " ".join(outcome(record, samples=rows).differences)
    assert "success/exact@" in told and "distinct_3@" in told


def test_the_command_names_the_field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=StringIO(), width=200)
    write_record(first("keywords-bare"), tmp_path / "run.json")
    assert main("field", records=[tmp_path / "run.json"], console=console) == 0
    assert "field: 1 records" in console.file.getvalue() and " 0 differ" in console.file.getvalue()  # type: ignore[attr-defined]
    folder = tmp_path / "experiments" / "graphmax"
    folder.mkdir(parents=True)
    (folder / "paper.yaml").write_text("title: a paper\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="no finished record of field"):
        main("field", console=console)
    with pytest.raises(UserError, match=r"no finished record of graphmax at .*: give another records="):
        main("graphmax", records=[folder], console=console)

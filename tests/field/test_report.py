"""The report from records whose numbers are counted by hand."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from lit_ctg.errors import UserError
from lit_ctg.field import methods
from lit_ctg.field.report import (
    TITLES,
    chart,
    cost,
    family,
    interval,
    main_table,
    new_seeds,
    p_value,
    reference_of,
    report,
    sweeps,
    task_page,
    title_of,
)
from lit_ctg.results.record import RunRecord, write_record
from lit_ctg.results.spec import experiments_root

# method -> (of eight texts of each class so many succeed, nats a byte); human texts have 0.6
METHODS = {"bare": (4, 0.5), "neutral": (4, 0.7), "instruction": (6, 0.8), "lora": (8, 0.3), "memory": (2, 0.5)}
PROMPTS = 8


def record(method: str, seed: int = 0, *, task: str = "pets", **config: Any) -> RunRecord:
    right, nats = METHODS[method]
    rows: list[dict[str, Any]] = [
        {"text": f" {method} {place} b", "prompt": f"p{place}", "place": place, "copy": 0, "target": target,
         "part": "report", "try": 0, "strength": 1.0, "tfidf": int(place < right), "encoder": int(place < right),
         "nats": nats * 10, "bytes": 10, "repetition": 0.0, "overlap": 0.25}
        for place in range(PROMPTS) for target in "ab"
    ]  # fmt: skip
    values: dict[str, float] = {"chosen": 0, "passes": 1, "cost/seconds_ratio": 1.5, "cost/training_seconds": 30,
                                "side/nats": 0.1, "side/changed": 0.2}  # fmt: skip
    for judge in ("tfidf", "encoder"):
        values |= {f"judge/{judge}/accuracy": 0.9, f"judge/{judge}/accuracy_30": 0.8}
        for label in "ab":
            values |= {f"human/{judge}/{label}": 0.85, f"success/{judge}/{label}": right / PROMPTS}
    for label in "ab":
        values |= {f"human/distinct_2/{label}": 0.9, f"distinct_2/{label}": 0.7, f"repetition/{label}": 0.0,
                   f"overlap/{label}": 0.25, f"nats_byte/{label}": nats, f"human/nats_byte/{label}": 0.6}  # fmt: skip
    config = {
        "decode": {"prompts": PROMPTS, "samples": 1, "words": 60}, "data": {"source": "sample"}, "model": "smollm2",
        "judges": {}, "train": {}, "task": {"name": task}, "method": method, "seed": seed, **config,
    }  # fmt: skip
    entry = {"unit": "", "direction": "none", "n": 10, "version": 1, "ci95": None}
    return RunRecord(paper="field", name=f"{task}-{method}", experiment=f"field/{task}-{method}", regime="corrected",
                     size="small", seed=seed, config=config, config_hash="0" * 64, git={}, versions={},
                     started_at="2026-01-01T00:00:00+00:00", status="DONE",
                     metrics={name: {**entry, "value": float(value)} for name, value in values.items()},
                     samples=rows)  # fmt: skip


@pytest.fixture(scope="module")
def records() -> list[RunRecord]:
    return [record(method) for method in METHODS]


def test_the_table_is_in_the_order_of_success_with_gain_and_cost(records: list[RunRecord]) -> None:
    found = sweeps(records)
    lines = main_table(found)[2:]
    order = ["lora", "instruction", "bare", "neutral", "memory"]
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines] == order
    assert lines[0].startswith("| lora | 1.00 [1.00, 1.00] | +0.50 [")
    assert "| 0.250 | +0.10 | 0.20 | 1.50 | 30 s |" in lines[0]
    # of its own format: 0.3 from human texts against 0.1 of the raw text, 0.2 against 0.1 of the instruction
    assert cost(found["lora"], found["bare"]) == pytest.approx(0.2)
    assert cost(found["instruction"], found["neutral"]) == pytest.approx(0.1)
    for method, name in (("instruction", "neutral"), ("instruction+lora", "neutral"), ("lora", "bare")):
        assert reference_of(method, found) is found[name]
    assert "| lora | a |" in task_page("pets", found)


def test_each_method_is_compared_with_the_instruction_by_prompt(records: list[RunRecord]) -> None:
    found = sweeps(records)
    lines = family(found)[2:]
    assert [line.split(" | ")[0] for line in lines] == ["| lora", "| memory"]
    assert "+0.25" in lines[0] and "-0.50" in lines[1]
    assert "not run" in family({"lora": found["lora"]})[0]


def test_the_p_value_is_that_of_all_signs() -> None:
    difference_P = np.array([0.5, 0.25, 0.0, 1.0, -0.25, 0.5])
    signs = np.array(np.meshgrid(*[[-1, 1]] * 6)).reshape(6, -1).T
    exact = np.mean(np.abs((signs * difference_P).mean(1)) >= difference_P.mean() - 1e-12)
    assert p_value(difference_P) == pytest.approx(exact, abs=0.01)
    assert p_value(np.zeros(5)) == 1.0
    low, high = interval(difference_P)
    assert low < difference_P.mean() < high and interval(np.ones(4)) == (1.0, 1.0)


def test_new_seeds_are_compared_by_themselves() -> None:
    found = sweeps([record(method, seed) for method in METHODS for seed in (1, 2)])
    text = new_seeds(found, ["lora", "absent"])
    assert "on seeds 1, 2" in text and "memory" not in text and "| lora |" in text


def test_records_that_cannot_be_compared_are_named(records: list[RunRecord]) -> None:
    with pytest.raises(UserError, match="two runs of seed 0"):
        sweeps([*records, record("lora")])
    with pytest.raises(UserError, match="another model, data or setting"):
        sweeps([*records, record("lora", 1, model="other")])
    short = record("lora", 1)
    short.samples.pop()
    with pytest.raises(UserError, match="texts are missing"):
        sweeps([record("lora"), short])


def test_a_report_is_printed_or_written_with_its_chart(records: list[RunRecord], tmp_path: Path) -> None:
    for each in [*records, record("lora", 1), record("bare", task="toys"), record("lora", task="toys")]:
        write_record(each, tmp_path / "runs" / f"{each.name}-{each.seed}" / "run.json")
    out = StringIO()
    assert report([str(tmp_path / "runs")], console=Console(file=out, width=10_000)) == 0
    assert "## pets" in out.getvalue() and "## toys" in out.getvalue() and "on seeds 1" in out.getvalue()
    assert report([str(tmp_path / "runs")], str(tmp_path / "page"), console=Console(file=StringIO())) == 0
    assert (tmp_path / "page" / "tables.md").is_file() and (tmp_path / "page/figures/headline.svg").is_file()
    with pytest.raises(UserError, match="no record of the field of size=paper"):
        report([str(tmp_path / "runs")], size="paper")
    with pytest.raises(UserError, match="no records at"):
        report([str(tmp_path / "nowhere")])


def test_the_chart_has_the_bars_of_each_task() -> None:
    tasks = {task: sweeps([record("lora", task=task), record("bare", task=task)]) for task in ("pets", "toys")}
    drawn = chart(tasks).render().decode()
    assert len(chart(tasks).charts) == 2 and drawn.count(">LoRA") == drawn.count(">Model alone") == 2


def test_every_method_has_a_title() -> None:
    assert [*TITLES] == [*methods.METHODS] and title_of("instruction+lora") == "Instruction + LoRA"


def test_the_committed_page_and_chart_are_those_of_the_records(tmp_path: Path) -> None:
    folder = experiments_root() / "field"
    report([str(folder / "records")], str(tmp_path), console=Console(file=StringIO()))
    for path in ("tables.md", "figures/headline.svg"):
        assert (tmp_path / path).read_bytes() == (folder / path).read_bytes(), "make tables brings it up to date"

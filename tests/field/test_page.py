"""The report's lines and pictures, from records whose numbers are counted by hand."""

from __future__ import annotations

import copy
import math
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lit_ctg.errors import UserError
from lit_ctg.field import page
from lit_ctg.field.page import (
    cost_table,
    held_out_table,
    judge_seed_lines,
    report,
    task_page,
    tasks_page,
)
from lit_ctg.field.rank import HELD_OUT, Ranking, Sweep, above_bare, bench_key, ranking, sweeps
from lit_ctg.results.record import RunRecord

JUDGES = ("bag", "neural")
# method -> strength -> (texts of four that succeed, nats a token above the bare model's 4)
SWEPT = {
    "bare": {1.0: (1, 0.0)},
    "good": {1.0: (2, 0.2), 2.0: (4, 0.4), 4.0: (4, 1.0)},
    "idle": {0.5: (0, 0.1), 1.0: (1, 0.3)},
}


def record(
    method: str, seed: int = 0, *, size: str = "small", task: str = "pets", perplexity: float = 10.0
) -> RunRecord:
    rows: list[dict[str, Any]] = []
    for strength, (right, above) in SWEPT[method].items():
        for number in range(4):
            place, target = divmod(number, 2)
            hit = int(number < right)
            rows.append({"text": f" {method} {strength:g} {number}", "prompt": f"p{place}", "place": place, "copy": 0,
                         "target": "ab"[target], "strength": strength, "bag": hit, "neural": hit, "tokens": 2,
                         "nats": 2 * (4 + above)})  # fmt: skip
    if method == "bare":
        rows += [{"text": "human", "prompt": "p0", "place": 0, "copy": 0, "target": "a", "strength": 0.0,
                  "kind": "human", "bag": hit, "neural": 1, "tokens": tokens, "nats": 6.0, "repetition": 0.1 * tokens,
                  "overlap": 0.25, "attribute_words": 0.5} for hit, tokens in ((1, 1), (0, 3))]  # fmt: skip
    metrics: dict[str, Any] = {}
    for judge in JUDGES:
        metrics[f"judge/{judge}/accuracy"] = {"value": 0.9, "n": 50}
        metrics[f"judge/{judge}/balanced_accuracy"] = {"value": 0.85}
    for place, (strength, (right, _)) in enumerate(SWEPT[method].items(), start=1):
        own = {"success/bag": right / 4, "success/neural": right / 4, "perplexity": perplexity * place,
               "distinct_2": 0.1 * place, "repetition": 0.2, "overlap": 0.3, "attribute_words": 0.4}  # fmt: skip
        metrics |= {f"{name}@{strength:g}": {"value": value} for name, value in own.items()}
    metrics |= {f"cost/{name}": {"value": value + 2 * seed} for name, value in
                (("seconds_ratio", 1.5), ("parameters", 1200), ("training_seconds", 30))}  # fmt: skip
    config = {
        "decode": {"prompts": 2, "samples": 1, "new_tokens": 6}, "data": {"source": "sample"}, "model": None,
        "base": {"layers": 1, "dim": 8, "vocabulary": 99, "steps": 7}, "judges": {"least_accuracy": 0.7},
        "task": {"name": task, "column": "source"}, "method": {"strengths": list(SWEPT[method])}, "seed": seed,
    }  # fmt: skip
    return RunRecord(paper="field", name=f"{task}-{method}", experiment="", regime="corrected", size=size, seed=seed,
                     config=config, config_hash="", git={}, versions={}, started_at="", status="DONE", metrics=metrics,
                     samples=rows)  # fmt: skip


@pytest.fixture(scope="module")
def records() -> list[RunRecord]:
    return [record(method, seed, perplexity=10.0 + 10 * seed) for method in SWEPT for seed in (0, 1)]


@pytest.fixture(scope="module")
def found(records: list[RunRecord]) -> dict[str, Sweep]:
    return sweeps(records, JUDGES)


@pytest.fixture(scope="module")
def ranked(found: dict[str, Sweep]) -> Ranking:
    return ranking(found, resamples=100)


def test_the_ranking_has_one_row_a_method_with_its_best_affordable_strength(records: list[RunRecord]) -> None:
    text, pictures = task_page("pets", records)
    lines = text.splitlines()
    # 0.2 nats at the bare model's quarter, 0.2 at a half, 0.1 at all
    (good,) = [line for line in lines if line.startswith("| good |") and " [" in line]
    assert good.startswith("| good | 0.500 [") and "| 1 [1, 1] | 2 | 1.000 | +0.400 |" in good
    assert [line.split("|")[1].strip() for line in lines if " [" in line and line.startswith("|")] == [
        "good", "bare", "idle",
    ]  # fmt: skip
    assert all(
        "| bare | 0.250 | 0.000 |" in line
        for line in lines
        if line.startswith(("| idle |", "| bare |")) and "[" in line
    )
    assert "bootstrap over 2 prompts, their texts and 2 seeds]." in text
    assert "training seeds 0, 1." in text and "were not run" not in text
    assert "Judge bag: balanced accuracy 0.850 on 50 held-out human texts, decides." in lines
    assert set(pictures) == {"pets.svg", "pets_curves.svg"}
    one = task_page("pets", [each for each in records if each.seed == 0])[0]
    assert "bootstrap over 2 prompts, their texts]." in one and "training seeds 0." in one


def test_runs_that_are_no_seeds_of_one_method_are_not_averaged(records: list[RunRecord]) -> None:
    with pytest.raises(UserError, match=r"good: two runs of seed 1, .* give records= with one of them"):
        sweeps([*records, record("good", 1)], JUDGES)
    other = record("good", 2)
    other.config["method"] = {**other.config["method"], "rank": 4}
    with pytest.raises(UserError, match="good: seeds 1 and 2 were run with other settings of the method"):
        sweeps([*records, other], JUDGES)


def test_a_longer_sweep_stands_for_a_shorter_one(records: list[RunRecord]) -> None:
    shorter = [record("good", seed) for seed in (0, 1)]
    for each in shorter:
        each.config["method"] = {"strengths": [1.0, 2.0]}
        each.samples = [row for row in each.samples if row["strength"] < 4]
    for both in ([*shorter, *records], [*records, *shorter]):
        (text, drawn), (other, again) = task_page("pets", both), task_page("pets", records)
        assert text == other
        assert [sheet.render() for sheet in drawn.values()] == [sheet.render() for sheet in again.values()]
        assert sweeps(both, JUDGES)["good"].records == tuple(each for each in records if each.name == "pets-good")
    undecided = [copy.deepcopy(each) for each in [*shorter, *records]]
    for each in undecided:
        each.metrics |= {f"judge/{judge}/balanced_accuracy": {"value": 0.5} for judge in JUDGES}
    lines = task_page("pets", undecided)[0].splitlines()
    assert len([line for line in lines if line.startswith("| good 1, seed")]) == 2
    # other texts, other models or other settings: no shorter sweep of the same
    shorter[0].corpus = {"weights": "others"}
    with pytest.raises(UserError, match="good: two runs of seed 0"):
        sweeps([*records, *shorter], JUDGES)
    shorter[0].corpus = {}
    shorter[0].config["method"]["rank"] = 4
    with pytest.raises(UserError, match="good: two runs of seed 0"):
        sweeps([*records, *shorter], JUDGES)


def test_the_other_measures_are_means_over_seeds_at_that_strength(ranked: Ranking, found: dict[str, Sweep]) -> None:
    lines = {line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:-1]]
             for line in cost_table(ranked, found)}  # fmt: skip
    # perplexities 20 and 40 of the second strength; costs 1.5 and 3.5, 1200 and 1202, 30 and 32
    assert lines["good 2"] == ["1.000", "1.000", "30.0", "0.200", "0.200", "0.300", "0.400", "2.50", "1,201", "31"]
    assert lines["idle 0.5"][:4] == ["0.000", "0.000", "15.0", "0.100"], "one that gains nothing, at its lowest"
    # two human texts of 1 and 3 tokens, 6 nats each, with either seed
    assert lines["human text"] == ["0.500", "1.000", f"{math.exp(3):.1f}", "", "0.200", "0.250", "0.500", "", "", ""]


def test_how_the_ranking_holds_under_other_judges(records: list[RunRecord], ranked: Ranking) -> None:
    told = {"task": "pets", "bench": bench_key(records[0]), "seed": 3, "balanced_accuracy": {"bag": 0.9},
            "areas": {"good": 0.2, "bare": 0.7, "other": 0.5}}  # fmt: skip
    elsewhere = [{**told, "task": "cars"}, {**told, "bench": "of others"}]
    lines = judge_seed_lines("pets", records, ranked, [told, *elsewhere, {**told, "areas": {}}])
    assert lines == [
        "Judges of seed 3 (bag 0.900) on the same texts: bare 0.700, good 0.200; Kendall's tau with the table -1.00.",
        "Judges of seed 3 (bag 0.900): none decides.",
        "",
    ]
    assert judge_seed_lines("pets", records, ranked, elsewhere) == []


def test_tasks_are_joined_by_mean_ranks(found: dict[str, Sweep]) -> None:
    assert tasks_page({"one": found}) == ("", {})
    text, pictures = tasks_page({"one": found, "two": {name: found[name] for name in ("bare", "good")}})
    rows = [line for line in text.splitlines() if line.startswith(("| good", "| bare", "| idle"))]
    assert "among the 2 methods that every task has" in text and "| method | mean rank | one | two |" in text
    assert rows[:2] == ["| good | 1.00 [1.00, 1.00] | 1 | 1 |", "| bare | 2.00 [2.00, 2.00] | 2 | 2 |"]
    assert rows[2:] == ["| good | 1.00 | 1.00 | 1.00 | 1.00 |", "| bare | 2.00 | 2.00 | 2.00 | 2.00 |"]
    assert "within 0.25 nats 1.00, within 1 nat 1.00, mixtures of strengths 1.00." in text
    assert set(pictures) == {"over_tasks.svg"}


def test_the_report_is_of_the_largest_size_and_of_finished_runs_of_the_field(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    small = [record(method, task=task) for method in ("bare", "good") for task in ("pets", "cars")]
    smoke = [record(method, size="smoke") for method in ("bare", "idle")]
    failed, other = record("good", 1), record("good", 1)
    failed.status, other.paper = "FAILED", "nslm"
    monkeypatch.setattr(page, "load_records", lambda places: [*smoke, failed, other, *small])

    def told(**given: str) -> str:
        console = Console(file=StringIO(), width=10_000)
        assert report([str(tmp_path)], console=console, **given) == 0
        return console.file.getvalue()  # type: ignore[attr-defined]

    text = told()
    assert "Size small" in text and "Size smoke" not in text and "seeds 0." in text and "seeds 0, 1" not in text
    assert [line for line in text.splitlines() if line.startswith("## ")] == ["## Over tasks", "## cars", "## pets"]
    text = told(size="smoke")
    assert "Size smoke" in text and "| idle |" in text and "Over tasks" not in text
    with pytest.raises(UserError, match="no record of the field of size=paper"):
        told(size="paper")
    told(out=str(tmp_path / "out"))
    pictures = {path.name for path in (tmp_path / "out" / "figures").iterdir()}
    assert pictures == {
        "over_tasks.svg",
        *(f"{task}{kind}.svg" for task in ("cars", "pets") for kind in ("", "_curves")),
    }
    # a task whose judges decide nothing is none of those that are joined
    for each in small:
        if each.name.startswith("cars"):
            for judge in JUDGES:
                each.metrics[f"judge/{judge}/balanced_accuracy"]["value"] = 0.69
    assert "Over tasks" not in told()


def held_out_words() -> list[RunRecord]:
    """Records of which every text under "good" at strength 4 has a held-out word, and the bare model's first text."""
    found = [record("bare"), record("good")]
    for own in found:
        for number, row in enumerate(own.samples):
            if row.get("kind") != "human":
                row[HELD_OUT] = int(row["strength"] == 4.0 or (own is found[0] and number == 0))
    found[0].metrics[f"{HELD_OUT}@1"] = {"value": 0.25}
    return found


def test_what_stands_above_the_bare_model_is_counted_at_every_strength() -> None:
    found = sweeps(held_out_words(), list(JUDGES))
    successes = above_bare(found, "good")
    assert [value for value, _ in successes] == [0.25, 0.75, 0.75], "2, 4, 4 of four texts, the bare model's 1"
    assert all(low <= value <= high for value, (low, high) in successes)
    # prompt 0 holds the bare model's only success and prompt 1 none, so a resampling has 0, 1 or 2 of four
    assert successes[1][1] == (0.5, 1.0)
    assert above_bare(found, "bare") == [(0.0, (0.0, 0.0))]


def test_held_out_words_have_a_table_where_they_were_counted() -> None:
    records = held_out_words()
    found, words = sweeps(records, list(JUDGES)), sweeps(records, [HELD_OUT])
    lines = held_out_table(ranking(found, resamples=20), found, words)
    assert lines[0].endswith("the bare model's share is 0.250.")
    assert lines[-1] == f"| good 4 | +0.750 [+0.500, +1.000] | {math.exp(1.0):.3f} | +0.750 [+0.500, +1.000] |"
    assert lines[-3].startswith("| good 1 | +0.250 [") and lines[-3].split(" | ")[3].startswith("-0.250 [")
    assert "\n".join(lines) in task_page("pets", records)[0]
    assert "held-out words" not in task_page("pets", [record("bare"), record("good")])[0]

"""Where results go: the README, Every Eval Ever (whose schema they keep) and W&B (built without network)."""

from __future__ import annotations

import json
import math
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from lit_ctg.errors import UserError
from lit_ctg.results.gather import results_for
from lit_ctg.results.publish import (
    BEGIN,
    END,
    LOGGED_TABLES,
    evaluation,
    fill_readme,
    filled,
    metric_panels,
    readme_section,
    serialised,
    table_command,
    wandb_report,
    workspace,
    write_evaluations,
)
from lit_ctg.results.report import main as report
from lit_ctg.results.spec import MANIFEST, experiments_root, load_manifest, papers

ROOT = Path(__file__).resolve().parents[2]
EXPERIMENTS = ROOT / "experiments"


def test_the_readme_says_what_the_records_say() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert filled(text, EXPERIMENTS) == text, "make tables brings it up to date"


@pytest.mark.parametrize("paper", papers(EXPERIMENTS))
def test_headlines_name_rows_that_are_there(paper: str) -> None:
    headline, results = load_manifest(EXPERIMENTS, paper).headline, results_for(paper, EXPERIMENTS, [])
    for wanted in headline.rows if headline is not None else ():
        assert results.named(wanted) is not None


def test_a_paper_without_records_or_row_is_not_mentioned(bare_root: Path) -> None:
    assert len(readme_section(bare_root).splitlines()) == 2, "more than the head of the table"
    (bare_root / "semantic_fusion" / "records").mkdir()
    (bare_root / "semantic_fusion" / "records" / "main.tar.xz").touch()
    assert "docs/papers/semantic_fusion.md" in readme_section(bare_root).splitlines()[2]
    (bare_root / "semantic_fusion" / MANIFEST).write_text("title: mine\n")
    assert len(readme_section(bare_root).splitlines()) == 2


def test_only_what_stands_between_the_marks_changes(bare_root: Path, tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", encoding="utf-8")
    assert fill_readme(readme, bare_root) == 0
    text = readme.read_text(encoding="utf-8")
    assert text.startswith(f"before\n{BEGIN}\n") and text.endswith(f"{END}\nafter\n")
    assert "| paper | what it does |" in text and "old" not in text
    for marks in ([END, BEGIN], [BEGIN], [END], [BEGIN, END, END], [END, BEGIN, END], [BEGIN, END, BEGIN]):
        readme.write_text(damaged := "\n".join(marks), encoding="utf-8")
        with pytest.raises(UserError, match="once each and in this order"):
            fill_readme(readme, bare_root)
        assert readme.read_text() == damaged
    with pytest.raises(UserError, match=r"none\.md"):
        fill_readme(tmp_path / "none.md", bare_root)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"titel": "x"}, "unknown key 'titel'"),
        ({"rows": [{"table": "table_1"}]}, "'section' is missing"),
        ({"rows": [{"table": "tabel_1", "section": "", "label": "", "says": ""}]}, "table=tabel_1.*mean 'table_1'"),
        (
            {"rows": [{"table": "table_1", "section": "Authors' mask", "label": "Baseline, PLP", "says": ""}]},
            "row=.*Baseline, PLP.*Baseline, PPL",
        ),
    ],
)
def test_a_damaged_headline_is_one_line(change: dict, expected: str, bare_root: Path) -> None:
    path = bare_root / "semantic_fusion" / MANIFEST
    manifest = yaml.safe_load(path.read_text(encoding="utf-8"))
    manifest["headline"] |= change
    path.write_text(yaml.safe_dump(manifest), encoding="utf-8")
    with pytest.raises(UserError, match=expected):
        for wanted in load_manifest(bare_root, "semantic_fusion").headline.rows:
            results_for("semantic_fusion", bare_root, []).named(wanted)


PAPER = "semantic_fusion"


def test_a_record_cannot_say_where_its_evaluation_goes(make_record, tmp_path: Path) -> None:
    record = make_record("../../main", "corrected", 7)
    with pytest.raises(UserError, match=r"its name is '\.\./\.\./main', not a plain name"):
        write_evaluations([record], tmp_path / "deep" / "eee")
    assert not list(tmp_path.rglob("*.json"))


# required keys of eval.schema.json 0.3.0, by where they stand
REQUIRED = {
    (): ("schema_version", "evaluation_id", "retrieved_timestamp", "source_metadata", "model_info", "eval_library"),
    ("source_metadata",): ("source_type", "source_organization_name", "evaluator_relationship"),
    ("eval_library",): ("name", "version"),
    ("model_info",): ("name", "id", "additional_details"),
}


def strings(details: dict[str, Any]) -> bool:
    return all(isinstance(value, str) for value in details.values())


def test_a_run_is_a_document_of_the_schema(make_record) -> None:
    record = make_record("main", "corrected", 111)
    record.metrics["val/perplexity"]["ci95"] = [4.5, 5.0]
    record.metrics["nothing"] = {**record.metrics["val/perplexity"], "value": math.nan}
    found = evaluation(record)
    for place, keys in REQUIRED.items():
        node = found
        for key in place:
            node = node[key]
        assert set(keys) <= set(node), place
    assert strings(found["model_info"]["additional_details"]) and strings(
        found["source_metadata"]["additional_details"]
    )
    assert {"deployment_type", "model_availability"} <= set(found["model_info"]["additional_details"])
    results = {result["evaluation_name"]: result for result in found["evaluation_results"]}
    with_direction = {name for name, entry in record.metrics.items() if entry["direction"] != "none"}
    assert set(results) == with_direction - {"nothing"}
    perplexity = results["val/perplexity"]
    assert perplexity["score_details"]["score"] == record.metrics["val/perplexity"]["value"]
    interval = perplexity["score_details"]["uncertainty"]["confidence_interval"]
    assert interval == {"lower": 4.5, "upper": 5.0, "confidence_level": 0.95}
    config = perplexity["metric_config"]
    assert (config["lower_is_better"], config["min_score"], config["max_score"]) == (True, 1.0, "Infinity")
    assert config["metric_unit"] == "perplexity" and perplexity["source_data"]["source_type"] == "other"
    assert perplexity["score_details"]["uncertainty"]["num_samples"] == record.metrics["val/perplexity"]["n"]
    assert list(results) == sorted(results)
    assert (found["retrieved_timestamp"], found["evaluation_timestamp"]) == ("1767323091", "2026-01-02T03:04:51+00:00")
    assert not results["control/hard/positive/adjective"]["metric_config"]["lower_is_better"]
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert evaluation(record) == found, "the same record gives the same document"


def test_a_document_names_its_text_and_bounds_and_no_folder_of_ones_own(make_record) -> None:
    record = make_record("main", "corrected", 111)
    record.config |= {"data": {"source": "local", "root": "/home/me/mine"}, "model": {"scene": {"source": "sample"}}}
    entry = record.metrics["val/perplexity"]
    record.metrics = {"gain": {**entry, "unit": "nats", "direction": "higher", "n": 0, "ci95": [-math.inf, 1.0]}}
    found = evaluation(record)
    (result,) = found["evaluation_results"]
    assert result["source_data"]["dataset_name"] == "made-up sample text, mine" and "/home/me" not in json.dumps(found)
    assert "uncertainty" not in result["score_details"], "neither a count nor finite ends"
    config = result["metric_config"]
    assert (config["min_score"], config["max_score"], config["lower_is_better"]) == ("-Infinity", "Infinity", False)
    assert "seed111" in found["evaluation_id"] and found["retrieved_timestamp"] in found["evaluation_id"]
    runs = [(name, regime, seed, size) for name in ("main", "baseline") for regime in ("corrected", "as_published")
            for seed in (111, 171) for size in ("small", "paper")]  # fmt: skip
    made = [evaluation(make_record(*run)) for run in runs]  # seeds a minute apart: begun in the same second
    assert len({one["evaluation_id"] for one in made}) == len(runs)
    assert len({one["model_info"]["id"] for one in made}) == len(runs) / 2, "seeds are runs of one model"


def test_curves_of_one_kind_and_unit_share_a_panel(make_record, tmp_path: Path) -> None:
    record = make_record("main", "corrected", 111)
    record.history = {name: [[1, 2.0]] for name in ("train/loss", "val/ce/b", "val/ce/a", "val/perplexity", "odd/x")}
    record.metrics = {name: {**record.metrics["val/perplexity"], "unit": unit} for name, unit in
                      (("val/ce/a", "nats"), ("val/ce/b", "nats"), ("val/perplexity", "perplexity"))}  # fmt: skip
    assert metric_panels(results_for("semantic_fusion", record_dirs=[], size="paper", extra=[record])) == {
        "training": {"loss in nats": ["train/loss"]},
        "odd": {"x": ["odd/x"]},
        "train": {"loss": ["train/loss"]},
        "val": {"ce, nats": ["val/ce/a", "val/ce/b"], "perplexity, perplexity": ["val/perplexity"]},
    }


def test_dashboards_show_a_paper_s_own_runs_and_not_too_many_lines(make_record) -> None:
    record = make_record("main", "corrected", 111)
    record.history = {f"val/{panel}/{line}": [[1, 2.0]] for panel in range(15) for line in range(10)}
    results = results_for(PAPER, record_dirs=[], size="paper", extra=[record])
    made = workspace(results, "me", "ours")
    (section,) = (one for one in made.sections if one.name == "val")
    assert [len(panel.y) for panel in section.panels] == [8] * 12
    for data in map(serialised, (made, wandb_report(results, "me", "ours"))):
        found = [node["value"] for node in _nodes(json.loads(data)) if node.get("op") == "IN"]
        assert found and {value for (value,) in found} == {PAPER, "paper"}
    assert "1 run, size paper" in data, "the notes of the tables"


def _nodes(node: Any) -> Any:
    if isinstance(node, dict):
        yield node
    for inner in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from _nodes(inner)


def test_the_command_writes_a_file_a_run(tmp_path: Path, write_records, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_records(("main",), seeds=(111, 112), regimes=("corrected", "as_published"))
    console = Console(file=StringIO(), width=200)
    out = tmp_path / "eee"
    table_command("semantic_fusion", format="eee", records=[folder], out=out, console=console)
    names = sorted(path.relative_to(out).as_posix() for path in out.rglob("*.json"))
    assert names == [f"semantic_fusion/main/{regime}-paper-seed{seed}.json"
                     for regime in ("as_published", "corrected") for seed in (111, 112)]  # fmt: skip
    assert "written: 4 runs" in console.file.getvalue()  # type: ignore[attr-defined] # a StringIO
    with pytest.raises(UserError, match="give out=<folder>"):
        table_command("semantic_fusion", format="eee", records=[folder])


@pytest.mark.long
def test_workspace_shows_curves_and_tables() -> None:
    results = results_for(PAPER, record_dirs=[EXPERIMENTS / PAPER / "records"])  # whatever lies in outputs/
    data = json.loads(serialised(workspace(results, "me", "ours")))
    assert (data["entity"], data["project"]) == ("me", "ours")
    text = json.dumps(data)
    for name in ("train/loss", "val/perplexity_seen_only", "val/focus_ce/slightly", *LOGGED_TABLES):
        assert name in text, name
    sections = data["spec"]["section"]["panelBankConfig"]["sections"]
    assert [section["name"] for section in sections] == [*metric_panels(results), "tables"]
    assert all(section["panels"] for section in sections)


def test_report_holds_every_table_and_number() -> None:
    results = results_for(PAPER, record_dirs=[EXPERIMENTS / PAPER / "records"])  # whatever lies in outputs/
    text = serialised(wandb_report(results, "me", "ours"))
    for table in results.tables:
        assert table.title.split(":")[0] in text
    assert "2.249" in text
    for claims, verdict in ((True, "contradicted"), (False, "undecided")):
        count = results.verdicts("as_published", claims)[verdict]
        assert count > 0 and f"{count} {verdict}" in text


@pytest.mark.parametrize("paper", papers(experiments_root()))
def test_every_paper_has_both(paper: str, tmp_path: Path) -> None:
    console = Console(file=StringIO())
    assert report(paper, target="wandb", project="ours", out=tmp_path, console=console) == 0
    files = {path.name for path in tmp_path.iterdir()}
    sizes = {name.split("-")[1] for name in files}
    assert files == {f"{paper}-{size}-{kind}.json" for size in sizes for kind in ("workspace", "report")}
    assert len(files) == console.file.getvalue().count("dashboard: ")  # type: ignore[attr-defined]
    assert all(json.loads(path.read_text(encoding="utf-8")) for path in tmp_path.iterdir())


@pytest.mark.long
def test_publishing_saves_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb_workspaces.reports.v2 as wr
    import wandb_workspaces.workspaces as ws

    monkeypatch.chdir(tmp_path)
    saved = []
    for kind in (ws.Workspace, wr.Report):
        monkeypatch.setattr(kind, "save", lambda made: saved.append((type(made).__name__, made.entity, made.project)))
        monkeypatch.setattr(kind, "url", property(lambda made: f"at/{type(made).__name__}"))
    console = Console(file=StringIO())
    assert report(PAPER, target="wandb", entity="me", project="ours", console=console) == 0
    assert saved == [("Workspace", "me", "ours"), ("Report", "me", "ours")] * 2, "of the runs of each size"
    assert "dashboard: at/Workspace" in console.file.getvalue()  # type: ignore[attr-defined]


def test_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb_workspaces.workspaces as ws

    monkeypatch.chdir(tmp_path)  # outputs/ of the checkout are the user's

    def refuse(made: object) -> None:
        raise RuntimeError("no key\nof yours")

    with pytest.raises(UserError, match="entity="):
        report(PAPER, target="wandb")
    monkeypatch.setattr(ws.Workspace, "save", refuse)
    with pytest.raises(UserError, match=r"did not take the workspace of semantic_fusion .*: no key of yours; log in"):
        report(PAPER, target="wandb", entity="me")

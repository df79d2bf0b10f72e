"""W&B workspaces and reports: built and serialised without network; publishing goes through the client's save."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from lit_ctg.errors import UserError
from lit_ctg.results.dashboard import TABLES, metric_panels, report, serialised, workspace
from lit_ctg.results.gather import results_for
from lit_ctg.results.report import main
from lit_ctg.results.spec import experiments_root, papers

PAPER = "semantic_fusion"


@pytest.mark.long
def test_workspace_shows_curves_and_tables() -> None:
    results = results_for(PAPER)
    data = json.loads(serialised(workspace(results, "me", "ours")))
    assert (data["entity"], data["project"]) == ("me", "ours")
    text = json.dumps(data)
    for name in ("train/loss", "val/perplexity_seen_only", "val/focus_ce/slightly", *TABLES):
        assert name in text, name
    sections = data["spec"]["section"]["panelBankConfig"]["sections"]
    assert [section["name"] for section in sections] == [*metric_panels(results), "tables"]
    assert all(section["panels"] for section in sections)


def test_report_holds_every_table_and_number() -> None:
    results = results_for(PAPER)
    text = serialised(report(results, "me", "ours"))
    for table in results.tables:
        assert table.title.split(":")[0] in text
    assert "2.249" in text and "33 undecided" in text and "11 contradicted" in text


@pytest.mark.parametrize("paper", papers(experiments_root()))
def test_every_paper_has_both(paper: str, tmp_path: Path) -> None:
    console = Console(file=StringIO())
    assert main(paper, target="wandb", project="ours", out=tmp_path, console=console) == 0
    files = {path.name for path in tmp_path.iterdir()}
    assert files == {f"{paper}-workspace.json", f"{paper}-report.json"}
    assert all(json.loads(path.read_text(encoding="utf-8")) for path in tmp_path.iterdir())


@pytest.mark.long
def test_publishing_saves_both(monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb_workspaces.reports.v2 as wr
    import wandb_workspaces.workspaces as ws

    saved = []
    for kind in (ws.Workspace, wr.Report):
        monkeypatch.setattr(kind, "save", lambda made: saved.append((type(made).__name__, made.entity, made.project)))
        monkeypatch.setattr(kind, "url", property(lambda made: f"at/{type(made).__name__}"))
    console = Console(file=StringIO())
    assert main(PAPER, target="wandb", entity="me", project="ours", console=console) == 0
    assert saved == [("Workspace", "me", "ours"), ("Report", "me", "ours")]
    assert "dashboard: at/Workspace" in console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.long
def test_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb_workspaces.workspaces as ws

    def refuse(made: object) -> None:
        raise RuntimeError("no key\nof yours")

    with pytest.raises(UserError, match="did you mean 'wandb'"):
        main(PAPER, target="wandbb")
    with pytest.raises(UserError, match="entity="):
        main(PAPER, target="wandb")
    monkeypatch.setattr(ws.Workspace, "save", refuse)
    with pytest.raises(UserError, match="did not take the workspace of semantic_fusion: no key of yours; log in"):
        main(PAPER, target="wandb", entity="me")

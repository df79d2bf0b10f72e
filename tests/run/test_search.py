"""sweep=optuna: what is searched, the study's file, pruning, the figure. Skipped without Optuna."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lit_ctg.results.record import write_record
from lit_ctg.run.train import Outcome
from tests.results.conftest import build_record

pytest.importorskip("optuna", reason="Optuna is not installed: pip install 'lit-ctg[search]'")

SPACE = ["model.learning_rate=tag(log,interval(1e-4,1.0))", "backbone.layers=range(1,4)", "backbone.dropout=0,0.1"]
WORDS = ["-m", "experiment=graphmax/main", "size=smoke", *SPACE, "sweep=optuna", "objective=val/perplexity"]


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list:
    """Runs that take no time: the farther from 0.01 the learning rate, the larger the perplexity."""
    runs: list = []

    def train(cfg, *callbacks) -> Outcome:
        runs.append(cfg)
        value = abs(torch.tensor(cfg.model.learning_rate / 0.01).log10().item()) + cfg.backbone.layers
        trainer = SimpleNamespace(state=SimpleNamespace(fn="fit"), sanity_checking=False, current_epoch=0)
        trainer.callback_metrics = {"val/perplexity": torch.tensor(value)}
        for callback in callbacks:
            callback.on_validation_end(trainer, None)
        folder = tmp_path / f"run{len(runs)}"
        folder.mkdir()
        entry = {"value": value, "unit": "perplexity", "direction": "lower", "n": 1, "ci95": None, "version": 1}
        record = build_record("main", "corrected", 0)
        record.metrics = {"val/perplexity": entry}
        write_record(record, folder / "run.json")
        return Outcome("DONE", folder)

    monkeypatch.setattr("lit_ctg.run.train.train", train)
    return runs


def trials(folder: Path) -> list[dict[str, str]]:
    (path,) = folder.rglob("trials.csv")
    with open(path, encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


@pytest.mark.long
def test_a_search_continues_its_study_and_draws_other_values(trained, run_cli, tmp_path) -> None:
    code, out, err = run_cli("train", *WORDS, "trials=4", "prune=false")
    assert code == 0 and len(trained) == 4, (out, err)
    assert run_cli("train", *WORDS, "trials=4", "prune=false")[0] == 0 and len(trained) == 4
    code, out, _ = run_cli("train", *WORDS, "trials=7", "prune=false")
    assert code == 0 and len(trained) == 7
    assert all(cfg.skip_completed for cfg in trained)
    rates = [cfg.model.learning_rate for cfg in trained]
    assert len(set(rates)) == 7 and all(1e-4 <= rate <= 1 for rate in rates)
    assert {cfg.backbone.layers for cfg in trained} <= {1, 2, 3}
    rows = trials(tmp_path)
    best = min(rows, key=lambda row: float(row["val/perplexity"]))
    assert f"best: val/perplexity={float(best['val/perplexity']):.5g} with " in out and best["folder"] in out
    assert b"Importance" in next(tmp_path.rglob("search.svg")).read_bytes()


@pytest.mark.long
def test_a_trial_that_was_killed_is_run_again(trained, run_cli, tmp_path, monkeypatch) -> None:
    import lit_ctg.run.train

    whole, killed = lit_ctg.run.train.train, []

    def train(cfg, *callbacks) -> Outcome:
        killed.append(cfg)
        raise KeyboardInterrupt

    monkeypatch.setattr("lit_ctg.run.train.train", train)
    assert run_cli("train", *WORDS, "trials=2")[0] == 130
    monkeypatch.setattr("lit_ctg.run.train.train", whole)
    assert run_cli("train", *WORDS, "trials=2")[0] == 0
    assert trained[0].model == killed[0].model and len(trials(tmp_path)) == 2


@pytest.mark.long
def test_runs_that_stay_behind_end_early(trained, run_cli, tmp_path) -> None:
    assert run_cli("train", *WORDS, "trials=12")[0] == 0
    states = [row["state"] for row in trials(tmp_path)]
    assert 0 < states.count("pruned") < 12 and set(states) == {"pruned", "complete"}
    (study,) = tmp_path.rglob("study.log")
    assert all(json.loads(line) for line in study.read_text().splitlines())


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([word for word in WORDS if not word.startswith("objective")], "objective="),
        ([*WORDS, "objective=val/perplexty"], "twice"),
        ([*WORDS[:3], *WORDS[6:]], "interval"),
        ([*WORDS, "model.learning_rates=interval(0,1)"], "learning_rates"),
        ([*WORDS, "backbone.heads=interval(2,1)"], "heads"),
    ],
)
def test_bad_input_is_one_line(words, named, run_cli, tmp_path) -> None:
    code, _, err = run_cli("train", *words)
    assert code == 2 and named in err and err.count("\n") == 1
    assert not (tmp_path / "outputs").exists()


def test_a_wrong_direction_or_name_is_said_and_the_run_is_kept(trained, run_cli, tmp_path) -> None:
    code, out, _ = run_cli("train", *WORDS, "trials=1", "direction=maximize")
    assert code == 1 and "pass direction=minimize" in out and next(tmp_path.rglob("run.json"))
    words = [word.replace("val/perplexity", "val/perplexty") for word in WORDS]
    code, out, _ = run_cli("train", *words, "trials=1", "prune=false")
    assert code == 1 and "val/perplexity" in out


def test_a_study_that_is_damaged_or_in_use_is_one_line(trained, run_cli, tmp_path) -> None:
    from lit_ctg.files import try_lock

    assert run_cli("train", *WORDS, "trials=1")[0] == 0
    (study,) = tmp_path.rglob("study.log")
    with try_lock(study.with_name(".lock")):
        code, _, err = run_cli("train", *WORDS, "trials=2")
        assert code == 2 and "another process" in err
    study.write_text("nonsense\n" * 3)
    code, _, err = run_cli("train", *WORDS, "trials=2")
    assert code == 2 and "study.log" in err and err.count("\n") == 1

"""W&B runs are offline unless told otherwise, hold what is on disk, and are finished also when the run fails."""

from __future__ import annotations

import importlib.util
import json
import secrets
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.loggers import CSVLogger, WandbLogger

from lit_ctg.config import compose
from lit_ctg.errors import UserError
from lit_ctg.run import build
from lit_ctg.run.build import _loggers
from lit_ctg.run.train import train
from tests.offline_wandb import finished

WORDS = ["experiment=semantic_fusion/baseline", "size=smoke", "logger=wandb", "trainer.accelerator=cpu"]
QUICK = ["callback=[run_record,checkpoint,epoch_seed,finite_loss]", "metric=[perplexity]"]


@pytest.mark.long
def test_an_offline_run_lies_in_the_run_directory_and_is_finished(tmp_path: Path) -> None:
    import wandb

    folder = train(compose([*WORDS, *QUICK, f"output_root={tmp_path}"])).folder
    assert wandb.run is None
    entries = finished(folder)
    (run,) = (entry.run for entry in entries if entry.WhichOneof("record_type") == "run")
    assert run.display_name == "semantic_fusion-baseline-corrected-smoke-seed0"
    assert (run.job_type, run.run_group) == ("train", "semantic_fusion/baseline")
    assert {"semantic_fusion", "corrected", "smoke"} < set(run.tags)
    content = b"".join(entry.SerializeToString() for entry in entries)
    value = json.loads((folder / "run.json").read_text())["metrics"]["val/perplexity"]["value"]
    assert b"val/perplexity" in content and f"{value:.4f}"[:5].encode() in content
    # nothing is there that is not also on disk
    assert "val/perplexity" in (folder / "metrics.csv").read_text().splitlines()[0]
    # as if killed before its record was written
    (folder / "run.json").unlink()
    assert train(compose([*WORDS, *QUICK, f"output_root={tmp_path}"])).folder == folder
    assert [path.stem for path in folder.rglob("*.wandb")] == [f"run-{run.run_id}"] * 2


class ServersChoice(CSVLogger):
    """A logger whose runs get their ids as MLflow's do, where MLflow is not installed."""

    def __init__(self, save_dir: str, run_id: str | None = None, **_: Any) -> None:
        super().__init__(save_dir, version=run_id or secrets.token_hex(4))


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_run_that_is_resumed_keeps_its_id_and_a_repeated_one_does_not(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(WandbLogger, "log_hyperparams", lambda *_: None)  # would start a run
    if name == "mlflow" and importlib.util.find_spec(name) is None:
        monkeypatch.setattr(build, "_logger", lambda name, node, extra: ServersChoice(**extra))
    ids = []
    for folder, epochs in (("run", 1), ("run", 2), ("run-1", 1)):
        cfg = compose([*WORDS, f"logger={name}", f"trainer.max_epochs={epochs}", f"output_root={tmp_path}"])
        logger = _loggers(cfg, tmp_path / folder)[-1]
        ids.append(logger.version)
    assert ids[0] == ids[1] != ids[2]


@pytest.mark.long
def test_a_disabled_run_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    folder = train(compose([*WORDS, *QUICK, f"output_root={tmp_path}"])).folder
    assert (folder / "run.json").is_file() and (folder / "metrics.csv").is_file()
    assert not (folder / "wandb").exists()


@pytest.mark.parametrize("name", ["tensorboard", "mlflow"])
def test_other_loggers_are_lightnings(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or one line that names the package; nothing else of a run depends on them."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    cfg = compose(["experiment=graphmax/main", "size=smoke", f"logger={name}", f"output_root={tmp_path}"])
    if importlib.util.find_spec(name) is None:
        with pytest.raises(UserError, match=rf"lit-ctg\[{name}\]"):
            _loggers(cfg, tmp_path / "run")
        return
    _, logger = _loggers(cfg, tmp_path / "run")
    logger.log_metrics({"val/loss": 1.0}, step=1)
    logger.finalize("success")
    assert any(tmp_path.rglob("events.out.tfevents*" if name == "tensorboard" else "mlflow.db"))


@pytest.mark.long
def test_a_failed_run_is_finished_too(tmp_path: Path) -> None:
    import wandb

    bad = ["model.learning_rate=1e30", "trainer.gradient_clip_val=null", "model.warmup_fraction=0"]
    with pytest.raises(UserError):
        train(compose([*WORDS, *QUICK, *bad, "trainer.max_epochs=3", f"output_root={tmp_path}"]))
    assert wandb.run is None


def logged(folder: Path) -> dict[str, Any]:
    """Return the last value of every key in the history of the offline run below ``folder``."""
    found: dict[str, Any] = {}
    for entry in finished(folder):
        for item in entry.history.item:
            key, *inner = [item.key] if item.key else item.nested_key
            value = json.loads(item.value_json)
            if inner:
                found.setdefault(key, {})[inner[0]] = value
            else:
                found[key] = value
    return found


def table(folder: Path, value: dict[str, Any]) -> dict[str, list]:
    (path,) = [path for path in folder.rglob("*.table.json") if path.name == Path(str(value["path"])).name]
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.long
def test_tables_of_an_offline_run_read_back(tmp_path: Path) -> None:
    words = ["experiment=semantic_fusion/main", *WORDS[1:], "trainer.max_epochs=2", f"output_root={tmp_path}"]
    folder = train(compose(words)).folder
    record = json.loads((folder / "run.json").read_text())
    found = logged(folder)
    metrics = table(folder, found["metrics"])
    rows = {row[0]: dict(zip(metrics["columns"], row, strict=True)) for row in metrics["data"]}
    assert set(rows) == set(record["metrics"])
    for name, entry in record["metrics"].items():
        assert rows[name]["unit"] == entry["unit"]
        if isinstance(entry["value"], float):
            assert rows[name]["value"] == pytest.approx(entry["value"])
    samples = [json.loads(line)["text"] for line in (folder / "samples.jsonl").read_text().splitlines()]
    logged_samples = table(folder, found["samples"])
    column = logged_samples["columns"].index("text")
    assert [row[column] for row in logged_samples["data"]] == samples
    assert "verdicts" in found
    # the confusion matrix is a chart over its own table
    assert any("control/hard/confusion" in key for key in found)
    grown = [json.loads(line) for line in (folder / "generations.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["epoch"] for row in grown] == [1] * 4 + [2] * 4
    last = found["generations"]
    assert last["log_mode"] == "INCREMENTAL" and last["increment_num"] == 1

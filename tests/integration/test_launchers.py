"""A sweep means the same whatever starts its jobs: the same records, lines, summary and exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lit_ctg.cli import main
from lit_ctg.files import config_folder
from lit_ctg.trust import TRUSTED

WORDS = (
    "experiment=semantic_fusion/baseline",
    "size=smoke",
    "logger=none",
    "metric=[perplexity]",
    "callback=[run_record,checkpoint,epoch_seed,finite_loss]",
    "trainer.accelerator=cpu",
    "skip_completed=true",
    # the second job fails
    "seed=0,-1,2",
)


def sweep(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    call = [sys.executable, "-m", "lit_ctg.cli", "train", "-m", *WORDS, f"output_root={folder}", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(call, capture_output=True, text=True, env=environment, timeout=280)


def metrics(folder: Path) -> dict[int, dict]:
    records = [json.loads(path.read_text(encoding="utf-8")) for path in folder.rglob("run.json")]
    return {record["seed"]: record["metrics"] for record in records if record["status"] == "DONE"}


@pytest.fixture(scope="module")
def one_by_one(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict]:
    folder = tmp_path_factory.mktemp("basic")
    assert main(["train", "-m", *WORDS, f"output_root={folder}"]) == 1
    return metrics(folder)


# starting a Ray cluster takes longer than everything else here
@pytest.mark.long
@pytest.mark.parametrize("launcher", ["local", pytest.param("ray", marks=pytest.mark.slow)])
def test_jobs_side_by_side_leave_the_same_records(launcher: str, one_by_one: dict[int, dict], tmp_path: Path) -> None:
    done = sweep(tmp_path, f"sweep={launcher}")
    assert done.returncode == 1, done.stderr[-2000:]
    assert set(one_by_one) == {0, 2}
    assert metrics(tmp_path) == one_by_one
    lines = (done.stdout + done.stderr).splitlines()
    assert sum(line.startswith("[") and "/3] done semantic_fusion/baseline" in line for line in lines) == 2
    assert sum("/3] failed" in line and "seed=-1" in line for line in lines) == 1
    assert "sweep of 3 jobs" in done.stdout and "2 done, 0 skipped, 1 failed" in done.stdout


def test_every_launcher_composes() -> None:
    names = {path.stem for path in (config_folder() / "sweep").glob("*.yaml")}
    assert names == {"basic", "local", "slurm", "ray", "optuna"}
    import hydra

    from lit_ctg.config import register

    register()
    for name in sorted(names):
        with hydra.initialize_config_dir(str(config_folder()), version_base="1.3"):
            cfg = hydra.compose("config", [*WORDS[:2], f"sweep={name}"], return_hydra_config=True)
        kind = {"basic": "basic", "local": "basic", "optuna": "basic", "slurm": "submitit_slurm", "ray": "ray"}[name]
        assert cfg.hydra.runtime.choices["hydra/launcher"] == kind


OWN = {
    "my_package/__init__.py": """
from lit_ctg.papers.semantic_fusion import SemanticFusionModule

class Mine(SemanticFusionModule):
    pass
""",
    "my_conf/model/mine.yaml": "defaults: [semantic_fusion]\n_target_: my_package.Mine\n",
    "my_conf/experiment/mine/tiny.yaml": """# @package _global_
defaults:
  - /experiment/semantic_fusion/baseline
  - override /model: mine
  - _self_
name: tiny
""",
}


@pytest.mark.long
def test_an_experiment_and_a_model_outside_the_repository(run_cli, tmp_path: Path, monkeypatch) -> None:
    """The files of docs/sweeps.md; jobs that are processes find them too, and a checkpoint needs trust=."""
    for name, text in OWN.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    words = ["size=smoke", "metric=[perplexity]", "callback=[run_record,checkpoint]", "logger=none"]
    words += ["trainer.limit_train_batches=1", "trainer.limit_val_batches=1", "--config-dir", "my_conf", "sweep=local"]
    code, out, err = run_cli("train", "-m", "experiment=glob(mine/*)", "jobs=2", *words)
    assert code == 0 and out.count("done semantic_fusion/tiny") == 1, err
    folder = next(tmp_path.glob("outputs/semantic_fusion/tiny/*seed0*")).relative_to(tmp_path)
    monkeypatch.setattr("lit_ctg.trust._named_by_user", set())  # as in another process
    monkeypatch.setenv(TRUSTED, "")
    code, _, err = run_cli("evaluate", str(folder))
    assert code == 2 and "trust=my_package" in err
    assert run_cli("evaluate", str(folder), "trust=my_package")[0] == 0

"""Same seed, same numbers; interrupted and resumed equals uninterrupted; batch jobs survive a bad one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from lit_ctg.config import compose
from lit_ctg.errors import UserError
from lit_ctg.run.sweep import _new_folder
from lit_ctg.run.train import train

SMOKE = ["size=smoke", "logger=none", "trainer.accelerator=cpu"]
EXPERIMENT = "experiment=semantic_fusion/main"


def record_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "run.json").read_text(encoding="utf-8"))


def run(root: Path, *words: str) -> dict[str, Any]:
    return record_of(train(compose([EXPERIMENT, *SMOKE, f"output_root={root}", *words])).folder)


@pytest.mark.long
@pytest.mark.parametrize("regime", ["corrected", "as_published"])
def test_same_seed_same_record_to_the_bit(tmp_path: Path, regime: str) -> None:
    first = run(tmp_path / "a", f"regime={regime}", "seed=5")
    second = run(tmp_path / "b", f"regime={regime}", "seed=5")
    assert first["metrics"] == second["metrics"]
    assert first["history"] == second["history"]
    assert first["config_hash"] == second["config_hash"]
    other = run(tmp_path / "c", f"regime={regime}", "seed=6")
    assert other["metrics"]["val/perplexity"] != first["metrics"]["val/perplexity"]


@pytest.mark.long
def test_killed_after_two_epochs_and_resumed_equals_uninterrupted(tmp_path: Path) -> None:
    words = [EXPERIMENT, *SMOKE, "trainer.max_epochs=4", "seed=7"]
    whole = record_of(train(compose([*words, f"output_root={tmp_path / 'whole'}"])).folder)
    # the other run kills itself the hard way when its third epoch begins
    script = f"""
import os, signal, sys
from lightning import Callback
import lit_ctg.run.build as build
from lit_ctg.config import compose
from lit_ctg.run.train import train
import torch
torch.set_num_threads(1)
class Kill(Callback):
    def on_train_epoch_start(self, trainer, module):
        if trainer.current_epoch == 2:
            os.kill(os.getpid(), signal.SIGKILL)
plain_callbacks = build._callbacks
build._callbacks = lambda cfg, folder: [*plain_callbacks(cfg, folder), Kill()]
train(compose({[*words, f"output_root={tmp_path / 'killed'}"]!r}))
"""
    killed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-2000:]
    folder = next((tmp_path / "killed" / "semantic_fusion" / "main").iterdir())
    assert (folder / "checkpoints" / "last.ckpt").is_file() and not (folder / "run.json").exists()
    outcome = train(compose([*words, f"output_root={tmp_path / 'killed'}"]))
    assert outcome.folder == folder
    resumed = record_of(folder)
    assert resumed["metrics"] == whole["metrics"]
    assert resumed["history"] == whole["history"]
    assert len(resumed["history"]["val/perplexity"]) == 4


def test_a_failed_run_says_why_and_is_not_taken_for_good(tmp_path: Path) -> None:
    words = [
        EXPERIMENT,
        *SMOKE,
        f"output_root={tmp_path}",
        "model.learning_rate=1e30",
        "trainer.gradient_clip_val=null",
    ]
    with pytest.raises(UserError, match="training loss is"):
        train(compose([*words, "trainer.max_epochs=3", "model.warmup_fraction=0"]))
    folder = next((tmp_path / "semantic_fusion" / "main").iterdir())
    record = record_of(folder)
    assert record["status"] == "DIVERGED"
    assert "training loss is" in record["error"]


@pytest.mark.long
def test_sweep_skips_what_is_done_reports_what_fails_and_goes_on(run_cli, tmp_path: Path) -> None:
    words = ["train", "-m", EXPERIMENT, *SMOKE, "skip_completed=true", "metric=[perplexity]"]
    code, out, err = run_cli(*words, "model.dropout_typo=1")
    assert code == 2 and "dropout_typo" in err
    code, out, err = run_cli(
        *words, "seed=0,1", "data.held_out={positive:[good],negative:[bad]},{positive:[nonsense],negative:[bad]}"
    )
    assert code == 1
    assert "4 jobs" in out and "2 done" in out and "2 failed" in out
    assert err.count("] failed") == 2 and "nonsense" in err
    code, out, err = run_cli(*words, "seed=0,1", "data.held_out={positive:[good],negative:[bad]}")
    assert code == 0
    assert "2 skipped" in out
    records = list((tmp_path / "outputs" / "semantic_fusion").rglob("run.json"))
    assert sum(json.loads(path.read_text())["status"] == "DONE" for path in records) == 2


@pytest.mark.long
def test_ctrl_c_leaves_no_record_and_exits_with_130(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lit_ctg.cli", "train", EXPERIMENT, *SMOKE, "trainer.max_epochs=100000"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        # a shell starts its background jobs deaf to Ctrl+C, and their children inherit that
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    folder = tmp_path / "outputs" / "semantic_fusion" / "main"
    deadline = time.monotonic() + 100
    while not list(folder.rglob("last.ckpt")) and time.monotonic() < deadline:
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "the same command continues" in err
    assert not list(folder.rglob("run.json"))


def test_sweeps_of_the_same_second_have_folders_of_their_own(tmp_path: Path) -> None:
    folders = {_new_folder(tmp_path / "sweeps") for _ in range(20)}
    assert len(folders) == 20 and all(folder.is_dir() for folder in folders)
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(UserError, match="output_root"):
        _new_folder(tmp_path / "file" / "sweeps")

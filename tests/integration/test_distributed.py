"""Several processes (trainer=ddp) train what one process trains, and leave one record."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lit_ctg.config import compose, plain

# sentences of one length, so that the mean of two batches' means is the mean over both; no dropout
WORDS = (
    "experiment=semantic_fusion/baseline",
    "size=smoke",
    "logger=none",
    "trainer.accelerator=cpu",
    "callback=[run_record,checkpoint,epoch_seed,finite_loss]",
    "metric=[perplexity]",
    "backbone.dropout=0",
    "data.second_clause_probability=0",
    "data.batch_size=8",
    "data.train_size=640",
    "trainer.max_epochs=2",
    "trainer.max_steps=20",
    "seed=3",
)


def command(folder: Path, *words: str) -> dict:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    call = [sys.executable, "-m", "lit_ctg.cli", "train", *WORDS, f"output_root={folder}", *words]
    done = subprocess.run(call, capture_output=True, text=True, env=environment, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    (record,) = folder.rglob("run.json")
    weights = torch.load(record.parent / "checkpoints" / "last.ckpt", weights_only=True)
    return {"record": json.loads(record.read_text(encoding="utf-8")), "checkpoint": weights}


@pytest.mark.long
def test_two_processes_equal_one(tmp_path: Path) -> None:
    """20 steps on batches of two processes against 20 steps of one process over the same pairs of batches."""
    two = command(tmp_path / "two", "trainer=ddp", "trainer.devices=2")
    one = command(tmp_path / "one", "trainer.accumulate_grad_batches=2")
    assert two["checkpoint"]["global_step"] == one["checkpoint"]["global_step"] == 20
    for name, value in one["checkpoint"]["state_dict"].items():
        torch.testing.assert_close(two["checkpoint"]["state_dict"][name], value, rtol=0, atol=1e-6)
    numbers = [run["record"]["metrics"]["val/perplexity"] for run in (one, two)]
    assert numbers[0]["n"] == numbers[1]["n"]
    assert numbers[1]["value"] == pytest.approx(numbers[0]["value"], rel=1e-6)
    assert two["record"]["status"] == "DONE"


def test_sharded_training_composes() -> None:
    trainer = plain(compose([*WORDS, "trainer=fsdp"]))["trainer"]
    assert (trainer["strategy"], trainer["use_distributed_sampler"]) == ("fsdp", False)


def test_a_stray_process_is_told(run_cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    code, _, err = run_cli("train", *WORDS, f"output_root={tmp_path}")
    assert code == 2 and "start one process" in err

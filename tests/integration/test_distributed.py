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


RUN = [sys.executable, "-m", "lit_ctg", "train", *WORDS]
TOGETHER = ["trainer=ddp", "trainer.devices=2"]
# two nodes of one task each, as srun tells them apart
SRUN = """export SLURM_NTASKS=2 SLURM_NTASKS_PER_NODE=1 SLURM_JOB_ID=$1 SLURM_JOB_NAME=run SLURM_LOCALID=0 \
SLURM_PROCID=$SUBMITIT_LOCAL_GLOBALID SLURM_NODEID=$SUBMITIT_LOCAL_GLOBALID; shift; exec "$@" """


def start(launcher: str, words: list[str], folder: Path) -> None:
    """Start a run as ``launcher`` does and wait for it."""
    if launcher == "submitit":
        import submitit

        executor = submitit.LocalExecutor(folder=folder / "log")
        executor.update_parameters(tasks_per_node=2, timeout_min=4)
        call = ["bash", "-c", SRUN, "srun", str(os.getpid()), *words, "trainer.num_nodes=2", "trainer.devices=1"]
        executor.submit(submitit.helpers.CommandFunction(call, verbose=False)).results()
        return
    agent = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    call = [*agent, *words[1:]] if launcher == "torchrun" else words
    done = subprocess.run(call, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]


def result(folder: Path) -> tuple[dict, dict]:
    """Return the one record below a folder, and its checkpoint."""
    (record,) = folder.rglob("run.json")
    checkpoint = torch.load(record.parent / "checkpoints" / "last.ckpt", weights_only=True)
    return json.loads(record.read_text(encoding="utf-8")), checkpoint


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, dict]:
    """20 steps of one process over pairs of batches."""
    folder = tmp_path_factory.mktemp("one")
    start("alone", [*RUN, "trainer.accumulate_grad_batches=2", f"output_root={folder}"], folder)
    return result(folder)


@pytest.mark.long
@pytest.mark.parametrize("launcher", ["lightning", "torchrun", "submitit"])
def test_two_processes_equal_one(launcher: str, one: tuple[dict, dict], tmp_path: Path, run_cli) -> None:
    """Whoever starts them: one run, one record, a checkpoint that one process reads."""
    start(launcher, [*RUN, *TOGETHER, f"output_root={tmp_path}"], tmp_path)
    record, checkpoint = result(tmp_path)
    assert checkpoint["global_step"] == one[1]["global_step"] == 20
    for name, value in one[1]["state_dict"].items():
        torch.testing.assert_close(checkpoint["state_dict"][name], value, rtol=0, atol=1e-6)
    numbers = [each["metrics"]["val/perplexity"] for each in (one[0], record)]
    assert numbers[0]["n"] == numbers[1]["n"]
    assert numbers[1]["value"] == pytest.approx(numbers[0]["value"], rel=1e-6)
    assert record["status"] == "DONE"
    if launcher == "submitit":
        (folder,) = (path.parent for path in tmp_path.rglob("run.json"))
        assert run_cli("evaluate", str(folder), "trainer.num_nodes=1", "trainer.strategy=auto")[0] == 0


def test_sharded_training_composes() -> None:
    trainer = plain(compose([*WORDS, "trainer=fsdp"]))["trainer"]
    assert (trainer["strategy"], trainer["use_distributed_sampler"]) == ("fsdp", False)


def test_a_stray_process_is_told(run_cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    code, _, err = run_cli("train", *WORDS, f"output_root={tmp_path}")
    assert code == 2 and "start one process" in err


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ((), "trainer.devices=1"),
        (("trainer=ddp", "trainer.devices=4"), "trainer.devices=4"),
        (("-m", "seed=0,1"), "sweep"),
    ],
)
def test_a_start_of_two_that_does_not_fit_is_told(words, key, run_cli, monkeypatch, tmp_path: Path) -> None:
    for name in ("TORCHELASTIC_RUN_ID", "LOCAL_RANK", "RANK", "WORLD_SIZE"):
        monkeypatch.setenv(name, "2" if name == "WORLD_SIZE" else "0")
    code, _, err = run_cli("train", *WORDS, f"output_root={tmp_path / 'outputs'}", *words)
    assert code == 2 and key in err and err.count("\n") == 1
    assert not (tmp_path / "outputs").exists()

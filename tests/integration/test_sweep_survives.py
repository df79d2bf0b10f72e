"""A sweep killed by SIGKILL and given again ends with the records of one that nobody disturbed."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import runpy
import sys
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from lit_ctg.results.record import load_records

Start = Callable[..., BaseProcess]
Records = dict[int, dict[str, Any]]

WORDS = (
    "train",
    "-m",
    "experiment=semantic_fusion/baseline",
    "size=smoke",
    "metric=[perplexity]",
    "callback=[run_record,checkpoint,epoch_seed,finite_loss]",
    "trainer.accelerator=cpu",
    "trainer.enable_progress_bar=false",
    "trainer.max_epochs=3",
    "trainer.limit_train_batches=4",
    "trainer.limit_val_batches=2",
    "skip_completed=true",
)
# what two runs of one configuration may differ in
INCIDENTAL = {"started_at", "wall_time_s", "tokens_per_s", "peak_memory_mb", "git"}


@pytest.fixture(scope="module")
def start() -> Start:
    """Return ``start(folder, *words)``: ``lit-ctg`` in a process forked from one that has imported it all."""
    os.environ["OMP_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["lit_ctg.run.train", "lit_ctg.run.sweep", "lit_ctg.papers.semantic_fusion.model"])

    # the imports are not to be timed
    first = context.Process(target=os.getpid)
    first.start()
    first.join()

    def run(folder: Path, *words: str) -> BaseProcess:
        arguments, sys.argv = sys.argv, ["lit-ctg", *WORDS, *words, f"output_root={folder}"]
        try:  # the child takes sys.argv over
            process = context.Process(target=runpy.run_module, args=("lit_ctg", None, "__main__"))
            process.start()
        finally:
            sys.argv = arguments
        return process

    return run


def finish(process: BaseProcess) -> None:
    """Wait for a sweep; every job of it must have gone well."""
    process.join()
    assert process.exitcode == 0


def kill(process: BaseProcess) -> None:
    """SIGKILL: nothing in the process gets to clean up."""
    assert process.is_alive(), "the sweep was over before it could be killed"
    process.kill()
    process.join()


def wait(process: BaseProcess, until: Callable[[], bool]) -> None:
    """Wait until something has come true, or the process is over."""
    while process.is_alive() and not until():
        time.sleep(0.002)


def found(folder: Path) -> Records:
    """Return what every record says but for what is incidental, by seed; a damaged one raises."""
    records = load_records([folder])
    assert len({record.seed for record in records}) == len(records)
    kept: Records = {}
    for record in records:
        data = {key: value for key, value in record.to_json().items() if key not in INCIDENTAL}
        kept[record.seed] = data | {"config": {**record.config, "output_root": ""}}
    return kept


def check(folder: Path, undisturbed: Records) -> None:
    """No run lost, none run twice, no record half written, all numbers the same to the bit."""
    assert found(folder) == undisturbed
    assert all(record["status"] == "DONE" and record["metrics"] for record in undisturbed.values())
    directories = list((folder / "semantic_fusion" / "baseline").iterdir())
    assert len(directories) == len(undisturbed), directories
    assert not list(folder.rglob("*.tmp")) and not list(folder.rglob("run.before-*"))
    entries = journal(folder)
    assert not [entry for entry in entries if entry["status"] == "FAILED"]
    assert max(Counter(entry["job"] for entry in entries if entry["status"] == "DONE").values()) == 1


def journal(folder: Path) -> list[dict[str, Any]]:
    """Return the entries of all sweeps."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("sweeps/*/jobs.jsonl"))]
    # the last line of a killed sweep may be cut
    return [json.loads(line) for text in texts for line in text[: text.rfind("\n") + 1].splitlines()]


def unfinished(folder: Path) -> list[Path]:
    """Return the checkpoints of runs without a record."""
    checkpoints = folder.rglob("last.ckpt")
    return [path for path in checkpoints if not (path.parents[1] / "run.json").exists()]


def seeds(count: int) -> str:
    return f"seed=range(0,{count})"


@pytest.mark.long
def test_killed_in_a_run_and_at_a_random_moment(start: Start, tmp_path: Path) -> None:
    runs = seeds(3)
    began = time.monotonic()
    finish(start(tmp_path / "undisturbed", runs))
    whole = time.monotonic() - began
    records = found(tmp_path / "undisturbed")
    assert sorted(records) == [0, 1, 2]

    folder = tmp_path / "killed"
    first = start(folder, runs)
    wait(first, lambda: bool(unfinished(folder)))
    kill(first)
    # so that the next sweep has to go on from a checkpoint
    assert unfinished(folder) and not found(folder)
    second = start(folder, runs)
    wait(second, lambda: bool(found(folder)))
    second.join(random.Random(0).uniform(0, 0.15) * whole)
    kill(second)
    finish(start(folder, runs))
    check(folder, records)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_killed_ten_times(start: Start, tmp_path: Path, seed: int) -> None:
    runs = seeds(12)
    began = time.monotonic()
    finish(start(tmp_path / "undisturbed", runs))
    whole = time.monotonic() - began
    generator, folder, kills = random.Random(seed), tmp_path / "killed", 0
    while kills < 10:
        process = start(folder, runs)
        # often too short for one run, seldom long enough for three
        process.join(generator.uniform(0.02, 2.5 / 12) * whole)
        kill(process)
        kills += 1
    finish(start(folder, runs))
    records = found(tmp_path / "undisturbed")
    assert sorted(records) == list(range(12))
    check(folder, records)


@pytest.mark.slow
def test_160_jobs_killed_twice(start: Start, tmp_path: Path) -> None:
    """As many as the largest grid of a paper has."""
    runs, short = seeds(160), ("trainer.max_epochs=1", "trainer.limit_train_batches=1", "trainer.limit_val_batches=1")
    finish(start(tmp_path / "undisturbed", runs, *short))
    assert len(journal(tmp_path / "undisturbed")) == 160
    folder = tmp_path / "killed"
    for done in (50, 110):
        process = start(folder, runs, *short)
        wait(process, lambda done=done: len(journal(folder)) >= done)
        kill(process)
    finish(start(folder, runs, *short))
    check(folder, found(tmp_path / "undisturbed"))

"""A signal to the group of processes of a run ends all of them, with the exit code and the words of an interrupt."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

WORDS = (
    "experiment=semantic_fusion/baseline",
    "size=smoke",
    "logger=none",
    "trainer.accelerator=cpu",
    "callback=[run_record,checkpoint,epoch_seed,finite_loss]",
    "metric=[perplexity]",
    "data.train_size=64",
    "data.batch_size=8",
    "trainer.limit_val_batches=2",
    "trainer.max_epochs=100000",
)
TWO = ("trainer=ddp", "trainer.devices=2")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc"),
]


def members(group: int) -> list[int]:
    """Return the living processes of a process group."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, of = path.read_text().rpartition(")")[2].split()[:3]
            if int(of) == group and state != "Z":
                found.append(int(path.parent.name))
    return found


@contextlib.contextmanager
def trained(folder: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Start a run in a group of its own and wait for its first checkpoint."""
    run = subprocess.Popen(
        [sys.executable, "-m", "lit_ctg.cli", "train", *WORDS, *words, f"output_root={folder}"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"},
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        end = time.monotonic() + 200
        while not list(folder.rglob("last.ckpt")) and run.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        yield run
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
        run.wait()


def ended(group: int) -> bool:
    """Wait for the end of all processes of a group."""
    end = time.monotonic() + 30
    while (left := members(group)) and time.monotonic() < end:
        time.sleep(0.1)
    return not left


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("words", "attempt"),
    [
        pytest.param(("data.num_workers=2",), 0, id="workers"),
        *(pytest.param(("data.num_workers=2",), n, id=f"workers{n}", marks=pytest.mark.slow) for n in (1, 2)),
        pytest.param(TWO, 0, id="devices"),
    ],
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_to_the_group_interrupts(
    number: signal.Signals, words: tuple[str, ...], attempt: int, tmp_path: Path
) -> None:
    with trained(tmp_path, *words) as run:
        time.sleep(random.Random(attempt).uniform(0, 0.5))
        os.killpg(run.pid, number)
        _, error = run.communicate(timeout=100)
        assert run.returncode == 130, error
        assert "interrupted; the same command continues" in error and "Traceback" not in error
        assert ended(run.pid), members(run.pid)
        assert not list(tmp_path.rglob("run.json"))


@pytest.mark.parametrize("words", [("data.num_workers=2",), TWO], ids=["workers", "devices"])
def test_nothing_outlives_the_first_process(words: tuple[str, ...], tmp_path: Path) -> None:
    with trained(tmp_path, *words) as run:
        assert len(members(run.pid)) > 1
        run.kill()
        run.wait()
        assert ended(run.pid), members(run.pid)

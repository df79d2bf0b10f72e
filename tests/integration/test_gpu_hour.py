"""`benchmarks/gpu_hour.py`: the way it goes on a GPU, on a CPU at size=smoke, in calls too short for all of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lit_ctg.results.spec import MANIFEST

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder like the repository's, whose manifest lists one short run."""
    for name in ("benchmarks", "tests", "pyproject.toml"):
        (tmp_path / name).symlink_to(ROOT / name)
    paper = tmp_path / "experiments" / "semantic_fusion"
    (paper / "tables").mkdir(parents=True)
    run = "{experiment: baseline, regime: corrected, seed: [3], set: {trainer.limit_train_batches: 2}}"
    (paper / MANIFEST).write_text(f"title: t\nruns:\n  smoke:\n    - {run}\n", encoding="utf-8")
    return tmp_path


def call(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "benchmarks/gpu_hour.py", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_rehearsal_waits_for_time_and_goes_on_to_the_end(folder: Path) -> None:
    (folder / "outputs" / "gpu_hour").mkdir(parents=True)
    # four steps are over: an earlier call did them
    done = {
        name: {"code": 0, "attempts": 1, "seconds": 1.0}
        for name in ("tests", "bench_idea_gate", "bench_nslm", "bench_gpt2")
    }
    (folder / "outputs" / "gpu_hour" / "state.json").write_text(json.dumps(done))
    first = call(folder, "out=back", "rehearse=true", "minutes=0.76")
    assert first.returncode == 3, first.stderr
    assert json.loads((folder / "back" / "state.json").read_text()) == done, "too short for a step: none is begun"
    assert "bench_graphmax" not in first.stdout and "not all steps done" in first.stdout

    last = call(folder, "out=back", "rehearse=true", "minutes=9", "paper=semantic_fusion")
    assert last.returncode == 0, last.stdout + last.stderr
    state = json.loads((folder / "back" / "state.json").read_text())
    assert {name: one["code"] for name, one in state.items()} == dict.fromkeys(
        ("tests", "bench_idea_gate", "bench_nslm", "bench_gpt2", "bench_graphmax", "bench_controls"), 0
    )
    assert "--device" in (folder / "back" / "bench_graphmax.txt").read_text()
    (record,) = (folder / "back").rglob("run.json")
    assert json.loads(record.read_text())["status"] == "DONE" and "0 runs left" in last.stdout

    given_up = {"code": None, "attempts": 2, "seconds": 500.0}
    (folder / "outputs" / "gpu_hour" / "state.json").write_text(json.dumps({**state, "tests": given_up}))
    again = call(folder, "out=back", "rehearse=true", "minutes=9", "paper=semantic_fusion")
    assert again.returncode == 1 and "tests: given up, cut off in 2 calls, 500 s" in again.stdout


def test_runs_of_a_size_are_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import gpu_hour

    asked: dict[str, object] = {}

    def start(root: Path, **given: object) -> None:
        asked.update(given)
        raise KeyboardInterrupt

    monkeypatch.setattr(gpu_hour.lab, "start", start)
    with pytest.raises(KeyboardInterrupt):
        gpu_hour._runs(gpu_hour.GpuHour.parse(["out=back", "size=small", "paper=idea_gate"]), float("inf"))
    assert (asked["size"], asked["paper"]) == ("small", "idea_gate")


@pytest.mark.parametrize(("code", "expected"), [("sys.exit(4)", 4), ("time.sleep(60)", None)])
def test_a_step_is_cut_off_when_its_time_is_over(
    folder: Path, monkeypatch: pytest.MonkeyPatch, code: str, expected: int | None
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import gpu_hour

    gpu_hour.WORK.mkdir(parents=True)
    command = [sys.executable, "-c", f"import sys, time; print('here', flush=True); {code}"]
    found = gpu_hour._step("tests", command, 5.0, {"code": None, "attempts": 1, "seconds": 9.0})
    assert (found["code"], found["attempts"]) == (expected, 2) and gpu_hour._over(found)
    assert (gpu_hour.WORK / "tests.txt").read_text() == "here\n"


@pytest.mark.long
@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
def test_without_an_accelerator_it_says_so(folder: Path) -> None:
    done = call(folder, "out=back")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "rehearse=true" in done.stderr
    assert not (folder / "outputs").exists()


@pytest.mark.long
def test_bad_input(folder: Path) -> None:
    for words, line in ((["minutes=1"], "give out="), (["out=x", "minutes=ten"], "minutes=ten")):
        done = call(folder, *words, "rehearse=true")
        assert done.returncode == 2 and line in done.stderr and done.stderr.count("\n") == 1

"""The GPU hour: what is worth most where an accelerator is at hand for minutes, in commands of at most ten.

    python benchmarks/gpu_hour.py out=<folder> [minutes=9] [local=<folder>] [workers=4]

The same command is given again until it ends with 0. In this order: the tests that need an accelerator, the
benchmarks on it, then the runs of ``size=paper`` that no record has, several side by side, as `lit-ctg lab` orders them
(``priority`` in the manifests). A test or benchmark that a call cuts off begins anew in the next, a run goes on from
its last checkpoint: what is kept lies in ``outputs/gpu_hour``, and a copy of it in ``out``. Carry that folder to
another machine to go on there; ``lit-ctg lab collect output_root=outputs/gpu_hour`` puts finished records into
``experiments/``.

``size=small paper=<paper>`` does those of that size instead. What no record has for its length, in hours on two cores:

    idea_gate, small        branch as the authors ran it, on the base of seed 0 (itself 1.2 to 2.4)   4 to 5
    graphmax, small         in_domain_controls, on the same base                                       1 to 2
    graphmax, small         Algorithm 1 at lambda 0.1 and 10 on SmolLM2                                2.6
    idea_gate, small        pretrained_frozen_short, corrected, a seed                                 0.6
    control_code, small     pretrained_smollm2 with prompts, _attention and _lora, all seeds           3.5
    semantic_fusion, small  pretrained_channel_no_auxiliary, three seeds; _no_hindsight                0.7
    field, paper            four tasks, all methods, seed 0 and two more of the best six, Gemma        12
    nslm, small             pretrained and pretrained_places with perplexities within a class          0.6 each
    nslm, small             numbers as published with the printed pairs, three seeds                   0.6
    nslm, paper             medium LSTM for 20 epochs, a corpus                                        7
    control_code, small     GRUs of Figure 3, a run                                                    0.8

``rehearse=true`` goes the same way on a CPU at size=smoke; it measures nothing.

Exit codes: 0 nothing is left, 3 give the command again, 1 something failed or was given up (``<step>.txt`` says what),
2 bad input.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import torch

from lit_ctg.command import Command, option
from lit_ctg.errors import UserError
from lit_ctg.files import write_atomic
from lit_ctg.limits import Choice, Count, Positive
from lit_ctg.results.record import SIZES, load_records
from lit_ctg.run import lab

WORK = Path("outputs") / "gpu_hour"
PYTHON = sys.executable
# name and command; the second is the rehearsal's
STEPS = {
    "tests": (
        [PYTHON, "-m", "pytest", "-q", "-m", "gpu"],
        [PYTHON, "-m", "pytest", "-q", "--collect-only", "-m", "gpu", "tests/network/test_transformer.py"],
    ),
    "bench_idea_gate": (
        [PYTHON, "benchmarks/bench_idea_gate.py", "--device", "cuda", "--precision", "bf16"],
        [PYTHON, "benchmarks/bench_idea_gate.py", "--help"],
    ),
    "bench_nslm": (
        [PYTHON, "benchmarks/bench_nslm.py", "--parts", "recorded"],
        [PYTHON, "benchmarks/bench_nslm.py", "--help"],
    ),
    "bench_gpt2": (
        [PYTHON, "benchmarks/bench_gpt2.py", "--device", "cuda"],
        [PYTHON, "benchmarks/bench_gpt2.py", "--help"],
    ),
    "bench_graphmax": (
        [PYTHON, "benchmarks/bench_graphmax.py", "--device", "cuda"],
        [PYTHON, "benchmarks/bench_graphmax.py", "--help"],
    ),
    "bench_controls": (
        [PYTHON, "benchmarks/bench_controls.py", "--device", "cuda", "--size", "gpt2"],
        [PYTHON, "benchmarks/bench_controls.py", "--help"],
    ),
}
# a step that was cut off in so many calls is given up
ATTEMPTS = 2
# seconds of a call that are kept for ending runs and copying
RESERVE = 45.0
# no step is started with fewer seconds than these: it would only use up one of its attempts
LEAST = 30.0
POLL = 1.0


class GpuHour(Command):
    """do as much as the minutes allow"""

    words = "gpu_hour"
    out: str = option("folder for what is brought back")
    minutes: Positive = option("of this call", 9.0)
    local: str | None = option("folder with the real corpora", None)
    workers: Count | None = option("runs side by side (default: 4, of a rehearsal 1)", None)
    rehearse: bool = option("true: the same on a CPU at size=smoke", False)
    paper: str = option("a paper, or all", "all")
    size: Annotated[str, Choice(SIZES)] = option("of the runs", "paper")

    def execute(self) -> int:
        return work(self)


def work(options: GpuHour) -> int:
    """Do as much as the minutes allow; return the exit code."""
    rehearse, end = options.rehearse, time.monotonic() + 60 * options.minutes - RESERVE
    if not rehearse and not torch.accelerator.is_available():
        raise UserError("gpu_hour: there is no accelerator here; rehearse=true goes the same way on a CPU")
    WORK.mkdir(parents=True, exist_ok=True)
    state = _read_state()
    for name, commands in STEPS.items():
        if _over(state.get(name)):
            continue
        if end - time.monotonic() < LEAST:
            break
        state[name] = _step(name, commands[rehearse], end - time.monotonic(), state.get(name))
        write_atomic(WORK / "state.json", json.dumps(state, indent=1))
        if not _over(state[name]):
            break
    else:
        _runs(options, end)
    left = _left()
    out = Path(options.out)
    shutil.copytree(WORK, out, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.lock", "*.previous.ckpt", ".*.tmp"))
    failed = [name for name, one in state.items() if _over(one) and one["code"] != 0]
    for name, one in state.items():
        cut = f"given up, cut off in {one['attempts']} calls" if _over(one) else "cut off"
        print(f"{name}: {cut if one['code'] is None else 'exit code ' + str(one['code'])}, {one['seconds']:.0f} s")
    records = load_records([WORK])
    print(
        f"{len(records)} records; {'not all steps done' if left is None else str(left) + ' runs left'}; copied to {out}"
    )
    if left is None or left > 0:
        return 3
    return 1 if failed else 0


def _read_state() -> dict[str, dict[str, float | None]]:
    path = WORK / "state.json"
    if not path.exists():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}): delete it") from error


def _over(state: dict[str, float | None] | None) -> bool:
    """Return whether a step has ended, or was cut off too often."""
    return state is not None and (state["code"] is not None or (state["attempts"] or 0) >= ATTEMPTS)


def _step(
    name: str, command: list[str], seconds: float, before: dict[str, float | None] | None
) -> dict[str, float | None]:
    """Run a test or benchmark for at most so long; return its exit code (None: cut off), calls and seconds."""
    began = time.monotonic()
    attempts = 1 + int((before or {}).get("attempts") or 0)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [os.getcwd(), *sys.path]))}
    with open(WORK / f"{name}.txt", "wb") as text:
        child = subprocess.Popen(
            command, stdout=text, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        try:
            code: int | None = child.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            code = None
    return {"code": code, "attempts": attempts, "seconds": round(time.monotonic() - began, 1)}


def _runs(options: GpuHour, end: float) -> None:
    """Let the lab work until the time is over."""
    if end - time.monotonic() < RESERVE:
        return
    here, workers = lab.Lab(WORK), options.workers or (1 if options.rehearse else 4)
    size = "smoke" if options.rehearse else options.size
    given = {"paper": options.paper, "size": size, "workers": workers, "nice": 0}
    lab.start(WORK, local=options.local, **given)
    try:
        while time.monotonic() < end and here.alive():
            time.sleep(POLL)
        for line in here.status():
            print(line)
    finally:
        lab.stop(WORK)


def _left() -> int | None:
    """Return how many runs a further call could do, None while the lab has not begun."""
    return lab.Lab(WORK).state()["left"]


if __name__ == "__main__":
    try:
        sys.exit(GpuHour.parse(sys.argv[1:]).execute())
    except UserError as error:
        print(str(error).removeprefix("lit-ctg "), file=sys.stderr)
        sys.exit(2)

"""Jobs as processes: no more at a time than allowed, none left when their starter is gone, whatever ended it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lit_ctg.run.jobs import Jobs, cores

# a job that leaves its number and those of a process it starts, as a run on several devices or a loader does
JOB = """
import subprocess, sys, time
from pathlib import Path
from lit_ctg.run.jobs import die_with_the_sweep
die_with_the_sweep()
folder, seconds = Path(sys.argv[1]), float(sys.argv[2])
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
(folder / f"{child.pid}.pid").write_text("")
import os
(folder / f"{os.getpid()}.pid").write_text("")
print("a line", flush=True)
time.sleep(seconds)
child.kill()
"""
SWEEP = f"""
import sys
from pathlib import Path
from lit_ctg.run.jobs import Jobs
with Jobs(2, Path(sys.argv[1]) / "logs", [sys.executable, "-c", {JOB!r}]) as jobs:
    for _ in range(5):
        jobs.start([sys.argv[1], "600"])
    jobs.finish()
"""


def wait(until: Callable[[], bool], seconds: float = 60.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end and not until():
        time.sleep(0.05)
    return until()


def alive(folder: Path) -> list[int]:
    """Return the processes that the jobs told of and that are still there."""
    found = []
    for path in folder.glob("*.pid"):
        try:
            state = Path(f"/proc/{path.stem}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            continue
        if state != "Z":
            found.append(int(path.stem))
    return found


def test_no_more_than_allowed_run_at_a_time(tmp_path: Path) -> None:
    most = 0
    with Jobs(2, tmp_path / "logs", [sys.executable, "-c", "import time; print('a line'); time.sleep(0.3)"]) as jobs:
        for _ in range(5):
            jobs.start([])
            most = max(most, sum(job.poll() is None for job in jobs.running))
        jobs.finish()
        assert not jobs.running
    assert most == 2
    assert [path.read_text() for path in sorted((tmp_path / "logs").iterdir())] == ["a line\n"] * 5
    assert cores() >= 1


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda how: how.name)
def test_none_outlives_the_sweep(tmp_path: Path, how: signal.Signals) -> None:
    # a test run in the background of a shell ignores Ctrl+C, and its children would too
    sweep = subprocess.Popen(
        [sys.executable, "-c", SWEEP, str(tmp_path)],
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        assert wait(lambda: len(list(tmp_path.glob("*.pid"))) == 4), "two jobs did not start"
        assert len(alive(tmp_path)) == 4
        sweep.send_signal(how)
        sweep.wait(timeout=60)
        assert wait(lambda: not alive(tmp_path)), alive(tmp_path)
        assert len(list(tmp_path.glob("*.pid"))) == 4, "another job was started"
    finally:
        sweep.kill()
        for process in alive(tmp_path):
            os.kill(process, signal.SIGKILL)

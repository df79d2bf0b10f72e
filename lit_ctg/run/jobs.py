"""Jobs of a sweep as processes (sweep=local): a limited number at a time, and none outlives the sweep."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from lit_ctg.files import writing

# seconds between two checks of the running jobs, and how long an interrupted job may take to end by itself
POLL = 0.05
PATIENCE = 10.0
JOURNAL_VARIABLE = "LIT_CTG_SWEEP_JOURNAL"
# exit code of a single run that another process is working on; a Python that cannot start ends with 1
BUSY = 75
# how many jobs share the cores
SIDE_BY_SIDE = "LIT_CTG_SIDE_BY_SIDE"


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# -P: import what this process imports, nothing from the current folder
COMMAND = (sys.executable, "-P", "-m", "lit_ctg.run.job")


def start_job(
    overrides: Sequence[str], log: IO[bytes], command: Sequence[str] = COMMAND, **environment: str
) -> subprocess.Popen[bytes]:
    """Start ``python -m lit_ctg.run.job OVERRIDE ...``; it dies with this process, however that ends.

    A job is a process group (a run on several devices has several processes) and reads a pipe whose only writer is this
    process: when the pipe closes, the job kills its group.
    """
    return subprocess.Popen(
        [*command, *overrides],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environment},
        start_new_session=True,
    )


class Jobs:
    """Starts jobs (``start_job``), waiting while ``limit`` of them run."""

    def __init__(self, limit: int, logs: Path, command: Sequence[str] = COMMAND) -> None:
        self.limit, self.logs, self.command = limit, logs, command
        self.running: list[subprocess.Popen[bytes]] = []
        self.started = 0

    def start(self, overrides: Sequence[str]) -> None:
        """Start a job as soon as there is room; its output is written to ``<logs>/<number>.log``."""
        self._wait(self.limit - 1)
        path = self.logs / f"{self.started}.log"
        with writing(path, remedy="set output_root=..."):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"")
        with open(path, "ab") as log:
            job = start_job(overrides, log, self.command, **{SIDE_BY_SIDE: str(self.limit)})
        self.running.append(job)
        self.started += 1

    def finish(self) -> None:
        """Wait for all jobs."""
        self._wait(0)

    def __enter__(self) -> Jobs:
        return self

    def __exit__(self, *error: object) -> None:
        """End jobs that are still running, after Ctrl+C or an error of the sweep."""
        for job in self.running:
            _signal(job, signal.SIGINT)
        end = time.monotonic() + PATIENCE
        for job in self.running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.wait(max(0.0, end - time.monotonic()))
            _signal(job, signal.SIGKILL)
            job.wait()

    def _wait(self, most: int) -> None:
        """Wait until at most this many jobs run."""
        while True:
            self.running = [job for job in self.running if job.poll() is None]
            if len(self.running) <= most:
                return
            time.sleep(POLL)


def _signal(job: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to a job's process group, if it still exists."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(job.pid, number)


def die_with_the_sweep() -> None:
    """In a job: kill its own process group as soon as the sweep is gone.

    Further processes that the job starts with the same command belong to its group and leave that to it.
    """
    if os.getpgrp() != os.getpid():
        return

    def watch() -> None:
        # the sweep never writes: a read returns (end of file) only when it is dead
        os.read(0, 1)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()

"""Processes of a training leave signals to the first one and do not outlive it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lit_ctg.core.processes import children_without_signals


def wait(until: Callable[[], object], seconds: float = 60) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end and not until():
        time.sleep(0.05)
    return bool(until())


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_children_get_no_signals() -> None:
    script = "import time; print(flush=True); time.sleep(600)"
    with children_without_signals():
        child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    other = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    with child, other:
        assert child.stdout and child.stdout.readline() and other.stdout and other.stdout.readline()
        for number in (signal.SIGINT, signal.SIGTERM):
            child.send_signal(number)
        other.send_signal(signal.SIGTERM)
        assert other.wait(10) == -signal.SIGTERM and child.poll() is None
        child.kill()


def test_a_signal_is_handled_after_the_body() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    done = False
    try:
        with pytest.raises(KeyboardInterrupt), children_without_signals():
            signal.raise_signal(signal.SIGINT)
            done = True
        assert done and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_a_process_dies_with_its_parent() -> None:
    child = """
import os, time
from lit_ctg.core.processes import end_with_parent
end_with_parent({})
print(os.getpid(), flush=True)
time.sleep(600)
"""
    script = f"import os, subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}.format(os.getpid())])"
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    with parent:
        assert parent.stdout
        process = int(parent.stdout.readline())
        assert alive(process)
        parent.kill()
        assert wait(lambda: not alive(process), 20)

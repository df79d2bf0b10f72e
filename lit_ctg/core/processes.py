"""Processes that a training starts: they leave signals to the first process and do not outlive it.

Ctrl+C and most schedulers signal the whole process group. Whatever a child does then, the first process sees it die.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator

# seconds between two looks at the parent
POLL = 0.5


@contextlib.contextmanager
def children_without_signals() -> Iterator[None]:
    """Start processes in the body that never receive SIGINT and SIGTERM: they inherit the blocked signals."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def die_with(parent: int) -> None:
    """Kill this process as soon as the process ``parent``, which started it, is gone."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(POLL)
        os.kill(os.getpid(), signal.SIGTERM if os.name == "nt" else signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()

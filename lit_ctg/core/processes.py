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
    """Start processes in the body that never receive SIGINT and SIGTERM; here both are handled after the body."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})  # children inherit it
    late: list[int] = []
    # if another thread receives a signal, the main thread still handles it
    main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM) if main}
    handlers = {number: found for number, found in handlers.items() if found not in (None, signal.SIG_IGN)}
    for number in handlers:
        signal.signal(number, lambda received, frame: late.append(received))
    try:
        yield
    finally:
        for number, found in handlers.items():
            signal.signal(number, found)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for received in late:
            signal.raise_signal(received)


def end_with_parent(parent: int) -> None:
    """Kill this process as soon as the process ``parent``, which started it, is gone."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(POLL)
        os.kill(os.getpid(), signal.SIGTERM if os.name == "nt" else signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()

"""Everything that touches Lightning's private parts: the one file to check when its version changes.

Written for Lightning 2.6 and tested with 2.6.6. Each function says what Lightning does and what that breaks.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any, cast

from lightning import Trainer

from lit_ctg.core.processes import children_without_signals

# where an exception can leave a lock acquired
LOCKS = ("threading", "queue", "multiprocessing.queues", "multiprocessing.synchronize", "multiprocessing.util")
# seconds until an interrupted process looks again whether it has left them
REPEAT = 0.01


def tell_epochs_by_progress(trainer: Trainer) -> None:
    """Let Lightning recognise an epoch's end by the progress alone, whether or not it has max_steps.

    Lightning takes every checkpoint of a trainer with max_steps for one within an epoch: resumed at an epoch's end, it
    ends that epoch a second time, and all later epochs get another epoch's batches and random numbers.
    """
    trainer.fit_loop._iteration_based_training = lambda: False  # type: ignore[method-assign]  # on purpose


def put_loaders_where_the_checkpoint_was(trainer: Trainer) -> None:
    """Restore the training loaders' position in their epoch from the checkpoint.

    Lightning does so when it builds the loaders, which ``estimated_stepping_batches`` has done before it is known that
    the run is resumed. (It also sets a sampler's epoch too late, its issue 21938; our loaders allow for that.)
    """
    trainer.fit_loop._load_combined_loader_states()


def _within_locks(frame: FrameType | None) -> bool:
    """Say whether a frame or one that called it belongs to Python's queues and locks."""
    while frame is not None:
        if frame.f_globals.get("__name__") in LOCKS:
            return True
        frame = frame.f_back
    return False


@contextlib.contextmanager
def interruptible(trainer: Trainer) -> Iterator[None]:
    """Let SIGINT and SIGTERM end the fit or validation in the body with KeyboardInterrupt.

    - Python drops an exception that is raised in a finalizer, such as that of a loader which waits for its workers.
      Lightning's flag for SIGTERM then ends the run after the batch, and the end of the body raises it again.
    - Lightning's own handler of SIGTERM broadcasts from wherever the signal arrived, which fails in an all-reduce.
    - Lightning kills this process when one of the others dies first. They get no signals, and are killed from here.
    - Lightning turns KeyboardInterrupt into SystemExit.
    - Raised between a lock's acquisition and the body of its ``with``, KeyboardInterrupt leaves it acquired, and the
      exit waits for it forever. So the signal is repeated until the process has left such modules (at most a second).
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    connector, launcher = cast(Any, trainer._signal_connector), cast(Any, trainer.strategy.launcher)
    interrupted = False
    repeats = 100 if hasattr(signal, "setitimer") else 0

    def interrupt(signum: int, frame: Any) -> None:
        nonlocal interrupted, repeats
        interrupted = connector.received_sigterm = True
        # Lightning's thread that watches them ends when the list is empty
        others = getattr(launcher, "procs", [])
        killed, others[:] = list(others), []
        for process in killed:
            process.kill()
        if repeats and _within_locks(frame):
            repeats -= 1
            signal.signal(signal.SIGALRM, interrupt)
            signal.setitimer(signal.ITIMER_REAL, REPEAT)
            return
        raise KeyboardInterrupt

    connector._sigterm_notifier_fn = interrupt
    if hasattr(launcher, "_call_children_scripts"):
        launcher._call_children_scripts = children_without_signals()(launcher._call_children_scripts)
    # whoever starts us in the background may have us ignore Ctrl+C
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    before = {number: handler for number, handler in before.items() if handler not in (None, signal.SIG_IGN)}
    alarm = {signal.SIGALRM: signal.getsignal(signal.SIGALRM)} if repeats else {}
    for number in before:
        signal.signal(number, interrupt)
    report, sys.unraisablehook = sys.unraisablehook, lambda dropped: None if interrupted else report(dropped)
    try:
        yield
    except SystemExit as error:
        raise KeyboardInterrupt from error
    finally:
        if interrupted and alarm:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in {**before, **alarm}.items():
            signal.signal(number, handler)
        sys.unraisablehook = report
    if interrupted:
        raise KeyboardInterrupt

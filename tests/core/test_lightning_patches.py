"""A run that is interrupted ends, wherever the signal finds it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import lightning
import pytest

from lit_ctg.core.lightning_patches import interruptible


class InFinalizer:
    """Receives a signal where Python drops exceptions."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.kill(os.getpid(), self.number)
        sum(range(10))  # the handler runs between two instructions


class Interrupt(lightning.Callback):
    def __init__(self, hook: str, number: int, swallowed: bool) -> None:
        self.batches = 0

        def send(*arguments: Any, **options: Any) -> None:
            InFinalizer(number) if swallowed else os.kill(os.getpid(), number)

        setattr(self, hook, send)

    def on_train_batch_end(self, *arguments: Any) -> None:
        self.batches += 1


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """What a command has, also where a shell started the tests in the background."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("swallowed", [False, True])
@pytest.mark.parametrize("hook", ["on_train_batch_start", "on_validation_batch_start", "on_fit_end", "setup"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_ends_the_run(
    number: signal.Signals, hook: str, swallowed: bool, tiny: Callable[[], Any], trainer_of: Callable[..., Any]
) -> None:
    callback = Interrupt(hook, number, swallowed)
    trainer = trainer_of(callback, max_epochs=3)
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), interruptible(trainer):
        trainer.fit(*tiny())
    if hook == "on_train_batch_start":
        assert callback.batches == int(swallowed)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


class Signalled:
    """A lock that a signal meets after its acquisition, before the body of ``with``."""

    def __init__(self, number: int) -> None:
        self.number, self.lock = number, threading.Lock()
        self.acquire, self.release = self.lock.acquire, self.lock.release

    def __enter__(self) -> None:
        self.acquire()
        signal.raise_signal(self.number)

    def __exit__(self, *error: object) -> None:
        self.release()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="the signal cannot be repeated")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_leaves_no_lock_acquired(number: signal.Signals, trainer_of: Callable[..., Any]) -> None:
    lock = Signalled(number)
    alarm = signal.getsignal(signal.SIGALRM)
    with pytest.raises(KeyboardInterrupt), interruptible(trainer_of()):
        with threading.Condition(lock):  # type: ignore[arg-type]
            pass
        for _ in range(1000):
            time.sleep(0.01)
    assert not lock.lock.locked() and signal.getsignal(signal.SIGALRM) is alarm


def test_who_ignores_ctrl_c_goes_on(tiny: Callable[[], Any], trainer_of: Callable[..., Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    callback = Interrupt("on_train_batch_start", signal.SIGINT, False)
    with interruptible(trainer := trainer_of(callback)):
        trainer.fit(*tiny())
    assert callback.batches == 4


def test_an_error_is_not_an_interrupt(tiny: Callable[[], Any], trainer_of: Callable[..., Any]) -> None:
    with pytest.raises(TypeError), interruptible(trainer := trainer_of()):
        trainer.fit(tiny()[0], 1)

"""Progress: a rich bar on a terminal, elsewhere a line every 30 seconds; one line per epoch everywhere."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, TypeVar

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar
from rich.progress import TaskID

from lit_ctg.limits import Checked
from lit_ctg.terminal import Bars, Console

Item = TypeVar("Item")


class Progress(Checked, RichProgressBar):
    """Lightning's rich bar, plus a line per epoch with validation perplexity that also reaches log files.

    Attributes:
        current: the bar of the running trainer, for ``steps``; None where there is none.
    """

    current: ClassVar[Progress | None] = None

    def __init__(self, title: str = "") -> None:
        super().__init__(leave=False)
        self.title = title
        self._lines: Bars | None = None
        self._tasks: dict[str, TaskID] = {}
        # without a terminal the bar would print control codes into the log
        if not sys.stdout.isatty():
            self.disable()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Become the bar on which ``steps`` counts."""
        super().setup(trainer, pl_module, stage)
        Progress.current = self
        if not self.is_enabled:  # here, as processes that are spawned get a copy of what there is before
            self._lines = Bars(console=Console(soft_wrap=True))

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Stop being that bar."""
        super().teardown(trainer, pl_module, stage)
        Progress.current = self._lines = None

    def _count(self, trainer: Trainer, part: str, done: int, total: float) -> None:
        """Count the batches of a part of the run without a progress bar."""
        if self._lines is None or not trainer.is_global_zero:
            return
        if done == 1 or part not in self._tasks:
            self._tasks[part] = self._lines.add_task(f"{self.title} {part}, batch".strip())
        self._lines.update(self._tasks[part], completed=done, total=total if math.isfinite(total) else None)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *batch: Any) -> None:
        """Count the batches of all epochs."""
        super().on_train_batch_end(trainer, pl_module, *batch)
        epochs = trainer.max_epochs if trainer.max_epochs and trainer.max_epochs > 0 else math.inf
        done = trainer.fit_loop.epoch_loop.total_batch_idx + 1
        steps = trainer.max_steps if trainer.max_steps > 0 else math.inf
        self._count(trainer, "training", done, min(steps, epochs * trainer.num_training_batches))

    def on_validation_batch_end(self, trainer: Trainer, pl_module: LightningModule, *batch: Any) -> None:
        """Count the batches of a validation."""
        super().on_validation_batch_end(trainer, pl_module, *batch)
        if not trainer.sanity_checking:
            self._count(trainer, "validation", batch[2] + 1, sum(trainer.num_val_batches))

    def on_test_batch_end(self, trainer: Trainer, pl_module: LightningModule, *batch: Any) -> None:
        """Count the batches of a test."""
        super().on_test_batch_end(trainer, pl_module, *batch)
        self._count(trainer, "test", batch[2] + 1, sum(trainer.num_test_batches))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the epoch's numbers."""
        super().on_validation_end(trainer, pl_module)
        if trainer.state.fn != "fit" or trainer.sanity_checking or not trainer.is_global_zero:
            return
        values = trainer.callback_metrics
        shown = [(key, values[key]) for key in ("train/loss", "val/perplexity") if key in values]
        numbers = "  ".join(f"{key} {float(value):.4f}" for key, value in shown)
        line = f"{self.title} epoch {trainer.current_epoch + 1}/{trainer.max_epochs}  {numbers}"
        Console(soft_wrap=True, highlight=False).print(line.strip())


def steps(items: Iterable[Item], title: str) -> Iterator[Item]:
    """Yield the parts of a trial and count them on the running trainer's bar, or in lines, if there is a trainer.

    Args:
        items: all of them.
        title: the things that are counted, a word or two.
    """
    bar = Progress.current
    listed = list(items)
    shown = None if bar is None else bar.progress if bar.is_enabled else bar._lines
    if shown is None:
        yield from listed
        return
    task = shown.add_task(title, total=len(listed))
    try:
        for item in listed:
            shown.refresh()
            yield item
            shown.advance(task)
    finally:
        shown.remove_task(task)

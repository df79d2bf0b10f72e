"""Progress on a terminal: a rich bar where there is one, one line per epoch everywhere."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import ClassVar, TypeVar

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar

from lit_ctg.limits import Checked
from lit_ctg.terminal import Console

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
        # without a terminal the bar would print control codes into the log
        if not sys.stdout.isatty():
            self.disable()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Become the bar on which ``steps`` counts."""
        super().setup(trainer, pl_module, stage)
        Progress.current = self

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Stop being that bar."""
        super().teardown(trainer, pl_module, stage)
        Progress.current = None

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
    """Yield the parts of a trial and count them on the running trainer's bar, if there is one.

    Args:
        items: all of them.
        title: the things that are counted, a word or two.
    """
    bar = Progress.current
    listed = list(items)
    if bar is None or not bar.is_enabled or bar.progress is None:
        yield from listed
        return
    task = bar.progress.add_task(title, total=len(listed))
    try:
        for item in listed:
            bar.progress.refresh()
            yield item
            bar.progress.advance(task)
    finally:
        bar.progress.remove_task(task)

"""Progress on a terminal: a rich bar where there is one, one line per epoch everywhere."""

from __future__ import annotations

import sys

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar
from rich.console import Console


class Progress(RichProgressBar):
    """Lightning's rich bar, plus a line per epoch with validation perplexity that also reaches log files."""

    def __init__(self, title: str = "") -> None:
        super().__init__(leave=False)
        self.title = title
        # without a terminal the bar would print control codes into the log
        if not sys.stdout.isatty():
            self.disable()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the epoch's numbers."""
        super().on_validation_end(trainer, pl_module)
        if trainer.state.fn != "fit" or not trainer.is_global_zero:
            return
        values = trainer.callback_metrics
        shown = [(key, values[key]) for key in ("train/loss", "val/perplexity") if key in values]
        numbers = "  ".join(f"{key} {float(value):.4f}" for key, value in shown)
        line = f"{self.title} epoch {trainer.current_epoch + 1}/{trainer.max_epochs}  {numbers}"
        Console(soft_wrap=True, highlight=False).print(line.strip())

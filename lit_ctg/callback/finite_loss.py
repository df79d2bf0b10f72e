"""Ends a run whose loss is no longer a number."""

from __future__ import annotations

from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer

from lit_ctg.errors import UserError


class FiniteLoss(Callback):
    """Check the training loss every ``every`` steps (each check waits for the device) and at the end of an epoch."""

    def __init__(self, every: int = 20) -> None:
        super().__init__()
        self.every = every
        self.last: torch.Tensor | None = None

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Remember the loss; look at it now and then.

        Raises:
            UserError: the loss is NaN or infinite.
        """
        self.last = outputs["loss"] if isinstance(outputs, dict) else outputs
        if batch_idx % self.every == 0:
            self._check(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look at the last loss before the weights are judged by it."""
        self._check(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look at the last loss of the epoch."""
        self._check(trainer)

    def _check(self, trainer: Trainer) -> None:
        if self.last is not None and not bool(torch.isfinite(self.last).all()):
            raise UserError(
                f"the training loss is {float(self.last)} at step {trainer.global_step}: "
                "lower model.learning_rate or set trainer.gradient_clip_val"
            )

"""Ends a run as soon as its loss or its weights are no longer finite."""

from __future__ import annotations

from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer

from lit_ctg.core.divergence import check_loss, check_weights
from lit_ctg.limits import Checked, Count


class FiniteLoss(Checked, Callback):
    """Check the training loss every few steps (each check waits for the device), loss and weights every epoch.

    Raises:
        Diverged: one of them is NaN or infinite.
    """

    def __init__(self, every: Count = 20) -> None:
        super().__init__()
        self.every = every
        self.last: torch.Tensor | None = None

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Remember the loss; check it every ``every`` steps."""
        self.last = outputs["loss"] if isinstance(outputs, dict) else outputs
        if batch_idx % self.every == 0:
            self._check_loss(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check before the weights are evaluated."""
        self._check(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check before the weights are saved."""
        self._check(trainer, pl_module)

    def _check(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._check_loss(trainer)
        check_weights(pl_module, trainer.global_step)

    def _check_loss(self, trainer: Trainer) -> None:
        if self.last is not None:
            check_loss(self.last, trainer.global_step)

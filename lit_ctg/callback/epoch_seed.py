"""Random numbers of an epoch as a function of (seed, epoch), so that a resumed run equals an uninterrupted one."""

from __future__ import annotations

from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from torch import Tensor

from lit_ctg.limits import Checked, Seed

# key of the generators' states in a checkpoint
KEY = "lit_ctg_generators"


def epoch_seed(seed: int, epoch: int) -> int:
    """Return a 63-bit seed for one epoch (splitmix64 of both numbers, so neighbouring seeds give unrelated streams)."""
    mask = (1 << 64) - 1
    value = (seed * 0x9E3779B97F4A7C15 + (epoch + 1) * 0xD1B54A32D192ED03) & mask
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
    return (value ^ (value >> 31)) >> 1


class EpochSeed(Checked, Callback):
    """Reseed torch at the start of every training epoch, so dropout does not depend on what ran before it.

    It also pairs runs: two models that draw dropout in the same order see the same masks. A checkpoint made within an
    epoch restores the states of the generators (those of the first process).
    """

    def __init__(self, seed: Seed) -> None:
        super().__init__()
        self.seed = seed
        self.stored: dict[str, Tensor] | None = None

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Seed the default generators of all devices."""
        self.stored = None
        torch.manual_seed(epoch_seed(self.seed, trainer.current_epoch))

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Restore the stored states if no epoch has begun since: building the loaders has drawn numbers."""
        if self.stored is not None:
            for device, state in self.stored.items():
                _generator(device).set_rng_state(state)
            self.stored = None

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Add the states of the generators in use, by the device's type."""
        devices = {"cpu", trainer.strategy.root_device.type}
        checkpoint[KEY] = {device: _generator(device).get_rng_state() for device in sorted(devices)}

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Keep the states until training continues."""
        self.stored = checkpoint.get(KEY)


def _generator(device: str) -> Any:
    """Return the module that reads and sets the default generator of a type of device."""
    return torch.random if device == "cpu" else torch.get_device_module(device)

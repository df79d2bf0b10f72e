"""Random numbers of an epoch as a function of (seed, epoch): what makes a resumed run equal an uninterrupted one."""

from __future__ import annotations

import torch
from lightning import Callback, LightningModule, Trainer


def epoch_seed(seed: int, epoch: int) -> int:
    """Return a 63-bit seed for one epoch (splitmix64 of both numbers, so near seeds give far streams)."""
    mask = (1 << 64) - 1
    value = (seed * 0x9E3779B97F4A7C15 + (epoch + 1) * 0xD1B54A32D192ED03) & mask
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
    return (value ^ (value >> 31)) >> 1


class EpochSeed(Callback):
    """Reseed torch at the start of every training epoch, so dropout does not depend on what ran before it.

    It also pairs runs: two models that draw dropout in the same order see the same masks.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Seed the default generators of all devices."""
        torch.manual_seed(epoch_seed(self.seed, trainer.current_epoch))

"""One checkpoint a run, rewritten whole after every epoch: the state to resume from, with the configuration inside."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from lightning import LightningModule, Trainer
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch.callbacks import ModelCheckpoint

# checkpoints written by another layout of this package are refused, not guessed at
FORMAT = 1
KEY = "lit_ctg"


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes to a temporary name and renames, so that a killed run never leaves half a checkpoint."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """Save ``checkpoint`` under ``path`` in one step."""
        target = Path(path)
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            super().save_checkpoint(checkpoint, temporary, storage_options)
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)


class RunCheckpoint(ModelCheckpoint):
    """``checkpoints/last.ckpt`` of the run directory; holds plain values only.

    ``settings`` is the resolved configuration, written into the checkpoint so that ``evaluate`` and ``generate`` can
    rebuild the model and refuse a checkpoint of another one.
    """

    def __init__(self, dirpath: str | None = None) -> None:
        super().__init__(
            dirpath=dirpath,
            filename="last",
            save_top_k=1,
            enable_version_counter=False,
            save_on_train_epoch_end=True,
        )
        self.settings: dict[str, Any] = {}

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Add the configuration."""
        checkpoint[KEY] = {"format": FORMAT, "config": self.settings}

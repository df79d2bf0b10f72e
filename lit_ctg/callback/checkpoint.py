"""One checkpoint a run, rewritten whole after every epoch: the state to resume from, with the configuration inside."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from lightning import LightningModule, Trainer
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch.callbacks import ModelCheckpoint

from lit_ctg.data.batching import StreamBatches
from lit_ctg.data.loader import ResumableLoader

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

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Let Lightning tell an epoch's end from its midst by the progress alone, whether or not it has max_steps.

        Lightning 2.6 takes every checkpoint of a trainer with max_steps for one inside an epoch: resumed at an epoch's
        end, it ends that epoch a second time, and all later ones meet another epoch's batches and random numbers.
        """
        super().setup(trainer, pl_module, stage)
        trainer.fit_loop._iteration_based_training = _by_progress  # type: ignore[method-assign]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put the training loader where the checkpoint was made.

        Lightning 2.6 does so when it makes the loader, which ``estimated_stepping_batches`` has done too early.
        """
        super().on_train_start(trainer, pl_module)
        trainer.fit_loop._load_combined_loader_states()

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Add the configuration; an epoch that max_steps cut short is not over."""
        checkpoint[KEY] = {"format": FORMAT, "config": self.settings}
        if _cut_short(trainer):
            for counts in checkpoint["loops"]["fit_loop"]["epoch_progress"].values():
                counts["processed"] -= 1
                counts["completed"] = min(counts["completed"], counts["processed"])


def _by_progress() -> bool:
    """Stand in for Lightning's "does this trainer count steps"."""
    return False


def _cut_short(trainer: Trainer) -> bool:
    """Tell whether max_steps ended the epoch inside, and the rest of it can be trained from a checkpoint exactly.

    It cannot where a model carries a state from batch to batch, where the loader does not know its position, and where
    each of several processes has random numbers of its own.
    """
    loader = trainer.train_dataloader
    known = isinstance(loader, ResumableLoader) and not isinstance(loader.dataset, StreamBatches)
    ended = trainer.fit_loop.epoch_progress.total
    return (
        known
        and trainer.world_size == 1
        and trainer.global_step == trainer.max_steps
        and not trainer.is_last_batch
        and ended.processed == ended.started
    )

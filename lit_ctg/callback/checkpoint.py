"""Checkpoints of a run: written atomically after every epoch, every byte checked on reading.

``last.ckpt`` is the state to resume from, with the configuration and the corpus's checksums inside;
``last.previous.ckpt`` is the one before it.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch.callbacks import ModelCheckpoint

from lit_ctg.core.checkpoint import FORMAT, KEY, load_checked
from lit_ctg.core.lightning_patches import put_loaders_where_the_checkpoint_was, tell_epochs_by_progress
from lit_ctg.data.batching import StreamBatches
from lit_ctg.data.loader import ResumableLoader
from lit_ctg.files import replacing
from lit_ctg.limits import Checked, NonNegative


def previous(path: Path) -> Path:
    """Return where the predecessor of the checkpoint at ``path`` is kept."""
    return path.with_name(f"{path.stem}.previous{path.suffix}")


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes beside the target, syncs and renames, so that a killed run never leaves half a checkpoint."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """Save ``checkpoint`` under ``path`` in one step and keep the one that was there.

        Lightning itself writes through the folder of temporary files, which is often small.

        Raises:
            UserError: the disk is full, or the folder cannot be written.
        """
        target = Path(path)
        with replacing(target, remedy="free some space or set output_root=...") as temporary:
            with open(temporary, "wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileNotFoundError):
                os.replace(target, previous(target))

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Read a checkpoint of ours."""
        return load_checked(Path(path))

    def remove_checkpoint(self, path: Any) -> None:
        """Delete a checkpoint; a folder or another file stays, whatever the state of a callback says.

        Lightning itself deletes the whole tree at a path that may come from the checkpoint.
        """
        target = Path(path)
        if target.suffix == ModelCheckpoint.FILE_EXTENSION and target.is_file():
            target.unlink()


class RunCheckpoint(Checked, ModelCheckpoint):
    """``checkpoints/last.ckpt`` of the run directory; holds plain values only.

    ``settings`` is the resolved configuration and ``corpus`` the checksums of text and vocabulary, written into the
    checkpoint so that ``evaluate`` and ``generate`` can rebuild the model and refuse a corpus that does not fit it.

    Args:
        dirpath: folder of the checkpoints.
        minutes: also save within an epoch, after the first step of the optimiser once this many have passed since the
            last save; None: only at its end. For models and callbacks whose checkpoint holds all state that they carry
            from batch to batch, in one process, with a loader that knows its position (``ResumableLoader``); otherwise
            nothing is saved within an epoch.
    """

    def __init__(self, dirpath: str | None = None, minutes: NonNegative | None = None) -> None:
        super().__init__(
            dirpath=dirpath,
            filename="last",
            save_top_k=1,
            enable_version_counter=False,
            save_on_train_epoch_end=True,
        )
        self.settings: dict[str, Any] = {}
        self.corpus: dict[str, str] = {}
        self.minutes, self._saved_at = minutes, time.monotonic()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take no paths over from the checkpoint that is resumed: the run directory decides about its own."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Let Lightning tell the end of an epoch from its middle."""
        super().setup(trainer, pl_module, stage)
        tell_epochs_by_progress(trainer)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Move the training loader to where the checkpoint was made."""
        super().on_train_start(trainer, pl_module)
        put_loaders_where_the_checkpoint_was(trainer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save within the epoch when it is time."""
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        if self.minutes is None or time.monotonic() - self._saved_at < 60 * self.minutes:
            return
        known = isinstance(trainer.train_dataloader, ResumableLoader) and trainer.world_size == 1
        # a checkpoint holds no gradients: between two steps those of the batches since the first would be lost
        stepped = (batch_idx + 1) % trainer.accumulate_grad_batches == 0
        if known and stepped and self.dirpath is not None and not trainer.is_last_batch:
            trainer.save_checkpoint(Path(self.dirpath) / f"{self.filename}{self.FILE_EXTENSION}")

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Add configuration and corpus; an epoch that max_steps cut short counts as unfinished."""
        self._saved_at = time.monotonic()
        checkpoint[KEY] = {"format": FORMAT, "config": self.settings, "corpus": self.corpus}
        if _cut_short(trainer):
            for counts in checkpoint["loops"]["fit_loop"]["epoch_progress"].values():
                counts["processed"] -= 1
                counts["completed"] = min(counts["completed"], counts["processed"])


def _cut_short(trainer: Trainer) -> bool:
    """Say whether max_steps ended the run within an epoch whose rest can be trained exactly from a checkpoint.

    It cannot where a model carries state from batch to batch, where the loader does not know its position, or where
    each of several processes has its own random numbers.
    """
    loader = trainer.train_dataloader
    known = isinstance(loader, ResumableLoader) and not isinstance(loader.batches, StreamBatches)
    ended: Any = trainer.fit_loop.epoch_progress.total  # the declared base class lacks the count of processed batches
    return (
        known
        and trainer.world_size == 1
        and trainer.global_step == trainer.max_steps
        and not trainer.is_last_batch
        and ended.processed == ended.started
    )

"""Training ends when validation has stopped improving, and the weights of the best validation stay."""

from __future__ import annotations

from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from lit_ctg.core.result import MetricResult
from lit_ctg.errors import UserError, did_you_mean
from lit_ctg.limits import Checked, Count

LAST = "keep_best_last"  # key in checkpoints of the weights to continue from, while ``state_dict`` holds the best ones


class KeepBest(Checked, EarlyStopping):
    """Lightning's early stopping, after which the run is evaluated and saved with the weights of the best validation.

    A checkpoint's ``state_dict`` holds the best weights so far; a resumed run continues from its last ones.

    Args:
        monitor: a validation metric, lower is better.
        patience: number of validations in a row that do not improve on the best one.

    Attributes:
        results: ``best_epoch``, the one whose weights were kept.

    Raises:
        UserError: there is no such metric.
    """

    def __init__(self, *, monitor: str, patience: Count) -> None:
        super().__init__(monitor=monitor, patience=patience, mode="min", check_on_train_epoch_end=False)
        self.best: dict[str, Tensor] = {}
        self.epoch = 0
        self.results: dict[str, dict[str, Any]] = {}
        self._last: dict[str, Tensor] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Go on from the last weights; train no further if the run had stopped before it was interrupted."""
        if self._last:
            pl_module.load_state_dict(self._last, strict=False)
            self._last = {}
        if self.stopped_epoch:
            trainer.should_stop = True

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the weights if they are the best so far; see whether to stop."""
        if self._should_skip_check(trainer):
            return
        logged = trainer.callback_metrics
        if self.monitor not in logged:
            known = sorted(name for name in logged if name.startswith("val/"))
            hint = did_you_mean(self.monitor, known)
            raise UserError(f"callback.keep_best.monitor={self.monitor}: the metrics are {', '.join(known)}{hint}")
        before = self.best_score
        super().on_validation_end(trainer, pl_module)
        if self.best_score < before:
            self.epoch = trainer.current_epoch + 1
            self.best = {name: tensor.cpu().clone() for name, tensor in weights(pl_module).items()}

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Go back to the best weights."""
        if self.best:
            pl_module.load_state_dict(self.best, strict=False)
        self._tell()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the early stopping and the epoch of the best weights."""
        return super().state_dict() | {"epoch": self.epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore it."""
        super().load_state_dict(state_dict)
        self.epoch = state_dict["epoch"]
        self._tell()  # of a run that had all its epochs before it was interrupted, nothing is trained any more

    def _tell(self) -> None:
        self.results = {"best_epoch": MetricResult(float(self.epoch), "epoch", "none", 1, None, 1).to_dict()}

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Put the best weights where everyone reads them, and the last ones beside them."""
        if self.best:
            checkpoint[LAST] = {name: checkpoint["state_dict"][name] for name in self.best}
            checkpoint["state_dict"] = checkpoint["state_dict"] | self.best

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Remember the last weights: only a resumed training needs them. The module has the best ones."""
        if trainer.state.fn == TrainerFn.FITTING and LAST in checkpoint:
            self._last = checkpoint[LAST]
            self.best = {name: checkpoint["state_dict"][name] for name in self._last}


def weights(module: LightningModule) -> dict[str, Tensor]:
    """Return the tensors of a module's state."""
    state = module.state_dict().items()
    return {name: tensor.detach() for name, tensor in state if isinstance(tensor, torch.Tensor)}

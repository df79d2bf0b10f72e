"""Attaches metrics to any LightningModule: updates them on validation batches, logs and stores their results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer

from lit_ctg.core.model import datamodule_of
from lit_ctg.errors import UserError

PREFIX = "val/"


class MetricCallback(Callback):
    """Update every metric with ``update_from(output, batch)``; results are named ``val/<name>``.

    ``results`` holds the last values in run-record form; ``history`` one value per epoch of training. A metric with
    a ``bind(datamodule, module)`` method is given both before its first batch.
    """

    def __init__(self, metrics: Mapping[str, Any]) -> None:
        super().__init__()
        self.metrics = dict(metrics)
        self.results: dict[str, dict[str, Any]] = {}
        self.history: dict[str, list[list[float]]] = {}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Bind the metrics; they follow the module's device."""
        for metric in self.metrics.values():
            if hasattr(metric, "bind"):
                metric.bind(datamodule_of(trainer), pl_module)

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start from empty sums on the module's device."""
        for metric in self.metrics.values():
            metric.to(pl_module.device).reset()

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, *_: Any, **__: Any
    ) -> None:
        """Add one batch to every metric's sums."""
        for metric in self.metrics.values():
            metric.update_from(outputs, batch)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Compute, log and store the results."""
        for name, metric in self.metrics.items():
            for key, result in _named(name, metric.result()).items():
                self.results[PREFIX + key] = result.to_dict()
        values = {key: result["value"] for key, result in self.results.items()}
        pl_module.log_dict({key: torch.tensor(value, dtype=torch.float32) for key, value in values.items()})
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            for key, value in values.items():
                self.history.setdefault(key, []).append([trainer.current_epoch + 1, value])

    def state_dict(self) -> dict[str, Any]:
        """Return the history, so that a resumed run's record holds every epoch."""
        return {"history": self.history}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the history of the epochs before the interruption."""
        self.history = state_dict["history"]


def _named(name: str, result: Any) -> dict[str, Any]:
    """Return results keyed by full name: a metric of many values names each ``<name>/<key>``."""
    if isinstance(result, Mapping):
        return {f"{name}/{key}": value for key, value in result.items()}
    if not hasattr(result, "to_dict"):
        raise UserError(f"metric {name}: result() must give a MetricResult or a dict of them")
    return {name: result}

"""Attaches metrics to any LightningModule: updates them on evaluation batches, logs and stores their results."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer

from lit_ctg.core.batch import datamodule_of
from lit_ctg.core.metric import TokenLoss
from lit_ctg.core.result import Direction, MetricResult
from lit_ctg.errors import UserError, one_line

_logger = logging.getLogger(__name__)


class MetricCallback(Callback):
    """Update every metric with each batch; results are named ``val/<name>`` and ``test/<name>``.

    A metric takes ``update_from(output, batch)``; one of torchmetrics takes scores and target ids of the counted
    positions. ``results`` holds the last values in run-record form; ``history`` one value per epoch of training. A
    metric with a ``bind(datamodule, module)`` method is given both before its first batch.
    """

    def __init__(self, metrics: Mapping[str, Any]) -> None:
        super().__init__()
        self.metrics = dict(metrics)
        self.results: dict[str, dict[str, Any]] = {}
        self.history: dict[str, list[list[float]]] = {}
        self._positions = torch.zeros((), dtype=torch.int64)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Bind the metrics; they follow the module's device."""
        for metric in self.metrics.values():
            if hasattr(metric, "bind"):
                metric.bind(datamodule_of(trainer), pl_module)

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start from empty sums on the module's device."""
        self._positions = torch.zeros((), dtype=torch.int64, device=pl_module.device)
        for metric in self.metrics.values():
            metric.to(pl_module.device).reset()

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, *_: Any, **__: Any
    ) -> None:
        """Add one batch to every metric's sums."""
        others = {name: metric for name, metric in self.metrics.items() if not hasattr(metric, "update_from")}
        for name, metric in self.metrics.items():
            if name not in others:
                metric.update_from(outputs, batch)
        if others:
            mask_BT = batch["mask_target_BT"]
            self._positions += mask_BT.sum()
            for name, metric in others.items():
                _update(name, metric, outputs.scores_BTV[mask_BT], batch["target_ids_BT"][mask_BT])

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Compute, log and store the results."""
        stage = "test" if trainer.state.fn == "test" else "val"
        found: dict[str, dict[str, Any]] = {}
        for name, metric in self.metrics.items():
            for key, result in _named(name, self._result(metric, trainer)).items():
                found[f"{stage}/{key}"] = result.to_dict()
        self.results |= found
        values = {key: result["value"] for key, result in found.items()}
        logged = {key: torch.tensor(value, dtype=torch.float32) for key, value in values.items()}
        # the loss that monitors read, where a metric has its sums
        if (whole := loss_among(self.metrics)) and f"{stage}/loss" not in logged:
            with self.metrics[whole].merged():
                logged[f"{stage}/loss"] = self.metrics[whole].ratio().float()
        pl_module.log_dict(logged)
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            for key, value in values.items():
                self.history.setdefault(key, []).append([trainer.current_epoch + 1, value])

    on_test_epoch_start = on_validation_epoch_start
    on_test_batch_end = on_validation_batch_end
    on_test_epoch_end = on_validation_epoch_end

    def _result(self, metric: Any, trainer: Trainer) -> Any:
        """Return a metric's result or results; those of torchmetrics have no unit and no interval."""
        if hasattr(metric, "result") or not hasattr(metric, "compute"):
            return metric.result() if hasattr(metric, "result") else None
        value, higher = metric.compute(), getattr(metric, "higher_is_better", None)
        direction: Direction = "none" if higher is None else "higher" if higher else "lower"
        count = int(trainer.strategy.reduce(self._positions, reduce_op="sum"))
        values = value if isinstance(value, Mapping) else {"": value}
        results = {key: MetricResult(float(one), "", direction, count, None, 1) for key, one in values.items()}
        return results if isinstance(value, Mapping) else results[""]

    def state_dict(self) -> dict[str, Any]:
        """Return the history, so that a resumed run's record holds every epoch."""
        return {"history": self.history}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the history of the epochs before the interruption."""
        self.history = state_dict["history"]


class ModelMetrics(MetricCallback):
    """The metrics that a model brings itself (``LitLanguageModel.configure_callbacks``), at least the loss.

    Metrics that the data module has nothing for are left out with a warning. ``of``: the model's own mapping.
    """

    def __init__(self, metrics: Mapping[str, Any]) -> None:
        super().__init__(metrics if loss_among(metrics) else {"loss": TokenLoss(), **metrics})
        self.of = metrics

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Bind the metrics that need a data module, where the Trainer has one."""
        datamodule = datamodule_of(trainer)
        for name, metric in list(self.metrics.items()):
            try:
                if hasattr(metric, "bind") and datamodule is not None:
                    metric.bind(datamodule, pl_module)
            except (UserError, AttributeError) as error:
                _logger.warning(f"metric {name} is left out: {one_line(error)}")
                del self.metrics[name]


def loss_among(metrics: Mapping[str, Any]) -> str | None:
    """Return the name of a metric whose sums give the mean cross-entropy of all targets, if there is one."""
    whole = (name for name, one in metrics.items() if isinstance(one, TokenLoss) and one.mask == "target")
    return next((name for name in whole if type(metrics[name]).keep is TokenLoss.keep), None)


def _update(name: str, metric: Any, scores_NV: torch.Tensor, target_N: torch.Tensor) -> None:
    """Update a metric of torchmetrics; those of its text package take texts, [1, N, V]."""
    as_text = type(metric).__module__.startswith("torchmetrics.text")
    try:
        metric.update(*(part.unsqueeze(0) if as_text else part for part in (scores_NV, target_N)))
    # whatever it does with scores that it is not made for
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(
            f"metric.{name}: {type(metric).__name__} takes no scores [N, V] and target ids [N] ({one_line(error)}): "
            "leave it out, or give its class a method update_from(output, batch)"
        ) from error


def _named(name: str, result: Any) -> dict[str, Any]:
    """Return results keyed by full name: a metric of many values names each ``<name>/<key>``."""
    if isinstance(result, Mapping):
        return {f"{name}/{key}": value for key, value in result.items()}
    if not hasattr(result, "to_dict"):
        raise UserError(f"metric {name}: result() must give a MetricResult or a dict of them")
    return {name: result}

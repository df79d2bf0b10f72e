"""Writes into the record what no causal predictor can beat on a generated corpus."""

from __future__ import annotations

from typing import Any

from lightning import Callback, LightningModule, Trainer

from lit_ctg.metric.result import MetricResult


class EntropyFloorCallback(Callback):
    """Put the data module's ``entropy_floor("val").metrics()`` beside the measured perplexities.

    A data module without an ``entropy_floor`` (real text) gives no entries.
    """

    def __init__(self) -> None:
        super().__init__()
        self.results: dict[str, dict[str, Any]] = {}

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Compute the floors once; they do not change in a run."""
        floor_of = getattr(trainer.datamodule, "entropy_floor", None)  # type: ignore[attr-defined]
        if self.results or floor_of is None:
            return
        for name, value in floor_of("val").metrics().items():
            # exact: no sample behind it, hence n = 0 and no interval
            self.results[f"floor/{name.removeprefix('floor/')}"] = MetricResult(float(value), "perplexity", "none", 0, None, 1).to_dict()

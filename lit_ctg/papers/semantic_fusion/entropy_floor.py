"""Writes into the record what no causal predictor can beat on a generated corpus."""

from __future__ import annotations

from typing import Any

from lightning import Callback, LightningModule, Trainer

from lit_ctg.core.result import MetricResult


class EntropyFloorCallback(Callback):
    """Put the data module's exact floors beside the measured perplexities.

    ``floor/<name>`` is what no causal predictor beats; ``floor_polarity_unknown/<name>`` what none beats that cannot
    tell the polarity of a held-out word it has read. A data module without them (real text) gives no entries.
    """

    def __init__(self) -> None:
        super().__init__()
        self.results: dict[str, dict[str, Any]] = {}

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Compute the floors once; they do not change in a run."""
        datamodule = trainer.datamodule  # type: ignore[attr-defined]
        if self.results:
            return
        for prefix, method in (
            ("floor", "entropy_floor"),
            ("floor_polarity_unknown", "floor_given_polarity_unknown"),
        ):
            if hasattr(datamodule, method):
                for name, value in getattr(datamodule, method)("val").metrics().items():
                    # exact: no sample behind it, hence n = 0 and no interval
                    result = MetricResult(float(value), "perplexity", "none", 0, None, 1)
                    self.results[f"{prefix}/{name.removeprefix('floor/')}"] = result.to_dict()

"""Collects what a run record needs during the run: tokens, time, memory, the results of other callbacks."""

from __future__ import annotations

import resource
import sys
import time
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer


class RunRecordCallback(Callback):
    """Count training tokens and seconds (over all attempts of a resumed run) and collect ``results``/``history``."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds_before = 0.0
        self.tokens = torch.zeros((), dtype=torch.int64)
        self.started = time.monotonic()
        self.fit_seconds = 0.0

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock."""
        self.started = time.monotonic()
        self.tokens = self.tokens.to(pl_module.device)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count predicted tokens, on the device, without waiting for it."""
        mask = batch.get("mask_target_BT") if isinstance(batch, dict) else None
        if mask is not None:
            self.tokens += mask.sum()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop the clock; add up the tokens of all processes."""
        self.fit_seconds = self.seconds
        self.tokens = trainer.strategy.reduce(self.tokens, reduce_op="sum")

    @property
    def seconds(self) -> float:
        """Seconds of training (including validation) so far, over all attempts."""
        return self.seconds_before + time.monotonic() - self.started

    def state_dict(self) -> dict[str, Any]:
        """Return the counts, so that a resumed run continues them."""
        return {"seconds": self.seconds, "tokens": int(self.tokens)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the counts of earlier attempts."""
        self.seconds_before = float(state_dict["seconds"])
        self.tokens = torch.tensor(int(state_dict["tokens"]), dtype=torch.int64)

    def collect(self, trainer: Trainer) -> tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]:
        """Return (metrics, history, samples) of all callbacks that have them."""
        metrics: dict[str, Any] = {}
        history: dict[str, Any] = {}
        samples: list[dict[str, Any]] = []
        for callback in trainer.callbacks:  # type: ignore[attr-defined]  # Lightning's connector sets it
            metrics |= getattr(callback, "results", {})
            history |= getattr(callback, "history", {})
            samples += getattr(callback, "samples", [])
        return metrics, history, samples


def peak_memory_mb() -> float:
    """Return the peak memory in MiB: of the CUDA device where one is in use, else of this process."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated() > 0:
        return torch.cuda.max_memory_allocated() / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # kilobytes on Linux, bytes on macOS
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10

"""When a run has diverged: one rule for the training loss, the weights and the final measurements."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lit_ctg.errors import UserError

# where the rate is differs by paper: model.learning_rate, model.optimizers.<name>.learning_rate
REMEDY = "lower the model's learning_rate or set trainer.gradient_clip_val"


class Diverged(UserError):
    """Training ended in NaN or infinity. The run's record has the status DIVERGED and this line as its result."""


def check_loss(loss: Tensor, step: int) -> None:
    """Raise ``Diverged`` when the loss of a training step is NaN or infinite."""
    if not bool(torch.isfinite(loss).all()):
        raise Diverged(f"the training loss is {float(loss.sum())} at step {step}: {REMEDY}")


def check_weights(module: nn.Module, step: int) -> None:
    """Raise ``Diverged`` when a trained parameter holds a NaN or an infinity; waits for the device once."""
    named = [(name, weight) for name, weight in module.named_parameters() if weight.requires_grad and weight.numel()]
    if not named:
        return
    finite_N = torch.stack([torch.isfinite(weight.detach()).all() for _, weight in named]).tolist()
    bad = [name for (name, _), finite in zip(named, finite_N, strict=True) if not finite]
    if bad:
        more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
        raise Diverged(f"the weights {bad[0]}{more} are not finite at step {step}: {REMEDY}")


def check_metrics(metrics: Mapping[str, Mapping[str, Any]], step: int) -> None:
    """Raise ``Diverged`` when something was measured (n > 0) and came out as NaN or infinite.

    A NaN over nothing (n = 0) means that there was nothing to measure.
    """
    for name, result in metrics.items():
        if result["n"] > 0 and not math.isfinite(result["value"]):
            raise Diverged(f"{name} is {result['value']} at the end of training, step {step}: {REMEDY}")

"""The optimisers of the control-code paper and the one its rows are set beside."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR

from lit_ctg.core.model import adamw_warmup_cosine
from lit_ctg.errors import UserError, did_you_mean

OPTIMIZERS = ("sgd", "adam", "adamw")


def check_optimizer(name: str, settings: Mapping[str, Mapping[str, float]]) -> None:
    """Refuse an unknown optimiser, or one whose numbers the configuration does not give."""
    known = [option for option in OPTIMIZERS if option in settings]
    if name not in known:
        raise UserError(f"model.optimizer={name}: use one of {', '.join(known)}{did_you_mean(str(name), known)}")


def optimizer(
    name: str, parameters: Iterable[nn.Parameter], settings: Mapping[str, float], total_steps: int
) -> dict[str, Any]:
    """Return what ``configure_optimizers`` does.

    Args:
        name: sgd (rate times ``gamma`` every epoch, sec. 4.3), adam (constant rate, sec. 4.2), adamw (warm-up, cosine).
        parameters: what to train.
        settings: ``learning_rate`` and, by optimiser, ``gamma`` or ``weight_decay`` and ``warmup_fraction``.
        total_steps: of the run.
    """
    rate = settings["learning_rate"]
    if name == "sgd":
        chosen = torch.optim.SGD(parameters, lr=rate)
        falling = ExponentialLR(chosen, gamma=settings["gamma"])
        return {"optimizer": chosen, "lr_scheduler": {"scheduler": falling, "interval": "epoch"}}
    if name == "adam":
        return {"optimizer": torch.optim.Adam(parameters, lr=rate)}
    configured = adamw_warmup_cosine(
        parameters,
        learning_rate=rate,
        weight_decay=settings["weight_decay"],
        decay_matrices_only=True,
        warmup_fraction=settings["warmup_fraction"],
        warmup_from_zero=False,
        total_steps=total_steps,
    )
    # a fused optimiser can unscale gradients, so Lightning would not clip them; in bfloat16 there is nothing to unscale
    configured["optimizer"]._step_supports_amp_scaling = False
    return configured

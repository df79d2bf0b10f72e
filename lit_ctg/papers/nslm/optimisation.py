"""Plain SGD with a rate that falls epoch by epoch, and clipping that takes sparse gradients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR


def sgd_with_decay(
    parameters: Iterable[nn.Parameter], *, learning_rate: float, rate_decay: float, constant_epochs: int
) -> dict[str, Any]:
    """Return SGD whose rate is multiplied by ``rate_decay`` each epoch after ``constant_epochs`` (Zaremba et al. 2014).

    The form is that of ``configure_optimizers``.
    """
    optimizer = torch.optim.SGD(parameters, lr=learning_rate)

    def factor(epoch: int) -> float:
        return rate_decay ** max(0, epoch + 1 - constant_epochs)

    return {"optimizer": optimizer, "lr_scheduler": LambdaLR(optimizer, factor)}


def clip_apart(whole: nn.Module, apart: Iterable[nn.Module], largest: float) -> None:
    """Clip each of some parts by the norm of its own gradients, and all else together."""
    parts = list(apart)
    own = {parameter for part in parts for parameter in part.parameters()}
    clip_by_norm((parameter for parameter in whole.parameters() if parameter not in own), largest)
    for part in parts:
        clip_by_norm(part.parameters(), largest)


def clip_by_norm(parameters: Iterable[nn.Parameter], largest: float) -> None:
    """Scale all gradients so that their joint norm is at most ``largest``; torch's own function refuses sparse ones."""
    grads = []
    for parameter in parameters:
        if parameter.grad is not None:
            if parameter.grad.is_sparse:
                parameter.grad = parameter.grad.coalesce()
            grads.append(parameter.grad._values() if parameter.grad.is_sparse else parameter.grad)
    if not grads:
        return
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(grad) for grad in grads]))
    if norm > largest:
        for grad in grads:
            grad.mul_(largest / norm)

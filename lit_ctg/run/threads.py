"""The number of threads that torch uses on a CPU: the only place that decides it."""

from __future__ import annotations

import os

import torch
from lightning import Trainer
from torch import nn

from lit_ctg.run.jobs import SIDE_BY_SIDE, cores

# Trained parameters from which all cores are used. Below, an operation is short, and on a busy machine every operation
# waits for the slowest thread: two threads took 2.1 times as long and 3.3 to 3.5 times the processor time on two shared
# cores, with 0.4 to 21 million parameters. From which size they pay on an idle machine is
# not measured: set ``threads`` there.
MANY = 20_000_000
# whoever sets one of these has decided
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def set_threads(given: int | None, module: nn.Module, trainer: Trainer) -> int:
    """Set torch's number of threads for a run and return it.

    In this order: the setting ``threads``; the environment's ``OMP_NUM_THREADS`` or ``MKL_NUM_THREADS``; on a CPU, one
    for a model below ``MANY`` trained parameters and all cores, shared with jobs running beside it, for a larger one.
    """
    if given is not None:
        torch.set_num_threads(given)
    elif not any(os.environ.get(name) for name in VARIABLES) and trainer.strategy.root_device.type == "cpu":
        trained = sum(weight.numel() for weight in module.parameters() if weight.requires_grad)
        beside = trainer.num_devices * int(os.environ.get(SIDE_BY_SIDE, 1))
        torch.set_num_threads(1 if trained < MANY else max(1, cores() // beside))
    return torch.get_num_threads()

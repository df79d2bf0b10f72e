"""Processes of one run that torchrun or srun started: the first decides on the folder and tells the others."""

from __future__ import annotations

import os
from typing import Any

import torch
from lightning.fabric.plugins.environments import ClusterEnvironment, SLURMEnvironment, TorchElasticEnvironment
from omegaconf import DictConfig

from lit_ctg.errors import UserError


def started_together() -> ClusterEnvironment | None:
    """Return what tells the processes of this start apart, or None if this process was started alone."""
    for environment in (TorchElasticEnvironment, SLURMEnvironment):
        if environment.detect() and (found := environment()).world_size() > 1:
            return found
    return None


def is_first_process() -> bool:
    """Return whether this process speaks and writes for its run."""
    together = started_together()
    return (together.global_rank() if together else int(os.environ.get("LOCAL_RANK", 0))) == 0


def check_number(together: ClusterEnvironment, trainer: DictConfig) -> None:
    """Refuse a trainer that does not use all processes of this start.

    Raises:
        UserError: names the settings.
    """
    devices, nodes = str(trainer.devices), int(trainer.num_nodes)
    if trainer.strategy == "auto" or (devices.isdigit() and int(devices) * nodes != together.world_size()):
        raise UserError(
            f"{together.world_size()} processes were started for trainer.devices={devices}, trainer.num_nodes={nodes}: "
            "pass trainer=ddp trainer.devices=<processes a node> trainer.num_nodes=<nodes>"
        )


def from_first(together: ClusterEnvironment, value: Any = None) -> Any:
    """Return the first process's value in all processes; Lightning keeps the connection that this opens.

    Raises:
        UserError: the value is one.
    """
    process = torch.distributed
    if not process.is_initialized():
        os.environ |= {"MASTER_ADDR": together.main_address, "MASTER_PORT": str(together.main_port)}
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        process.init_process_group(backend, rank=together.global_rank(), world_size=together.world_size())
    values = [value]
    process.broadcast_object_list(values, src=0)
    if isinstance(values[0], UserError):
        raise values[0]
    return values[0]

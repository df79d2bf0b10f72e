"""What the machine's arithmetic allows: bfloat16 products where there are units for them, no device without float64."""

from __future__ import annotations

import os

import torch
from lightning import Trainer
from lightning.pytorch.accelerators import MPSAccelerator
from lightning.pytorch.plugins import Precision

from lit_ctg.errors import UserError

MIXED = "bf16-mixed"
# of x86 (AVX-512, AMX) and of ARM
UNITS = ("avx512_bf16", "amx_bf16", "bf16")


def has_bfloat16() -> bool:
    """Return whether the processor multiplies bfloat16 itself and oneDNN, which does it for torch, may use that.

    Without such units torch falls back on loops that take 14 to 29 times as long as a product in float32, and the LSTM
    of oneDNN refuses (measured with AVX2).
    """
    found = torch.cpu.get_capabilities()
    # oneDNN's own names: only those of AVX-512 with bfloat16 and of what came after it include it
    cap = os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper()
    capped = cap.startswith(("SSE", "AVX2")) or cap in ("AVX", "AVX512_CORE", "AVX512_CORE_VNNI")
    return torch.backends.mkldnn.is_available() and any(found.get(name, False) for name in UNITS) and not capped


def set_precision(trainer: Trainer) -> str:
    """Let a trainer on a processor without units for bfloat16 multiply in float32; return the precision it will use.

    Only ``bf16-mixed`` changes: there weights, sums and losses are float32 in any case, so that what is left out is a
    rounding of factors. It is a setting of the machine, like the number of threads, and the record says what was used.
    """
    if trainer.precision == MIXED and trainer.strategy.root_device.type == "cpu" and not has_bfloat16():
        trainer.strategy.precision_plugin = Precision()
    return str(trainer.precision)


def usable_accelerator(asked: str) -> str:
    """Return the accelerator for a trainer: the processor where ``auto`` would choose Apple's GPU.

    Metrics sum in float64, which that device does not have, so that every run there would fail at its first metric.

    Raises:
        UserError: it was asked for.
    """
    if not MPSAccelerator.is_available() or asked not in ("auto", "gpu", "mps"):
        return asked
    if asked != "auto":
        raise UserError(
            f"trainer.accelerator={asked}: Apple's GPU has no float64, in which metrics sum; leave it out, then the "
            "processor is used"
        )
    return "cpu"

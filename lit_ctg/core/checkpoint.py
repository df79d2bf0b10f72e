"""Reads checkpoints of this package: plain values only, every byte checked."""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lit_ctg.errors import UserError

# checkpoints in another layout of this package are refused, not guessed at
FORMAT = 2
KEY = "lit_ctg"


class DamagedError(UserError):
    """The file is not a whole checkpoint: truncated, corrupted, or written by another program."""


def load_checked(path: Path) -> dict[str, Any]:
    """Read a checkpoint of ours onto the CPU; nothing in it is executed, and every byte is checked.

    The checksums are those of the zip file that ``torch.save`` writes; ``torch.load`` does not look at them.

    Raises:
        UserError: missing, of another version, or with weights that are not real numbers.
        DamagedError: truncated, changed, or not written by this package.
    """
    if not path.is_file():
        raise UserError(f"no checkpoint at {path}: train first (lit-ctg train experiment=...) or check ckpt_path")
    try:
        with zipfile.ZipFile(path) as archive:
            # torch.save stores; packed data could fill the memory
            stored = not any(part.compress_type for part in archive.infolist())
            whole = stored and archive.testzip() is None
        content = torch.load(path, map_location="cpu", weights_only=True) if whole else None
    # zipfile and torch raise many kinds of errors on foreign bytes; torch's message would advise executing them
    except Exception as error:
        raise DamagedError(f"{path} is not a readable checkpoint: it is damaged or of another kind") from error
    if not whole:
        raise DamagedError(f"{path} is damaged: a part of it is packed or does not have its checksum")
    ours = content.get(KEY) if isinstance(content, dict) else None
    if not isinstance(content, dict) or not isinstance(ours, dict):
        raise DamagedError(f"{path} was not written by lit_ctg")
    if ours.get("format") != FORMAT:
        raise UserError(f"{path} has checkpoint format {ours.get('format')}, this version reads {FORMAT}: train again")
    weights = content.get("state_dict")
    if not isinstance(weights, dict) or not all(isinstance(name, str) for name in weights):
        weights = None
    if weights is None or not isinstance(ours.get("config"), dict) or not isinstance(ours.get("corpus"), dict):
        raise DamagedError(f"{path} was not written by lit_ctg: it lacks weights, configuration or corpus")
    for name, weight in weights.items():
        if isinstance(weight, Tensor) and weight.is_complex():
            raise UserError(f"{path} holds complex numbers ({name}), which no model here has: train again")
    return content


@contextlib.contextmanager
def fitting(path: Path) -> Iterator[None]:
    """Turn what a model raises on the content of a checkpoint that is not its own into one line.

    Raises:
        UserError: names the checkpoint.
    """
    try:
        yield
    # a weight of the wrong shape or type raises RuntimeError, foreign values can raise anything
    except (RuntimeError, AttributeError, TypeError, ValueError, KeyError, IndexError) as error:
        raise UserError(
            f"checkpoint {path} does not fit this model: {(str(error).splitlines() or [''])[-1].strip()}"
        ) from error

"""Whether the compiled kernels can be used: numba is installed (extra ``compiled``) and the tensors lie on a CPU."""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from types import ModuleType

from torch import Tensor


def kernels_for(tensor: Tensor) -> ModuleType | None:
    """Return the module of compiled kernels, or None where torch has to do."""
    return _kernels() if tensor.device.type == "cpu" else None


@cache
def _kernels() -> ModuleType | None:
    if importlib.util.find_spec("numba") is None:
        return None
    return importlib.import_module("lit_ctg.model.graphmax.compiled")

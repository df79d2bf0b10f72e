"""Drop-ins for the CPU: which kernels are used (numba, extra ``compiled``), and how: on rows side by side."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import torch

from lit_ctg.errors import UserError, did_you_mean

SETTINGS = ("auto", "off")


def chosen_kernels(setting: str) -> ModuleType | None:
    """Return the module of compiled kernels; None for ``off``, and where there is no numba.

    Raises:
        UserError: no such setting.
    """
    if setting not in SETTINGS:
        raise UserError(f"fast={setting}{did_you_mean(str(setting), SETTINGS)}: use one of {', '.join(SETTINGS)}")
    return _kernels() if setting == "auto" else None


def over_rows(kernel: Callable[..., None], arrays: Sequence[np.ndarray], *shared: Any) -> None:
    """Run ``kernel(*arrays, *shared)`` on consecutive rows of all arrays, side by side on torch's number of threads.

    The first array tells the number of rows; an array without rows stays so.
    """
    count = len(arrays[0])
    threads = max(1, min(torch.get_num_threads(), count))
    bounds = [count * place // threads for place in range(threads + 1)]
    together(kernel, [(*(part[a:b] for part in arrays), *shared) for a, b in itertools.pairwise(bounds)])


def together(kernel: Callable[..., None], calls: Sequence[tuple[Any, ...]]) -> None:
    """Run some calls of a kernel side by side; kernels hold no lock while they run."""
    if len(calls) == 1:
        kernel(*calls[0])
        return
    with ThreadPoolExecutor(len(calls)) as pool:
        for run in [pool.submit(kernel, *call) for call in calls]:
            run.result()


@cache
def _kernels() -> ModuleType | None:
    if importlib.util.find_spec("numba") is None:
        return None
    try:
        return importlib.import_module("lit_ctg.papers.graphmax.fast.kernels")
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] != "lit_ctg":
            raise
        return None  # these lines stand in a bundle (run/export.py), which has torch's products only

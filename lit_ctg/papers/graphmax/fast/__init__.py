"""Drop-ins for the CPU: the choice of kernels (numba, extra ``compiled``), and their parallel use on rows."""

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

SETTINGS = ("auto", "off")

# what the model step and its compiled form share; here, where a change means that the kernels are compiled again
WEIGHTY = 0.02  # a token is an extra when its own penalty would move its logit by more than this
MOST_EXTRAS = 4096
ABSENT = -1e30  # logit of an absent variable; finite, so that differences stay finite
NEWTON_STEPS = 60
SURE = 0.5  # a gap that falls to this share of the last one needs no search
CG_TOL, CG_ITERATIONS = 0.01, 60  # tolerance of a Newton step's linear system
SMALL = 1e-4  # mass up to which a variable may grow exponentially in one step
SEGMENT_STEPS, SEGMENT_WIDTH = 30, 1e-3
FAR = 60.0  # nats beyond which the plain form of a gap is used; e^-60 is negligible


def chosen_kernels(setting: str) -> ModuleType | None:
    """Return the module of compiled kernels; None for ``off``, and where there is no numba."""
    return _kernels() if setting == "auto" else None


def over_rows(kernel: Callable[..., None], arrays: Sequence[np.ndarray], *shared: Any) -> None:
    """Run ``kernel(*arrays, *shared)`` on consecutive rows of all arrays, in parallel on torch's number of threads.

    The first array determines the number of rows; an empty array stays empty.
    """
    count = len(arrays[0])
    threads = max(1, min(torch.get_num_threads(), count))
    bounds = [count * place // threads for place in range(threads + 1)]
    together(kernel, [(*(part[a:b] for part in arrays), *shared) for a, b in itertools.pairwise(bounds)])


def together(kernel: Callable[..., None], calls: Sequence[tuple[Any, ...]]) -> None:
    """Run some calls of a kernel in parallel; kernels release the GIL."""
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

"""Compilation of the kernels, where numba caches them, and their common arithmetic.

numba caches compiled code beside its source file, checks only that file for changes, and raises at import if it can
write neither there nor in the home directory. So the folder is chosen here (beside this package, in the user's cache,
or none), under a digest of all files of this package.
"""

from __future__ import annotations

import hashlib
import math
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba.extending import overload

# sums may be reordered; NaN and inf keep their meaning
_SETTINGS = {"nogil": True, "error_model": "numpy", "fastmath": {"reassoc", "contract", "nsz", "arcp"}}


def compiled(function: Callable[..., Any]) -> Any:
    """Compile a kernel on its first call, and cache the code if possible."""
    folder = kept_in()
    if folder is None:
        return numba.njit(**_SETTINGS)(function)
    before, numba.config.CACHE_DIR = numba.config.CACHE_DIR, str(folder)
    try:
        return numba.njit(cache=True, **_SETTINGS)(function)
    finally:
        numba.config.CACHE_DIR = before


def kept_in() -> Path | None:
    """Return the folder for compiled code; None if no folder of ours is writable.

    numba unpickles what it finds, so a folder that others can write to, such as /tmp, is not used, nor one that
    numba read from a file in the current folder (``numba.config``): only what the environment names.
    """
    here = Path(__file__).parent
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(here.glob("*.py")))).hexdigest()[:16]
    asked = os.environ.get("NUMBA_CACHE_DIR")
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    roots: list[Any] = [asked] if asked else [here / "__pycache__", f"{cache}/lit_ctg"]
    for root in roots:
        try:
            folder = Path(root).expanduser() / f"kernels-{digest}"
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except (OSError, RuntimeError):  # RuntimeError: no home directory
            continue
    return None


# Arithmetic.

LANES = 64

# for operations whose order must not change
_IN_ORDER = {"error_model": "numpy", "fastmath": {"contract"}}


LOG2_E = np.float32(1.44269504)
# log 2 in two parts: the first has few enough digits for its multiples to be exact
LOG2_HIGH, LOG2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
ONE, HALF = np.float32(1), np.float32(0.5)
LEAST = np.float32(-87.3)  # exp of anything less is 0: no subnormal numbers
# exp(r) = 1 + r + r^2 (E2 + E3 r + ...) for |r| <= log(2) / 2, minimax
E2, E3, E4 = np.float32(5.0000001201e-1), np.float32(1.6666665459e-1), np.float32(4.1665795894e-2)
E5, E6, E7 = np.float32(8.3334519073e-3), np.float32(1.3981999507e-3), np.float32(1.9875691500e-4)
# the same for float64, where exp(r) is its series
LOG2_E_64, LOG2_HIGH_64, LOG2_LOW_64 = 1.4426950408889634, 6.93147180369123816490e-01, 1.90821492927058770002e-10
LEAST_64, MOST_64 = -708.0, 709.0
EXPONENT_BIAS, MANTISSA_BITS = np.int32(127), np.int32(23)


def exponential(u):
    """Return exp(u) in a form whose loops are vectorised: float32 for u <= 88 to 3e-7, float64 to 1e-13."""
    return math.exp(u)


@overload(exponential, jit_options=_IN_ORDER)
def _exponential(u) -> Callable:
    def single(u):
        v = LEAST if u < LEAST else u
        whole = np.floor(v * LOG2_E + HALF)
        r = v - whole * LOG2_HIGH - whole * LOG2_LOW
        series = ((((E7 * r + E6) * r + E5) * r + E4) * r + E3) * r + E2
        power = np.int32((np.int32(whole) + EXPONENT_BIAS) << MANTISSA_BITS).view(np.float32)
        value = (series * r * r + r + ONE) * power
        # NaN is not less than LEAST
        return np.float32(0) if u < LEAST else value

    def double(u):
        v = min(max(u, LEAST_64), MOST_64)
        whole = np.floor(v * LOG2_E_64 + 0.5)
        r = v - whole * LOG2_HIGH_64 - whole * LOG2_LOW_64
        series = 1 / 39916800.0
        for factorial in (3628800.0, 362880.0, 40320.0, 5040.0, 720.0, 120.0, 24.0, 6.0, 2.0, 1.0, 1.0):
            series = series * r + 1 / factorial
        power = np.int64((np.int64(whole) + 1023) << 52).view(np.float64)
        # NaN is not less than LEAST
        return 0.0 if u < LEAST_64 else (series * power if u == u else u)

    return single if u == numba.float32 else double


@compiled
def highest(u_n):
    """Return the largest entry; NaN is skipped."""
    # lane by lane: a single running maximum would not be vectorised
    lanes, even = np.full(LANES, -np.inf, u_n.dtype), len(u_n) // LANES * LANES
    for start in range(0, even, LANES):
        for lane in range(LANES):
            value = u_n[start + lane]
            lanes[lane] = value if value > lanes[lane] else lanes[lane]
    top = u_n.dtype.type(-np.inf)
    for lane in range(LANES):
        top = max(top, lanes[lane])
    for place in range(even, len(u_n)):
        value = u_n[place]
        top = value if value > top else top
    return top


@compiled
def write_exp(u_n, less, out_n):
    """Write ``exp(u - less)``, not in place (it would not be vectorised), and return its sum."""
    shift = u_n.dtype.type(less)
    for place in range(len(u_n)):
        out_n[place] = exponential(u_n[place] - shift)
    return total(out_n)


@compiled
def total(u_n):
    """Return the sum in float64."""
    result = 0.0
    for place in range(len(u_n)):
        result += u_n[place]
    return result


@compiled
def normalized(u_n):
    """Subtract its log sum exp from u, in place."""
    top, mass = highest(u_n), 0.0
    for place in range(len(u_n)):
        mass += math.exp(u_n[place] - top)
    for place in range(len(u_n)):
        u_n[place] -= top + math.log(mass)
    return u_n

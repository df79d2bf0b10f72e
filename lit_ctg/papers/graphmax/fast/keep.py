"""Where numba caches compiled kernels: beside this package, in the user's cache, or nowhere.

numba caches compiled code beside its source file, checks only that file for changes, and raises at import if it can
write neither there nor in the home directory. So the folder is chosen here, under a digest of all kernel files.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba

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

    A folder that others can write to, such as /tmp, is not used: numba unpickles what it finds.
    """
    here = Path(__file__).parent
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(here.glob("*.py")))).hexdigest()[:16]
    asked = numba.config.CACHE_DIR
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

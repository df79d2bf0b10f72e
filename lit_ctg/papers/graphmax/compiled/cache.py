"""Where compiled kernels are kept.

numba keeps compiled code beside the file it comes from and looks at that file only; what a kernel calls may lie in
another one. So everything of this package is kept under a digest of all its files.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path

import numba


@contextlib.contextmanager
def kept_by_digest() -> Iterator[None]:
    """Let kernels that are defined within be kept under a digest of all files of this package."""
    here, before = Path(__file__).parent, numba.config.CACHE_DIR
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(here.glob("*.py")))).hexdigest()
    numba.config.CACHE_DIR = str(Path(before or here / "__pycache__") / f"kernels-{digest[:16]}")
    try:
        yield
    finally:
        numba.config.CACHE_DIR = before

"""One process at a time: sweep jobs that start together wait for the first to finish a download or a cache."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from lit_ctg.errors import UserError


@contextlib.contextmanager
def exclusive(target: str | Path, *, timeout_s: float = 3600.0) -> Iterator[None]:
    """Hold the lock file ``<target>.lock``; the operating system frees it when a process dies.

    Raises ``UserError`` when the folder cannot be written or the lock is not free after ``timeout_s`` seconds.
    """
    from filelock import FileLock, Timeout

    path = Path(target)
    lock = FileLock(path.with_name(path.name + ".lock"), timeout=timeout_s)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        raise UserError(
            f"{lock.lock_file} is held by another process for over {timeout_s:.0f} s: end it or wait"
        ) from error
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"{path.parent} cannot be written ({reason}): set data.cache_root to another folder") from error
    try:
        yield
    finally:
        lock.release()

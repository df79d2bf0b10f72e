"""Run directories: one a configuration, claimed by a lock, never shared, never overwritten."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from lit_ctg.errors import UserError
from lit_ctg.results.record import config_hash

RECORD = "run.json"
LOG = "metrics.csv"
CHECKPOINT = Path("checkpoints") / "last.ckpt"


@dataclass
class RunDirectory:
    """A claimed directory; the lock is held until ``release`` (or the death of the process)."""

    path: Path
    lock: IO[str]

    @property
    def checkpoint(self) -> Path:
        """The last checkpoint, whether or not it exists yet."""
        return self.path / CHECKPOINT

    @property
    def record(self) -> Path:
        """The run record, whether or not it exists yet."""
        return self.path / RECORD

    def release(self) -> None:
        """Give the directory free."""
        self.lock.close()


@dataclass(frozen=True)
class Finished:
    """A directory whose run is done, or is being run by another process (``busy``)."""

    path: Path
    busy: bool = False


def run_stem(root: Path, paper: str, name: str, regime: str, size: str, seed: int, config_hash: str) -> Path:
    """Return ``<root>/<paper>/<name>/<regime>-<size>-seed<seed>-<hash8>``."""
    return root / paper / name / f"{regime}-{size}-seed{seed}-{config_hash[:8]}"


def claim(stem: Path, skip_completed: bool) -> RunDirectory | Finished:
    """Claim a directory for a run: the first of ``stem``, ``stem-1``, ... that is neither done nor busy.

    An unfinished directory is claimed again, so a killed run goes on from its last checkpoint; its record, if it
    failed, and its log are kept as ``run.before-<k>.json`` and ``metrics.before-<k>.csv``. With ``skip_completed`` a
    done or busy directory ends the search.

    Raises:
        UserError: the folder cannot be written.
    """
    if skip_completed and (done := finished(stem)):
        return Finished(done[-1])
    attempt = 0
    while True:
        path = stem if attempt == 0 else stem.with_name(f"{stem.name}-{attempt}")
        lock = _lock(path)
        if lock is None:
            if skip_completed:
                return Finished(path, busy=True)
        else:
            status = run_status(path / RECORD)
            if status != "DONE":
                for name in (RECORD, LOG):
                    _set_aside(path / name)
                # halves of files that a killed process was writing; the lock says that nobody is at it now
                for half in path.rglob(".*.tmp"):
                    half.unlink()
                return RunDirectory(path, lock)
            lock.close()
            if skip_completed:
                return Finished(path)
        attempt += 1


def finished(stem: Path) -> list[Path]:
    """Return the folders of the finished runs of the configuration ``stem`` is named after, the newest last.

    A run finished under an older version may lie under another hash of the same configuration: the configuration in
    its record decides.
    """
    prefix, _, digest = stem.name.rpartition("-")
    found = []
    for folder in stem.parent.glob(f"{prefix}-*"):
        if folder.name == stem.name or folder.name.startswith(f"{stem.name}-"):
            same = run_status(folder / RECORD) == "DONE"
        else:
            same = _hash_of_finished(folder / RECORD)[:8] == digest
        if same:
            found.append(folder)
    return sorted(found, key=lambda folder: (folder / RECORD).stat().st_mtime)


def _hash_of_finished(record: Path) -> str:
    """Return the hash, as this version counts it, of the configuration in the record of a finished run, or ""."""
    try:
        content = json.loads(record.read_text(encoding="utf-8"))
        return config_hash(content["config"]) if content["status"] == "DONE" else ""
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def run_status(record: Path) -> str | None:
    """Return the status a record states, or None when there is no readable record."""
    try:
        return str(json.loads(record.read_text(encoding="utf-8"))["status"])
    except (FileNotFoundError, json.JSONDecodeError, KeyError, TypeError):
        return None


def _lock(path: Path) -> IO[str] | None:
    """Return a held lock on ``path``, or None when another process holds it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        handle = open(path / ".lock", "w", encoding="utf-8")  # noqa: SIM115 - held for the life of the run
    except OSError as error:
        raise UserError(f"cannot write the run directory {path}: {error.strerror}; set output_root=...") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.close()
        return None
    return handle


def _set_aside(file: Path) -> None:
    """Keep a file of an earlier attempt beside the new one's: ``run.json`` becomes ``run.before-0.json``."""
    if not file.exists():
        return
    number = 0
    while (kept := file.with_name(f"{file.stem}.before-{number}{file.suffix}")).exists():
        number += 1
    os.replace(file, kept)

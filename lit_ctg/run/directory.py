"""Run directories: one per configuration, claimed by a lock, never shared, never overwritten."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lit_ctg.config import plain
from lit_ctg.errors import FULL, UserError
from lit_ctg.files import plain_name, try_lock, writing
from lit_ctg.results.record import config_hash

if TYPE_CHECKING:
    from filelock import BaseFileLock
    from omegaconf import DictConfig

RECORD = "run.json"
LOG = "metrics.csv"
CHECKPOINT = Path("checkpoints") / "last.ckpt"
# beside the lock: its owner
OWNER = ".owner"
REMEDY = "free some space or set output_root=..."
# a run with one of these statuses would end the same way if repeated
FINAL = ("DONE", "DIVERGED")


@dataclass
class RunDirectory:
    """A claimed directory; the lock is held until ``release``, the end of a ``with`` or that of the process.

    A full disk in such a ``with`` is one line that names the directory, where libraries do not name the file.
    """

    path: Path
    lock: BaseFileLock

    @property
    def checkpoint(self) -> Path:
        """The last checkpoint, whether or not it exists yet."""
        return self.path / CHECKPOINT

    @property
    def record(self) -> Path:
        """The run record, whether or not it exists yet."""
        return self.path / RECORD

    def release(self) -> None:
        self.lock.release()

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.release()
        if isinstance(error, OSError) and error.filename is None and error.errno in FULL:
            raise UserError(f"cannot write {self.path}: {error.strerror}; {REMEDY}") from error


@dataclass(frozen=True)
class Finished:
    """A directory whose run has ended or is in progress elsewhere; ``busy`` names that process."""

    path: Path
    busy: str = ""


def run_stem(root: Path, paper: str, name: str, regime: str, size: str, seed: int, config_hash: str) -> Path:
    """Return ``<root>/<paper>/<name>/<regime>-<size>-seed<seed>-<hash8>``.

    Raises:
        UserError: the paper or the name would lead to another folder.
    """
    remedy = "give a name of letters, digits, '_' and '-'"
    plain_name(paper, "paper", remedy)
    plain_name(name, "name", remedy)
    return root / paper / name / f"{regime}-{size}-seed{seed}-{config_hash[:8]}"


def stem_of(cfg: DictConfig) -> Path:
    """Return the ``run_stem`` of a composed configuration."""
    names = (cfg.paper, cfg.name, cfg.regime.name, cfg.size.name, cfg.seed)
    return run_stem(Path(cfg.output_root), *names, config_hash(plain(cfg)))


def claim(
    stem: Path, skip_completed: bool, same_corpus: Callable[[Path], bool] = lambda record: True
) -> RunDirectory | Finished:
    """Claim a directory for a run: the first of ``stem``, ``stem-1``, ... that is neither finished nor busy.

    An unfinished directory is claimed again, so a killed run continues from its last checkpoint; its record, if it
    failed, and its log are kept as ``run.before-<k>.json`` and ``metrics.before-<k>.csv``. With ``skip_completed`` a
    finished or busy run ends the search.

    Args:
        skip_completed: whether a finished run need not be repeated.
        same_corpus: whether the run of a record had the same corpus; a run on another corpus does not count.

    Raises:
        UserError: the folder cannot be written.
    """
    if skip_completed and (done := [path for path in finished(stem, FINAL) if same_corpus(path / RECORD)]):
        return Finished(done[-1])
    attempt = 0
    while True:
        path = stem if attempt == 0 else stem.with_name(f"{stem.name}-{attempt}")
        lock = try_lock(path / ".lock", remedy=REMEDY)
        if lock is None:
            if skip_completed:
                return Finished(path, busy=_owner(path))
        else:
            if run_status(path / RECORD) not in FINAL:
                with writing(path / OWNER, remedy=REMEDY):
                    (path / OWNER).write_text(f"process {os.getpid()} on {socket.gethostname()}", encoding="utf-8")
                for name in (RECORD, LOG):
                    set_aside(path / name)
                # partial files of a killed process; the lock guarantees that nobody is writing now
                for half in list(path.rglob(".*.tmp")):
                    shutil.rmtree(half) if half.is_dir() else half.unlink(missing_ok=True)
                return RunDirectory(path, lock)
            lock.release()
            if skip_completed and same_corpus(path / RECORD):
                return Finished(path)
        attempt += 1


def _owner(path: Path) -> str:
    """Return who holds the lock of a run directory, as far as known."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return (path / OWNER).read_text(encoding="utf-8") or "another process"
    return "another process"


def finished(stem: Path, statuses: tuple[str, ...] = ("DONE",)) -> list[Path]:
    """Return the folders of runs that ended and have the configuration that ``stem`` is named after, the newest last.

    A run finished under an older version may lie under another hash of the same configuration; the configuration in
    its record decides.
    """
    prefix, _, digest = stem.name.rpartition("-")
    found = []
    for folder in stem.parent.glob(f"{prefix}-*"):
        if folder.name == stem.name or folder.name.startswith(f"{stem.name}-"):
            same = run_status(folder / RECORD) in statuses
        else:
            same = _hash_of_ended(folder / RECORD, statuses)[:8] == digest
        if same:
            found.append(folder)
    return sorted(found, key=lambda folder: (folder / RECORD).stat().st_mtime)


def _hash_of_ended(record: Path, statuses: tuple[str, ...]) -> str:
    """Return this version's hash of the configuration in the record of a run that ended, or ""."""
    try:
        content = json.loads(record.read_text(encoding="utf-8"))
        return config_hash(content["config"]) if content["status"] in statuses else ""
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ""


def run_status(record: Path) -> str | None:
    """Return the status in a record, or None if there is no readable record."""
    try:
        return str(json.loads(record.read_text(encoding="utf-8"))["status"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def set_aside(file: Path) -> None:
    """Keep a file of an earlier attempt beside the new one: ``run.json`` becomes ``run.before-0.json``."""
    if not file.exists():
        return
    number = 0
    while (kept := file.with_name(f"{file.stem}.before-{number}{file.suffix}")).exists():
        number += 1
    os.replace(file, kept)

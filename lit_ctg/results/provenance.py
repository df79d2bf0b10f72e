"""Where a result comes from: the code's commit, the versions beneath it, the hash of its configuration."""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from lit_ctg.results.files import named_floats

# keys of the configuration (dotted, from the root) that do not change what a training run computes
HASH_IGNORED = (
    "output_root",
    "skip_completed",
    "ckpt_path",
    "debug",
    "logger",
    "hydra",
    "prompt",
    "n",
    "control",
    "path",
    "callback.progress",
    "callback.checkpoint",
    "data.cache_root",
    "data.num_workers",
    "data.pin_memory",
    "data.persistent_workers",
    "trainer.default_root_dir",
    "trainer.enable_checkpointing",
    "trainer.enable_model_summary",
    "trainer.enable_progress_bar",
    "trainer.log_every_n_steps",
    "trainer.logger",
)

PACKAGES = ("torch", "lightning", "torchmetrics", "hydra-core", "omegaconf", "transformers", "numpy", "scipy")


def config_hash(config: Mapping[str, Any], without: Iterable[str] = HASH_IGNORED) -> str:
    """Return the SHA-256 of the canonical JSON of a resolved configuration, less keys that change no result.

    Of a class to build (``_target_``) only its name counts, not the module it lies in: a class that moves within the
    package is the same class, and its finished runs stay found.

    Args:
        config: plain nested dicts, lists, numbers and strings.
        without: dotted keys, from the root, left out with all below them.
    """
    kept = without_modules(drop_keys(config, frozenset(without)))
    text = json.dumps(named_floats(kept), sort_keys=True, separators=(",", ":"), allow_nan=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def drop_keys(config: Mapping[str, Any], ignored: frozenset[str], prefix: str = "") -> dict[str, Any]:
    """Return a copy of ``config`` without the dotted keys in ``ignored``."""
    kept = {}
    for key, value in config.items():
        dotted = f"{prefix}{key}"
        if dotted not in ignored:
            kept[key] = drop_keys(value, ignored, f"{dotted}.") if isinstance(value, Mapping) else value
    return kept


def without_modules(config: Any) -> Any:
    """Return a copy of ``config`` with every ``_target_`` cut to the name of its class."""
    if isinstance(config, Mapping):
        return {
            key: str(value).rpartition(".")[2] if key == "_target_" else without_modules(value)
            for key, value in config.items()
        }
    return [without_modules(value) for value in config] if isinstance(config, list | tuple) else config


def environment() -> dict[str, dict[str, Any]]:
    """Return ``{"git": {commit, dirty}, "versions": {...}}``; commit and dirty are null outside a checkout.

    ``dirty`` says whether the package or its configuration differ from the commit. Imports nothing it names.
    """
    versions = {"python": platform.python_version(), "platform": platform.platform()}
    for package in ("lit-ctg", *PACKAGES):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {"git": _git_state(Path(__file__).resolve().parents[2]), "versions": versions}


def _git_state(root: Path) -> dict[str, Any]:
    """Return commit and dirty flag of the checkout that tracks this package, nulls if none does."""
    # an environment inside somebody's checkout is not that checkout's code: ask whether git tracks this very file
    if _git(root, "ls-files", "--error-unmatch", "lit_ctg/__init__.py") is None:
        return {"commit": None, "dirty": None}
    changes = _git(root, "status", "--porcelain", "--", "lit_ctg", "conf")
    return {"commit": _git(root, "rev-parse", "HEAD"), "dirty": None if changes is None else bool(changes)}


def _git(root: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None

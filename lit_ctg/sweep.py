"""`lit-ctg train -m`: Hydra's multirun with every job guarded: a failing job is told at once, the sweep goes on."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import traceback
from datetime import datetime
from pathlib import Path

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from lit_ctg.config import check, config_folder, explain, prepare_overrides, register
from lit_ctg.errors import UserError

JOURNAL_VARIABLE = "LIT_CTG_SWEEP_JOURNAL"


def sweep(words: list[str]) -> int:
    """Run every combination of the comma-separated values; return 0, or 1 when some job failed.

    Raises:
        UserError: the overrides do not compose, so no job was started.
    """
    overrides = prepare_overrides(words)
    root = next(
        (word.partition("=")[2].strip("'\"") for word in overrides if word.startswith("output_root=")),
        "outputs",
    )
    folder = _new_folder(Path(root) / "sweeps")
    journal = folder / "jobs.jsonl"
    os.environ[JOURNAL_VARIABLE] = str(journal.resolve())
    os.environ["HYDRA_FULL_ERROR"] = "1"
    register()
    began = time.monotonic()
    run = hydra.main(config_path=str(config_folder()), config_name="config", version_base="1.3")(_job)
    if not any(word.startswith("hydra.sweep.dir=") for word in overrides):
        overrides.append(f"hydra.sweep.dir='{folder}'")
    arguments, sys.argv = sys.argv, ["lit-ctg", "--multirun", *overrides]
    try:
        run()
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise UserError(explain(error)) from error
    finally:
        sys.argv = arguments
        os.environ.pop(JOURNAL_VARIABLE, None)
    return _summary(journal, time.monotonic() - began)


def _new_folder(parent: Path) -> Path:
    """Make a folder of this moment that nobody else has, also when sweeps start in the same second."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f"{datetime.now():%Y-%m-%d_%H-%M-%S}-", dir=parent))
    except OSError as error:
        raise UserError(f"cannot write {parent}: {error.strerror}; set output_root=...") from error


def _job(cfg: DictConfig) -> str:
    """Run one job; a failure becomes a line on the screen and in the journal, not the end of the sweep."""
    from lit_ctg.train import train

    register()
    began = time.monotonic()
    label = "unknown"
    try:
        check(cfg)
        label = f"{cfg.paper}/{cfg.name} {cfg.regime.name} {cfg.size.name} seed {cfg.seed}"
        outcome = train(cfg)
        entry = {"job": label, "status": outcome.status, "folder": str(outcome.folder), "error": None}
    except UserError as error:
        entry = {"job": label, "status": "FAILED", "folder": None, "error": " ".join(str(error).split())}
    except Exception as error:
        if cfg.get("debug"):
            traceback.print_exc()
        entry = {
            "job": label,
            "status": "FAILED",
            "folder": None,
            "error": f"{type(error).__name__}: {error}",
        }
    entry["seconds"] = round(time.monotonic() - began, 1)
    if entry["status"] == "FAILED":
        print(f"FAILED {label}: {' '.join(str(entry['error']).split())}", file=sys.stderr, flush=True)
    with open(os.environ[JOURNAL_VARIABLE], "a", encoding="utf-8") as journal:
        journal.write(json.dumps(entry) + "\n")
    return str(entry["status"])


def _summary(journal: Path, seconds: float) -> int:
    """Print what became of the jobs; return the exit code."""
    lines = journal.read_text(encoding="utf-8").splitlines() if journal.exists() else []
    entries = [json.loads(line) for line in lines]
    counts = {status: sum(entry["status"] == status for entry in entries) for status in ("DONE", "SKIPPED", "FAILED")}
    console = Console(soft_wrap=True, highlight=False)
    console.print(
        f"sweep of {len(entries)} jobs in {seconds:.0f} s: {counts['DONE']} done, "
        f"{counts['SKIPPED']} skipped, {counts['FAILED']} failed"
    )
    for entry in entries:
        if entry["status"] == "FAILED":
            console.print(f"  FAILED {entry['job']}: {entry['error']}", markup=False)
    return 1 if counts["FAILED"] or not entries else 0

"""`lit-ctg train`: seed, build, run, record, close the loggers."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.loggers import WandbLogger
from omegaconf import DictConfig
from rich.console import Console

from lit_ctg.callback.run_record import RunRecordCallback, peak_memory_mb
from lit_ctg.callback.wandb_tables import log_record
from lit_ctg.config import plain
from lit_ctg.errors import UserError
from lit_ctg.files import write_samples
from lit_ctg.results.record import RunRecord, config_hash, environment, write_record
from lit_ctg.run.build import Experiment, build
from lit_ctg.run.directory import CHECKPOINT, Finished, RunDirectory, claim, run_stem

# tells the further processes of a run on several devices where the first one works
FOLDER_VARIABLE = "LIT_CTG_RUN_FOLDER"


@dataclass(frozen=True)
class Outcome:
    """How a run ended: DONE, or SKIPPED because its record was there (or another process is at it)."""

    status: str
    folder: Path


def train(cfg: DictConfig) -> Outcome:
    """Train one configuration and leave ``run.json`` in its run directory.

    Raises:
        UserError: bad input; the record says FAILED and why.
    """
    if int(os.environ.get("LOCAL_RANK", 0)) > 0:
        return join(cfg)
    config = plain(cfg)
    digest = config_hash(config)
    stem = run_stem(Path(cfg.output_root), cfg.paper, cfg.name, cfg.regime.name, cfg.size.name, cfg.seed, digest)
    console = Console(soft_wrap=True, highlight=False)
    directory = claim(stem, cfg.skip_completed)
    if isinstance(directory, Finished):
        console.print(f"{'busy' if directory.busy else 'done'} already, skipped: {directory.path}")
        return Outcome("SKIPPED", directory.path)
    record = new_record(cfg, config, digest)
    try:
        _run(cfg, directory, record)
    except Exception as error:
        record.status, record.error = "FAILED", _one_line(error)
        write_record(record, directory.record)
        raise
    finally:
        directory.release()
    console.print(f"record: {directory.record}")
    return Outcome("DONE", directory.path)


def join(cfg: DictConfig) -> Outcome:
    """Take part in a run as one of the further processes that Lightning starts with the same command (trainer=ddp).

    Raises:
        UserError: started by something else.
    """
    if FOLDER_VARIABLE not in os.environ:
        raise UserError("LOCAL_RANK is set but no run is under way: start one process, Lightning starts the others")
    folder = Path(os.environ[FOLDER_VARIABLE])
    experiment = build(cfg, folder, loggers=False)
    _fit(experiment, folder / CHECKPOINT)
    return Outcome("DONE", folder)


def _fit(experiment: Experiment, checkpoint: Path) -> None:
    """Fit from the last checkpoint if there is one, and validate."""
    trainer, module, datamodule = experiment.trainer, experiment.module, experiment.datamodule
    resume = str(checkpoint) if checkpoint.is_file() else None
    trainer.fit(module, datamodule, ckpt_path=resume, weights_only=True if resume else None)
    # the record's numbers come from one last validation, so a run killed right after training ends the same
    trainer.validate(module, datamodule, verbose=False)


def _run(cfg: DictConfig, directory: RunDirectory, record: RunRecord) -> None:
    """Fit, validate, and write the record."""
    began = time.monotonic()
    experiment = build(cfg, directory.path)
    os.environ[FOLDER_VARIABLE] = str(directory.path.resolve())
    try:
        _fit(experiment, directory.checkpoint)
        samples = fill_record(record, experiment, directory.path)
        log_record(experiment.trainer, record, samples)
    except SystemExit as error:
        # Lightning turns Ctrl+C into SystemExit; the checkpoint stays, so the run can go on
        raise KeyboardInterrupt from error
    finally:
        os.environ.pop(FOLDER_VARIABLE, None)
        close_loggers(experiment)
    # of all attempts: what a run cost is what the next one like it will cost
    earlier = experiment.callback(RunRecordCallback).seconds_before
    record.wall_time_s = round(earlier + time.monotonic() - began, 3)
    write_record(record, directory.record)


def new_record(cfg: DictConfig, config: dict[str, Any], digest: str) -> RunRecord:
    """Return the record of a run that has only begun; its status is FAILED until the numbers are in."""
    return RunRecord(
        status="FAILED",
        name=cfg.name,
        paper=cfg.paper,
        experiment=f"{cfg.paper}/{cfg.name}",
        regime=cfg.regime.name,
        size=cfg.size.name,
        seed=cfg.seed,
        config=config,
        config_hash=digest,
        threads=torch.get_num_threads(),
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        **environment(),
    )


def fill_record(record: RunRecord, experiment: Experiment, folder: Path) -> list[dict[str, Any]]:
    """Put the run's numbers into its record and its generated texts into ``samples.jsonl``; return the texts."""
    counter: RunRecordCallback | None = experiment.callback(RunRecordCallback)
    if counter is None:
        raise UserError("callback.run_record is missing: no record can be written without it")
    metrics, history, samples = counter.collect(experiment.trainer)
    record.metrics, record.history = metrics, history
    record.device = str(experiment.trainer.strategy.root_device)
    record.parameters = sum(parameter.numel() for parameter in experiment.module.parameters())
    record.tokens_per_s = round(int(counter.tokens) / max(counter.fit_seconds, 1e-9), 1)
    record.peak_memory_mb = round(peak_memory_mb(), 1)
    record.status, record.error = "DONE", None
    if samples:
        write_samples(samples, folder / "samples.jsonl")
    return samples


def close_loggers(experiment: Experiment) -> None:
    """Finish W&B even when the run failed: an unfinished run would swallow the next one in this process."""
    for logger in experiment.trainer.loggers:
        if isinstance(logger, WandbLogger):
            import wandb

            wandb.finish()


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, UserError) else f"{type(error).__name__}: {text}"

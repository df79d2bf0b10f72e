"""`lit-ctg train`: seed, build, run, record, close the loggers."""

from __future__ import annotations

import gc
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import torch
from lightning import Callback
from lightning.fabric.plugins.environments import ClusterEnvironment
from lightning.pytorch.loggers import WandbLogger
from omegaconf import DictConfig

from lit_ctg.callback.run_record import RunRecordCallback, peak_memory_mb
from lit_ctg.callback.wandb_tables import log_record
from lit_ctg.config import plain
from lit_ctg.core.divergence import Diverged, check_metrics, check_weights
from lit_ctg.core.lightning_patches import interruptible
from lit_ctg.core.processes import end_with_parent
from lit_ctg.errors import UserError, one_line
from lit_ctg.files import write_samples
from lit_ctg.limits import check_settings
from lit_ctg.results.record import RunRecord, config_hash, environment, in_float32, load_record, write_record
from lit_ctg.run.build import Experiment, build, build_datamodule
from lit_ctg.run.checkpoint import prepare_resume
from lit_ctg.run.corpus import difference, fingerprint
from lit_ctg.run.directory import CHECKPOINT, Finished, RunDirectory, claim, stem_of
from lit_ctg.run.effect import effect
from lit_ctg.run.launch import check_number, from_first, is_first_process, started_together
from lit_ctg.run.quiet import quiet
from lit_ctg.terminal import Console

# tell the other processes of a multi-device run which directory the first process uses, and its number
FOLDER_VARIABLE, FIRST_VARIABLE = "LIT_CTG_RUN_FOLDER", "LIT_CTG_FIRST_PROCESS"


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    DONE, SKIPPED because its record existed, BUSY because another process is running it, or TRIED on a few batches.
    """

    status: str
    folder: Path


def train(cfg: DictConfig, *callbacks: Callback) -> Outcome:
    """Train one configuration and leave ``run.json`` in its run directory.

    Args:
        cfg: with ``trainer.fast_dev_run`` a few batches are tried and nothing is left.
        callbacks: more callbacks of the trainer.

    Raises:
        Diverged: the record says DIVERGED and where it was seen.
        UserError: bad input; the record says FAILED and why.
    """
    if cfg.ckpt_path is not None:
        raise UserError(
            "ckpt_path is for evaluate and generate: train resumes from the checkpoint in its own run directory"
        )
    for part in ("data", "model", "backbone", "decoding", "metric", "callback", "trainer", "logger"):
        check_settings(cfg[part], part)  # before there is a run directory
    with quiet():
        if together := started_together():
            check_number(together, cfg.trainer)
            try:
                return _train(cfg, callbacks, together)
            finally:
                if torch.distributed.is_initialized():
                    torch.distributed.destroy_process_group()
        return join(cfg) if int(os.environ.get("LOCAL_RANK", 0)) > 0 else _train(cfg, callbacks)


def _train(cfg: DictConfig, callbacks: Sequence[Callback], together: ClusterEnvironment | None = None) -> Outcome:
    if cfg.trainer.get("fast_dev_run"):
        return _try(cfg)
    if together and together.global_rank() > 0:
        found = from_first(together)
        return found if isinstance(found, Outcome) else join(cfg, found)
    config = plain(cfg)
    console = Console(soft_wrap=True, highlight=False, markup=False)
    same = SameCorpus(lambda: fingerprint(build_datamodule(cfg)))
    try:
        directory = claim(stem_of(cfg), cfg.skip_completed, same)
    except UserError as error:
        if together:
            from_first(together, error)
        raise
    outcome = None
    if isinstance(directory, Finished):
        why = f"not run, {directory.busy} is at it" if directory.busy else "done already, skipped"
        console.print(f"{why}: {directory.path}")
        outcome = Outcome("BUSY" if directory.busy else "SKIPPED", directory.path)
    if together:
        from_first(together, outcome or directory.path.resolve())
    if isinstance(directory, Finished):
        return cast(Outcome, outcome)
    record = new_record(cfg, config, config_hash(config))
    with directory:
        try:
            _run(cfg, directory, record, console, callbacks)
        except Exception as error:
            record.status, record.error = "DIVERGED" if isinstance(error, Diverged) else "FAILED", one_line(error)
            write_record(record, directory.record)
            raise
    console.print(f"record: {directory.record}")
    return Outcome("DONE", directory.path)


def _try(cfg: DictConfig) -> Outcome:
    """Run the batches that ``trainer.fast_dev_run`` asks for, in a folder that goes."""
    with tempfile.TemporaryDirectory() as folder, _shared(Path(folder)):
        _fit(build(cfg, Path(folder), loggers=False), Path(folder) / CHECKPOINT)
    if is_first_process():
        print(f"trainer.fast_dev_run={cfg.trainer.fast_dev_run}: training and validation work; no record was written")
    return Outcome("TRIED", Path(folder))


@contextmanager
def _shared(folder: Path) -> Iterator[None]:
    """Tell the processes that Lightning starts which folder the run has."""
    os.environ |= {FOLDER_VARIABLE: str(folder.resolve()), FIRST_VARIABLE: str(os.getpid())}
    try:
        yield
    finally:
        for name in (FOLDER_VARIABLE, FIRST_VARIABLE):
            os.environ.pop(name, None)


class SameCorpus:
    """Tells from a run's record whether it had the corpus that a configuration names.

    Args:
        read: returns the checksums of that corpus; called once, when a record is there to be compared.
    """

    def __init__(self, read: Callable[[], Mapping[str, str]]) -> None:
        self.read = read
        self.ours: Mapping[str, str] | None = None

    def __call__(self, path: Path) -> bool:
        """Return False where the checksums differ; True also where either corpus is unknown."""
        theirs = load_record(path).corpus
        if not theirs:
            return True
        if self.ours is None:
            try:
                self.ours = self.read()
            except UserError:
                # its corpus is gone, so the run could not be repeated in any case
                self.ours = {}
        return not difference(theirs, self.ours)


def join(cfg: DictConfig, folder: Path | None = None) -> Outcome:
    """Join a run as one of its other processes.

    Args:
        cfg: of the run.
        folder: its directory; None in a process that Lightning started with the same command (trainer=ddp).

    Raises:
        UserError: started by something else.
    """
    if folder is None:
        if FOLDER_VARIABLE not in os.environ:
            raise UserError(
                "LOCAL_RANK is set but no run is under way: start one process and let Lightning start the others, or "
                "start all with torchrun or srun"
            )
        end_with_parent(int(os.environ[FIRST_VARIABLE]))
        folder = Path(os.environ[FOLDER_VARIABLE])
    experiment = build(cfg, folder, loggers=False)
    _fit(experiment, folder / CHECKPOINT)
    return Outcome("DONE", folder)


@contextmanager
def uncollected() -> Iterator[None]:
    """Keep the garbage collector away from what exists now.

    Vocabulary, corpus and classes are hundreds of thousands of objects that stay, and each step of a training makes
    enough new ones to have all of them searched for garbage again and again.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _fit(experiment: Experiment, checkpoint: Path) -> None:
    """Fit from the last checkpoint if there is one, and validate."""
    trainer, module, datamodule = experiment.trainer, experiment.module, experiment.datamodule
    resume = str(checkpoint) if checkpoint.is_file() else None
    with interruptible(trainer), uncollected():
        trainer.fit(module, datamodule, ckpt_path=resume, weights_only=True if resume else None)
    # the record's numbers come from a final validation, so a run killed right after training ends the same way
    check_weights(module, trainer.global_step)
    with interruptible(trainer):
        trainer.validate(module, datamodule, verbose=False)


def _run(
    cfg: DictConfig, directory: RunDirectory, record: RunRecord, console: Console, callbacks: Sequence[Callback]
) -> None:
    """Fit, validate, and write the record."""
    began = time.monotonic()
    experiment = build(cfg, directory.path, callbacks=callbacks)
    record.threads, record.precision, record.corpus = experiment.threads, experiment.precision, experiment.corpus
    if in_float32(record):
        console.print(f"this processor has no units for bfloat16: products in float32, not {cfg.trainer.precision}")
    if warning := prepare_resume(directory.path, record.config, experiment.corpus):
        console.print(warning, markup=False)
    counter = experiment.callback(RunRecordCallback)
    try:
        with _shared(directory.path):
            _fit(experiment, directory.checkpoint)
        samples = fill_record(record, experiment, directory.path)
        done, loaders = record.status == "DONE", experiment.trainer.val_dataloaders
        if found := done and effect(experiment.module, loaders, record.metrics):
            console.print(found.line(), markup=False, highlight=False, soft_wrap=True)
        log_record(experiment.trainer, record, samples)
        if record.status == "DIVERGED":
            raise Diverged(record.error)
    except Diverged:
        record.history = record.history or counter.collect(experiment.trainer)[1]
        raise
    finally:
        close_loggers(experiment)
        # over all attempts: the cost of a run predicts that of the next one like it
        record.wall_time_s = round(counter.seconds_before + time.monotonic() - began, 3)
    write_record(record, directory.record)


def new_record(cfg: DictConfig, config: dict[str, Any], digest: str, paper: str | None = None) -> RunRecord:
    """Return the record of a run that has just begun; its status is FAILED until the numbers are in.

    Args:
        cfg, config: the configuration, as composed and as plain values.
        digest: its hash.
        paper: where the configuration has none (the field).
    """
    paper = cfg.paper if paper is None else paper
    return RunRecord(
        status="FAILED",
        name=cfg.name,
        paper=paper,
        experiment=f"{paper}/{cfg.name}",
        regime=cfg.regime.name,
        size=cfg.size.name,
        seed=cfg.seed,
        config=config,
        config_hash=digest,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        **environment(),
    )


def fill_record(record: RunRecord, experiment: Experiment, folder: Path) -> list[dict[str, Any]]:
    """Write the run's numbers into its record and its generated texts to ``samples.jsonl``; return the texts."""
    counter: RunRecordCallback = experiment.callback(RunRecordCallback)
    metrics, history, samples = counter.collect(experiment.trainer)
    record.metrics, record.history = metrics, history
    record.device = str(experiment.trainer.strategy.root_device)
    record.parameters = sum(parameter.numel() for parameter in experiment.module.parameters())
    record.tokens_per_s = round(int(counter.tokens) / max(counter.fit_seconds, 1e-9), 1)
    record.peak_memory_mb = round(peak_memory_mb(), 1)
    try:
        check_metrics(metrics, experiment.trainer.global_step)
        record.status, record.error = "DONE", None
    except Diverged as error:
        record.status, record.error = "DIVERGED", str(error)
    if samples:
        write_samples(samples, folder / "samples.jsonl")
    return samples


def close_loggers(experiment: Experiment) -> None:
    """Finish W&B even if the run failed: an unfinished run would absorb the next one in this process."""
    for logger in experiment.trainer.loggers:
        if isinstance(logger, WandbLogger):
            import wandb

            wandb.finish()

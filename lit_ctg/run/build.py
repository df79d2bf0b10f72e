"""Turns a composed configuration into what a run consists of."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from lightning import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.loggers import Logger
from omegaconf import DictConfig

from lit_ctg.callback.checkpoint import AtomicCheckpointIO, RunCheckpoint
from lit_ctg.callback.run_record import RunRecordCallback
from lit_ctg.callback.wandb_tables import WandbGenerations, starting_wandb
from lit_ctg.config import plain
from lit_ctg.control.bundle import fingerprint as tokens_fingerprint
from lit_ctg.core import build as core
from lit_ctg.core.batch import Corpus
from lit_ctg.core.build import build_datamodule, chosen, instantiate
from lit_ctg.core.metric_callback import MetricCallback
from lit_ctg.data.corpus import CorpusDataModule
from lit_ctg.data.huggingface_tokenizer import load as load_tokenizer
from lit_ctg.errors import UserError
from lit_ctg.files import write_atomic
from lit_ctg.network.huggingface import HuggingFaceBackbone
from lit_ctg.results.record import environment
from lit_ctg.run.corpus import fingerprint, given_weights
from lit_ctg.run.directory import CHECKPOINT
from lit_ctg.run.precision import set_precision, usable_accelerator
from lit_ctg.run.threads import set_threads
from lit_ctg.run.waiting import prepared
from lit_ctg.terminal import Console
from lit_ctg.trust import resolve


@dataclass
class Experiment:
    """Everything a run consists of."""

    cfg: DictConfig
    datamodule: LightningDataModule
    module: LightningModule
    trainer: Trainer
    callbacks: list[Callback]
    corpus: dict[str, str]
    threads: int
    precision: str

    def callback(self, kind: type) -> Any:
        """Return the callback of one class, or None."""
        return next((callback for callback in self.callbacks if isinstance(callback, kind)), None)


def build_model(cfg: DictConfig, datamodule: LightningDataModule) -> Any:
    """Build the LightningModule (``core/build.py``) on a corpus with the tokens of its pretrained backbone."""
    backbone = cfg.backbone
    if backbone is not None and resolve(backbone.get("_target_"), "backbone") is HuggingFaceBackbone:
        check_tokenizer(backbone.path, backbone.revision, cast(Corpus, datamodule).vocabulary)
    return core.build_model(cfg, datamodule)


def check_tokenizer(path: str, revision: str | None, vocabulary: Any) -> None:
    """Refuse a corpus whose ids mean other tokens to a pretrained model: it would train on them without a word.

    Args:
        path, revision: of the model. A folder without a tokenizer has nothing to compare with.
    """
    try:
        own = load_tokenizer(path, revision)
    except UserError:
        return
    if tokens_fingerprint(own) != tokens_fingerprint(vocabulary.tokens):
        raise UserError(
            f"backbone.path={path}: the model has another tokenizer than the corpus, so the corpus' ids are other "
            f"tokens to it: give data/tokenizer=huggingface data.tokenizer.path={path}"
        )


def build(cfg: DictConfig, folder: Path, loggers: bool = True, callbacks: Sequence[Callback] = ()) -> Experiment:
    """Build data, model, callbacks (and those given), loggers and trainer for a run in ``folder``.

    Raises:
        UserError: a value that some component refuses.
    """
    datamodule = build_datamodule(cfg)
    if isinstance(datamodule, CorpusDataModule):
        prepared(datamodule, Console(stderr=True))
    module = build_model(cfg, datamodule)
    if module.hparams:  # loggers get the whole configuration
        module.save_hyperparameters(dict(module.hparams), logger=False)
    corpus = {**fingerprint(datamodule), **given_weights(module)}
    callbacks = [*_callbacks(cfg, folder), *callbacks]
    for callback in callbacks:
        if isinstance(callback, RunCheckpoint):
            # not passed as arguments: Hydra would build every _target_ in them
            callback.settings, callback.corpus = plain(cfg), corpus
    trainer = instantiate(
        cfg.trainer,
        "trainer",
        accelerator=usable_accelerator(cfg.trainer.get("accelerator", "auto")),
        callbacks=callbacks,
        logger=_loggers(cfg, folder) if loggers else False,
        plugins=[AtomicCheckpointIO()],
        default_root_dir=str(folder),
    )
    threads, precision = set_threads(cfg.threads, module, trainer), set_precision(trainer)
    return Experiment(cfg, datamodule, module, trainer, callbacks, corpus, threads, precision)


def _callbacks(cfg: DictConfig, folder: Path) -> list[Callback]:
    """Build the callbacks in the order of the configuration, metrics first: others may read their results."""
    metrics = {name: instantiate(node, f"metric.{name}") for name, node in chosen(cfg.metric)}
    callbacks: list[Callback] = [MetricCallback(metrics)]
    filled = {
        "checkpoint": {"dirpath": str(folder / CHECKPOINT.parent)},
        "progress": {"title": f"{cfg.paper}/{cfg.name} {cfg.regime.name} seed {cfg.seed}"},
    }
    for name, node in chosen(cfg.callback):
        callbacks.append(instantiate(node, f"callback.{name}", **filled.get(name, {})))
    # every run gets its record, even if the list of callbacks leaves it out
    if not any(isinstance(callback, RunRecordCallback) for callback in callbacks):
        callbacks.append(RunRecordCallback())
    if cfg.decoding is not None and "wandb" in dict(chosen(cfg.logger)):
        decoding = instantiate(cfg.decoding, "decoding")
        callbacks.append(WandbGenerations(decoding, folder, prompt=cfg.prompt, seed=cfg.seed))
    return callbacks


def _loggers(cfg: DictConfig, folder: Path) -> list[Logger]:
    loggers = []
    for name, node in chosen(cfg.logger):
        extra: dict[str, Any] = {"save_dir": str(folder)}
        # a run that was killed continues under its id, which MLflow chooses
        chosen_id = folder / "mlflow-id"
        if name == "wandb":
            if os.environ.get("WANDB_MODE") == "disabled":
                continue
            commit = environment()["git"]["commit"] or "unknown"
            extra["tags"] = [cfg.paper, cfg.regime.name, cfg.size.name, commit[:8]]
            extra["id"] = _run_id(folder)
        elif name == "mlflow" and chosen_id.is_file():
            extra["run_id"] = chosen_id.read_text(encoding="utf-8")
        with starting_wandb() if name == "wandb" else contextlib.nullcontext():
            logger = _logger(name, node, extra)
            loggers.append(logger)
            if name == "wandb":
                logger.log_hyperparams(plain(cfg))
            elif name != "csv" and "run_id" not in extra:  # MLflow refuses to change a setting
                logger.log_hyperparams(_shallow(plain(cfg)))
        if name == "mlflow":
            write_atomic(chosen_id, str(logger.version))
    return loggers


def _logger(name: str, node: DictConfig, extra: dict[str, Any]) -> Logger:
    """Build one logger.

    Raises:
        UserError: a value that it refuses, or its package is missing.
    """
    try:
        return cast(Logger, instantiate(node, f"logger.{name}", **extra))
    except UserError as error:
        if isinstance(getattr(error.__cause__, "__cause__", None), ModuleNotFoundError):
            raise UserError(f"logger={name} needs {name}: pip install 'lit-ctg[{name}]'") from error
        raise


def _shallow(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings two levels deep: below, names may be any text (a full stop), which MLflow refuses."""
    return {
        part: {key: str(value) if isinstance(value, dict) else value for key, value in node.items()}
        if isinstance(node, dict)
        else node
        for part, node in config.items()
    }


def _run_id(folder: Path) -> str:
    """Return the id of a run directory in W&B, the same in every attempt."""
    path = folder / "wandb-id"
    if not path.is_file():
        write_atomic(path, secrets.token_hex(4))
    return path.read_text(encoding="utf-8")

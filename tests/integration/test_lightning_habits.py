"""What users of Lightning do by habit works with every paper: see docs/from_lightning.md."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
import torchmetrics
from lightning.pytorch import callbacks as lightning_callbacks
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.tuner.tuning import Tuner

import lit_ctg
from lit_ctg.core.metric_callback import MetricCallback
from lit_ctg.core.model import LitLanguageModel
from lit_ctg.errors import UserError
from lit_ctg.metric.perplexity import Perplexity

EXPERIMENTS = {
    "graphmax": "graphmax/main",
    "semantic_fusion": "semantic_fusion/main",
    "idea_gate": "idea_gate/main",
    "control_code": "control_code/transformer",
    "nslm": "nslm/numbers",
}
SHORT = {"max_epochs": 1, "limit_train_batches": 2, "limit_val_batches": 1, "limit_test_batches": 1}
# flags of the Trainer and callbacks; a function is called with a folder
FLAGS: dict[str, Any] = {
    "fast_dev_run": {"fast_dev_run": True},
    "max_steps": {"max_steps": 1},
    "max_time": {"max_time": "00:00:01:00"},
    "overfit_batches": {"overfit_batches": 1, "max_epochs": 2},
    "accumulate_grad_batches": {"accumulate_grad_batches": 2},
    "gradient_clip_val": {"gradient_clip_val": 0.5},
    "precision_bf16_mixed": {"precision": "bf16-mixed"},
    "precision_bf16_true": {"precision": "bf16-true"},
    "deterministic": {"deterministic": True},
    "profiler": {"profiler": "simple"},
    "detect_anomaly": {"detect_anomaly": True},
    "num_sanity_val_steps": {"num_sanity_val_steps": 2},
    "val_check_interval": {"val_check_interval": 1},
    "check_val_every_n_epoch": {"check_val_every_n_epoch": 2, "max_epochs": 2},
    "reload_dataloaders": {"reload_dataloaders_every_n_epochs": 1, "max_epochs": 2},
    "inference_mode": {"inference_mode": False},
    "barebones": {"barebones": True, "enable_checkpointing": None, "logger": None},
    "strategy_ddp": {"strategy": "ddp"},
    "logger_csv": lambda folder: {"logger": CSVLogger(folder), "log_every_n_steps": 1},
    "early_stopping": lambda _: [lightning_callbacks.EarlyStopping("val/loss", patience=1)],
    "model_checkpoint": lambda folder: [lightning_callbacks.ModelCheckpoint(folder, monitor="val/loss")],
    "learning_rate_monitor": lambda folder: {
        "callbacks": [lightning_callbacks.LearningRateMonitor("step")],
        "logger": CSVLogger(folder),
        "log_every_n_steps": 1,
    },
    "swa": lambda _: {"callbacks": [lightning_callbacks.StochasticWeightAveraging(1e-3, 1)], "max_epochs": 3},
    "ema": lambda _: [lightning_callbacks.EMAWeightAveraging()],
    "timer": lambda _: [lightning_callbacks.Timer("00:01:00:00")],
    "accumulation_scheduler": lambda _: [lightning_callbacks.GradientAccumulationScheduler({0: 2})],
    "model_summary": lambda _: [lightning_callbacks.ModelSummary(2)],
    "progress_bar": lambda _: {"callbacks": [lightning_callbacks.TQDMProgressBar()], "enable_progress_bar": True},
    "device_stats": lambda folder: {
        "callbacks": [lightning_callbacks.DeviceStatsMonitor()],
        "logger": CSVLogger(folder),
    },
}
Pair = tuple[Any, Any]


@pytest.fixture(scope="module")
def loaded() -> Callable[[str], Pair]:
    """Return a function that loads a paper's model and data; the same ones at every call."""
    found: dict[str, Pair] = {}

    def load(paper: str) -> Pair:
        if paper not in found:
            found[paper] = lit_ctg.load(EXPERIMENTS[paper], size="smoke", seed=0)
        return found[paper]

    return load


def trainer_in(folder: Path, **flags: Any) -> L.Trainer:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    settings = {"accelerator": "cpu", "devices": 1, "enable_model_summary": False, **quiet, **SHORT, **flags}
    if settings.get("barebones"):
        settings = {name: settings[name] for name in ("accelerator", "devices", "max_epochs", "barebones")}
    if any(isinstance(one, lightning_callbacks.ModelCheckpoint) for one in settings.get("callbacks", ())):
        del settings["enable_checkpointing"]
    return L.Trainer(default_root_dir=folder, **settings)


@pytest.mark.parametrize("paper", EXPERIMENTS)
def test_a_model_is_fitted_evaluated_stored_and_loaded_as_any_other(
    paper: str, loaded: Callable[[str], Pair], tmp_path: Path
) -> None:
    model, data = loaded(paper)
    best = lightning_callbacks.ModelCheckpoint(tmp_path, monitor="val/loss")
    trainer = trainer_in(tmp_path, callbacks=[best])
    trainer.fit(model, data)
    assert {"train/loss", "val/loss"} <= set(trainer.callback_metrics)
    for stage, evaluate in (("val", trainer.validate), ("test", trainer.test)):
        (numbers,) = evaluate(model, data, verbose=False)
        loss, perplexity = (numbers[f"{stage}/{name}"] for name in ("loss", "perplexity"))
        assert perplexity == pytest.approx(torch.tensor(loss).exp().item(), rel=1e-3)
        assert len(numbers) > 2, "the metrics of the paper"
    scores = trainer.predict(model, data.val_dataloader())
    assert all((log_BT <= 0).all() and log_BT.ndim == 2 for log_BT in scores) and scores

    again = type(model).load_from_checkpoint(best.best_model_path)
    assert again.hparams == model.hparams and again.hparams
    (numbers,), (expected,) = (trainer.validate(one, data, verbose=False) for one in (again, model))
    assert numbers == pytest.approx(expected, rel=1e-6, nan_ok=True)
    changed = LitLanguageModel.load_from_checkpoint(best.best_model_path, data=data, learning_rate=0.5) if (
        "learning_rate" in model.hparams
    ) else again  # fmt: skip
    assert type(changed) is type(model)
    assert changed.learning_rate == (0.5 if changed is not again else model.learning_rate)


@pytest.mark.parametrize("flag", FLAGS)
@pytest.mark.parametrize(
    "paper", [paper if paper == "graphmax" else pytest.param(paper, marks=pytest.mark.long) for paper in EXPERIMENTS]
)
def test_flags_and_callbacks_of_the_trainer(
    paper: str, flag: str, loaded: Callable[[str], Pair], tmp_path: Path
) -> None:
    model, data = loaded(paper)
    flags = FLAGS[flag](tmp_path) if callable(FLAGS[flag]) else FLAGS[flag]
    trainer = trainer_in(tmp_path, **(flags if isinstance(flags, dict) else {"callbacks": flags}))
    trainer.fit(model, data)
    assert trainer.global_step > 0
    model.float()


@pytest.mark.parametrize("paper", EXPERIMENTS)
def test_the_tuner_finds_rates_and_batch_sizes(paper: str, loaded: Callable[[str], Pair], tmp_path: Path) -> None:
    model, data = loaded(paper)
    before = model.learning_rate, data.batch_size
    flags = {"limit_train_batches": 1.0, "max_epochs": 5}
    found = Tuner(trainer_in(tmp_path, **flags)).lr_find(model, data, num_training=5, update_attr=False)
    assert len(found.results["lr"]) == 5
    model.learning_rate = 0.125
    trainer = trainer_in(tmp_path)
    trainer.fit(model, data)
    assert max(group["initial_lr"] if "initial_lr" in group else group["lr"] for group in trainer.optimizers[0].param_groups) == 0.125
    size = Tuner(trainer_in(tmp_path, **flags)).scale_batch_size(model, data, max_trials=2, steps_per_trial=1)
    assert size == data.batch_size == 4
    model.learning_rate, data.batch_size = before

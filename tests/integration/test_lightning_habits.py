"""What users of Lightning do by habit works with every paper: see docs/from_lightning.md."""

from __future__ import annotations

import os
import pickle
import re
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
from lit_ctg.network.gpt2 import GPT2Backbone
from lit_ctg.papers.graphmax.model import GraphmaxModule

EXPERIMENTS = {
    "graphmax": "graphmax/main",
    "semantic_fusion": "semantic_fusion/main",
    "idea_gate": "idea_gate/main",
    "control_code": "control_code/transformer",
    "nslm": "nslm/numbers",
}
PAGE = Path(__file__).resolve().parents[2] / "docs" / "from_lightning.md"
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
# with graphmax each alone; the other papers meet flags together, and alone those that need a Trainer of their own
TOGETHER = {
    "many": (
        "max_time gradient_clip_val deterministic profiler detect_anomaly num_sanity_val_steps check_val_every_n_epoch "
        "reload_dataloaders inference_mode logger_csv early_stopping model_checkpoint learning_rate_monitor timer "
        "accumulation_scheduler model_summary progress_bar device_stats"
    ),
    "mixed": "precision_bf16_mixed swa val_check_interval accumulate_grad_batches",
    "true": "precision_bf16_true ema overfit_batches",
    "ddp": "strategy_ddp max_steps",
    "fast_dev_run": "fast_dev_run",
    "barebones": "barebones",
}
assert set(FLAGS) == {flag for flags in TOGETHER.values() for flag in flags.split()}
Pair = tuple[Any, Any]
# NSLM chooses its micro-models first, and 256 batches have one source each
SLOW = ("nslm", "control_code")
MOST = [pytest.param(paper, marks=[pytest.mark.long] * (paper in SLOW)) for paper in EXPERIMENTS]


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
    for flag, kind in (
        ("enable_checkpointing", lightning_callbacks.ModelCheckpoint),
        ("enable_model_summary", lightning_callbacks.ModelSummary),
    ):
        if any(isinstance(one, kind) for one in settings.get("callbacks", ())):
            del settings[flag]
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
    (expected,) = trainer.validate(model, data, verbose=False)
    model.trainer = data.trainer = None  # a strategy that starts processes (ddp_spawn) pickles the pair before a fit
    for one in ((again, data), pickle.loads(pickle.dumps((model, data)))):
        (numbers,) = trainer_in(tmp_path).validate(*one, verbose=False)
        assert numbers == pytest.approx(expected, rel=1e-6, nan_ok=True)
    if paper == "graphmax":
        changed = LitLanguageModel.load_from_checkpoint(best.best_model_path, data=data, learning_rate=0.5)
        assert type(changed) is type(model) and changed.learning_rate == 0.5


def flags_in(folder: Path, names: str) -> dict[str, Any]:
    """Return some of ``FLAGS`` as arguments of one Trainer."""
    settings: dict[str, Any] = {}
    for name in names.split():
        given = FLAGS[name](folder) if callable(FLAGS[name]) else FLAGS[name]
        given = given if isinstance(given, dict) else {"callbacks": given}
        settings |= given | {"callbacks": [*settings.get("callbacks", ()), *given.get("callbacks", ())]}
    return settings


@pytest.mark.parametrize(
    ("paper", "flags"),
    [
        *(pytest.param("graphmax", flag, id=f"graphmax-{flag}") for flag in FLAGS),
        *(
            pytest.param(paper, flags, id=f"{paper}-{name}", marks=pytest.mark.long)
            for paper in EXPERIMENTS
            if paper != "graphmax"
            for name, flags in TOGETHER.items()
        ),
    ],
)
def test_flags_and_callbacks_of_the_trainer(
    paper: str, flags: str, loaded: Callable[[str], Pair], tmp_path: Path
) -> None:
    model, data = loaded(paper)
    trainer = trainer_in(tmp_path, **flags_in(tmp_path, flags))
    before = dict(os.environ)
    try:
        trainer.fit(model, data)
    finally:  # what Lightning leaves to the end of the process
        os.environ.clear()
        os.environ.update(before)
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
    assert trainer.global_step > 0
    model.float()


@pytest.mark.parametrize("paper", MOST)
def test_the_tuner_finds_rates_and_batch_sizes(paper: str, loaded: Callable[[str], Pair], tmp_path: Path) -> None:
    model, data = loaded(paper)
    before = model.learning_rate, data.batch_size
    flags = {"limit_train_batches": 1.0, "max_epochs": 5}
    found = Tuner(trainer_in(tmp_path, **flags)).lr_find(model, data, num_training=5, update_attr=False)
    assert len(found.results["lr"]) == 5
    model.learning_rate = 0.125
    trainer = trainer_in(tmp_path)
    trainer.fit(model, data)
    assert {group.get("initial_lr", group["lr"]) for group in trainer.optimizers[0].param_groups} == {0.125}
    size = Tuner(trainer_in(tmp_path, **flags)).scale_batch_size(model, data, max_trials=2, steps_per_trial=1)
    assert size == data.batch_size == 4
    model.learning_rate, data.batch_size = before


@pytest.mark.parametrize("paper", MOST)
def test_loaders_alone_do_as_well(paper: str, loaded: Callable[[str], Pair], tmp_path: Path) -> None:
    model, data = loaded(paper)
    data.trainer = None
    trainer = trainer_in(tmp_path)
    trainer.fit(model, data.train_dataloader(), data.val_dataloader())
    (numbers,) = trainer.test(model, data.test_dataloader(), verbose=False)
    assert numbers["test/loss"] > 0


def test_model_and_data_find_each_other_and_each_dataset_is_built_once(tmp_path: Path) -> None:
    model, data = lit_ctg.load("semantic_fusion/main", size="smoke")
    built: list[int] = []

    def counted(*args: Any) -> Any:
        built.append(len(args[0]))
        return type(model).corpus_transform(model, *args)

    data.corpus_transform = None
    model.corpus_transform = counted
    trainer_in(tmp_path).fit(model, data)
    assert len(built) == len(set(built)) == 2, "training and validation text"


def test_the_callback_of_the_trainer_wins_over_the_model_s_metrics(
    loaded: Callable[[str], Pair], tmp_path: Path
) -> None:
    model, data = loaded("graphmax")
    accuracy = torchmetrics.classification.MulticlassAccuracy(len(data.vocabulary), average="micro")
    ours = {"mine": Perplexity(), "theirs": torchmetrics.text.Perplexity(), "accuracy": accuracy}
    callback = MetricCallback(ours)
    (numbers,) = trainer_in(tmp_path, callbacks=[callback]).validate(model, data, verbose=False)
    assert set(numbers) == {"val/mine", "val/theirs", "val/accuracy", "val/loss"}
    assert numbers["val/theirs"] == pytest.approx(numbers["val/mine"], rel=1e-4)
    assert callback.results["val/accuracy"]["direction"] == "higher" and callback.results["val/accuracy"]["n"] > 0
    bleu = trainer_in(tmp_path, callbacks=[MetricCallback({"bleu": torchmetrics.text.BLEUScore()})])
    with pytest.raises(UserError, match=r"metric\.bleu"):
        bleu.validate(model, data, verbose=False)


def test_a_metric_of_ours_is_logged_by_self_log(tmp_path: Path) -> None:
    class Logged(GraphmaxModule):
        def validation_step(self, batch: Any, batch_idx: int) -> Any:
            output = self(batch)
            self.mine.update_from(output, batch)
            self.log("val/mine", self.mine)
            return output

    _, data = lit_ctg.load("graphmax/main", size="smoke")
    backbone = GPT2Backbone(dim=8, layers=1, heads=1, context=16, dropout=0.0)
    model = Logged(vocabulary=data.vocabulary, backbone=backbone, learning_rate=0.01)
    model.mine = Perplexity()
    (numbers,) = trainer_in(tmp_path, limit_val_batches=2).validate(model, data, verbose=False)
    assert torch.tensor(numbers["val/mine"]).log() == pytest.approx(numbers["val/loss"], rel=1e-5)


class UsersData(L.LightningDataModule):
    """Batches as core/batch.py has them, and nothing else."""

    def __init__(self, batches: list[Any]) -> None:
        super().__init__()
        self.batches = batches

    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(self.batches, batch_size=None)

    val_dataloader = train_dataloader


@pytest.mark.parametrize(
    ("paper", "missing"),
    [
        ("graphmax", ""),
        ("semantic_fusion", ""),
        ("idea_gate", "prepare"),
        pytest.param("control_code", "sources", marks=pytest.mark.long),
        pytest.param("nslm", "prepare", marks=pytest.mark.long),
    ],
)
def test_a_data_module_of_the_user_s_works_or_what_it_lacks_is_named(paper: str, missing: str, tmp_path: Path) -> None:
    model, data = lit_ctg.load(EXPERIMENTS[paper], size="smoke")
    users = UsersData(list(data.val_dataloader()))
    model._counted, model.micro_models = False, None  # as if built in Python
    if not missing:
        trainer_in(tmp_path).fit(model, users)
        return
    with pytest.raises(UserError, match=f"UsersData has no {missing}"):
        trainer_in(tmp_path).fit(model, users)


def test_a_run_and_a_checkpoint_are_loaded_in_python(tmp_path: Path, run_cli: Callable[..., Any]) -> None:
    code, _, err = run_cli("train", "experiment=graphmax/main", "size=smoke", "callback=[default]")
    assert code == 0, err
    folder = next((tmp_path / "outputs").rglob("run.json")).parent
    for source in (folder, folder / "checkpoints" / "last.ckpt"):
        model, data = lit_ctg.load(source)
        (numbers,) = trainer_in(tmp_path).validate(model, data, verbose=False)
        assert numbers["val/perplexity"] < 0.99 * len(data.vocabulary), "trained"


def test_a_model_built_in_python_is_loaded_with_the_objects_that_files_do_not_hold(tmp_path: Path) -> None:
    _, data = lit_ctg.load("graphmax/main", size="smoke")
    parts = {"vocabulary": data.vocabulary, "backbone": GPT2Backbone(dim=8, layers=1, heads=1, context=16, dropout=0.0)}
    model = GraphmaxModule(**parts, learning_rate=0.01)
    trainer = trainer_in(tmp_path)
    trainer.fit(model, data)
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    again = GraphmaxModule.load_from_checkpoint(tmp_path / "a.ckpt", **parts)
    assert again.hparams == model.hparams == {"learning_rate": 0.01}
    with pytest.raises(UserError, match="vocabulary"):
        GraphmaxModule.load_from_checkpoint(tmp_path / "a.ckpt")


def test_the_scripts_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    scripts = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    for script in scripts:
        exec(compile(script, PAGE.name, "exec"), names)
    assert len(scripts) == 4 and len(PAGE.read_text(encoding="utf-8").split()) <= 600


SCRIPT = """
import sys
from pathlib import Path
import lightning as L, lit_ctg
if __name__ == "__main__":
    for experiment in sys.argv[2:]:
        model, data = lit_ctg.load(experiment, size="smoke", **{"data.batch_size": 4})
        flags = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        trainer = L.Trainer(max_epochs=1, limit_train_batches=2, limit_val_batches=2, accelerator="cpu", devices=2,
                            strategy=sys.argv[1], **flags)
        trainer.fit(model, data)
        assert trainer.callback_metrics["val/loss"] > 0
        Path(experiment.replace("/", "-") + f".{trainer.global_rank}").touch()
"""


@pytest.mark.long
@pytest.mark.parametrize(("strategy", "papers"), [("ddp", list(EXPERIMENTS)), ("ddp_spawn", ["nslm"])])
def test_two_processes_with_lightning_s_own_sampler(strategy: str, papers: list[str], tmp_path: Path) -> None:
    """NSLM has parameters that only some steps, and some processes, use."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    words = [sys.executable, str(script), strategy, *(EXPERIMENTS[paper] for paper in papers)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    ranks = (0, 1) if strategy == "ddp" else (0,)  # of spawned processes this one goes on
    fitted = {f"{EXPERIMENTS[paper].replace('/', '-')}.{rank}" for paper in papers for rank in ranks}
    assert fitted == {path.name for path in tmp_path.iterdir()} - {script.name}, done.stdout

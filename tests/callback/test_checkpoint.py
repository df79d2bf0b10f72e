from __future__ import annotations

from pathlib import Path

import pytest
import torch
from lightning import Callback, LightningModule
from torch.utils.data import Dataset

from lit_ctg.callback.checkpoint import FORMAT, AtomicCheckpointIO, RunCheckpoint
from lit_ctg.callback.epoch_seed import EpochSeed
from lit_ctg.data.loader import ResumableLoader


def test_one_plain_checkpoint_with_the_configuration_inside(tiny, trainer_of, tmp_path: Path) -> None:
    module, data = tiny()
    config = {"paper": "x", "seed": 0, "model": {"dim": 4, "names": ["a"], "rate": 0.1, "none": None}}
    callback = RunCheckpoint(dirpath=str(tmp_path / "checkpoints"))
    callback.settings = config
    trainer = trainer_of(callback, max_epochs=3, enable_checkpointing=True, plugins=[AtomicCheckpointIO()])
    trainer.fit(module, data)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["last.ckpt"]
    content = torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)
    assert content["lit_ctg"] == {"format": FORMAT, "config": config}
    assert content["epoch"] == 2
    torch.testing.assert_close(content["state_dict"]["embedding.weight"], module.embedding.weight.detach())


def test_a_failed_write_leaves_the_old_checkpoint(tmp_path: Path, monkeypatch) -> None:
    io = AtomicCheckpointIO()
    target = tmp_path / "last.ckpt"
    io.save_checkpoint({"epoch": 1}, target)

    def broken(self, checkpoint, path, storage_options=None):
        Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("lightning.fabric.plugins.io.torch_io.TorchCheckpointIO.save_checkpoint", broken)
    try:
        io.save_checkpoint({"epoch": 2}, target)
        raised = False
    except OSError:
        raised = True
    assert raised
    assert torch.load(target, weights_only=True) == {"epoch": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["last.ckpt"]


class Rows(Dataset):
    """Batches as ``ResumableLoader`` asks for them, by (epoch, number)."""

    def __init__(self, rows: list) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: tuple[int, int]) -> dict[str, torch.Tensor]:
        return self.rows[key[1]]


class SaveAt(Callback):
    """Leaves a checkpoint inside an epoch, after a step."""

    def __init__(self, path: Path, step: int) -> None:
        self.path, self.step = path, step

    def on_train_batch_end(self, trainer, *arguments: object) -> None:
        if trainer.global_step == self.step and not self.path.exists():
            trainer.save_checkpoint(self.path)


@pytest.fixture
def fit(tiny, trainer_of, tmp_path: Path):
    """Return a function that trains a model with dropout on four batches an epoch and returns its weights."""

    def train(*callbacks: Callback, resume: Path | None = None, eager: bool = False, **options: int) -> torch.Tensor:
        module, data = tiny()
        if eager:
            # as cosine schedules do
            rate = module.configure_optimizers
            module.configure_optimizers = lambda: (module.trainer.estimated_stepping_batches, rate())[1]
        loader = ResumableLoader(Rows(data.rows), seed=1, shuffle=True)
        checkpoint = RunCheckpoint(dirpath=str(tmp_path / "checkpoints"))
        trainer = trainer_of(EpochSeed(seed=3), checkpoint, *callbacks, enable_checkpointing=True, **options)
        trainer.fit(module, loader, ckpt_path=resume, weights_only=True if resume else None)
        return module.embedding.weight.detach().clone()

    return train


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_training_goes_on_inside_an_epoch(fit, tmp_path: Path, accumulate: int, eager: bool) -> None:
    options = {"max_epochs": 3, "accumulate_grad_batches": accumulate, "eager": eager}
    path = tmp_path / "inside.ckpt"
    # in the second epoch, after its second batch or pair
    whole = fit(SaveAt(path, step=6 // accumulate), **options)
    assert torch.equal(fit(resume=path, **options), whole)


@pytest.mark.parametrize("steps", [4, 6, 8])
def test_more_steps_than_at_first_go_on_where_the_first_ended(fit, tmp_path: Path, steps: int) -> None:
    """Also inside an epoch of four steps, and with Lightning's own idea of an epoch's end under max_steps."""
    whole = fit(max_epochs=-1, max_steps=11)
    fit(max_epochs=-1, max_steps=steps)
    first = tmp_path / "checkpoints" / "last.ckpt"
    counts = torch.load(first, weights_only=True)["loops"]["fit_loop"]["epoch_progress"]["current"]
    assert counts["processed"] == steps // 4
    assert torch.equal(fit(resume=first, max_epochs=-1, max_steps=11), whole)


def test_where_the_place_is_unknown_the_rest_of_the_epoch_is_left_out(tiny, trainer_of, tmp_path: Path) -> None:
    """A loader without a position: the next steps are those of the next epoch."""

    class Met(Callback):
        def __init__(self) -> None:
            self.epochs: list[int] = []

        def on_train_batch_start(self, trainer, module: LightningModule, batch: object, number: int) -> None:
            self.epochs.append(trainer.current_epoch)

    def fit(steps: int, resume: str | None = None) -> list[int]:
        module, data = tiny()
        met, checkpoint = Met(), RunCheckpoint(dirpath=str(tmp_path / "checkpoints"))
        trainer = trainer_of(met, checkpoint, enable_checkpointing=True, max_epochs=-1, max_steps=steps)
        trainer.fit(module, data, ckpt_path=resume, weights_only=True if resume else None)
        return met.epochs

    assert fit(6) == [0, 0, 0, 0, 1, 1]
    assert fit(8, str(tmp_path / "checkpoints" / "last.ckpt")) == [2, 2]

from __future__ import annotations

import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning import Callback, LightningModule
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, Dataset

from lit_ctg.callback.checkpoint import AtomicCheckpointIO, RunCheckpoint, previous
from lit_ctg.callback.epoch_seed import EpochSeed
from lit_ctg.core.checkpoint import FORMAT, DamagedError, load_checked
from lit_ctg.data.batching import StreamBatches
from lit_ctg.data.loader import ResumableLoader
from lit_ctg.errors import UserError
from lit_ctg.files import replacing


def test_a_plain_checkpoint_with_configuration_and_corpus_inside(tiny, trainer_of, tmp_path: Path) -> None:
    module, data = tiny()
    config = {"paper": "x", "seed": 0, "model": {"dim": 4, "names": ["a"], "rate": 0.1, "none": None}}
    callback = RunCheckpoint(dirpath=str(tmp_path / "checkpoints"))
    callback.settings, callback.corpus = config, {"text": "12ab"}
    trainer = trainer_of(callback, max_epochs=3, enable_checkpointing=True, plugins=[AtomicCheckpointIO()])
    trainer.fit(module, data)
    names = ["last.ckpt", "last.previous.ckpt"]
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == names
    last, before = (load_checked(tmp_path / "checkpoints" / name) for name in names)
    assert last["lit_ctg"] == {"format": FORMAT, "config": config, "corpus": {"text": "12ab"}}
    assert (last["epoch"], before["epoch"]) == (2, 1)
    torch.testing.assert_close(last["state_dict"]["embedding.weight"], module.embedding.weight.detach())


def content(**more: Any) -> dict[str, Any]:
    """Return the least that a checkpoint of ours holds."""
    ours = {"format": FORMAT, "config": {"paper": "x"}, "corpus": {}}
    return {"lit_ctg": ours, "state_dict": {"weight": torch.arange(600.0), "bias": torch.ones(3)}, **more}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    AtomicCheckpointIO().save_checkpoint(content(), tmp_path / "last.ckpt")
    return tmp_path / "last.ckpt"


def test_a_disk_that_is_full_is_told_in_one_line_and_the_old_checkpoint_stays(
    saved: Path, full_disk: Callable[[int], Any]
) -> None:
    # torch answers with a RuntimeError of its own
    large = {"weight": torch.zeros(100_000)}
    with full_disk(100_000), pytest.raises(UserError) as first:
        AtomicCheckpointIO().save_checkpoint(large, saved)
    assert str(first.value) == f"cannot write {saved}: File too large; free some space or set output_root=..."
    other = saved.parent / "other.pt"
    with full_disk(100_000), pytest.raises(UserError) as second, replacing(other) as temporary:
        torch.save(large, temporary)
    assert str(second.value).startswith(f"cannot write {other}: torch could not write all of it")
    assert load_checked(saved).keys() == content().keys()
    assert [path.name for path in saved.parent.iterdir()] == ["last.ckpt"]


def test_it_is_on_the_disk_before_it_has_its_name_and_passes_through_no_other_folder(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "no such folder"))
    monkeypatch.setattr("tempfile.tempdir", None)
    synced: dict[int, int] = {}
    fsync, replace = os.fsync, os.replace

    def sync(handle: int) -> None:
        synced[os.fstat(handle).st_ino] = os.fstat(handle).st_size
        fsync(handle)

    def renamed(source: Any, target: Any) -> None:
        (new,) = saved.parent.glob(".last.ckpt.*.tmp")
        # also before the old one leaves its place: syncing takes long, and meanwhile there would be none
        assert synced.get(new.stat().st_ino) == new.stat().st_size
        names.append(Path(target).name)
        replace(source, target)

    names: list[str] = []
    monkeypatch.setattr("os.fsync", sync)

    monkeypatch.setattr("os.replace", renamed)
    AtomicCheckpointIO().save_checkpoint(content(epoch=7), saved)
    assert names == ["last.previous.ckpt", "last.ckpt"]
    assert load_checked(saved)["epoch"] == 7 and "epoch" not in load_checked(previous(saved))


def test_every_changed_bit_of_the_weights_is_noticed(saved: Path) -> None:
    data = saved.read_bytes()
    place = data.index(torch.arange(600.0).numpy().tobytes())
    for offset in range(place, place + 2400, 97):
        for bit in (0, 7):
            changed = bytearray(data)
            changed[offset] ^= 1 << bit
            saved.write_bytes(changed)
            assert torch.load(saved, weights_only=True)  # which does not notice
            with pytest.raises(DamagedError, match=r"last\.ckpt is damaged"):
                load_checked(saved)


def foreign(path: Path) -> dict[str, Any]:
    """Return what may lie at a checkpoint's place by what the line says of it."""
    ours = content()["lit_ctg"]
    return {
        "damaged or of another kind": [b"", b"PK", b"x" * 999, pickle.dumps({"a": 1}), path.read_bytes()[:-40]],
        "was not written by lit_ctg$": [[1], {}, {"state_dict": {}}, {"lit_ctg": 3, "state_dict": {}}],
        "it lacks weights, configuration or corpus": [
            {"lit_ctg": ours},
            {"lit_ctg": ours, "state_dict": {1: torch.ones(2)}},
            *({"lit_ctg": {**ours, part: None}, "state_dict": {}} for part in ("config", "corpus")),
        ],
        "checkpoint format 1, this version reads 2": [{"lit_ctg": {**ours, "format": 1}, "state_dict": {}}],
        "checkpoint format 3, this version reads 2": [{"lit_ctg": {**ours, "format": 3}, "state_dict": {}}],
        r"complex numbers \(weight\)": [content(state_dict={"weight": torch.zeros(2, dtype=torch.complex64)})],
    }


def test_whatever_lies_there_is_told_in_one_line(saved: Path) -> None:
    with pytest.raises(UserError, match="no checkpoint at"):
        load_checked(saved.parent / "none.ckpt")
    os.mkfifo(saved.parent / "pipe.ckpt")
    with pytest.raises(UserError, match="no checkpoint at"):
        load_checked(saved.parent / "pipe.ckpt")
    torch.save(torch.nn.Linear(1, 1), saved.parent / "module.ckpt")  # would be executed
    with pytest.raises(DamagedError) as error:
        load_checked(saved.parent / "module.ckpt")
    assert "weights_only" not in str(error.value)
    for words, cases in foreign(saved).items():
        for case in cases:
            path = saved.parent / "foreign.ckpt"
            path.write_bytes(case) if isinstance(case, bytes) else torch.save(case, path)
            with pytest.raises(UserError, match=words) as error:
                load_checked(path)
            assert "foreign.ckpt" in str(error.value) and len(str(error.value).splitlines()) == 1
            # a resumed run goes back to the checkpoint before a damaged one, and to none from another version's
            assert isinstance(error.value, DamagedError) == ("format" not in words and "complex" not in words)


def test_a_packed_checkpoint_is_not_unpacked(saved: Path) -> None:
    """`torch.save` stores: a few kB that unpack to the whole memory are not of ours."""
    packed = saved.with_name("packed.ckpt")
    with zipfile.ZipFile(saved) as stored, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in stored.namelist():
            archive.writestr(name, stored.read(name))
    with pytest.raises(DamagedError, match=r"packed\.ckpt is damaged"):
        load_checked(packed)


class Executed:
    """What makes a folder where it is read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


def test_nothing_in_a_checkpoint_is_executed(tmp_path: Path) -> None:
    path, folder = tmp_path / "last.ckpt", tmp_path / "made by the checkpoint"
    torch.save(content(more=Executed(folder)), path)
    with pytest.raises(DamagedError):
        load_checked(path)
    assert not folder.exists()


def test_a_checkpoint_from_a_gpu_is_read_where_there_is_none(saved: Path) -> None:
    with zipfile.ZipFile(saved) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(saved, "w") as archive:
        for name, part in parts.items():
            # the place of a tensor, as the pickle has it: a string behind its length
            archive.writestr(name, part.replace(b"X\x03\0\0\0cpu", b"X\x06\0\0\0cuda:0"))
    places: set[str] = set()
    torch.load(saved, weights_only=True, map_location=lambda storage, place: (places.add(place), storage)[1])
    assert places == {"cuda:0"}
    weight = load_checked(saved)["state_dict"]["weight"]
    assert weight.device.type == "cpu" and torch.equal(weight, torch.arange(600.0))


def test_a_module_may_keep_more_than_tensors(saved: Path) -> None:
    AtomicCheckpointIO().save_checkpoint(content(state_dict={"_extra_state": {"count": 3}}), saved)
    assert load_checked(saved)["state_dict"] == {"_extra_state": {"count": 3}}


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

    def train(
        *callbacks: Callback,
        resume: Path | None = None,
        eager: bool = False,
        minutes: float | None = None,
        **options: int,
    ) -> torch.Tensor:
        module, data = tiny()
        if eager:
            # as cosine schedules do
            rate = module.configure_optimizers
            module.configure_optimizers = lambda: (module.trainer.estimated_stepping_batches, rate())[1]
        loader = ResumableLoader(Rows(data.rows), seed=1, shuffle=True)
        checkpoint = RunCheckpoint(dirpath=str(tmp_path / "checkpoints"), minutes=minutes)
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


class Killed(Callback):
    """Ends a run during its n-th batch."""

    def __init__(self, batches: int) -> None:
        self.left = batches

    def on_train_batch_start(self, *arguments: object) -> None:
        self.left -= 1
        if not self.left:
            raise KeyError("killed")


@pytest.mark.parametrize("batches", [3, 4, 8])
def test_a_run_killed_between_two_steps_loses_no_gradient(fit, tmp_path: Path, batches: int) -> None:
    options = {"max_epochs": 2, "accumulate_grad_batches": 2}
    whole = fit(**options)
    last = tmp_path / "checkpoints" / "last.ckpt"
    last.unlink()
    with pytest.raises(KeyError, match="killed"):
        fit(Killed(batches), minutes=0, **options)
    assert torch.load(last, weights_only=True)["global_step"] == (batches - 1) // 2
    assert torch.equal(fit(resume=last, **options), whole)


@pytest.mark.parametrize("steps", [4, 6, 8])
def test_more_steps_than_at_first_go_on_where_the_first_ended(fit, tmp_path: Path, steps: int) -> None:
    """Also inside an epoch of four steps, and with Lightning's own idea of an epoch's end under max_steps."""
    whole = fit(max_epochs=-1, max_steps=11)
    fit(max_epochs=-1, max_steps=steps)
    first = tmp_path / "checkpoints" / "last.ckpt"
    counts = torch.load(first, weights_only=True)["loops"]["fit_loop"]["epoch_progress"]["current"]
    assert counts["processed"] == steps // 4
    assert torch.equal(fit(resume=first, max_epochs=-1, max_steps=11), whole)


@pytest.mark.parametrize(("minutes", "expected"), [(None, 0), (10.0, 1), (5.0, 2), (4.0, 5)])
def test_it_saves_inside_an_epoch_when_it_is_time(
    tiny, trainer_of, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minutes: float | None, expected: int
) -> None:
    """Two epochs of four steps of four minutes each."""
    clock = iter(range(0, 10**6, 4 * 60))
    now = [0.0]
    monkeypatch.setattr("lit_ctg.callback.checkpoint.time.monotonic", lambda: now[0])
    saved: list[tuple[int, int]] = []

    class Clock(Callback):
        def on_train_batch_start(self, trainer, *arguments: object) -> None:
            now[0] = float(next(clock))

        def on_save_checkpoint(self, trainer, module: LightningModule, checkpoint: dict[str, Any]) -> None:
            if not trainer.is_last_batch:
                saved.append((trainer.current_epoch, trainer.global_step))

    module, data = tiny()
    checkpoint = RunCheckpoint(dirpath=str(tmp_path / "checkpoints"), minutes=minutes)
    trainer = trainer_of(Clock(), checkpoint, enable_checkpointing=True, max_epochs=2, plugins=[AtomicCheckpointIO()])
    trainer.fit(module, ResumableLoader(Rows(data.rows), seed=1))
    # at an epoch's end it saves anyway, and counts from there
    assert len(saved) == expected
    last = load_checked(tmp_path / "checkpoints" / "last.ckpt")
    assert last["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"] == 2
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"last.ckpt", "last.previous.ckpt"}


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A trainer at the end of an epoch that max_steps cut short, as far as ``RunCheckpoint`` looks at one."""
    monkeypatch.setattr(ModelCheckpoint, "on_train_batch_end", lambda *arguments: None)
    total = SimpleNamespace(started=2, processed=2)
    return SimpleNamespace(
        train_dataloader=ResumableLoader(Rows([{}] * 4), seed=1), world_size=1, is_last_batch=False, global_step=6,
        max_steps=6, fit_loop=SimpleNamespace(epoch_progress=SimpleNamespace(total=total)), accumulate_grad_batches=1,
    )  # fmt: skip


def without_position(trainer: SimpleNamespace) -> None:
    trainer.train_dataloader = DataLoader([1, 2])


def with_state(trainer: SimpleNamespace) -> None:
    trainer.train_dataloader = ResumableLoader(StreamBatches.__new__(StreamBatches), seed=1)


def changing(**values: int) -> Callable[[SimpleNamespace], None]:
    return lambda trainer: vars(trainer).update(values)


def in_its_middle(trainer: SimpleNamespace) -> None:
    trainer.fit_loop.epoch_progress.total.processed = 1


@pytest.mark.parametrize(
    ("change", "saves"),
    [
        (changing(), 1),
        (without_position, 0),
        (changing(world_size=2), 0),
        (changing(is_last_batch=True), 0),
        (changing(accumulate_grad_batches=2), 0),
    ],
)
def test_it_saves_inside_an_epoch_only_where_that_can_be_gone_on_from(running, tmp_path: Path, change, saves) -> None:
    running.save_checkpoint = (paths := []).append
    change(running)
    RunCheckpoint(dirpath=str(tmp_path), minutes=0).on_train_batch_end(running, None, None, None, 0)
    assert paths == [tmp_path / "last.ckpt"] * saves


@pytest.mark.parametrize(
    ("change", "unfinished"),
    [
        (changing(), True),
        (changing(max_steps=7), False),  # stopped by something else
        (changing(world_size=2), False),
        (changing(is_last_batch=True), False),
        (in_its_middle, False),
        (without_position, False),
        (with_state, False),
    ],
)
def test_an_epoch_counts_as_unfinished_only_where_its_rest_can_be_trained(running, monkeypatch, change, unfinished):
    monkeypatch.setattr(StreamBatches, "__len__", lambda self: 4)
    change(running)
    counts = {"started": 2, "processed": 2, "completed": 2}
    checkpoint = {"loops": {"fit_loop": {"epoch_progress": {"total": {**counts}, "current": {**counts}}}}}
    RunCheckpoint().on_save_checkpoint(running, None, checkpoint)
    left = 2 - unfinished
    wanted = {"started": 2, "processed": left, "completed": left}
    assert checkpoint["loops"]["fit_loop"]["epoch_progress"] == {"total": wanted, "current": wanted}


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

"""Whole-batch loading: what a batch holds, the order of batches, ranks, workers."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import pytest
import torch

from lit_ctg.callback.checkpoint import RunCheckpoint
from lit_ctg.config import compose
from lit_ctg.data.loader import ResumableLoader, SentenceBatches, sentence_loader
from lit_ctg.run.build import build_datamodule

LENGTHS_N = torch.tensor([3, 5, 4, 3, 6, 4, 3])
IDS_NT = torch.stack([torch.cat([torch.arange(1, n + 1), torch.zeros(9 - n, dtype=torch.long)]) for n in LENGTHS_N])


def dataset(**changes: object) -> SentenceBatches:
    options = {"pad_id": 0, "extras": {}} | changes
    return SentenceBatches(IDS_NT, LENGTHS_N, **options)


def loader(size: int = 10, batch_size: int = 3, **changes: Any) -> ResumableLoader:
    ids_NT = torch.tensor([[1, 2]]).expand(size, 2)
    sentences = SentenceBatches(ids_NT, torch.full((size,), 2), pad_id=0, extras={"index_B": torch.arange(size)})
    return sentence_loader(sentences, **{"batch_size": batch_size, "seed": 0, "shuffle": True, **changes})


def epoch_of(batches: ResumableLoader, epoch: int) -> list[list[int]]:
    batches.set_epoch(epoch)
    return [batch["index_B"].tolist() for batch in batches]


def flat(lists: list[list]) -> list:
    return list(itertools.chain.from_iterable(lists))


def test_a_batch_is_cropped_and_shifted_by_one() -> None:
    batch = dataset()[torch.tensor([2, 0])]
    assert batch["input_ids_BT"].tolist() == [[1, 2, 3, 4], [1, 2, 3, 0]]
    assert batch["target_ids_BT"].tolist() == [[2, 3, 4, 0], [2, 3, 0, 0]]
    assert batch["mask_input_BT"].tolist() == [[True] * 4, [True] * 3 + [False]]
    assert batch["mask_target_BT"].tolist() == [[True] * 3 + [False], [True] * 2 + [False] * 2]
    assert all(tensor.is_contiguous() for tensor in batch.values())
    assert dataset(crop=False)[torch.tensor([0])]["input_ids_BT"].shape == (1, 8)
    assert dataset()[3]["input_ids_BT"].tolist() == [[1, 2, 3]]


def test_masks_count_every_target_and_one_pad_target_a_sentence_more() -> None:
    for index in ([1], [4], [0, 3], list(range(7))):
        batch = dataset()[torch.tensor(index)]
        assert batch["mask_target_BT"].sum() == LENGTHS_N[index].sum() - len(index)
        assert batch["mask_input_BT"].sum() == LENGTHS_N[index].sum()


def test_extras_per_position_are_cropped_like_the_inputs_and_others_are_not() -> None:
    features_NTF = torch.arange(7 * 9 * 2).reshape(7, 9, 2)
    extras = {"features_BTF": features_NTF, "control_BC": torch.arange(21).reshape(7, 3), "x_B": torch.arange(7)}
    batch = dataset(extras=extras)[torch.tensor([2, 0])]
    assert torch.equal(batch["features_BTF"], features_NTF[[2, 0], :4])
    assert batch["control_BC"].tolist() == [[6, 7, 8], [0, 1, 2]] and batch["x_B"].tolist() == [2, 0]


def test_extras_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="'x' has 6 rows for 7"):
        dataset(extras={"x": torch.zeros(6)})
    with pytest.raises(ValueError, match="input_ids_BT"):
        dataset(extras={"input_ids_BT": IDS_NT})


def test_an_epoch_visits_every_sentence_once_and_keeps_the_last_partial_batch() -> None:
    batches = epoch_of(loader(), 0)
    assert [len(batch) for batch in batches] == [3, 3, 3, 1] and len(loader()) == 4
    assert sorted(flat(batches)) == list(range(10))
    assert all(flat(epoch_of(loader(shuffle=False), epoch)) == list(range(10)) for epoch in (0, 3))


def test_order_is_a_function_of_seed_and_epoch_only() -> None:
    batches = loader(50)
    epochs = [epoch_of(batches, epoch) for epoch in (0, 1, 2)]
    torch.manual_seed(7)
    np.random.seed(7)
    assert epoch_of(loader(50), 2) == epochs[2]  # straight to the third epoch, as a resumed run does
    assert epoch_of(batches, 0) == epochs[0]
    assert len({str(epoch) for epoch in epochs}) == 3
    assert epoch_of(loader(50, seed=1), 0) != epochs[0]


def test_ranks_share_an_epoch() -> None:
    whole = epoch_of(loader(14), 1)  # five batches
    parts = [epoch_of(loader(14, rank=rank, world_size=2), 1) for rank in (0, 1)]
    assert parts == [whole[::2], [*whole[1::2], whole[0]]]  # as many for each rank: the first one again
    assert [len(loader(14, rank=rank, world_size=2)) for rank in (0, 1)] == [3, 3]
    plain = [epoch_of(loader(14, shuffle=False, rank=rank, world_size=2), 0) for rank in (0, 1)]
    assert sorted(flat(flat(plain))) == list(range(14))  # evaluated once each


def test_loading_leaves_torchs_generator_alone() -> None:
    before = torch.get_rng_state()
    assert len(list(loader(7))) == 3
    assert torch.equal(before, torch.get_rng_state())


def test_workers_give_the_same_batches() -> None:
    alone, helped = (list(loader(7, num_workers=n)) for n in (0, 2))
    assert len(alone) == len(helped) == 3
    for left, right in zip(alone, helped, strict=True):
        assert left.keys() == right.keys() and all(torch.equal(left[key], right[key]) for key in left)


def test_dataset_and_order_can_be_pickled() -> None:
    copy, order = pickle.loads(pickle.dumps((dataset(), loader().dataset)))
    assert torch.equal(copy[torch.tensor([4])]["target_ids_BT"], dataset()[torch.tensor([4])]["target_ids_BT"])
    assert [order[1, place]["index_B"].tolist() for place in range(4)] == epoch_of(loader(), 1)


def test_workers_leave_signals_to_the_first_process() -> None:
    batches = iter(loader(50, num_workers=2))
    first = next(batches)
    workers = multiprocessing.active_children()
    assert len(workers) == 2
    for worker, number in itertools.product(workers, (signal.SIGINT, signal.SIGTERM)):
        os.kill(worker.pid or 0, number)
    assert 1 + len(list(batches)) == 17 and len(first["index_B"]) == 3
    assert not [worker for worker in workers if worker.is_alive()]


@pytest.mark.long
@pytest.mark.parametrize("end", ["", "raise SystemExit(3)"])
def test_a_process_that_leaves_an_epoch_does_not_wait_for_its_workers(end: str) -> None:
    script = f"""
import sys
sys.path[:0] = {[str(Path(__file__).parents[2]), *sys.path]!r}
from tests.data.test_loader import loader
batches = iter(loader(500, num_workers=2))
next(batches)
"""
    script += end
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == (3 if end else 0) and not done.stderr


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_workers_end_with_a_process_that_is_killed_while_they_start() -> None:
    script = f"""
import os, signal, sys, threading, time
sys.path[:0] = {[str(Path(__file__).parents[2]), *sys.path]!r}
from torch.utils.data._utils.worker import ManagerWatchdog
from tests.data.test_loader import loader
watch = ManagerWatchdog.__init__
# torch's worker looks up its parent only here, after the parent was killed
ManagerWatchdog.__init__ = lambda self: (time.sleep(3), watch(self))[1]
threading.Timer(1, os.kill, (os.getpid(), signal.SIGKILL)).start()
list(loader(num_workers=1))
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, start_new_session=True)
    try:
        process.communicate(timeout=60)  # until the worker, which holds the pipe too, is gone
        assert process.returncode == -signal.SIGKILL
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_epoch_set_after_the_iterator_was_requested_is_read(num_workers: int) -> None:
    """Lightning does so when it resumes (its issue 21938)."""
    batches = loader(50, num_workers=num_workers)
    walk = iter(batches)
    batches.set_epoch(3)
    assert [batch["index_B"].tolist() for batch in walk] == epoch_of(loader(50), 3)


SMALL = ["data.sample_size=3000", "data.length=32", "data.batch_size=4"]
CORPORA = {
    "clause": ["data.train_size=64", "data.val_size=16", "data.batch_size=16"],
    "clause_coupled": ["data.train_size=64", "data.val_size=16", "data.batch_size=16"],
    "increment": ["data.n=200"],
    "gutenberg": SMALL,
    "reviews": SMALL,
    "scripts": SMALL,
    "translation": ["data.sample_size=1500"],
    "wikipedia": ["data.sample_size=3000", "data.length=32"],
    "wikitext": ["data.sample_size=3000", "data.batch_size=4"],
}


class Digests(lightning.LightningModule):
    """Keeps a checksum of every training batch, by epoch; ``stop`` ends the run after that epoch's second batch."""

    def __init__(self, stop: int | None = None) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen: list[tuple[int, str]] = []
        self.stop = stop

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if self.stop == self.current_epoch and batch_idx == 2:
            raise KeyboardInterrupt
        content = b"".join(key.encode() + batch[key].numpy().tobytes() for key in sorted(batch))
        self.seen.append((self.current_epoch, hashlib.sha256(content).hexdigest()))
        return (self.weight * 0).sum()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        pass

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "clause" else pytest.mark.long) for name in CORPORA]
)
def test_a_resumed_run_reads_the_same_batches_with_and_without_workers(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trainer_of: Callable[..., lightning.Trainer]
) -> None:
    monkeypatch.setenv("LIT_CTG_CACHE", str(tmp_path / "cache"))

    def fit(workers: int, stop: int | None = None, resume: Path | None = None) -> list[tuple[int, str]]:
        words = [f"data={name}", "size=smoke", *CORPORA[name], f"data.num_workers={workers}"]
        datamodule = build_datamodule(compose(words, experiment=False))
        module = Digests(stop)
        checkpoint = RunCheckpoint(str(tmp_path / f"run{workers}"))
        trainer = trainer_of(checkpoint, max_epochs=3, limit_train_batches=5, enable_checkpointing=True)
        with contextlib.suppress(SystemExit, KeyboardInterrupt):
            trainer.fit(module, datamodule, ckpt_path=resume, weights_only=True if resume else None)
        return module.seen

    whole = fit(0)
    epochs = [[digest for number, digest in whole if number == epoch] for epoch in range(3)]
    assert len(epochs[0]) == len(epochs[2]) > 2
    if name not in (
        "wikitext",
        "gutenberg",
        "reviews",
        "scripts",
    ):  # read in order: the same again
        assert epochs[1] != epochs[2]
    for workers in (0, 2):
        before = fit(workers, stop=2)
        assert before == whole[: len(before)] and before[-1][0] == 2
        after = fit(workers, resume=tmp_path / f"run{workers}" / "last.ckpt")
        assert after == [seen for seen in whole if seen[0] == 2], f"{workers} workers"


def test_workers_send_what_is_made_here() -> None:
    """Through a pipe: a tensor of shared memory each was thirty times slower than no workers."""
    extras = {"flag_B": torch.tensor([True, False] * 5), "feature_BT": torch.arange(20.0).reshape(10, 2)}
    sentences = SentenceBatches(torch.arange(20).reshape(10, 2), torch.full((10,), 2), pad_id=0, extras=extras)
    here, sent = (list(sentence_loader(sentences, batch_size=4, seed=0, shuffle=True, num_workers=n)) for n in (0, 1))
    for one, other in zip(here, sent, strict=True):
        assert list(one) == list(other)
        for name, value in one.items():
            torch.testing.assert_close(other[name], value, rtol=0, atol=0)
            other[name][0] = value[0]  # may be written to

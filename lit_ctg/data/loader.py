"""The loader of all corpora, and whole batches of a corpus held in tensors: one indexing operation per batch.

Axis letters: N sentences, T positions, B batch.
"""

from __future__ import annotations

import abc
import atexit
import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from inspect import signature
from typing import Any, cast

import numpy as np
import torch
from lightning import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, default_convert
from torch.utils.data.distributed import DistributedSampler

from lit_ctg.core.batch import Batch
from lit_ctg.core.processes import children_without_signals, end_with_parent
from lit_ctg.errors import UserError
from lit_ctg.limits import Checked, Whole, checked

_OWN_KEYS = ("input_ids_BT", "target_ids_BT", "mask_input_BT", "mask_target_BT")
# first spawn key of the shuffling stream; the corpora use the small numbers
ORDER_STREAM = 100


class SentenceBatches(Dataset[Batch]):
    """A padded corpus indexed by a whole batch of sentence numbers.

    Args:
        ids_NT: long, padded.
        lengths_N: long, number of tokens of each sentence.
        pad_id: the padding token.
        extras: further tensors with N rows (features, ...); those with T columns are cropped as the input ids are.
        crop: cut each batch to its longest sentence (else all batches have T - 1 positions).

    An item is a dict of ``input_ids_BT`` and ``target_ids_BT`` (the sentence and the sentence shifted by one),
    ``mask_input_BT`` and ``mask_target_BT`` (bool: not padding) and the extras. Where T allows, a cropped input keeps
    the longest sentence's last token, whose target is padding, as the published mask counts it.

    Raises:
        ValueError: an extra has another number of rows or a name already in use.
    """

    def __init__(
        self, ids_NT: Tensor, lengths_N: Tensor, *, pad_id: int, extras: Mapping[str, Tensor], crop: bool = True
    ) -> None:
        for name, tensor in extras.items():
            if name in _OWN_KEYS:
                raise ValueError(f"corpus_transform: '{name}' is the batch's own")
            if len(tensor) != len(ids_NT):
                raise ValueError(f"corpus_transform: '{name}' has {len(tensor)} rows for {len(ids_NT)} sentences")
        self.ids_NT, self.lengths_N, self.pad_id, self.crop = ids_NT, lengths_N, pad_id, crop
        self.extras = dict(extras)

    def __len__(self) -> int:
        return len(self.ids_NT)

    def __getitem__(self, index: Tensor | int) -> Batch:
        index_B = torch.as_tensor(index, dtype=torch.long).reshape(-1)
        width = columns = self.ids_NT.shape[1]
        if self.crop:
            width = min(int(self.lengths_N[index_B].max()) + 1, columns)
        ids_BT = self.ids_NT[:, :width][index_B]
        real_BT = ids_BT != self.pad_id
        batch: dict[str, Tensor] = {
            "input_ids_BT": ids_BT[:, :-1].contiguous(),
            "target_ids_BT": ids_BT[:, 1:].contiguous(),
            "mask_input_BT": real_BT[:, :-1].contiguous(),
            "mask_target_BT": real_BT[:, 1:].contiguous(),
        }
        for name, tensor in self.extras.items():
            per_position = tensor.ndim > 1 and tensor.shape[1] == columns
            batch[name] = tensor[:, : width - 1][index_B] if per_position else tensor[index_B]
        # the names of the extras are the model's
        return cast(Batch, batch)


class SentenceOrder(Dataset[Batch]):
    """The batches of ``SentenceBatches``, indexed by (epoch, position).

    Args:
        sentences: the split.
        batch_size: sentences in a batch; the last one may be smaller.
        seed: of the order; mixed with the epoch by numpy's SeedSequence.
        shuffle: False for 0, 1, 2, ... in every epoch.
    """

    def __init__(self, sentences: SentenceBatches, *, batch_size: int, seed: int, shuffle: bool) -> None:
        self.sentences, self.batch_size, self.seed, self.shuffle = sentences, batch_size, seed, shuffle
        self._drawn: tuple[int, Tensor] | None = None

    def __len__(self) -> int:
        return -(-len(self.sentences) // self.batch_size)

    def __getitem__(self, key: tuple[int, int]) -> Batch:
        epoch, place = key
        return self.sentences[self._order(epoch)[place * self.batch_size : (place + 1) * self.batch_size]]

    def _order(self, epoch: int) -> Tensor:
        """Return the sentence numbers of an epoch; the last epoch's are kept."""
        if self._drawn is None or self._drawn[0] != epoch:
            order_N = np.arange(len(self.sentences))
            if self.shuffle:
                stream = np.random.SeedSequence(self.seed, spawn_key=(ORDER_STREAM, epoch))
                order_N = np.random.default_rng(stream).permutation(len(self.sentences))
            self._drawn = epoch, torch.from_numpy(order_N)
        return self._drawn[1]


class EpochSampler(DistributedSampler[tuple[int, int]]):
    """Yields (epoch, i) for the batches of an epoch, in order or in an order drawn from (seed, epoch).

    Lightning calls ``set_epoch``; ``start`` is where the next pass begins. With several processes, each gets every
    ``world_size``-th batch; with ``even`` the first batches are handed out again until all have the same number (no
    process may wait in vain for gradients). A ``fixed`` one repeats epoch 0 in order. Lightning puts its own sampler in
    the place of any other class (``use_distributed_sampler``).

    Raises:
        UserError: fewer batches than processes.
    """

    def __init__(
        self,
        steps: int,
        *,
        seed: int = 0,
        shuffle: bool = False,
        rank: int = 0,
        world_size: int = 1,
        even: bool = False,
        fixed: bool = False,
    ) -> None:
        # not that of the base, which asks for a process group
        if steps < world_size:
            raise UserError(f"{steps} batches for {world_size} processes: lower data.batch_size or trainer.devices")
        self.total, self.seed, self.shuffle, self.fixed = steps, seed, shuffle and not fixed, fixed
        self.rank, self.world_size, self.even = rank, world_size, even
        self.steps = -(-steps // world_size) if even else len(range(rank, steps, world_size))
        self.epoch = self.start = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = 0 if self.fixed else epoch

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[tuple[int, int]]:
        order = np.arange(self.total)
        if self.shuffle:
            order = np.random.default_rng([self.seed, self.epoch]).permutation(self.total)
        order = order[(self.rank + self.world_size * np.arange(self.steps)) % self.total]
        start, self.start = self.start, 0
        for index in order[start:].tolist():
            yield self.epoch, index


def _start(parent: int, init: Callable[[int], None] | None, worker: int) -> None:
    # torch's worker looks up its parent only once it runs: if that is gone by then, it never notices
    end_with_parent(parent)
    if init is not None:
        init(worker)


def _sent(batch: Any) -> Any:
    """Return a batch as a worker sends it: arrays go through a pipe, each tensor would need a file of shared memory."""
    if not isinstance(batch, dict):
        return default_convert(batch)
    return {name: value.numpy() if isinstance(value, Tensor) else value for name, value in batch.items()}


def _received(batch: Any) -> Any:
    if not isinstance(batch, dict):
        return batch
    return {name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value for name, value in batch.items()}


class Rows(Dataset[Batch]):
    """Batches under the length that Lightning expects of a dataset (``scale_batch_size``): their number of rows."""

    def __init__(self, batches: Any) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches) * getattr(self.batches, "batch_size", 1)

    def __getitem__(self, key: tuple[int, int]) -> Batch:
        return self.batches[key]


@checked
class ResumableLoader(DataLoader[Batch]):
    """The loader of all corpora: batches are a function of (seed, epoch, position); checkpoints hold the position.

    Lightning stores ``state_dict`` and restores it on resume. It sets the epoch (``set_epoch``) only after it has
    requested an iterator, where workers would already read the first batches of another epoch (its issue 21938); so
    nothing is read here before the first batch is requested.

    Args:
        dataset: indexed by (epoch, position).
        num_workers: processes that read; 0 reads in this one. They end with this one and leave signals to it.
        generator: seeds the workers; by default torch's global generator does, which advances it.
        sampler: given by Lightning when it builds the loader anew: one of ours to predict, another to overfit some
            batches, which are then those of epoch 0.
        order: options of ``EpochSampler``; those of torch's loader, which Lightning also gives, are left out.

    Raises:
        UserError: an invalid number of workers; fewer batches than processes.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        num_workers: Whole = 0,
        generator: torch.Generator | None = None,
        sampler: Sampler[Any] | None = None,
        **order: Any,
    ) -> None:
        self.position = 0
        self.batches = dataset.batches if isinstance(dataset, Rows) else dataset
        if not isinstance(sampler, EpochSampler):
            options = {name: value for name, value in order.items() if name in signature(EpochSampler).parameters}
            sampler = EpochSampler(len(self.batches), **options, fixed=sampler is not None)
        self.order = sampler
        super().__init__(
            Rows(self.batches),
            batch_size=None,
            sampler=sampler,
            num_workers=num_workers,
            generator=generator,
            collate_fn=_sent if num_workers else None,
        )

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass that of ``epoch``; a pass already begun is unaffected."""
        self.order.set_epoch(epoch)

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]  # torch names its private iterator as the type
        # a generator: this code runs with the first batch. After a finished epoch the position is reset; one set by
        # load_state_dict is used once
        self.position = self.order.start
        init = self.worker_init_fn
        self.worker_init_fn = partial(_start, os.getpid(), init)
        with children_without_signals():
            batches: Any = super().__iter__()
            self.worker_init_fn = init
            for worker in getattr(batches, "_workers", ()):
                # torch, and Python at its exit, would wait for a worker that does not hear SIGTERM
                worker.terminate, worker._popen.terminate = worker.kill, worker._popen.kill
        shut_down = getattr(batches, "_shutdown_workers", lambda: None)
        atexit.register(shut_down)  # before torch's own, after which it leaves its workers alone
        try:
            for batch in batches:
                self.position += 1
                yield _received(batch) if self.num_workers else batch
        finally:
            shut_down()
            atexit.unregister(shut_down)

    def state_dict(self) -> dict[str, int]:
        """Return how many batches of the epoch were delivered."""
        return {"epoch": self.order.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Make the next pass begin where the stored one stopped."""
        self.order.set_epoch(state["epoch"])
        self.order.start = state["position"] if state["position"] < len(self) else 0


def process_place(trainer: Any) -> dict[str, int]:
    """Return the rank of this training process and their number; without a trainer there is one."""
    return {"rank": trainer.global_rank, "world_size": trainer.world_size} if trainer else {}


def sentence_loader(
    sentences: SentenceBatches, *, batch_size: int, seed: int, shuffle: bool, **place: Any
) -> ResumableLoader:
    """Return the loader of a split held in tensors; it does not use torch's global generator.

    Shuffled batches are repeated from the start until all processes have the same number; unshuffled ones are never
    repeated, so that no metric counts a sentence twice. ``place``: ``num_workers``, ``rank`` and ``world_size``.

    Raises:
        UserError: fewer batches than processes.
    """
    batches = SentenceOrder(sentences, batch_size=batch_size, seed=seed, shuffle=shuffle)
    return ResumableLoader(batches, generator=torch.Generator().manual_seed(seed), even=shuffle, **place)


class SentenceDataModule(Checked, LightningDataModule, abc.ABC):
    """Base of the data modules that hold their splits in tensors: provides the loaders.

    Attributes:
        batch_size: sentences B of a batch.
        num_workers: processes that read batches.
        seed: of the training order, which depends on (seed, epoch) only, unless ``order_seed`` is given.
    """

    batch_size: int
    num_workers: int
    seed: int
    order_seed: int | None = None

    @abc.abstractmethod
    def dataset(self, split: str) -> SentenceBatches:
        """Return a split (train, val, test) as tensors."""

    def train_dataloader(self) -> ResumableLoader:
        """Return shuffled batches."""
        return self._loader("train")

    def val_dataloader(self) -> ResumableLoader:
        """Return the validation sentences in order."""
        return self._loader("val")

    def test_dataloader(self) -> ResumableLoader:
        """Return the test sentences in order."""
        return self._loader("test")

    def predict_dataloader(self) -> ResumableLoader:
        """Return the test sentences in order."""
        return self.test_dataloader()

    def _loader(self, split: str) -> ResumableLoader:
        seed = self.seed if self.order_seed is None else self.order_seed
        place = {"num_workers": self.num_workers, **process_place(self.trainer)}
        return sentence_loader(
            self.dataset(split), batch_size=self.batch_size, seed=seed, shuffle=split == "train", **place
        )

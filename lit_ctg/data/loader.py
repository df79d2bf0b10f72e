"""Whole-batch loading of a corpus held in tensors: one indexing operation a batch, no per-item collation.

Axis letters: N sentences, T positions, B batch, W positions of a cropped batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from lit_ctg.errors import UserError

_OWN_KEYS = ("input_ids_BT", "target_ids_BT", "mask_input_BT", "mask_target_BT", "sentence_index_B")
# first spawn key of the stream that shuffles; the corpora use the small numbers
ORDER_STREAM = 100


class SentenceBatches(Dataset[dict[str, Tensor]]):
    """A padded corpus that is indexed by a whole batch of sentence numbers.

    Args:
        ids_NT: long, padded.
        lengths_N: long, number of tokens of each sentence.
        pad_id: the padding token.
        extras: further tensors with N rows (features, ...); those with T columns are cropped like the input ids.
        crop: cut each batch to its longest sentence (else all batches have T - 1 positions).

    An item is a dict of ``input_ids_BT`` and ``target_ids_BT`` (the sentence and the sentence shifted by one),
    ``mask_input_BT`` and ``mask_target_BT`` (bool: not padding), ``sentence_index_B`` and the extras. Where T allows, a
    cropped input keeps the longest sentence's last token, whose target is padding: the published mask counts it.

    Raises:
        ValueError: an extra with another number of rows or a name that is taken.
    """

    def __init__(
        self,
        ids_NT: Tensor,
        lengths_N: Tensor,
        *,
        pad_id: int,
        extras: Mapping[str, Tensor],
        crop: bool = True,
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

    def __getitem__(self, index: Tensor | int) -> dict[str, Tensor]:
        index_B = torch.as_tensor(index, dtype=torch.long).reshape(-1)
        width = columns = self.ids_NT.shape[1]
        if self.crop:
            width = min(int(self.lengths_N[index_B].max()) + 1, columns)
        ids_BT = self.ids_NT[:, :width][index_B]
        real_BT = ids_BT != self.pad_id
        batch = {
            "input_ids_BT": ids_BT[:, :-1].contiguous(),
            "target_ids_BT": ids_BT[:, 1:].contiguous(),
            "mask_input_BT": real_BT[:, :-1].contiguous(),
            "mask_target_BT": real_BT[:, 1:].contiguous(),
            "sentence_index_B": index_B,
        }
        for name, tensor in self.extras.items():
            per_position = tensor.ndim > 1 and tensor.shape[1] == columns
            batch[name] = tensor[:, : width - 1][index_B] if per_position else tensor[index_B]
        return batch


class EpochBatches(DistributedSampler[Tensor]):
    """Batches of sentence numbers; their order is a function of (seed, epoch) only.

    A subclass of ``DistributedSampler`` only so that Lightning leaves it in place: it deals whole batches to the ranks
    itself. Shuffled batches are repeated from the start until every rank has as many (a rank must not wait in vain for
    gradients); unshuffled ones are never repeated, so that a metric counts no sentence twice.

    Args:
        size: number of sentences.
        batch_size: sentences in a batch; the last one may be smaller.
        seed: of the order; mixed with the epoch by numpy's SeedSequence.
        shuffle: False for 0, 1, 2, ... in every epoch.
        rank, world_size: this process among the distributed ones.

    Raises:
        UserError: fewer batches than processes.
    """

    def __init__(
        self, size: int, batch_size: int, *, seed: int, shuffle: bool, rank: int = 0, world_size: int = 1
    ) -> None:
        super().__init__(range(size), num_replicas=world_size, rank=rank, shuffle=shuffle, seed=seed)  # type: ignore
        self.size, self.batch_size = size, batch_size
        if (count := -(-size // batch_size)) < world_size:
            raise UserError(f"{count} batches for {world_size} processes: lower data.batch_size or trainer.devices")

    def __iter__(self) -> Iterator[Tensor]:
        order_N = np.arange(self.size)
        if self.shuffle:
            stream = np.random.SeedSequence(self.seed, spawn_key=(ORDER_STREAM, self.epoch))
            order_N = np.random.default_rng(stream).permutation(self.size)
        batches = torch.from_numpy(order_N).split(self.batch_size)
        for index in self._mine(len(batches)):
            yield batches[index]

    def _mine(self, count: int) -> range | list[int]:
        if not self.shuffle:
            return range(self.rank, count, self.num_replicas)
        rounds = -(-count // self.num_replicas)
        return [(self.rank + turn * self.num_replicas) % count for turn in range(rounds)]

    def __len__(self) -> int:
        return len(self._mine(-(-self.size // self.batch_size)))


def whole_batch_loader(dataset: SentenceBatches, sampler: EpochBatches, num_workers: int = 0) -> DataLoader[Tensor]:
    """Return a DataLoader that fetches one batch per index, and draws nothing from torch's global generator."""
    return DataLoader(
        dataset,
        batch_size=None,
        sampler=sampler,
        num_workers=num_workers,
        generator=torch.Generator().manual_seed(sampler.seed),
    )

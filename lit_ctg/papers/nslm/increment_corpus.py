"""Pairs of consecutive integers as words: ``41 42`` (NSLM, "Numbers and the Softmax Bottleneck", Table 7)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from lightning import LightningDataModule
from torch import Tensor

from lit_ctg.core.batch import Fingerprint, checksum
from lit_ctg.data.loader import ResumableLoader, SentenceBatches, sentence_loader
from lit_ctg.errors import UserError

SPLITS = ("train", "val", "test")


class IntegerVocabulary:
    """The integers 0 to ``largest`` as words; the id of an integer is itself."""

    def __init__(self, largest: int) -> None:
        self.tokens = tuple(map(str, range(largest + 1)))

    def __len__(self) -> int:
        return len(self.tokens)

    def decode(self, ids: Any) -> str:
        """Return the words of some ids."""
        return " ".join(str(int(number)) for number in ids)


class IncrementDataModule(LightningDataModule):
    """n pairs (i, i + 1), i from 0; some are held out for validation and as many for test ("unseen").

    Args:
        n: pairs in all.
        held_out: share of each of the two held-out parts.
        batch_size: pairs in a batch; None: a fiftieth of n, 50 at least.
        seed: of the split and of the training order.
        num_workers: processes that read batches.

    Attributes:
        vocabulary: the integers 0 to n.

    Raises:
        UserError: too few pairs for three parts.
    """

    splits = SPLITS

    def __init__(self, *, n: int, held_out: float, batch_size: int | None, seed: int, num_workers: int = 0) -> None:
        super().__init__()
        size = int(n * held_out)
        if size < 1 or n - 2 * size < 1:
            raise UserError(f"data.n={n} with data.held_out={held_out} leaves a part empty: give n >= 10, held_out 0.1")
        self.n, self.batch_size, self.seed = n, batch_size or max(50, n // 50), seed
        self.num_workers = num_workers
        self.vocabulary = IntegerVocabulary(n)
        order = np.random.default_rng(seed).permutation(n)
        self.first = {"test": order[:size], "val": order[size : 2 * size], "train": order[2 * size :]}

    def pairs(self, split: str) -> Tensor:
        """Return pairs_N2 (long) of train, val or test."""
        first_N = torch.from_numpy(np.sort(self.first[split]))
        return torch.stack([first_N, first_N + 1], dim=1)

    def train_dataloader(self) -> ResumableLoader:
        """Return shuffled batches."""
        return self._loader("train")

    def val_dataloader(self) -> ResumableLoader:
        """Return the validation pairs."""
        return self._loader("val")

    def test_dataloader(self) -> ResumableLoader:
        """Return the unseen pairs of the test."""
        return self._loader("test")

    def _loader(self, split: str) -> ResumableLoader:
        pairs_N2 = self.pairs(split)
        # no word stands for padding: all sentences are equally long
        batches = SentenceBatches(pairs_N2, torch.full((len(pairs_N2),), 2), pad_id=-1, extras={}, crop=False)
        trainer = self.trainer
        return sentence_loader(
            batches,
            batch_size=self.batch_size,
            num_workers=self.num_workers,
            seed=self.seed,
            shuffle=split == "train",
            rank=trainer.global_rank if trainer else 0,
            world_size=trainer.world_size if trainer else 1,
        )

    def fingerprint(self) -> Fingerprint:
        """Return the checksums of the pairs of all splits and of the vocabulary."""
        pairs = {split: self.pairs(split).tolist() for split in self.splits}
        return {"text": checksum(pairs), "vocabulary": checksum(self.vocabulary.tokens)}

    def facts(self) -> dict[str, str]:
        """Return what `lit-ctg data info` prints."""
        return {split: f"{len(self.first[split]):,} pairs" for split in SPLITS}

    def texts(self, n: int, split: str = "train") -> list[str]:
        """Return the first ``n`` pairs of a split as text."""
        return [self.vocabulary.decode(row) for row in self.pairs(split)[:n].tolist()]

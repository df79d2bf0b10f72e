"""Pairs of consecutive integers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from lit_ctg.errors import UserError
from lit_ctg.papers.nslm.increment_corpus import IncrementDataModule


def test_every_pair_is_in_one_split() -> None:
    datamodule = IncrementDataModule(n=200, held_out=0.1, batch_size=None, seed=3)
    rows = [tuple(pair) for split in ("train", "val", "test") for pair in datamodule.pairs(split).tolist()]
    assert sorted(rows) == [(number, number + 1) for number in range(200)]
    assert [len(datamodule.pairs(split)) for split in ("train", "val", "test")] == [160, 20, 20]
    other = IncrementDataModule(n=200, held_out=0.1, batch_size=None, seed=4)
    assert other.pairs("test").tolist() != datamodule.pairs("test").tolist()


def test_batches_and_texts() -> None:
    datamodule = IncrementDataModule(n=200, held_out=0.1, batch_size=None, seed=3)
    batches = list(datamodule.train_dataloader())
    assert len(batches) == 4 and datamodule.batch_size == 50
    for batch in batches:
        assert (batch["target_ids_BT"] == batch["input_ids_BT"] + 1).all()
        assert batch["mask_target_BT"].all() and batch["input_ids_BT"].shape[1] == 1
    first, second = datamodule.texts(1)[0].split()
    assert int(second) == int(first) + 1
    assert datamodule.vocabulary.tokens[-1] == "200" and len(datamodule.vocabulary) == 201


def test_processes_share_the_batches() -> None:
    datamodule = IncrementDataModule(n=500, held_out=0.1, batch_size=50, seed=3)
    rows = []
    for rank in range(2):
        datamodule.trainer = SimpleNamespace(global_rank=rank, world_size=2)
        rows += [number for batch in datamodule.train_dataloader() for number in batch["input_ids_BT"][:, 0].tolist()]
    assert sorted(rows) == datamodule.pairs("train")[:, 0].tolist()


def test_too_few_pairs() -> None:
    with pytest.raises(UserError, match=r"data.n=5.*leaves a part empty"):
        IncrementDataModule(n=5, held_out=0.1, batch_size=None, seed=0)

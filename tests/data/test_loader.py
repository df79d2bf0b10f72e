"""Whole-batch loading: what a batch holds, the order of batches, ranks, workers."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest
import torch

from lit_ctg.data.loader import EpochBatches, SentenceBatches, whole_batch_loader

LENGTHS_N = torch.tensor([3, 5, 4, 3, 6, 4, 3])
IDS_NT = torch.stack([torch.cat([torch.arange(1, n + 1), torch.zeros(9 - n, dtype=torch.long)]) for n in LENGTHS_N])


def dataset(**changes: object) -> SentenceBatches:
    options = {"pad_id": 0, "extras": {}} | changes
    return SentenceBatches(IDS_NT, LENGTHS_N, **options)


def sampler(size: int = 10, batch_size: int = 3, **changes: object) -> EpochBatches:
    return EpochBatches(size, batch_size, **{"seed": 0, "shuffle": True} | changes)


def epoch_of(batches: EpochBatches, epoch: int) -> list[list[int]]:
    batches.set_epoch(epoch)
    return [batch.tolist() for batch in batches]


def flat(lists: list[list]) -> list:
    return list(itertools.chain.from_iterable(lists))


def test_a_batch_is_cropped_and_shifted_by_one() -> None:
    batch = dataset()[torch.tensor([2, 0])]
    assert batch["input_ids_BT"].tolist() == [[1, 2, 3, 4], [1, 2, 3, 0]]
    assert batch["target_ids_BT"].tolist() == [[2, 3, 4, 0], [2, 3, 0, 0]]
    assert batch["mask_input_BT"].tolist() == [[True] * 4, [True] * 3 + [False]]
    assert batch["mask_target_BT"].tolist() == [[True] * 3 + [False], [True] * 2 + [False] * 2]
    assert batch["sentence_index_B"].tolist() == [2, 0]
    assert all(tensor.is_contiguous() for tensor in batch.values())


def test_masks_count_every_target_and_one_pad_target_a_sentence_more() -> None:
    for index in ([1], [4], [0, 3], list(range(7))):
        batch = dataset()[torch.tensor(index)]
        assert batch["mask_target_BT"].sum() == LENGTHS_N[index].sum() - len(index)
        assert batch["mask_input_BT"].sum() == LENGTHS_N[index].sum()


def test_uncropped_batches_have_all_positions() -> None:
    assert dataset(crop=False)[torch.tensor([0])]["input_ids_BT"].shape == (1, 8)


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


def test_one_number_is_a_batch_of_one() -> None:
    assert dataset()[3]["input_ids_BT"].tolist() == [[1, 2, 3]]


def test_an_epoch_visits_every_sentence_once_and_keeps_the_last_partial_batch() -> None:
    batches = epoch_of(sampler(), 0)
    assert [len(batch) for batch in batches] == [3, 3, 3, 1] and len(sampler()) == 4
    assert sorted(flat(batches)) == list(range(10))


def test_order_is_a_function_of_seed_and_epoch_only() -> None:
    batches = sampler(50)
    epochs = [epoch_of(batches, epoch) for epoch in (0, 1, 2)]
    torch.manual_seed(7)
    np.random.seed(7)
    assert epoch_of(sampler(50), 2) == epochs[2]  # straight to the third epoch, as a resumed run does
    assert epoch_of(batches, 0) == epochs[0]
    assert len({str(epoch) for epoch in epochs}) == 3
    assert epoch_of(sampler(50, seed=1), 0) != epochs[0]


def test_without_shuffling_the_order_is_that_of_the_corpus() -> None:
    for epoch in (0, 3):
        assert flat(epoch_of(sampler(shuffle=False), epoch)) == list(range(10))


def test_ranks_share_an_epoch() -> None:
    whole = epoch_of(sampler(14), 1)  # five batches
    parts = [epoch_of(sampler(14, rank=rank, world_size=2), 1) for rank in (0, 1)]
    assert parts == [whole[::2], [*whole[1::2], whole[0]]]  # as many for each rank: the first one again
    assert [len(sampler(14, rank=rank, world_size=2)) for rank in (0, 1)] == [3, 3]
    plain = [epoch_of(sampler(14, shuffle=False, rank=rank, world_size=2), 0) for rank in (0, 1)]
    assert sorted(flat(flat(plain))) == list(range(14))  # evaluated once each


def test_loading_leaves_torchs_generator_alone() -> None:
    before = torch.get_rng_state()
    assert len(list(whole_batch_loader(dataset(), sampler(7)))) == 3
    assert torch.equal(before, torch.get_rng_state())


def test_workers_give_the_same_batches() -> None:
    alone, helped = (list(whole_batch_loader(dataset(), sampler(7), num_workers=n)) for n in (0, 2))
    assert len(alone) == len(helped) == 3
    for left, right in zip(alone, helped, strict=True):
        assert left.keys() == right.keys() and all(torch.equal(left[key], right[key]) for key in left)


def test_dataset_and_order_can_be_pickled() -> None:
    copy, order = pickle.loads(pickle.dumps((dataset(), sampler())))
    assert torch.equal(copy[torch.tensor([4])]["target_ids_BT"], dataset()[torch.tensor([4])]["target_ids_BT"])
    assert epoch_of(order, 1) == epoch_of(sampler(), 1)

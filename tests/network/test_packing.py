"""Packing: what is packed where, and back."""

from __future__ import annotations

import pytest
import torch

from lit_ctg.network.packing import MAX_GROUPS, Packing


def mask_of(lengths: list[int]) -> torch.Tensor:
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


def test_sentences_lie_side_by_side_by_length():
    packing = Packing.of(mask_of([3, 1, 3, 1]))
    assert packing.groups == ((2, 1), (2, 3))
    values = torch.tensor([[1, 2, 3], [4, 0, 0], [5, 6, 7], [8, 0, 0]])
    assert packing.gather(values).tolist() == [4, 8, 1, 2, 3, 5, 6, 7]
    assert packing.positions(values.device).tolist() == [0, 0, 0, 1, 2, 0, 1, 2]
    assert [part.tolist() for part in packing.split(packing.gather(values))] == [[4, 8], [1, 2, 3, 5, 6, 7]]
    assert torch.equal(packing.scatter(packing.gather(values)), values)


@pytest.mark.parametrize("lengths", [[5, 2, 2], [4, 4], [1, 2, 3, 4, 5, 6], [0, 3]])
def test_unpacking_restores_every_real_token_and_zeros_the_rest(lengths):
    mask = mask_of(lengths)
    values = torch.randn(*mask.shape, 3)
    packing = Packing.of(mask)
    assert torch.equal(packing.scatter(packing.gather(values)), values * mask[..., None])
    assert torch.equal(packing.scatter(packing.gather(values[..., 0])), values[..., 0] * mask)
    assert all(length for _, length in packing.groups), "an empty sentence has no group"


def test_a_full_batch_is_not_copied():
    packing = Packing.of(mask_of([4, 4, 4]))
    values = torch.randn(3, 4)
    assert packing.gather(values).data_ptr() == values.data_ptr()
    assert packing.groups == ((3, 4),)


def test_too_many_lengths_or_left_padding_stay_padded_and_masked():
    many = mask_of(list(range(1, MAX_GROUPS + 2)))
    left = mask_of([1, 3, 3]).flip(1)
    for mask in (many, left):
        packing = Packing.of(mask)
        assert packing.index_N is None
        assert torch.equal(packing.valid_BT, mask)
        (forbidden,) = packing.forbidden(causal=False, device=mask.device)
        own = torch.eye(mask.shape[1], dtype=torch.bool)
        assert torch.equal(forbidden, ~(mask[:, None, :] | own))
        (causal,) = packing.forbidden(causal=True, device=mask.device)
        assert torch.equal(causal, forbidden | torch.ones_like(own).triu(1))


def test_as_many_lengths_as_allowed_are_packed():
    assert len(Packing.of(mask_of(list(range(1, MAX_GROUPS + 1)))).groups) == MAX_GROUPS


def test_only_causal_groups_forbid_the_future():
    packing = Packing.of(mask_of([2, 3]))
    assert packing.forbidden(causal=False, device=torch.device("cpu")) == [None, None]
    two, three = packing.forbidden(causal=True, device=torch.device("cpu"))
    assert two.tolist() == [[False, True], [False, False]]
    assert int(three.sum()) == 3

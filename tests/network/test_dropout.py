"""Dropout: rate, independence, scale, gradients."""

from __future__ import annotations

import math

import pytest
import torch

from lit_ctg.network.dropout import dropout, dropout_add, dropout_mask, dropout_scale, relu_dropout


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_rate_and_scale(p):
    torch.manual_seed(0)
    like = torch.empty(())
    mask = dropout_mask(torch.Size([1000, 1001]), p, like)
    values = mask.unique()
    assert values.tolist() == pytest.approx([0.0, 1 / (1 - p)], rel=2e-4)
    dropped = float((mask == 0).double().mean())
    assert abs(dropped - p) < 5 * math.sqrt(p * (1 - p) / mask.numel()) + 2**-17
    assert dropout_scale(p) * (1 - round(p * 65536) / 65536) == pytest.approx(1.0)


def test_the_four_words_of_a_draw_are_equally_often_dropped_and_independent():
    torch.manual_seed(1)
    words = (dropout_mask(torch.Size([400_000]), 0.5, torch.empty(())) == 0).double().view(-1, 4)
    deviation = 5 * math.sqrt(0.25 / len(words))
    assert (words.mean(0) - 0.5).abs().max() < deviation
    correlation = torch.corrcoef(words.T) - torch.eye(4)
    assert correlation.abs().max() < 5 / math.sqrt(len(words))


@pytest.mark.parametrize("p", [0.0001, 0.1, 0.5])
def test_what_is_kept_are_the_words_from_p_of_their_range_on(p):
    torch.manual_seed(2)
    mask = dropout_mask(torch.Size([4000]), p, torch.empty(()))
    torch.manual_seed(2)
    words = torch.empty(1000, dtype=torch.int64).random_(-(2**63), None).view(torch.int16).long() + 32768
    assert torch.equal(mask != 0, words >= round(p * 65536))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7])
def test_any_number_of_elements(count):
    assert dropout_mask(torch.Size([count]), 0.3, torch.empty((), dtype=torch.float64)).shape == (count,)


def test_a_mask_has_the_type_it_is_asked_for():
    assert dropout_mask(torch.Size([3]), 0.5, torch.empty((), dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_relu_dropout_equals_relu_then_mask_forward_and_back():
    x = torch.randn(50, 8, requires_grad=True)
    torch.manual_seed(2)
    out = relu_dropout(x * 1.0, 0.3)
    torch.manual_seed(2)
    mask = dropout_mask(x.shape, 0.3, x)
    assert torch.equal(out, x.detach().relu() * mask)
    weight = torch.randn_like(x)
    (out * weight).sum().backward()
    assert torch.allclose(x.grad, weight * mask * (x > 0))


def test_dropout_add_equals_its_parts_forward_and_back():
    branch, residual = torch.randn(50, 8, requires_grad=True), torch.randn(50, 8, requires_grad=True)
    torch.manual_seed(3)
    out = dropout_add(branch * 1.0, residual, 0.3)
    torch.manual_seed(3)
    mask = dropout_mask(branch.shape, 0.3, branch)
    assert torch.equal(out, branch.detach() * mask + residual)
    weight = torch.randn_like(out)
    (out * weight).sum().backward()
    assert torch.equal(branch.grad, weight * mask)
    assert torch.equal(residual.grad, weight)


def test_nothing_is_dropped_at_zero():
    x = torch.randn(5, 3)
    assert dropout(x, 0.0) is x
    assert torch.equal(relu_dropout(x.clone(), 0.0), x.relu())
    assert torch.equal(dropout_add(x.clone(), x, 0.0), 2 * x)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_rates_beyond_what_16_bits_tell_apart(kind):
    x = torch.ones(4000, dtype=kind)
    assert torch.equal(dropout(x, 1e-6), x)
    assert set(dropout(x, 0.999999).tolist()) <= {0.0, 65536.0}


def test_plain_dropout_uses_the_mask():
    x = torch.randn(100, 10)
    torch.manual_seed(4)
    out = dropout(x, 0.5)
    torch.manual_seed(4)
    assert torch.equal(out, x * dropout_mask(x.shape, 0.5, x))


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("p", [0.2, 0.5])
def test_half_masks_are_those_of_float32_rounded(kind, p):
    masks = []
    for like in (torch.empty(0), torch.empty(0, dtype=kind)):
        torch.manual_seed(0)
        masks.append(dropout_mask(torch.Size((33, 7)), p, like))
    assert masks[1].dtype == kind and torch.equal(masks[1], masks[0].to(kind))

"""The quicker forms against the plain ones: values and gradients, extremes, mixed precision."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from lit_ctg.papers.control_code import fast
from lit_ctg.papers.control_code.model import CodeLinear, mean_cross_entropy


def setting(code_dim: int = 2, kind: torch.dtype = torch.float64, length: int = 5):
    torch.manual_seed(0)
    output = CodeLinear(6, 41, code_dim, quick=False).to(kind)
    hidden_BTD = torch.randn(3, length, 6, dtype=kind, requires_grad=True)
    code_BC = torch.randn(3, 2, dtype=kind, requires_grad=True) if code_dim else None
    target_BT = torch.randint(41, (3, length))
    mask_BT = torch.ones(3, length, dtype=torch.bool)
    mask_BT[2, 2:] = False
    return output, hidden_BTD, code_BC, target_BT, mask_BT


def plain(output, hidden_BTD, code_BC, target_BT, mask_BT):
    return mean_cross_entropy(output(hidden_BTD, code_BC), target_BT, mask_BT)


def quick(output, hidden_BTD, code_BC, target_BT, mask_BT):
    return fast.cross_entropy(hidden_BTD, code_BC, output.weight, output.bias, target_BT, mask_BT)


def test_layer_and_gradients_are_those_of_the_concatenation():
    output, hidden_BTD, code_BC, *_ = setting()
    found = []
    for is_quick in (False, True):
        output.quick = is_quick
        y_BTO = output(hidden_BTD, code_BC)
        y_BTO.square().sum().backward()
        leaves = (hidden_BTD, code_BC, output.weight, output.bias)
        found.append([y_BTO.detach(), *(leaf.grad for leaf in leaves)])
        for leaf in leaves:
            leaf.grad = None
    for mine, theirs in zip(*found, strict=True):
        assert torch.allclose(mine, theirs, atol=1e-10)


# 300 tokens a sequence: several chunks, the last one short
@pytest.mark.parametrize(("code_dim", "length"), [(2, 5), (0, 5), (2, 300)])
def test_loss_and_gradients_are_those_of_the_plain_cross_entropy(code_dim, length):
    output, hidden_BTD, code_BC, target_BT, mask_BT = setting(code_dim, length=length)
    found = []
    for loss in (quick, plain):
        value = loss(output, hidden_BTD, code_BC, target_BT, mask_BT)
        # a factor, so that a backward pass that ignores what comes in is seen
        (3.0 * value).backward()
        leaves = [leaf for leaf in (hidden_BTD, code_BC, *output.parameters()) if leaf is not None]
        found.append([value.detach(), *(leaf.grad for leaf in leaves)])
        for leaf in leaves:
            leaf.grad = None
    for mine, theirs in zip(*found, strict=True):
        assert torch.allclose(mine, theirs, atol=1e-12)
    counted = F.cross_entropy(output(hidden_BTD, code_BC)[mask_BT], target_BT[mask_BT])
    assert torch.allclose(found[1][0], counted, atol=1e-12)


def test_large_logits_do_not_overflow_and_mixed_precision_is_near():
    output, hidden_BTD, code_BC, target_BT, mask_BT = setting(kind=torch.float32)
    given = (hidden_BTD * 1000, code_BC, target_BT, mask_BT)
    assert torch.allclose(quick(output, *given), plain(output, *given), rtol=1e-4)
    output, hidden_BTD, code_BC, target_BT, mask_BT = setting(kind=torch.float32)
    exact = plain(output, hidden_BTD, code_BC, target_BT, mask_BT)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = quick(output, hidden_BTD, code_BC, target_BT, mask_BT)
    assert loss.dtype == torch.float32
    assert loss != exact
    assert torch.allclose(loss, exact, rtol=0.02)


@pytest.mark.parametrize("loss", [quick, plain])
def test_nothing_to_count_is_no_loss(loss):
    output, hidden_BTD, code_BC, target_BT, mask_BT = setting()
    assert loss(output, hidden_BTD, code_BC, target_BT, torch.zeros_like(mask_BT)) == 0

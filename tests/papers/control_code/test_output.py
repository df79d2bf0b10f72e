"""The output layer and its loss against the plain cross-entropy of [h; c] W + b."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from lit_ctg.papers.control_code.code_linear import concatenated
from lit_ctg.papers.control_code.output import CodeOutput


def setting(code_dim: int = 2, kind: torch.dtype = torch.float64):
    torch.manual_seed(0)
    output = CodeOutput(6, 11, code_dim).to(kind)
    hidden_BTD = torch.randn(3, 5, 6, dtype=kind, requires_grad=True)
    code_BC = torch.randn(3, 2, dtype=kind, requires_grad=True)
    target_BT = torch.randint(11, (3, 5))
    mask_BT = torch.ones(3, 5, dtype=torch.bool)
    mask_BT[2, 2:] = False
    return output, hidden_BTD, code_BC, target_BT, mask_BT


def plain(output, hidden_BTD, code_BC, target_BT, mask_BT):
    weight = torch.cat((output.weight, output.code_weight), dim=1)
    whole = torch.cat((hidden_BTD, code_BC.unsqueeze(1).expand(-1, 5, -1)), dim=2)
    return F.cross_entropy((whole @ weight.T + output.bias)[mask_BT], target_BT[mask_BT])


def test_scores_are_those_of_the_concatenation():
    output, hidden_BTD, code_BC, *_ = setting()
    weight = concatenated(output.state_dict())["weight"]
    for row in range(3):
        for place in range(5):
            expected = weight @ torch.cat((hidden_BTD[row, place], code_BC[row])) + output.bias
            assert torch.allclose(output.scores(hidden_BTD, code_BC)[row, place], expected, atol=1e-12)


def test_loss_and_gradients_are_those_of_the_plain_cross_entropy():
    output, hidden_BTD, code_BC, target_BT, mask_BT = setting()
    found = []
    for loss in (output.loss, lambda *given: plain(output, *given)):
        value = loss(hidden_BTD, code_BC, target_BT, mask_BT)
        # a factor, so that a backward pass that ignores what comes in is seen
        (3.0 * value).backward()
        leaves = (hidden_BTD, code_BC, *output.parameters())
        found.append([value.detach(), *(leaf.grad for leaf in leaves)])
        for leaf in leaves:
            leaf.grad = None
    for mine, theirs in zip(*found, strict=True):
        assert torch.allclose(mine, theirs, atol=1e-12)


def test_large_logits_do_not_overflow():
    output, hidden_BTD, code_BC, target_BT, mask_BT = setting(kind=torch.float32)
    loss = output.loss(hidden_BTD * 1000, code_BC, target_BT, mask_BT)
    assert torch.allclose(loss, plain(output, hidden_BTD * 1000, code_BC, target_BT, mask_BT), rtol=1e-4)


def test_nothing_to_count_is_no_loss():
    output, hidden_BTD, code_BC, target_BT, mask_BT = setting()
    assert output.loss(hidden_BTD, code_BC, target_BT, torch.zeros_like(mask_BT)) == 0


def test_without_code_all_sequences_share_the_bias():
    output, hidden_BTD, _, target_BT, mask_BT = setting(code_dim=0)
    expected = F.linear(hidden_BTD, output.weight, output.bias)
    assert torch.allclose(output.scores(hidden_BTD, None), expected, atol=1e-12)
    loss = output.loss(hidden_BTD, None, target_BT, mask_BT)
    loss.backward()
    mine = output.bias.grad.clone()
    output.bias.grad = None
    F.cross_entropy(F.linear(hidden_BTD, output.weight, output.bias)[mask_BT], target_BT[mask_BT]).backward()
    assert torch.allclose(mine, output.bias.grad, atol=1e-12)


@pytest.mark.parametrize("kind", [torch.bfloat16])
def test_mixed_precision_is_near(kind):
    output, hidden_BTD, code_BC, target_BT, mask_BT = setting(kind=torch.float32)
    exact = plain(output, hidden_BTD, code_BC, target_BT, mask_BT)
    with torch.autocast("cpu", dtype=kind):
        loss = output.loss(hidden_BTD, code_BC, target_BT, mask_BT)
    assert loss.dtype == torch.float32
    assert loss != exact
    assert torch.allclose(loss, exact, rtol=0.02)

"""Fused heads and losses against the straight computation: values and gradients, chunk by chunk."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from lit_ctg.papers.idea_gate import GateForm
from lit_ctg.papers.idea_gate.fast import fused
from lit_ctg.papers.idea_gate.model import distinct, idea_loss

POSITIONS, SIZE, DIM, WINDOW = 37, 50, 8, 6


def tensors(dtype=torch.float64) -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    shapes = {
        "hidden": (POSITIONS, DIM),
        "head": (SIZE, DIM),
        "idea_hidden": (POSITIONS, DIM),
        "idea_head": (SIZE, DIM),
        "bias": (SIZE,),
    }
    return {name: torch.randn(*shape, dtype=dtype).requires_grad_() for name, shape in shapes.items()}


TARGET = torch.randint(SIZE, (POSITIONS,), generator=torch.Generator().manual_seed(1))
WINDOWS = torch.randint(-1, SIZE, (POSITIONS, WINDOW), generator=torch.Generator().manual_seed(2))
STOP = torch.arange(SIZE) % 9 == 0


def ours(given: dict[str, torch.Tensor], form: GateForm, alpha: float) -> dict[str, torch.Tensor]:
    ideas = fused.Ideas(
        hidden_ND=given["idea_hidden"],
        weight_VD=given["idea_head"],
        bias_V=given["bias"],
        window_NK=distinct(WINDOWS, STOP),
        counted_V=(~STOP).to(given["bias"].dtype),
        positive_weight=5.0,
        loss_weight=0.01,
    )
    gate = fused.GateSetting(alpha=alpha, floor=form.floor(alpha, -2.0) if alpha else 0.0, epsilon=form.epsilon)
    return fused.fused_loss(given["hidden"], given["head"], TARGET, gate, ideas)


def straight(given: dict[str, torch.Tensor], form: GateForm, alpha: float) -> dict[str, torch.Tensor]:
    token = given["hidden"] @ given["head"].T
    idea = given["idea_hidden"] @ given["idea_head"].T + given["bias"]
    log_p = torch.log(torch.sigmoid(idea) + 1e-8)
    two = torch.tensor(-2.0, dtype=idea.dtype)
    gate = torch.maximum(alpha * log_p, two) if form.clamp == "after_scaling" else alpha * torch.maximum(log_p, two)
    parts = {
        "token_loss": F.cross_entropy(token + gate, TARGET),
        "idea_loss": idea_loss(idea, WINDOWS, positive_weight=5.0, stopword_mask=STOP),
    }
    return {"loss": parts["token_loss"] + 0.01 * parts["idea_loss"], **parts}


@pytest.fixture(params=["one chunk", "many chunks"])
def chunks(request, monkeypatch):
    if request.param == "many chunks":
        monkeypatch.setattr(fused, "LEAST_ROWS", 5)
        monkeypatch.setattr(fused, "CHUNK", 5 * SIZE * 8)
        monkeypatch.setattr(fused, "BLOCK", 2 * SIZE)


@pytest.mark.parametrize("clamp", ["after_scaling", "before_scaling"])
@pytest.mark.parametrize("alpha", [0.0, 1e-4, 0.5, 1.0])
def test_equals_the_straight_computation(chunks, clamp, alpha):
    form, given = GateForm(clamp=clamp, epsilon=1e-8), tensors()
    expected, got = straight(given, form, alpha), ours(given, form, alpha)
    assert set(got) == set(expected)
    for name in expected:
        assert got[name].item() == pytest.approx(expected[name].item(), rel=1e-12)
    wanted = torch.autograd.grad(expected["loss"], list(given.values()))
    found = torch.autograd.grad(3 * got["loss"], list(given.values()))  # an outer factor reaches the gradients
    for name, a, b in zip(given, wanted, found, strict=True):
        assert torch.allclose(b, 3 * a, atol=1e-13), name


def test_only_the_sum_carries_a_gradient():
    got = ours(tensors(), GateForm(clamp="after_scaling", epsilon=1e-8), 0.5)
    assert got["loss"].requires_grad
    assert not got["token_loss"].requires_grad and not got["idea_loss"].requires_grad


def test_a_model_without_ideas_has_plain_cross_entropy(chunks):
    given = tensors()
    expected = F.cross_entropy(given["hidden"] @ given["head"].T, TARGET)
    got = fused.fused_loss(given["hidden"], given["head"], TARGET)
    assert set(got) == {"loss", "token_loss"}
    assert got["loss"].item() == pytest.approx(expected.item(), rel=1e-12)
    names = ["hidden", "head"]
    wanted = torch.autograd.grad(expected, [given[name] for name in names])
    found = torch.autograd.grad(got["loss"], [given[name] for name in names])
    assert all(torch.allclose(a, b, atol=1e-14) for a, b in zip(wanted, found, strict=True))


def test_a_frozen_head_gets_no_gradient():
    given = tensors()
    given["head"].requires_grad_(False)
    ours(given, GateForm(clamp="after_scaling", epsilon=1e-8), 0.5)["loss"].backward()
    assert given["head"].grad is None
    assert given["idea_head"].grad is not None and given["hidden"].grad is not None


def test_half_precision_products_stay_near():
    form, given = GateForm(clamp="after_scaling", epsilon=1e-8), tensors(torch.float32)
    exact = straight(given, form, 0.5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = ours(given, form, 0.5)
    assert got["loss"].dtype == torch.float32
    assert got["loss"].item() == pytest.approx(exact["loss"].item(), rel=0.02)
    wanted, found = (torch.autograd.grad(x["loss"], list(given.values())) for x in (exact, got))
    for a, b in zip(wanted, found, strict=True):
        assert b.dtype == torch.float32
        assert (a - b).norm() < 0.03 * a.norm()

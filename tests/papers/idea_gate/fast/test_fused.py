"""Fused heads and losses against the straight computation: values and gradients, chunk by chunk."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from lit_ctg.papers.idea_gate import GateForm
from lit_ctg.papers.idea_gate.fast import fused
from lit_ctg.papers.idea_gate.gate import distinct, gated_scores, idea_loss

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
# logs of base rates: with these idea logits both bounds of the lift are active
RATES = torch.linspace(-7, -0.5, SIZE, dtype=torch.float64)
RATES = RATES[torch.randperm(SIZE, generator=torch.Generator().manual_seed(4))]
# base rates and stopwords of our gates: "bare" is neutral on a vocabulary without stopwords
GATES = {
    "lift": (RATES, None),
    "neutral": (None, STOP),
    "both": (RATES, STOP),
    "bare": (RATES, torch.zeros_like(STOP)),
}
PAPER = (None, None)
ALL = GATES | {"paper": PAPER}


def ours(
    given: dict[str, torch.Tensor], form: GateForm, alpha: float, gate=PAPER, beta: float = -2.0, loss_weight=0.01
) -> dict[str, torch.Tensor]:
    ideas = fused.Ideas(
        hidden_ND=given["idea_hidden"],
        weight_VD=given["idea_head"],
        bias_V=given["bias"],
        window_NK=distinct(WINDOWS, STOP),
        counted_V=(~STOP).to(given["bias"].dtype),
        positive_weight=5.0,
        loss_weight=loss_weight,
    )
    floor = form.floor(alpha, beta) if alpha else 0.0
    setting = fused.GateSetting(alpha=alpha, floor=floor, epsilon=form.epsilon, base_V=gate[0], neutral_V=gate[1])
    return fused.fused_loss(given["hidden"], given["head"], TARGET, setting, ideas)


def plain(given: dict[str, torch.Tensor], form: GateForm, alpha: float, gate) -> dict[str, torch.Tensor]:
    """The model's plain form, whose derivatives autograd finds."""
    token = given["hidden"] @ given["head"].T
    idea = given["idea_hidden"] @ given["idea_head"].T + given["bias"]
    if alpha > 0:
        token = gated_scores(token, form(idea, alpha, -2.0, gate[0]), gate[1])
    parts = {
        "token_loss": F.cross_entropy(token, TARGET),
        "idea_loss": idea_loss(idea, WINDOWS, positive_weight=5.0, stopword_mask=STOP),
    }
    return {"loss": parts["token_loss"] + 0.01 * parts["idea_loss"], **parts}


@pytest.fixture(params=["one chunk", "many chunks"])
def chunks(request, monkeypatch):
    if request.param == "many chunks":
        monkeypatch.setattr(fused, "LEAST_ROWS", 5)
        monkeypatch.setattr(fused, "CHUNK", 5 * SIZE * 8)
        monkeypatch.setattr(fused, "BLOCK", 2 * SIZE)


def assert_one(given, expected, got, atol=1e-13) -> None:
    """Values and every gradient."""
    assert set(got) == set(expected)
    for name in expected:
        assert got[name].item() == pytest.approx(expected[name].item(), rel=1e-12)
    wanted = torch.autograd.grad(expected["loss"], list(given.values()))
    found = torch.autograd.grad(3 * got["loss"], list(given.values()))  # an outer factor reaches the gradients
    for name, a, b in zip(given, wanted, found, strict=True):
        assert torch.allclose(b, 3 * a, rtol=1e-11, atol=atol), name


@pytest.mark.parametrize("gate", ALL)
@pytest.mark.parametrize("clamp", ["after_scaling", "before_scaling"])
@pytest.mark.parametrize("alpha", [0.0, 1e-4, 0.5, 1.0, 3.0])
def test_every_gate_equals_the_plain_form(chunks, clamp, alpha, gate):
    form, given = GateForm(clamp=clamp, epsilon=1e-8), tensors()
    assert_one(given, plain(given, form, alpha, ALL[gate]), ours(given, form, alpha, ALL[gate]))


def test_the_comparison_reaches_every_case_of_our_gates():
    """Entries at both bounds and between them, stopwords and others as targets."""
    given, form = tensors(), GateForm(clamp="after_scaling", epsilon=1e-8)
    idea = given["idea_hidden"] @ given["idea_head"].T + given["bias"]
    gate = form(idea, 0.5, -2.0, RATES)
    for case in (gate == -2.0, gate == 2.0, gate.abs() < 2.0):
        assert case.sum() > 20
    assert 0 < STOP[TARGET].sum() < POSITIONS


@pytest.mark.parametrize("stop_shift", [0.0, 60.0, -60.0])
def test_our_gates_hold_where_nearly_all_probability_is_on_one_side(stop_shift):
    """Token logits of hundreds, and stopwords far above or below all other tokens, which a common shift would lose."""
    given, form = tensors(), GateForm(clamp="after_scaling", epsilon=1e-8)
    with torch.no_grad():
        given["hidden"] *= 40
        given["hidden"][:, 0] = 20.0
        given["head"][:, 0] = torch.where(STOP, stop_shift, 0.0)
    expected, got = plain(given, form, 0.5, GATES["both"]), ours(given, form, 0.5, GATES["both"])
    assert_one(given, expected, got, atol=1e-10)  # logits above 1,000 have no more digits


def test_a_bound_of_zero_shuts_the_lift():
    given, form = tensors(), GateForm(clamp="after_scaling", epsilon=1e-8)
    got = ours(given, form, 0.5, GATES["both"], beta=0.0, loss_weight=0.0)
    assert got["loss"].item() == pytest.approx(F.cross_entropy(given["hidden"] @ given["head"].T, TARGET).item())
    assert not torch.autograd.grad(got["loss"], given["bias"])[0].any()


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


@pytest.mark.parametrize("gate", ALL.values(), ids=ALL)
def test_half_precision_products_stay_near(gate):
    form, given = GateForm(clamp="after_scaling", epsilon=1e-8), tensors(torch.float32)
    gate = tuple(None if part is None else part.float() if part.is_floating_point() else part for part in gate)
    exact = plain(given, form, 0.5, gate)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = ours(given, form, 0.5, gate)
    assert got["loss"].dtype == torch.float32
    assert got["loss"].item() == pytest.approx(exact["loss"].item(), rel=0.02)
    wanted, found = (torch.autograd.grad(x["loss"], list(given.values())) for x in (exact, got))
    for a, b in zip(wanted, found, strict=True):
        assert b.dtype == torch.float32
        assert (a - b).norm() < 0.03 * a.norm()

"""Steps up a classifier's gradient, against automatic differentiation in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lit_ctg.control.gradient import Gradient, climbed
from tests.conftest import make_model
from tests.controls import D, V


def parts(seed: int = 0) -> tuple[Tensor, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    torch.manual_seed(seed)
    made = [torch.randn(*shape, dtype=torch.float64) for shape in ((4, D), (V, D), (V,), (3, D), (3,))]
    return made[0], (made[1], made[2]), (made[3], made[4])


def slow(
    state_D: Tensor,
    head: tuple[Tensor, Tensor],
    classifier: tuple[Tensor, Tensor],
    share_C: Tensor,
    strength: float,
    *,
    steps: int,
    kl: float,
) -> Tensor:
    """Eq. 3 of PPLM as it stands, for one state: the gradient by automatic differentiation."""
    begun = nn.functional.linear(state_D, *head).softmax(-1)
    delta_D = torch.zeros_like(state_D)
    for _ in range(steps):
        delta_D = delta_D.detach().requires_grad_(True)
        log_a = (share_C * nn.functional.linear(state_D + delta_D, *classifier).log_softmax(-1)).sum()
        moved = nn.functional.linear(state_D + delta_D, *head).softmax(-1)
        apart = sum(p * (p.log() - q.log()) for p, q in zip(moved, begun, strict=True))
        (gradient_D,) = torch.autograd.grad(log_a - kl * apart, delta_D)
        delta_D = delta_D + strength / steps * state_D.norm() * gradient_D / gradient_D.norm()
    return (state_D + delta_D).detach()


@pytest.mark.parametrize("kl", [0.0, 0.01, 2.0])
def test_every_step_is_that_of_the_equation(kl: float) -> None:
    state_XD, head, classifier = parts()
    share_XC = torch.tensor([[1, 0, 0], [0, 1, 0], [0.5, 0, 0.5], [0, 0, 1]], dtype=torch.float64)
    strength_X = torch.tensor([0.1, 0.5, 1.0, 3.0], dtype=torch.float64)
    found_XD = climbed(state_XD, head, classifier, share_XC, strength_X, steps=4, kl=kl)
    for row in range(4):
        expected_D = slow(state_XD[row], head, classifier, share_XC[row], float(strength_X[row]), steps=4, kl=kl)
        torch.testing.assert_close(found_XD[row], expected_D, atol=1e-10, rtol=1e-8)


def test_mixing_with_the_bare_distribution_is_a_shorter_move() -> None:
    state_XD, head, classifier = parts(1)
    share_XC, one_X = torch.eye(3, dtype=torch.float64)[[0, 1, 2, 0]], torch.ones(4, dtype=torch.float64)
    moved_XD = climbed(state_XD, head, classifier, share_XC, one_X, steps=3, kl=0.01)
    z, moved = (nn.functional.linear(each, *head) for each in (state_XD, moved_XD))
    mixed = (0.8 * moved.log_softmax(-1) + 0.2 * z.log_softmax(-1)).softmax(-1)
    shorter = nn.functional.linear(state_XD + 0.8 * (moved_XD - state_XD), *head).softmax(-1)
    torch.testing.assert_close(mixed, shorter)


def control(**changed: Any) -> Gradient:
    torch.manual_seed(2)
    given: dict[str, Any] = {"weight_CD": torch.randn(2, D), "bias_C": torch.randn(2), "classes": ["good", "bad"]}
    return Gradient(**(given | changed))


def test_a_model_is_moved_as_its_states_are_and_not_at_all_at_strength_0() -> None:
    model, made, ids = make_model(V), control(kl=0.5), torch.tensor([[3, 4, 5], [6, 7, 8]])
    bare = model(input_ids=ids).logits
    with made.attach(model, {"strength": [0, 0.5], "to_bad": 1}, rows=2):
        steered = model(input_ids=ids).logits
    assert torch.equal(steered[0], bare[0]) and torch.equal(model(input_ids=ids).logits, bare)
    states = model.base_model(input_ids=ids).last_hidden_state[1].double().detach()
    head, share = model.get_output_embeddings(), torch.tensor([0.0, 1.0], dtype=torch.float64)
    own = (made.weight_CD.double(), made.bias_C.double())
    for place in range(3):
        zero_V = torch.zeros(V, dtype=torch.float64)
        moved = slow(states[place], (head.weight.detach().double(), zero_V), own, share, 0.5, steps=3, kl=0.5)
        torch.testing.assert_close(steered[1, place].double(), moved @ head.weight.double().T, atol=1e-4, rtol=1e-3)
    with made.attach(model, {"strength": 0.5}, rows=2):
        assert torch.equal(model(input_ids=ids).logits, bare), "no class is asked for"


def test_a_longer_way_makes_the_class_likelier() -> None:
    model, made = make_model(V), control()
    ids, found = torch.tensor([[3, 4, 5]]), []
    heads: list[Tensor] = []
    for strength in (0.0, 0.2, 1.0):
        with made.attach(model, {"strength": strength, "to_good": 1}):
            handle = model.get_output_embeddings().register_forward_pre_hook(
                lambda _m, given: heads.append(given[0].detach())
            )
            model(input_ids=ids)
            handle.remove()
        scores = nn.functional.linear(heads[-1][0, -1], made.weight_CD, made.bias_C)
        found.append(float(scores.softmax(-1)[0]))
    assert found[0] < found[1] < found[2]

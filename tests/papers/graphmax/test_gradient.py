"""lit_ctg.papers.graphmax.equation and .model_step: implicit differentiation against differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lit_ctg.papers.graphmax import CooccurrenceGraph, graphmax
from lit_ctg.papers.graphmax.model_step import solve_tangent

TIGHT = {"tol": 1e-18, "max_iterations": 100}


@pytest.fixture
def small(slow) -> CooccurrenceGraph:
    return CooccurrenceGraph.from_matrix(slow.random_matrix(np.random.default_rng(2), 9))


@pytest.fixture
def logits() -> torch.Tensor:
    return torch.randn(2, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)


@pytest.mark.parametrize("part", [0, 1])
def test_gradcheck_by_logits_strength_and_edge_weights(small, logits, part) -> None:
    z, gradcheck = logits.detach(), torch.autograd.gradcheck
    for strength in (0.0, 0.3, 5.0):
        assert gradcheck(lambda x, s=strength: graphmax(x, small, s, **TIGHT)[part], (logits,))
    for value in ([0.5, 2.0], 1.5):
        strength = torch.tensor(value, dtype=torch.float64, requires_grad=True)
        assert gradcheck(lambda s: graphmax(z, small, s, **TIGHT)[part], (strength,))
    weights = small.weights_E.double().requires_grad_()
    assert gradcheck(lambda w: graphmax(z, small, 1.5, edge_weights_E=w, **TIGHT)[part], (weights,))
    # only requested gradients are computed
    with torch.no_grad():
        assert not graphmax(logits, small)[part].requires_grad
    assert graphmax(logits, small)[part].requires_grad and not graphmax(z, small)[part].requires_grad


def test_masked_tokens_get_no_gradient(small, logits) -> None:
    masked = logits.masked_fill(torch.arange(9) == 4, float("-inf"))
    result = graphmax(masked, small, 1.0, **TIGHT)
    (result.probs_BV[:, 2].sum() + result.log_probs_BV[:, 3].sum()).backward()
    assert (logits.grad[:, 4] == 0).all() and logits.grad.isfinite().all()
    assert logits.grad[:, [2, 3]].abs().min() > 0


def test_a_large_graph_agrees_with_differences(zipf_graph, zipf_logits) -> None:
    logits = zipf_logits[:4].double().requires_grad_()
    target = torch.tensor([0, 5, 40, 700])

    def loss(z: torch.Tensor, strength: torch.Tensor) -> torch.Tensor:
        result = graphmax(z, zipf_graph, strength, tol=1e-16, strict=True)
        return -result.log_probs_BV.gather(-1, target[:, None]).sum()

    strength = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    loss(logits, strength).backward()
    direction = torch.randn(logits.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    eps = 1e-4
    with torch.no_grad():
        along = (loss(logits + eps * direction, strength) - loss(logits - eps * direction, strength)) / (2 * eps)
        by_strength = (loss(logits, strength + eps) - loss(logits, strength - eps)) / (2 * eps)
    assert (logits.grad * direction).sum().item() == pytest.approx(along.item(), rel=1e-5)
    assert strength.grad.item() == pytest.approx(by_strength.item(), rel=1e-5)


def test_few_products_and_float32(zipf_graph, zipf_logits) -> None:
    operator = zipf_graph.operator(zipf_logits)
    x = graphmax(zipf_logits, zipf_graph).probs_BV
    solution = solve_tangent(
        operator.product,
        operator.diagonal_V,
        x,
        torch.ones(12, 1),
        torch.nn.functional.one_hot(torch.arange(12), zipf_graph.vocab_size).float(),
        tol=1e-3,
        max_iterations=50,
    )
    assert solution.products_B.double().mean() <= 6
    np.testing.assert_allclose(solution.direction_BN.sum(dim=-1), 0, atol=1e-5)
    np.testing.assert_allclose(solution.image_BN, operator.product(solution.direction_BN), atol=1e-4)


def test_a_strength_can_be_learned(zipf_graph, zipf_logits) -> None:
    # targets drawn from graphmax at strength 1 pull a strength of 0.2 upwards
    target = graphmax(zipf_logits, zipf_graph, 1.0).probs_BV
    log_strength = torch.tensor(0.2).log().requires_grad_()
    optimizer = torch.optim.Adam([log_strength], lr=0.3)
    for _ in range(40):
        optimizer.zero_grad()
        loss = -(target * graphmax(zipf_logits, zipf_graph, log_strength.exp()).log_probs_BV).sum(dim=-1).mean()
        loss.backward()
        optimizer.step()
    assert log_strength.exp().item() == pytest.approx(1, abs=0.15)

"""Parts of the solver: lit_ctg.papers.graphmax.model_step, its certificate, lit_ctg.papers.graphmax.published,
lit_ctg.papers.graphmax.variant."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize
import scipy.special
import torch

from lit_ctg.papers.graphmax import CooccurrenceGraph, certify, graphmax, softmax, sparsemax
from lit_ctg.papers.graphmax.graph import GraphOperator
from lit_ctg.papers.graphmax.model_step import (
    duality_gap,
    log_normalized,
    log_wright_omega,
    model_step,
    needs_search,
    segment_minimum,
    solve_separable,
    solve_tangent,
)
from lit_ctg.papers.graphmax.published import project_on_simplex
from lit_ctg.papers.graphmax.solver import is_certified, judge


def kl(log_x: np.ndarray, y: np.ndarray) -> float:
    """KL(x || softmax(y)) by its definition, in extended precision."""
    log_x, y = log_x.astype(np.longdouble), y.astype(np.longdouble)
    log_p = y - y.max() - np.log(np.exp(y - y.max()).sum())
    x = np.exp(log_x)
    return float((x * np.where(x > 0, log_x - log_p, 0)).sum())


@pytest.mark.parametrize("size", [1e-7, 1e-4, 1e-2, 1.0, 30.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_gap_is_the_divergence(size, dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    log_x = torch.randn(4, 500, generator=generator, dtype=torch.float64).mul(3).log_softmax(dim=-1).to(dtype)
    y = (log_x.double() + size * torch.randn(4, 500, generator=generator, dtype=torch.float64)).to(dtype) + 5
    found = duality_gap(log_x, y)
    assert found.dtype == torch.float64 and (found >= 0).all()
    for row in range(4):
        exact = kl(log_x[row].double().log_softmax(-1).numpy(), y[row].double().numpy())
        # rounding of log x - y, and of the reference's own sum
        float32 = dtype == torch.float32
        assert found[row].item() == pytest.approx(exact, rel=2e-2 if float32 else 1e-6, abs=1e-12 if float32 else 1e-15)


def test_the_gap_sees_mass_where_x_has_none() -> None:
    log_x = torch.tensor([[0.0, float("-inf"), float("-inf")], [0.0, -200.0, -300.0]])
    y = torch.tensor([[1.0, 1.0, float("-inf")], [0.0, 0.0, -5.0]])
    np.testing.assert_allclose(duality_gap(log_x, y), [np.log(2), np.log(2 + np.exp(-5))], rtol=1e-6)


def test_only_a_gap_between_zero_and_tol_certifies() -> None:
    gaps = torch.tensor([0.0, 1e-6, 2e-6, -1e-9, float("nan"), float("inf")], dtype=torch.float64)
    assert is_certified(gaps, 1e-6).tolist() == [True, True, False, False, False, False]
    # rounding leaves no negative gap where x is the softmax itself
    y = torch.randn(200, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert ((duality_gap(y.log_softmax(dim=-1), y) >= 0) & (duality_gap(y.log_softmax(dim=-1), y) < 1e-14)).all()
    # NaN in, NaN out: never a pass
    assert duality_gap(torch.tensor([[-0.7, float("nan")]]), torch.zeros(1, 2)).isnan().all()


def test_the_gap_bounds_the_distance(slow, zipf_graph) -> None:
    rng = np.random.default_rng(3)
    matrix = slow.random_matrix(rng, 15)
    graph = CooccurrenceGraph.from_matrix(matrix)
    z = rng.normal(0, 2, 15)
    best = slow.solve(z, graph.matrix.toarray().astype(float), 1.0)
    for size in (1e-3, 0.03, 0.3, 3):
        log_x = torch.from_numpy(np.log(best) + rng.normal(0, size, 15)).log_softmax(dim=-1)
        distance = np.abs(log_x.exp().numpy() - best).sum() / 2
        assert distance <= np.sqrt(certify(log_x, torch.from_numpy(z), graph).item() / 2)


def test_a_judgement_normalises_x_and_raises_what_lies_too_low(zipf_graph, zipf_logits, arithmetic) -> None:
    logits = zipf_logits.index_fill(1, torch.tensor([5, 6]), -1e4)
    floor, strength = torch.full((12, 1), -30.0, dtype=torch.float64), torch.ones(12, 1)
    raised = torch.maximum(logits, logits.amax(dim=-1, keepdim=True) - 30)
    log_x = raised.log_softmax(dim=-1)
    expected = judge(zipf_graph.operator(logits), raised, floor, strength, log_x)
    for given, log_probs in ((logits, log_x), (raised, log_x - 3.0)):
        found = judge(zipf_graph.operator(logits), given, floor, strength, log_probs)
        torch.testing.assert_close(found[0] - found[0][:, :1], expected[0] - expected[0][:, :1], rtol=1e-5, atol=1e-4)
        torch.testing.assert_close(found[1], expected[1], rtol=1e-4, atol=1e-8)


def test_log_wright_omega_against_lambert() -> None:
    level = torch.linspace(-25, 600, 2001, dtype=torch.float64)
    expected = np.log(scipy.special.wrightomega(level.numpy()))
    np.testing.assert_allclose(log_wright_omega(level), expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(log_wright_omega(level.float()), expected, rtol=1e-5, atol=1e-5)
    far = torch.tensor([-1e30, -1e3, 1e6, 1e12])
    assert log_wright_omega(far).isfinite().all() and log_wright_omega(far)[0] == -1e30


@pytest.mark.parametrize("case", ["ordinary", "one held back", "all held back", "none held back"])
def test_the_separable_problem(case) -> None:
    rng = np.random.default_rng(8)
    z = rng.normal(0, 3, 20)
    a = rng.exponential(5, 20) * (rng.random(20) < 0.7)
    if case == "one held back":
        z[4], a[4] = 500, 2e5
    a = {"all held back": a + 1e3, "none held back": 0 * a}.get(case, a)
    x = solve_separable(torch.from_numpy(z)[None], torch.from_numpy(a)[None], tol=1e-12)[0].exp().numpy()
    assert x.sum() == pytest.approx(1)
    # optimality: z - log x - a x is constant
    level = (z - np.log(x) - a * x)[x > 1e-200]
    np.testing.assert_allclose(level, level[0], atol=1e-6)


def test_a_model_step_is_exact_when_every_token_is_a_hub(slow) -> None:
    rng = np.random.default_rng(6)
    matrix = slow.random_matrix(rng, 25)
    graph = CooccurrenceGraph.from_matrix(matrix)
    z = torch.from_numpy(rng.normal(0, 3, (2, 25)))
    operator = GraphOperator.from_scipy(graph.matrix)
    x = model_step(operator, z, None, torch.full((2, 1), 3.0, dtype=torch.float64), 1e-13).exp()
    for row in range(2):
        best = slow.solve(z[row].numpy(), graph.matrix.toarray().astype(float), 3.0)
        np.testing.assert_allclose(x[row], best, atol=1e-5)


def test_the_lowest_point_of_a_segment(slow) -> None:
    rng = np.random.default_rng(7)
    a = slow.random_matrix(rng, 10)
    m = (np.eye(10) - a).T @ (np.eye(10) - a)
    z = rng.normal(0, 1, 10)

    def point(x: np.ndarray) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        log_x, y = torch.from_numpy(np.log(x))[None], torch.from_numpy(z - 2 * m @ x)[None]
        return log_x, y, duality_gap(log_x, y)

    start, end = rng.dirichlet(np.ones(10)), rng.dirichlet(np.full(10, 0.2)) + 1e-9
    end /= end.sum()
    best = scipy.optimize.minimize_scalar(
        lambda t: slow.objective(start + t * (end - start), z, a, 1.0), bounds=(0, 1), options={"xatol": 1e-9}
    )
    assert 0.01 < best.x < 0.99
    log_x, y, t = segment_minimum(point(start), point(end))
    assert t.item() == pytest.approx(best.x, abs=2e-3)
    middle = start + t.item() * (end - start)
    np.testing.assert_allclose(log_x[0].exp(), middle, atol=1e-12)
    np.testing.assert_allclose(y[0], z - 2 * m @ middle, atol=1e-12)
    assert needs_search(point(start), point(end), 0.0).item()
    assert not needs_search(point(start), point(start + best.x / 2 * (end - start)), 0.0).item()


def test_the_projection_is_the_nearest_point() -> None:
    rng = np.random.default_rng(9)
    a = torch.from_numpy(rng.normal(0, 1, (5, 12)))
    x = project_on_simplex(a)
    assert (x >= 0).all()
    np.testing.assert_allclose(x.sum(dim=-1), 1, atol=1e-12)
    distance = (x - a).norm(dim=-1)
    for _ in range(300):
        other = torch.from_numpy(rng.dirichlet(np.full(12, 0.4), 5))
        near = x + 0.05 * (other - x)
        assert ((other - a).norm(dim=-1) >= distance).all() and ((near - a).norm(dim=-1) >= distance - 1e-12).all()


def test_baselines() -> None:
    z = torch.tensor([[2.0, 1.5, 0.0, float("-inf")], [5.0, 1.0, 0.0, 4.5]])
    np.testing.assert_allclose(softmax(z), torch.softmax(z, -1))
    np.testing.assert_allclose(sparsemax(z), [[0.75, 0.25, 0, 0], [0.75, 0, 0, 0.25]], atol=1e-6)
    np.testing.assert_allclose(sparsemax(z + 1000), sparsemax(z), atol=1e-4)
    # against the published projection; the last row's second entry is just inside the support
    logits = torch.cat([torch.randn(5, 8, dtype=torch.float64), torch.tensor([[0, -0.9, *[-1.1] * 6]]).double()])
    np.testing.assert_allclose(sparsemax(logits), project_on_simplex(logits), atol=1e-7)
    assert sparsemax(logits)[5, 1] == pytest.approx(0.05) and not sparsemax(logits)[5, 2:].any()
    wide = torch.randn(3, 50_000, generator=torch.Generator().manual_seed(0))
    np.testing.assert_allclose(sparsemax(wide).sum(dim=-1), 1, atol=1e-5)
    logits = torch.randn(2, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    assert torch.autograd.gradcheck(sparsemax, (logits,))


def test_the_log_domain_is_normalised_to_rounding() -> None:
    # lit_ctg.papers.graphmax.model_step: torch's own float32 log_softmax misses this by 1e-5
    flat = torch.zeros(1, 50_257).index_fill(1, torch.tensor([9]), 700.0)
    flat = torch.cat([flat, flat.clamp(max=10), 0.1 * flat.sin()])
    for rows in (flat, flat + 1000):
        np.testing.assert_allclose(log_normalized(rows).double().exp().sum(dim=-1), 1, atol=1e-6)


# --- lit_ctg.papers.graphmax.equation and .model_step: implicit differentiation against differences -----------------


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

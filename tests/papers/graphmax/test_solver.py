"""lit_ctg.papers.graphmax.solver, lit_ctg.papers.graphmax.equation: agreement, certificates, invariances, bad input."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from lit_ctg.errors import UserError
from lit_ctg.papers.graphmax import CooccurrenceGraph, NotConverged, certify, graphmax
from lit_ctg.papers.graphmax.equation import warn_uncertified
from lit_ctg.papers.graphmax.published import AlgorithmOne
from lit_ctg.papers.graphmax.solver import Solution, _Point, _Rows, solve, solve_carefully

STRENGTHS = (0.1, 1.0, 10.0)


def total_variation(a: torch.Tensor | np.ndarray, b: torch.Tensor | np.ndarray) -> float:
    return float(np.abs(np.asarray(a) - np.asarray(b)).sum(axis=-1).max() / 2)


def test_the_optimum_is_the_lowest_point(slow) -> None:
    rng = np.random.default_rng(11)
    matrix = slow.random_matrix(rng, 12)
    graph = CooccurrenceGraph.from_matrix(matrix)
    z = rng.normal(0, 2, 12)
    # without edges M is the identity, a ridge; in the second case low logits keep their small mass
    for numbers, strength in (([3.0, 1.0, 0.0, -1.0], 1.0), ([3.0, -9.0, -12.0, -20.0], 1e-3)):
        logits = torch.tensor(numbers, dtype=torch.float64)
        x = graphmax(logits, CooccurrenceGraph.from_matrix(sp.csr_array((4, 4))), strength, tol=1e-14).probs_BV
        np.testing.assert_allclose(x, (logits - 2 * strength * x).softmax(dim=-1), rtol=1e-5, atol=1e-12)
    x = graphmax(torch.from_numpy(z), graph, 2.0, tol=1e-12).probs_BV.numpy()
    matrix = graph.matrix.toarray().astype(float)
    best = slow.objective(x, z, matrix, 2.0)
    for _ in range(200):
        other = rng.dirichlet(np.ones(12))
        for t in (1e-3, 0.1, 1.0):
            assert slow.objective(x + t * (other - x), z, matrix, 2.0) > best


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("strength", STRENGTHS)
def test_contexts_of_a_large_graph_are_certified_in_few_products(
    zipf_graph, zipf_logits, strength, dtype, arithmetic
) -> None:
    logits = zipf_logits.to(dtype)
    result = graphmax(logits, zipf_graph, strength, strict=True)
    assert (certify(result.log_probs_BV, logits, zipf_graph, strength) <= 2e-6).all()
    # asked at lambda 1: at most 2.5 on average
    assert result.products_B.double().mean() <= (2.5 if strength <= 1 else 3) and result.products_B.max() <= 5
    assert result.probs_BV.dtype == dtype


@pytest.mark.parametrize("strength", [0.01, 0.1, 1.0, 10.0, 100.0])
def test_adversarial_logits_are_certified(zipf_graph, strength, arithmetic) -> None:
    size = zipf_graph.vocab_size
    operator = zipf_graph.operator(torch.zeros(1))
    hubs = operator.diagonal_V.topk(2).indices
    one_hot = torch.zeros(size).index_fill(0, hubs[:1], 1000.0)
    two_hubs = torch.zeros(size).index_fill(0, hubs, 30.0)
    flat = torch.zeros(size)
    masked = torch.full((size,), float("-inf")).index_fill(0, torch.tensor([int(hubs[0]), 7, 2999]), 0.5)
    single = torch.full((size,), float("-inf")).index_fill(0, hubs[:1], 2.0)
    lowest = torch.full((size,), torch.finfo(torch.float32).min).index_fill(0, hubs, 1.0)
    rare = torch.zeros(size).index_fill(0, torch.tensor([size - 1]), 50.0)
    logits = torch.stack([one_hot, two_hubs, flat, masked, single, lowest, rare, 3 * masked.clamp(min=-5) + 1000])
    result = graphmax(logits, zipf_graph, strength, strict=True)
    again = certify(result.log_probs_BV, logits, zipf_graph, strength)
    assert ((again >= 0) & (again <= 2e-6)).all(), again
    np.testing.assert_allclose(result.probs_BV.sum(dim=-1), 1, atol=1e-6)
    assert (result.probs_BV[logits.isinf()] == 0).all()
    assert (result.log_probs_BV[logits.isinf()] == float("-inf")).all()
    assert result.probs_BV[4, hubs[0]] == 1


def assert_bounds(result, logits, graph, strength) -> None:
    """The reported gap is at least that of the returned array, in float64."""
    # the problem that was solved has the float32 number nearest to lambda
    again = certify(result.log_probs_BV, logits, graph, float(torch.tensor(strength, dtype=torch.float32)))
    assert (again <= result.gap_B * (1 + 1e-6) + 1e-12).all(), (again, result.gap_B)
    assert (again[result.converged_B] >= 0).all()


@pytest.mark.parametrize("strength", [0.1, 3.0, 10.0, 100.0])
def test_the_gap_bounds_that_of_what_is_handed_out(zipf_graph, zipf_logits, strength, arithmetic) -> None:
    assert_bounds(graphmax(zipf_logits, zipf_graph, strength), zipf_logits, zipf_graph, strength)
    # contexts in which a few hubs are as likely as they can be
    generator = torch.Generator().manual_seed(11)
    hubs = zipf_graph.operator(torch.zeros(1)).diagonal_V.topk(20).indices
    logits = torch.randn(64, zipf_graph.vocab_size, generator=generator)
    logits[:, hubs] += 30 * torch.rand(64, 20, generator=generator)
    result = graphmax(logits, zipf_graph, strength)
    assert result.converged_B.all()
    assert_bounds(result, logits, zipf_graph, strength)


@pytest.fixture(scope="module")
def wide_graph() -> CooccurrenceGraph:
    """50,000 tokens; one of them follows 16,740 others, so that a float32 sum of its column is off by 6e-3."""
    rng = np.random.default_rng(2)
    size, column = 50_000, 16_740
    rows = np.concatenate([np.arange(column), rng.integers(0, size, 150_000)])
    columns = np.concatenate([np.zeros(column, int), rng.integers(1, size, 150_000)])
    counts = sp.coo_array((np.ones(len(rows)), (rows, columns)), shape=(size, size)).tocsr()
    inverse = 1 / np.maximum(counts.sum(axis=1), 1)
    return CooccurrenceGraph.from_matrix(sp.diags_array(inverse) @ counts)


@pytest.mark.parametrize("rows", [1, 2, 17])
def test_a_hub_of_many_words_in_a_batch(wide_graph, rows, arithmetic) -> None:
    x = torch.rand(rows, wide_graph.vocab_size, generator=torch.Generator().manual_seed(0))
    expected, found = (wide_graph.operator(part).product(part) for part in (x.double(), x))
    assert found.dtype == torch.float32
    # summed in float64: (I - A~) x and M x are rounded once each
    np.testing.assert_allclose(found, expected, atol=3e-7 * float(expected.abs().max()))
    assert (found[:, 0].double() - expected[:, 0]).abs().max() < 3e-7 * expected[:, 0].abs().max()
    logits = torch.randn(rows, wide_graph.vocab_size, generator=torch.Generator().manual_seed(0))
    logits[0, 0] = 1000.0
    logits[-1, :3] = 12.0
    result = graphmax(logits, wide_graph, strict=True)
    assert_bounds(result, logits, wide_graph, 1.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_strength_zero_is_softmax_exactly(zipf_graph, zipf_logits, dtype) -> None:
    logits = zipf_logits.to(dtype)
    result = graphmax(logits, zipf_graph, 0.0)
    expected = logits if dtype == torch.float64 else logits.float()
    assert torch.equal(result.log_probs_BV, expected.log_softmax(dim=-1))
    assert result.converged_B.all() and (result.products_B == 0).all()


def test_rows_may_have_their_own_strength(zipf_graph, zipf_logits) -> None:
    strength = torch.tensor([0.0, 0.1, 1.0, 10.0] * 3)
    together = graphmax(zipf_logits, zipf_graph, strength, tol=1e-9)
    for row in range(12):
        alone = graphmax(zipf_logits[row], zipf_graph, strength[row], tol=1e-9)
        assert total_variation(alone.probs_BV, together.probs_BV[row]) < 1e-4
    assert torch.equal(together.log_probs_BV[0], zipf_logits[0].log_softmax(dim=-1))


def test_batch_equals_single_and_leading_shapes_are_kept(zipf_graph, zipf_logits, arithmetic) -> None:
    result = graphmax(zipf_logits.reshape(3, 4, -1), zipf_graph)
    assert result.probs_BV.shape == (3, 4, zipf_graph.vocab_size) and result.gap_B.shape == (3, 4)
    for row in range(12):
        alone = graphmax(zipf_logits[row], zipf_graph)
        assert alone.gap_B.shape == ()
        # two certificates of 1e-6 nats each
        assert total_variation(alone.probs_BV, result.probs_BV.reshape(12, -1)[row]) < 2 * (1e-6 / 2) ** 0.5


def test_permuting_the_vocabulary_permutes_the_result_and_a_shift_changes_nothing(zipf_graph, zipf_logits) -> None:
    order = torch.randperm(zipf_graph.vocab_size, generator=torch.Generator().manual_seed(1)).numpy()
    permuted = CooccurrenceGraph.from_matrix(zipf_graph.matrix[order][:, order])
    logits = zipf_logits.double()
    plain = graphmax(logits, zipf_graph, tol=1e-10).probs_BV
    assert total_variation(graphmax(logits[:, order], permuted, tol=1e-10).probs_BV, plain[:, order]) < 2e-5
    for shift in (1000, -5000):
        assert total_variation(graphmax(logits + shift, zipf_graph, tol=1e-10).probs_BV, plain) < 1e-5


def test_a_warm_start_reaches_the_same_optimum(zipf_graph, zipf_logits) -> None:
    logits = zipf_logits.clone()
    logits[:, 5] = float("-inf")
    cold = graphmax(logits, zipf_graph)
    warm = graphmax(logits, zipf_graph, warm_start_BV=cold.log_probs_BV)
    assert (warm.products_B == 1).all() and (warm.iterations_B == 1).all()
    elsewhere = graphmax(logits, zipf_graph, warm_start_BV=cold.log_probs_BV.roll(1, 0), strict=True)
    assert total_variation(elsewhere.probs_BV, cold.probs_BV) < 2e-3


def test_a_bad_warm_start_is_left_behind(zipf_graph, zipf_logits) -> None:
    hub = int(zipf_graph.operator(torch.zeros(1)).diagonal_V.argmax())
    bad = torch.full_like(zipf_logits, float("-inf")).index_fill(1, torch.tensor([hub]), 0.0)
    for logits in (zipf_logits, zipf_logits.double()):
        result = graphmax(logits, zipf_graph, 1.0, warm_start_BV=bad, strict=True)
        assert (certify(result.log_probs_BV, logits, zipf_graph, 1.0) <= 2e-6).all()


def test_full_newton_takes_over_where_the_model_steps_end(zipf_graph, zipf_logits, monkeypatch) -> None:
    monkeypatch.setattr("lit_ctg.papers.graphmax.solver.MODEL_STEPS", 1)
    result = graphmax(zipf_logits, zipf_graph, 100.0, strict=True)
    assert (certify(result.log_probs_BV, zipf_logits, zipf_graph, 100.0) <= 2e-6).all()
    # products inside the conjugate gradients are counted
    assert (result.products_B > result.iterations_B).any()


def test_a_careful_solution_is_ten_times_as_exact_and_adds_its_cost(zipf_graph, zipf_logits) -> None:
    logits, strength, rows = zipf_logits.double(), torch.full((12, 1), 10.0, dtype=torch.float64), torch.ones(12).long()
    operator = zipf_graph.operator(logits)
    given = Solution(logits, torch.full((12,), float("nan")), 5 * rows, 7 * rows)
    found = solve_carefully(operator, logits, strength, given, tol=1e-2, max_iterations=60)
    again = solve(operator, logits, strength, tol=1e-3, max_iterations=60)
    assert (found.gap_B <= 1e-3).all() and torch.equal(found.iterations_B, 5 + again.iterations_B)
    assert torch.equal(found.products_B, 7 + again.products_B + 1)
    # model steps alone: one product each
    assert again.iterations_B.max() > 1 and torch.equal(again.iterations_B, again.products_B)


def point(gaps: list[float], value: float) -> _Point:
    """An iterate of some rows whose every entry is ``value``."""
    rows = torch.full((len(gaps), 2), value)
    return _Point(rows, rows, torch.tensor(gaps, dtype=torch.float64), torch.ones(len(gaps), dtype=torch.long))


def test_the_best_sound_iterate_of_a_row_is_kept() -> None:
    best, rows, nan = _Rows.empty(torch.zeros(4, 2)), torch.arange(4), float("nan")
    for gaps, value, kept, entries in (
        ([-1e-3, nan, 0.5, 0.5], 1.0, [nan, nan, 0.5, 0.5], None),
        ([0.3, 0.2, 0.7, 0.4], 2.0, [0.3, 0.2, 0.5, 0.4], [2, 2, 1, 2]),
        ([0.1, -1e-9, nan, 1e-6], 3.0, [0.1, 0.2, 0.5, 1e-6], [3, 2, 1, 3]),
    ):
        open_b, _, stay_b = best.keep(rows, point(gaps, value), 1e-6)
        np.testing.assert_array_equal(best.gap_B, kept)
        assert entries is None or best.log_x_BV[:, 0].tolist() == entries
    assert open_b.tolist() == [0, 1, 2] and stay_b.tolist() == [True] * 3 + [False], "a gap of tol certifies"


def test_a_row_is_given_up_after_six_iterates_without_a_tenth() -> None:
    best, open_b, steps = _Rows.empty(torch.zeros(1, 2)), torch.arange(1), 0
    while len(open_b) and steps < 20:
        # lower by a twentieth each time: better, but not by enough
        open_b, _, _ = best.keep(open_b, point([0.5 * 0.95 ** min(steps, 1)], float(steps)), 1e-6)
        steps += 1
    assert steps == 7 and float(best.gap_B) == 0.5 * 0.95


@pytest.mark.parametrize("wrong", [float("nan"), -1e-3])
def test_a_wrong_certificate_never_passes(zipf_graph, zipf_logits, monkeypatch, wrong) -> None:
    def broken(operator, logits_BV, floor_B1, strength_B1, log_probs_BV) -> tuple[torch.Tensor, torch.Tensor]:
        return logits_BV, torch.full((len(logits_BV),), wrong, dtype=torch.float64)

    monkeypatch.setattr("lit_ctg.papers.graphmax.solver.judge", broken)
    monkeypatch.setattr(
        "lit_ctg.papers.graphmax.solver.duality_gap", lambda log_x_BV, y_BV: torch.full((len(y_BV),), wrong).double()
    )
    result = graphmax(zipf_logits[:2], zipf_graph, max_iterations=3)
    assert not result.converged_B.any()
    # nothing was found, so this is softmax, and is not certified
    torch.testing.assert_close(result.log_probs_BV, zipf_logits[:2].log_softmax(dim=-1))
    with pytest.raises(NotConverged):
        graphmax(zipf_logits[:2], zipf_graph, max_iterations=3, strict=True)


def test_mixed_precision_stops_at_the_solver(zipf_graph, zipf_logits) -> None:
    logits = zipf_logits[:3].requires_grad_()
    plain = graphmax(logits, zipf_graph, strict=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = graphmax(logits, zipf_graph, strict=True)
        assert certify(mixed.log_probs_BV, logits, zipf_graph).max() <= 2e-6
        gradients = [torch.autograd.grad(found.log_probs_BV[:, 7].sum(), logits)[0] for found in (plain, mixed)]
    assert torch.equal(plain.log_probs_BV, mixed.log_probs_BV)
    assert torch.equal(*gradients)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("strength", STRENGTHS)
def test_the_same_on_a_gpu(zipf_graph, zipf_logits, strength) -> None:
    on_cpu = graphmax(zipf_logits, zipf_graph, strength, strict=True)
    logits = zipf_logits.cuda().requires_grad_()
    found = graphmax(logits, zipf_graph, strength, strict=True)
    assert found.probs_BV.is_cuda and found.products_B.max() <= 5
    assert (certify(found.log_probs_BV, logits, zipf_graph, strength) <= 2e-6).all()
    # and by the certificate of another machine
    assert (certify(found.log_probs_BV.cpu(), zipf_logits, zipf_graph, strength) <= 2e-6).all()
    assert total_variation(found.probs_BV.detach().cpu(), on_cpu.probs_BV) < 2 * (1e-6 / 2) ** 0.5
    (gradient,) = torch.autograd.grad(found.log_probs_BV[:, 7].sum(), logits)
    plain = zipf_logits.clone().requires_grad_()
    again = graphmax(plain, zipf_graph, strength).log_probs_BV[:, 7].sum()
    (expected,) = torch.autograd.grad(again, plain)
    assert (gradient.cpu() - expected).norm() < 1e-2 * expected.norm()


def test_a_certificate_is_of_the_normalised_distribution_and_masked_tokens_have_no_mass() -> None:
    graph = CooccurrenceGraph.from_matrix(np.array([[0, 0.5, 0.5], [0.25, 0, 0], [1, 0, 0]]))
    logits = torch.tensor([[1.0, 0.0, -2.0], [0.5, 0.0, float("-inf")]], dtype=torch.float64)
    log_probs = graphmax(logits, graph, tol=1e-12).log_probs_BV
    gap_B = certify(log_probs, logits, graph)
    assert ((gap_B >= 0) & (gap_B <= 1e-11)).all()
    assert torch.allclose(certify(log_probs + 3.0, logits, graph), gap_B, atol=1e-12), "of a multiple of it"
    # any mass on a masked token: the distribution is not one of the problem's
    spread = torch.tensor([[0.5, 0.3, 0.2]] * 2, dtype=torch.float64).log()
    assert certify(spread, logits, graph).isinf().tolist() == [False, True]
    for given, scores, message in (
        (spread, logits.tolist(), "not a list"),
        (spread, logits.long(), "not a tensor of torch.int64"),
        (spread.tolist(), logits, r"shape \(2, 3\) is needed, not list"),
        (spread[:1], logits, r"shape \(2, 3\) is needed, not \(1, 3\)"),
    ):
        with pytest.raises(UserError, match=message):
            certify(given, scores, graph)


def test_uncertified_rows_are_counted_and_the_worst_is_reported() -> None:
    graph = CooccurrenceGraph.from_matrix(np.eye(3)[[1, 2, 0]])
    logits, strength = torch.tensor([[3.0, 0.0, -3.0]] * 3), torch.tensor([0.0, 40.0, 0.0])
    with pytest.raises(NotConverged, match="certified 2 of 3 rows"):
        graphmax(logits, graph, strength, max_iterations=1, tol=1e-12, strict=True)
    found = graphmax(logits, graph, strength)
    assert (found.iterations_B[[0, 2]] == 0).all() and (found.products_B[[0, 2]] == 0).all()
    direct = solve(graph.operator(logits), logits[1:2], strength[1:2, None], tol=1e-6, max_iterations=60)
    assert (found.iterations_B[1], found.products_B[1]) == (direct.iterations_B[0], direct.products_B[0])
    open_B = torch.tensor([True, False, False])
    for gaps, worst in (([0.0, 1e-3, 0.5], "0.5"), ([0.0, float("nan"), 0.5], "inf")):
        result = found._replace(gap_B=torch.tensor(gaps, dtype=torch.float64), converged_B=open_B)
        with pytest.warns(
            RuntimeWarning, match=f"here: graphmax certified 1 of 3 rows, the largest gap is {worst} nats"
        ):
            warn_uncertified(result, "here")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_uncertified(found, "here")
    # the paper's own solver has no gradient
    solver = AlgorithmOne(step_size=0.02, steps=3, threshold=0.02, sort="descending", log_floor=1e-12)
    assert not graphmax(logits.requires_grad_(), graph, solver=solver).probs_BV.requires_grad


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logits": [[0.0, 1, 2]]}, "a torch tensor of floating-point numbers, not a list"),
        ({"logits": torch.zeros(2, 5)}, "do not fit a scene graph of 3 tokens"),
        ({"logits": torch.tensor([[0.0, 1, 2], [0, float("nan"), 1]])}, "row 1: the largest logit is nan"),
        ({"logits": torch.full((1, 3), float("-inf"))}, "row 0: the largest logit is -inf"),
        ({"logits": torch.tensor([[0.0, float("inf"), 1]])}, "largest logit is inf"),
        ({"strength": -0.5}, "number >= 0, not -0.5"),
        ({"strength": float("inf")}, "strength"),
        ({"strength": torch.ones(3)}, "3 strengths for 2 rows"),
        ({"tol": 0.0}, "tol"),
        ({"max_iterations": 0}, "max_iterations"),
        ({"solver": "certifid"}, "solver.*certified"),
        ({"solver": "published"}, r"solver.*AlgorithmOne"),
        ({"warm_start_BV": torch.zeros(2, 2)}, "warm start"),
        ({"edge_weights_E": torch.zeros(7)}, r"edge weights: a tensor of shape \(1,\)"),
    ],
)
def test_bad_input_is_one_line(change, message) -> None:
    graph = CooccurrenceGraph.from_matrix(np.array([[0, 1, 0], [0, 0, 0], [0, 0, 0]]))
    arguments = {"logits": torch.zeros(2, 3), "strength": 1.0} | change
    with pytest.raises(UserError, match=message) as caught:
        graphmax(arguments.pop("logits"), graph, arguments.pop("strength"), **arguments)
    assert "\n" not in str(caught.value)

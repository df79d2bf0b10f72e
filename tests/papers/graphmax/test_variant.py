"""lit_ctg.papers.graphmax.variant: every variant against a restatement, its limits, and as a rule."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.special import lambertw

from lit_ctg.errors import UserError
from lit_ctg.limits import check_value
from lit_ctg.papers.graphmax import AlgorithmOne, CooccurrenceGraph, VariantRule, graphmax, variant, variants
from lit_ctg.papers.graphmax.variant import NAMES, Certificates, VariantName, chosen

SIZE = 40
PUBLISHED = AlgorithmOne(step_size=1e-4, steps=20, threshold=1e-4, sort="descending", log_floor=1e-12)
PULLS = ("successor", "successor_divergence", "interpolation")


@pytest.fixture(scope="module")
def graph() -> CooccurrenceGraph:
    """A corpus in which token 39 is never followed by anything."""
    rng = np.random.default_rng(0)
    texts = [np.minimum(rng.zipf(1.4, 30) - 1, SIZE - 2) for _ in range(40)]
    return CooccurrenceGraph.from_token_ids([*texts, [0, SIZE - 1]], SIZE)


@pytest.fixture
def logits() -> torch.Tensor:
    return 3 * torch.randn(6, SIZE, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


LAST = torch.tensor([0, 1, 2, 3, 4, SIZE - 1])


def root_of(sum_of: Callable[[float], np.ndarray], low: float, high: float) -> np.ndarray:
    """Return x(c) where it sums to 1."""
    return sum_of(brentq(lambda c: sum_of(c).sum() - 1, low, high, xtol=1e-14))


def slow_squared(z: np.ndarray, a: np.ndarray, strength: float) -> np.ndarray:
    """Stationarity of -<x,z> + <x,log x> + lambda ||x - a||^2: log x + 2 lambda (x - a) = z - c, entry by entry."""
    rate = 2 * strength
    return root_of(lambda c: lambertw(rate * np.exp(z + rate * a - c)).real / rate, -50, 50)


def slow_divergence(z: np.ndarray, a: np.ndarray, strength: float) -> np.ndarray:
    """Stationarity of -<x,z> + <x,log x> + lambda KL(a || x): log x - lambda a / x = z - c, bracketed in log x."""

    def entry(z_j: float, a_j: float, c: float) -> float:
        if a_j == 0:
            return math.exp(z_j - c)
        return math.exp(brentq(lambda u: u - strength * a_j * math.exp(-u) - z_j + c, -100, 100, xtol=1e-14))

    return root_of(lambda c: np.array([entry(*pair, c) for pair in zip(z, a, strict=True)]), -30, 60)


@pytest.mark.parametrize("strength", [0.1, 1.0, 10.0])
def test_pulls_towards_successors(graph, logits, strength) -> None:
    found = variants(graph)
    rows = graph.matrix.toarray()[LAST].astype(np.float64)
    slow = {
        "successor": slow_squared,
        "successor_divergence": slow_divergence,
        "interpolation": lambda z, a, s: (np.exp(z) / np.exp(z).sum() + s * a) / (1 + s),
    }
    for name, restated in slow.items():
        given = found[name](logits, LAST, strength).exp().numpy()
        for z, a, x in zip(logits.numpy()[:-1], rows[:-1], given, strict=False):
            np.testing.assert_allclose(x, restated(z, a, strength), atol=1e-9)
        np.testing.assert_allclose(given[-1], logits[-1].softmax(-1), atol=1e-9)  # no successor, no pull
        # a strong pull ends at the successors
        assert (found[name](logits, LAST, 1e6).exp()[:-1] - graph.successors(LAST, logits)[:-1]).abs().max() < 1e-3


def test_the_other_graphs(graph, logits) -> None:
    found = variants(graph, published=PUBLISHED)
    assert set(found) == set(NAMES) and "algorithm_one" not in variants(graph)
    counts = np.rint(graph.matrix.toarray() * graph.total_V[:, None])
    assert counts.sum() == 40 * 29 + 1

    def row(c: np.ndarray) -> np.ndarray:
        return np.divide(c, c.sum(1, keepdims=True), out=np.zeros(c.shape), where=c.sum(1, keepdims=True) > 0)

    weights = {
        "graphmax": row(counts),
        "transposed": row(counts.T),
        "spectral": counts / abs(np.linalg.eigvals(counts)).max(),
        "second_order": row(counts) + row(counts) @ row(counts),
        "power_2": row(counts) @ row(counts),
        "power_3": row(counts) @ row(counts) @ row(counts),
    }
    for name, matrix in weights.items():
        expected = graphmax(logits, CooccurrenceGraph.from_matrix(matrix), 1.0, tol=1e-10).probs_BV
        np.testing.assert_allclose(found[name](logits, LAST, 1.0).exp(), expected, atol=2e-3, err_msg=name)
    expected = graphmax(logits, graph, 1.0, solver=PUBLISHED).log_probs_BV
    assert torch.equal(found["algorithm_one"](logits, LAST, 1.0), expected)
    cut = graphmax(logits, graph.reweighted(order=2, row_edges=2), 1.0).log_probs_BV
    assert torch.equal(variants(graph, row_edges=2)["second_order"](logits, LAST, 1.0), cut)
    assert not torch.equal(found["second_order"](logits, LAST, 1.0), cut)


@pytest.mark.parametrize("strength", [0.0, 0.1, 10.0])
def test_the_flat_softmax_has_graphmaxs_entropy_and_softmaxs_order(graph, logits, strength) -> None:
    found = variants(graph)
    flat_BV, graphmax_BV = (found[name](logits, LAST, strength) for name in ("flattened", "graphmax"))
    entropies = [-(log_BV.exp() * log_BV).sum(-1).numpy() for log_BV in (flat_BV, graphmax_BV)]
    np.testing.assert_allclose(*entropies, atol=1e-5)
    assert torch.equal(flat_BV.argsort(-1), logits.argsort(-1))
    slope = (flat_BV - flat_BV[:, :1]) / (logits - logits[:, :1])
    assert (slope[:, 1:] - slope[:, 1:2]).abs().max() < 1e-6, "logits over one temperature a row"
    if strength == 0:
        assert torch.equal(flat_BV, logits.log_softmax(-1))


def test_reweighting_gives_what_the_corpus_gives() -> None:
    texts = [[0, 1, 2, 0, 1], [2, 2, 1]]
    graph = CooccurrenceGraph.from_token_ids(texts, 3)
    for settings in ({"transposed": True}, {"normalization": "spectral"}, {"order": 2}, {"order": 3, "alone": True}):
        direct, derived = CooccurrenceGraph.from_token_ids(texts, 3, **settings), graph.reweighted(**settings)
        np.testing.assert_allclose(derived.matrix.toarray(), direct.matrix.toarray(), atol=1e-6)
        assert derived.information == direct.information
    back = graph.reweighted(transposed=True).reweighted(transposed=True)
    assert (back.matrix != graph.matrix).nnz == 0 and back.information == graph.information
    with pytest.raises(UserError, match="does not hold its counts"):
        CooccurrenceGraph.from_matrix(graph.matrix).reweighted(transposed=True)


def test_every_variant_is_a_distribution_a_row_at_a_time(graph, logits) -> None:
    logits[:, 7] = float("-inf")
    for name, layer in variants(graph, published=PUBLISHED).items():
        if name == "algorithm_one":
            logits = logits.masked_fill(logits.isinf(), -30.0)  # Euclidean steps know no -inf
        whole = layer(logits.float(), LAST, 1.0)
        np.testing.assert_allclose(whole.exp().sum(-1), 1, atol=1e-5, err_msg=name)
        single = torch.cat([layer(logits[b : b + 1].float(), LAST[b : b + 1], 1.0) for b in range(len(LAST))])
        np.testing.assert_allclose(single.exp(), whole.exp(), atol=2e-4, err_msg=name)
        assert name == "algorithm_one" or (whole[:, 7] == float("-inf")).all(), name
        if name not in ("sparsemax", "algorithm_one"):
            none = layer(logits.float(), LAST, 0.0)
            np.testing.assert_allclose(none.exp(), logits.float().softmax(-1), atol=1e-6, err_msg=name)


def test_rows_that_are_not_certified_are_reported_and_counted(graph, logits, monkeypatch, recwarn) -> None:
    counted = Certificates()
    found = variants(graph, published=PUBLISHED, certificates=counted)
    for name in ("graphmax", "transposed", "successor"):
        found[name](logits, LAST, 1.0)
    found["algorithm_one"](logits, LAST, 1.0)  # is never certified
    assert not recwarn.list
    assert counted.rows == counted.certified == {"graphmax": 6, "transposed": 6}
    too_little = {"tol": 1e-30, "max_iterations": 1}
    monkeypatch.setattr("lit_ctg.papers.graphmax.variant.graphmax", lambda *a, **k: graphmax(*a, **too_little, **k))
    worst = float(graphmax(logits.float(), graph, 10.0, **too_little).gap_B.max())
    with pytest.warns(RuntimeWarning, match=rf"graphmax certified \d of 6 rows, the largest gap is {worst:.2g} nats"):
        found["graphmax"](logits.float(), LAST, 10.0)
    assert counted.rows["graphmax"] == 12 and counted.certified["graphmax"] < 12


def test_names_and_what_they_might_mean() -> None:
    for given, meant in (
        *(("grafmax", "graphmax"), ("published", "algorithm_one"), ("certified", "graphmax")),
        ("squared", "successor"),
    ):
        with pytest.raises(UserError, match=f"variant={given}: pass .*did you mean '{meant}'"):
            check_value("variant", given, VariantName)


def test_as_a_rule(graph, logits) -> None:
    found = variants(graph)
    rule = VariantRule(found["successor"], [0.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    ids = torch.cat([torch.zeros(6, 2, dtype=torch.long), LAST[:, None]], dim=1)
    scores = rule(ids, logits)
    assert torch.equal(scores[0], logits[0])
    np.testing.assert_allclose(scores[1:], found["successor"](logits, LAST, 1.0)[1:], atol=1e-9)
    assert torch.equal(VariantRule(found["successor"])(ids, logits)[1:], scores[1:]), "the strength is 1 unless given"


def test_bad_input(graph, logits) -> None:
    found = variants(graph)
    with pytest.raises(UserError, match="did you mean 'graphmax'"):
        chosen("grafmax", found)
    for name, layer in found.items():
        with pytest.raises(UserError, match="do not fit a scene graph"):
            layer(logits[:, :-1], LAST, 1.0)
        with pytest.raises(UserError, match="are a torch tensor"):
            layer(logits.tolist(), LAST, 1.0)
        with pytest.raises(UserError, match="row 2"):
            layer(logits.clone().index_fill_(0, torch.tensor([2]), float("nan")), LAST, 1.0)
        if name not in ("softmax", "sparsemax"):
            with pytest.raises(UserError, match="number >= 0"):
                layer(logits, LAST, -1.0)


def test_large_vocabulary_in_float32(zipf_graph, zipf_logits) -> None:
    found = variants(zipf_graph)
    last_ids = torch.arange(len(zipf_logits))
    for name in PULLS:
        for strength in (0.01, 1.0, 100.0):
            single = found[name](zipf_logits, last_ids, strength).double().exp()
            double = found[name](zipf_logits.double(), last_ids, strength).exp()
            assert (single - double).abs().sum(-1).max() < 1e-4, (name, strength)
            assert (single.sum(-1) - 1).abs().max() < 1e-6


@pytest.mark.parametrize(("strength", "steps"), [(0.1, 4), (10.0, 8), (1e4, 12)])
def test_the_pull_is_found_in_few_steps(zipf_graph, zipf_logits, strength, steps, monkeypatch) -> None:
    """In float32 too: an absolute tolerance in c could not be met there with a strong pull."""
    taken = []
    monkeypatch.setattr(variant, "_pulled", lambda *given, _one=variant._pulled: taken.append(1) or _one(*given))
    variants(zipf_graph)["successor_divergence"](zipf_logits, torch.arange(len(zipf_logits)), strength)
    assert 0 < len(taken) <= steps


def test_a_rule_wants_prefixes_that_the_graph_knows(zipf_graph, zipf_logits) -> None:
    rule = VariantRule(variants(zipf_graph)["successor"], 0.5)
    for ids, message in (
        (torch.zeros(12, 0, dtype=torch.long), r"shape \(12, 0\) have no last token"),
        (torch.zeros(12, dtype=torch.long), r"shape \(12,\) have no last token"),
        (torch.full((12, 2), 3000), "no token 3000"),
        (torch.zeros(12, 2), "whole numbers, not torch.float32"),
    ):
        with pytest.raises(UserError, match=message) as caught:
            rule(ids, zipf_logits)
        assert "\n" not in str(caught.value)
    half = VariantRule(variants(zipf_graph)["graphmax"], 1.0)(torch.zeros(12, 1).long(), zipf_logits.bfloat16())
    assert half.dtype == torch.float32


def test_at_strength_0_only_softmax_keeps_the_scores(graph, logits) -> None:
    found = variants(graph, published=PUBLISHED)
    ids = LAST.unsqueeze(1)
    for name in found:
        given = VariantRule.named(name, found, 0.0)(ids, logits)
        assert torch.equal(given, logits) == (name not in variant.OTHERWISE_AT_0), name
    np.testing.assert_allclose(
        VariantRule.named("sparsemax", found, 0.0)(ids, logits).exp(), variant.sparsemax(logits), atol=1e-6
    )

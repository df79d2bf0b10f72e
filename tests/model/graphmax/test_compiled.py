"""lit_ctg.model.graphmax.compiled and .acceleration: the kernels against dense arithmetic and against torch."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from lit_ctg.model.graphmax import CooccurrenceGraph, acceleration, graphmax
from lit_ctg.model.graphmax.operator import GraphOperator
from lit_ctg.model.graphmax.reduced import model_step

compiled = pytest.importorskip("lit_ctg.model.graphmax.compiled", reason="numba is not installed")


def random_rows(size: int, rng: np.random.Generator) -> sp.csr_array:
    """Rows of all lengths: none, one, many, and one with every column."""
    dense = rng.random((size, size)) * (rng.random((size, size)) < rng.random((size, 1)) ** 4)
    dense[0], dense[1], dense[2, :] = 0, rng.random(size), 0
    return sp.csr_array(dense / size)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [3, 16, 37, 200])
@pytest.mark.parametrize("long", [4096, 20])
def test_the_product_of_one_vector(size, dtype, long, monkeypatch) -> None:
    monkeypatch.setattr("lit_ctg.model.graphmax.compiled.sliced_rows.LONG", long)
    rng = np.random.default_rng(size)
    matrix = random_rows(size, rng)
    x = rng.random(size).astype(dtype)
    forward, backward = (compiled.sliced(sp.csr_array(part).astype(dtype)) for part in (matrix, matrix.T))
    assert len(forward.order) + len(forward.alone) == size
    assert len(forward.alone) >= (size > long)  # the row with every column
    difference = np.eye(size) - matrix.toarray()
    expected = difference.T @ (difference @ x.astype(np.float64))
    np.testing.assert_allclose(compiled.product(forward, backward, x), expected, rtol=1e-5, atol=1e-6)


def test_columns_are_short_where_they_fit() -> None:
    wide = sp.csr_array((np.ones(1), ([0], [2**16])), shape=(2**16 + 1, 2**16 + 1))
    assert compiled.sliced(wide).alone_columns.dtype == np.int32
    assert compiled.product(*(compiled.sliced(part) for part in (wide, wide.T.tocsr())), np.ones(2**16 + 1))[0] == 0
    assert compiled.sliced(wide[: 2**16, : 2**16]).columns.dtype == np.uint16


@pytest.mark.parametrize("strength", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("hubs", [5, 400])
def test_a_model_step_is_that_of_torch(zipf_graph, zipf_logits, strength, hubs, monkeypatch) -> None:
    z = zipf_logits.double()
    operator = GraphOperator.from_scipy(zipf_graph.matrix, hubs=hubs).like(z)
    strengths = torch.full((len(z), 1), strength, dtype=z.dtype)
    found = []
    for kernels in (compiled, None):
        monkeypatch.setattr(acceleration, "_kernels", lambda kernels=kernels: kernels)
        log_x = model_step(operator, z, None, strengths, 1e-13)
        y = z - 2 * strength * operator.product(log_x.exp())
        found += [log_x.exp(), model_step(operator, y, log_x, strengths, 1e-13).exp()]
    # two points whose gap is at most 1e-13 lie within 2 sqrt(1e-13 / 2) of each other; the second step doubts y, too
    assert (found[0] - found[2]).abs().sum(dim=-1).max() < 1e-6
    assert (found[1] - found[3]).abs().sum(dim=-1).max() < 1e-4 * max(strength, 1)


def test_a_row_does_not_depend_on_its_batch(zipf_graph, zipf_logits) -> None:
    # rows of other numbers of extras are padded, which must not be seen
    operator = zipf_graph.operator(zipf_logits)
    strength = torch.full((len(zipf_logits), 1), 1.0)
    together = model_step(operator, zipf_logits, None, strength, 1e-8)
    for row in range(len(zipf_logits)):
        alone = model_step(operator, zipf_logits[row : row + 1], None, strength[:1], 1e-8)
        torch.testing.assert_close(alone[0], together[row], rtol=1e-5, atol=1e-5)


def test_without_numba_torch_does_it(zipf_graph, zipf_logits, monkeypatch) -> None:
    acceleration._kernels.cache_clear()
    monkeypatch.setattr(acceleration.importlib.util, "find_spec", lambda name: None)
    assert acceleration.kernels_for(zipf_logits) is None
    assert graphmax(zipf_logits, CooccurrenceGraph.from_matrix(zipf_graph.matrix), strict=True).converged_B.all()
    acceleration._kernels.cache_clear()


def test_other_devices_are_left_to_torch() -> None:
    assert acceleration.kernels_for(torch.zeros(1, device="meta")) is None

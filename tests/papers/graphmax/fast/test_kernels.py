"""lit_ctg.papers.graphmax.fast.kernels and .fast: the kernels against dense arithmetic and against torch."""

from __future__ import annotations

import dataclasses
import importlib
import math
import re
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from lit_ctg.errors import UserError
from lit_ctg.papers.graphmax import CooccurrenceGraph, certify, fast, graphmax
from lit_ctg.papers.graphmax.fast import MOST_EXTRAS
from lit_ctg.papers.graphmax.graph import GraphOperator, Matrices
from lit_ctg.papers.graphmax.model_step import model_step
from lit_ctg.papers.graphmax.solver import judge

numba = pytest.importorskip("numba")
compiled = pytest.importorskip("lit_ctg.papers.graphmax.fast.kernels", reason="numba is not installed")
jit, products = (importlib.import_module(f"lit_ctg.papers.graphmax.fast.{name}") for name in ("jit", "products"))
highest, write_exp = jit.highest, jit.write_exp


def random_rows(size: int, rng: np.random.Generator) -> sp.csr_array:
    """Rows of all lengths: none, one, many, and one with every column."""
    dense = rng.random((size, size)) * (rng.random((size, size)) < rng.random((size, 1)) ** 4)
    dense[0], dense[1], dense[2, :] = 0, rng.random(size), 0
    return sp.csr_array(dense / size)


@pytest.mark.parametrize("rows", [1, 2, 16, 19])
@pytest.mark.parametrize("size", [3, 16, 37, 200])
@pytest.mark.parametrize("long", [4096, 20])
def test_the_product(size, rows, long, monkeypatch) -> None:
    monkeypatch.setattr("lit_ctg.papers.graphmax.fast.products.LONG", long)
    rng = np.random.default_rng(size)
    matrices = Matrices(CooccurrenceGraph.from_matrix(random_rows(size, rng)).matrix)
    x = rng.random((rows, size)).astype(np.float32)
    forward = matrices.sliced[0]
    assert len(forward.order) + len(forward.alone) == size
    assert len(forward.alone) >= (size > long)  # the row with every column
    difference = np.eye(size) - matrices.forward.toarray().astype(np.float64)
    expected = x.astype(np.float64) @ difference.T @ difference
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            np.testing.assert_allclose(compiled.product(matrices, x), expected, atol=4e-7 * np.abs(expected).max())
    finally:
        torch.set_num_threads(before)


def test_columns_are_short_where_they_fit() -> None:
    wide = CooccurrenceGraph.from_matrix(sp.csr_array((np.ones(1), ([0], [2**16])), shape=(2**16 + 1, 2**16 + 1)))
    assert compiled.sliced(wide.matrix).alone_columns.dtype == np.int32
    assert compiled.product(Matrices(wide.matrix), np.ones((1, 2**16 + 1), np.float32))[0, 0] == 0
    assert compiled.sliced(wide.matrix[: 2**16, : 2**16]).columns.dtype == np.uint16


@pytest.mark.parametrize("strength", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("hubs", [5, 400])
def test_a_model_step_is_that_of_torch(zipf_graph, zipf_logits, strength, hubs, monkeypatch) -> None:
    z = zipf_logits.double()
    operator = GraphOperator.from_scipy(zipf_graph.matrix, hubs=hubs).like(z)
    strengths = torch.full((len(z), 1), strength, dtype=z.dtype)
    found = []
    for kernels in (compiled, None):
        monkeypatch.setattr(fast, "_kernels", lambda kernels=kernels: kernels)
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


def test_code_is_kept_where_one_may_write(tmp_path, monkeypatch) -> None:
    package = Path(jit.__file__).parent
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    assert jit.kept_in().parent == package / "__pycache__"
    assert re.fullmatch("kernels-[0-9a-f]{16}", jit.kept_in().name)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "asked"))
    assert jit.kept_in().parent == tmp_path / "asked"
    # neither the package nor the home directory can be written to: a file is in the way
    (tmp_path / "file").write_text("")
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    monkeypatch.setattr(jit, "__file__", str(tmp_path / "file" / "jit.py"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert jit.kept_in().parent == tmp_path / "cache" / "lit_ctg"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert jit.kept_in() is None

    @jit.compiled
    def twice(number):
        return 2 * number

    assert twice(4) == 8 and not isinstance(twice._cache, numba.core.caching.FunctionCache)
    for kernel in (compiled.model_steps, compiled.gaps, products.residuals, write_exp):
        assert re.search("kernels-[0-9a-f]{16}", kernel.stats.cache_path)


@pytest.mark.parametrize(("dtype", "error"), [(np.float32, 2e-7), (np.float64, 1e-13)])
def test_the_vectorised_exponential(dtype, error) -> None:
    u = np.concatenate([np.linspace(-87, 88, 30_001), [0, -np.inf, np.nan]]).astype(dtype)
    found = np.empty_like(u)
    total = write_exp(u[:-1], 0.0, found[:-1])
    np.testing.assert_allclose(found[:-1], np.exp(u[:-1].astype(np.float64)), rtol=error)
    assert found[-3] == 1 and found[-2] == 0 and total == pytest.approx(found[:-1].sum(dtype=np.float64), rel=1e-12)
    assert np.isnan(write_exp(u[-1:], 0.0, found[-1:])) and np.isnan(found[-1])
    assert write_exp(np.full(3, -1e30, dtype), 0.0, found[:3]) == 0
    # the largest entry, NaN passed over
    for size in (1, 63, 64, 65, 200):
        assert highest(u[:-2][-size:]) == u[:-2][-size:].max()
    assert highest(np.array([np.nan, 3, -np.inf])) == 3 and highest(np.full(70, -np.inf)) == -np.inf


def test_of_too_many_extras_the_weightiest_are_kept() -> None:
    size = MOST_EXTRAS + 900
    y = np.random.default_rng(0).permutation(np.linspace(-3, 0, size)).astype(np.float32)
    diagonal, work = np.ones(size, np.float32), np.empty_like(y)
    found = compiled._extras(y, y, False, diagonal, 1e-9, work)
    assert sorted(found) == sorted(np.argsort(-y)[: MOST_EXTRAS - 1])
    few = compiled._extras(y, y, False, np.ones(size, np.float32), np.exp(-0.5) / np.exp(y).sum(), np.empty_like(y))
    assert sorted(few) == sorted(np.flatnonzero(y > -0.5))


@pytest.mark.parametrize("distance", [1e-6, 1e-3, 1.0, 20.0, 200.0])
def test_a_judgement_is_that_of_torch_in_float64(zipf_graph, zipf_logits, distance) -> None:
    generator = torch.Generator().manual_seed(1)
    noise = distance * torch.randn(zipf_logits.shape, generator=generator)
    log_x = (graphmax(zipf_logits, zipf_graph).log_probs_BV + noise).log_softmax(dim=-1)
    log_x[1, 5], log_x[2, 7] = -math.inf, -200.0  # mass where x has none
    logits = zipf_logits.clone()
    logits[3] -= 1000
    strength, floor = torch.full((len(logits), 1), 1.0), torch.full((len(logits), 1), -5000.0).double()
    operator = zipf_graph.operator(logits)
    y, gap = judge(operator, logits, floor, strength, log_x)
    exact = certify(log_x, logits, zipf_graph)
    assert (gap >= exact).all()
    torch.testing.assert_close(gap, exact, rtol=1e-2, atol=1e-7)
    wide = log_x.double().log_softmax(dim=-1).exp()
    expected = logits.double() - logits.double().amax(dim=-1, keepdim=True) - 2 * operator.product(wide)
    torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-4)
    log_x[0, 0] = math.nan
    assert judge(operator, logits, floor, strength, log_x)[1][0].isnan()


def test_rows_are_shared_among_threads(zipf_graph, zipf_logits) -> None:
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append(graphmax(zipf_logits, zipf_graph))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        torch.testing.assert_close(other.gap_B, found[0].gap_B, rtol=1e-2, atol=1e-9)
        torch.testing.assert_close(other.probs_BV, found[0].probs_BV, rtol=1e-4, atol=1e-7)


def test_an_error_in_a_thread_is_raised(monkeypatch) -> None:
    def kernel(rows, out, factor):
        out[:] = rows * factor
        assert 3 not in rows

    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    rows, out = np.arange(3.0), np.zeros(3)
    fast.over_rows(kernel, [rows, out], 2)
    assert out.tolist() == [0, 2, 4]
    with pytest.raises(AssertionError):
        fast.over_rows(kernel, [rows + 1, out], 2)


def test_torch_does_it_by_setting_on_other_devices_and_without_numba(zipf_graph, zipf_logits, monkeypatch) -> None:
    operator = CooccurrenceGraph.from_matrix(np.eye(2)).operator(torch.zeros(1))
    assert operator.kernels_for(torch.zeros(1, 2)) is compiled
    assert operator.kernels_for(torch.zeros(1, 2, device="meta")) is None
    with monkeypatch.context() as patch:
        fast._kernels.cache_clear()
        patch.setattr(fast.importlib.util, "find_spec", lambda name: None)
        assert fast.chosen_kernels("auto") is None
        fast._kernels.cache_clear()
    plain = dataclasses.replace(zipf_graph, fast="off")
    found = graphmax(zipf_logits, zipf_graph, strict=True)
    monkeypatch.setattr(fast, "_kernels", lambda: pytest.fail("fast=off asked for kernels"))
    again = graphmax(zipf_logits, plain, strict=True)
    # two certificates of 1e-6 nats each
    assert (found.probs_BV - again.probs_BV).abs().sum(dim=-1).max() / 2 < 2 * (1e-6 / 2) ** 0.5
    with pytest.raises(UserError, match=r"fast=of: .*'off'"):
        graphmax(zipf_logits, dataclasses.replace(zipf_graph, fast="of"))

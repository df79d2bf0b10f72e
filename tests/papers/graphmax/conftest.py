"""Random scene graphs and a slow float64 reference, written from Eq. 3 and not from the package."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from lit_ctg.papers.graphmax import CooccurrenceGraph, fast
from tests.data.conftest import network  # noqa: F401 - a fixture


def random_matrix(rng: np.random.Generator, size: int) -> np.ndarray:
    """Row-normalised counts with hubs, self-loops and rows without successors."""
    popularity = rng.permutation(1.0 / np.arange(1, size + 1))
    counts = rng.poisson(8 * rng.random((size, 1)) * popularity)
    counts[rng.random(size) < 0.1] = 0
    total = counts.sum(axis=1, keepdims=True)
    return np.divide(counts, total, out=np.zeros(counts.shape), where=total > 0)


def objective(x: np.ndarray, z: np.ndarray, a: np.ndarray, strength: float) -> float:
    """Eq. 3, as it stands."""
    residual = x - a @ x
    entropy = np.sum(np.where(x > 0, x * np.log(np.where(x > 0, x, 1)), 0))
    return -x @ z + entropy + strength * residual @ residual


def reference(z: np.ndarray, a: np.ndarray, strength: float) -> np.ndarray:
    """Minimise Eq. 3 by dense, damped Newton in float64 until KL(x || softmax(z - 2 lambda M x)) < 1e-12."""
    m = (np.eye(len(z)) - a).T @ (np.eye(len(z)) - a)
    u = z - z.max()
    for _ in range(500):
        u = u - u.max() - np.log(np.exp(u - u.max()).sum())
        x = np.exp(u)
        y = z - 2 * strength * m @ x
        log_p = y - y.max() - np.log(np.exp(y - y.max()).sum())
        if x @ (u - log_p) < 1e-12:
            return x
        # (I + 2 lambda sqrt(x) M sqrt(x)) s = -sqrt(x) (gradient - nu), sqrt(x) . s = 0
        root = np.sqrt(x)
        hessian = np.eye(len(z)) + 2 * strength * root[:, None] * m * root[None, :]
        sides = np.linalg.solve(hessian, np.stack([-root * (u - y), root], axis=1))
        s = sides[:, 0] - sides[:, 1] * (root @ sides[:, 0]) / (root @ sides[:, 1])
        target = y - 2 * strength * m @ (root * s)
        size, before = 1.0, objective(x, z, a, strength)
        while size > 1e-6:
            trial = u + size * (target - target.max() - u)
            trial = np.exp(trial - trial.max())
            if objective(trial / trial.sum(), z, a, strength) <= before:
                break
            size /= 2
        u = u + size * (target - target.max() - u)
    raise AssertionError("the reference did not converge")


class Reference:
    """The functions above, for the tests."""

    random_matrix = staticmethod(random_matrix)
    objective = staticmethod(objective)
    solve = staticmethod(reference)


@pytest.fixture(scope="session")
def slow() -> Reference:
    return Reference()


@pytest.fixture(params=["compiled", "torch"])
def arithmetic(request, monkeypatch) -> str:
    """The compiled kernels, and what runs where numba is not installed."""
    if request.param == "torch":
        monkeypatch.setattr(fast, "_kernels", lambda: None)
    else:
        pytest.importorskip("numba")
    return request.param


@pytest.fixture(scope="session")
def zipf_graph() -> CooccurrenceGraph:
    """3,000 tokens, most of them not among the solver's hubs; a few successors follow nearly everything."""
    rng = np.random.default_rng(5)
    size, draws = 3000, 60_000
    row = np.minimum(rng.zipf(1.3, draws) - 1, size - 1)
    column = np.minimum(rng.zipf(1.25, draws) - 1, size - 1)
    counts = sp.coo_array((np.ones(draws), (row, column)), shape=(size, size)).tocsr()
    total = counts.sum(axis=1)
    inverse = np.divide(1.0, total, out=np.zeros(size), where=total > 0)
    return CooccurrenceGraph.from_matrix(sp.diags_array(inverse) @ counts)


@pytest.fixture
def zipf_logits(zipf_graph: CooccurrenceGraph) -> torch.Tensor:
    """Peaked and flat contexts, the frequent tokens likely as in text; float32, 12 rows."""
    generator = torch.Generator().manual_seed(3)
    size = zipf_graph.vocab_size
    prior = -1.1 * torch.arange(1, size + 1).log()
    scale = torch.linspace(0.5, 3.5, 12)[:, None]
    return prior + scale * torch.randn(12, size, generator=generator)

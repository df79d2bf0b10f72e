"""Random scene graphs and a slow float64 reference, written from Eq. 3 and not from the package; a language model that
is a table of logits, and a scene of a few sentences."""

from __future__ import annotations

from types import SimpleNamespace

import lightning
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import nn

from lit_ctg.core.model import LMOutput
from lit_ctg.data.tokenizer import WordTokenizer
from lit_ctg.papers.graphmax import AlgorithmOne, CooccurrenceGraph, fast
from lit_ctg.papers.graphmax.trial import Fold, read_scene, split_folds
from tests.data.conftest import network  # noqa: F401 - a fixture


def random_matrix(rng: np.random.Generator, size: int) -> np.ndarray:
    """Row-normalised counts with hubs, self-loops and rows without successors."""
    popularity = rng.permutation(1.0 / np.arange(1, size + 1))
    counts = rng.poisson(8 * rng.random((size, 1)) * popularity)
    counts[rng.random(size) < 0.1] = 0
    total = counts.sum(axis=1, keepdims=True)
    return np.divide(counts, total, out=np.zeros(counts.shape), where=total > 0)


def objective(x: np.ndarray, z: np.ndarray, a: np.ndarray, strength: float) -> float:
    """Eq. 3."""
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


# trials ---------------------------------------------------------------------------------------------------------------

REVIEWS = (
    "the food was good and the staff was nice",
    "the food was bad and the place was loud",
    "the staff was rude but the food was good",
    "good food and nice staff at a good place",
    "a nice place and a good cook",
    "the cook was nice and the food was fine",
    "loud place but good food",
    "the place was fine and the staff was fine",
    "rude staff and bad food at a loud place",
    "the food at the place was nice",
    "the food at the place was nice",
    "ok",
)
PUBLISHED = AlgorithmOne(step_size=1e-4, steps=20, threshold=1e-4, sort="descending", log_floor=1e-12)


class Scene:
    """Stands for a corpus of reviews."""

    def __init__(self, texts=REVIEWS, test=None):
        self.texts = {"train": texts} if test is None else {"train": texts, "test": test}

    def documents(self, split):
        return (SimpleNamespace(text=text) for text in self.texts[split])


class Table(lightning.LightningModule):
    """Scores of the next token from the present one alone."""

    def __init__(self, size: int, spread: float = 1.5):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.table = nn.Parameter(spread * torch.randn(size, size, generator=generator))

    def forward(self, batch):
        scores = self.table[batch["input_ids_BT"]]
        return LMOutput(scores, scores)

    def start(self, batch_size, controls):
        return None

    def step(self, ids_B1, state):
        return self.table[ids_B1[:, 0]], state


@pytest.fixture(scope="session")
def vocabulary() -> WordTokenizer:
    words = WordTokenizer(lower=False, eol=None)
    words.train(REVIEWS)
    return words


@pytest.fixture(scope="session")
def scene() -> type[Scene]:
    return Scene


@pytest.fixture
def module(vocabulary) -> Table:
    return Table(len(vocabulary))


@pytest.fixture(scope="session")
def published() -> AlgorithmOne:
    return PUBLISHED


@pytest.fixture(scope="session")
def folds(vocabulary) -> list[Fold]:
    texts, ids = read_scene(Scene(), vocabulary)
    return list(
        split_folds("shop", texts, ids, folds=2, vocabulary=vocabulary, seed=3, published=PUBLISHED)
    )  # fmt: skip

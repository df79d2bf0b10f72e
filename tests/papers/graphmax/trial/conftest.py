"""A language model that is a table of logits, and a scene of a few sentences."""

from __future__ import annotations

from types import SimpleNamespace

import lightning
import pytest
import torch
from torch import nn

from lit_ctg.core.model import LMOutput
from lit_ctg.data.tokenizer import WordTokenizer
from lit_ctg.papers.graphmax import AlgorithmOne
from lit_ctg.papers.graphmax.trial import Fold, read_scene, split_folds

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

    def __init__(self, texts=REVIEWS):
        self.texts = texts

    def documents(self, split):
        assert split == "train"
        return (SimpleNamespace(text=text) for text in self.texts)


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

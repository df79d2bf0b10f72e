"""A small model over the real vocabulary, and a batch as the data module makes it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from lit_ctg.network.transformer import TransformerBackbone
from lit_ctg.papers.semantic_fusion import SemanticFusionModule
from lit_ctg.papers.semantic_fusion.clause import ClauseTables, ClauseVocabulary
from lit_ctg.papers.semantic_fusion.corpus import ClauseDataModule
from tests.metric.conftest import counted_nlls, make_batch, nll, split  # noqa: F401 - fixtures

PUBLISHED = {
    "causal": False,
    "prefix_only_features": False,
    "loss_mask": "input",
    "embedding_std": 1.0,
    "embedding_scale": 1.0,
    "feature_dropout": 1.0,
    "warmup_from_zero": True,
    "decay_matrices_only": False,
}
CORRECTED = {
    "causal": True,
    "prefix_only_features": True,
    "loss_mask": "target",
    "embedding_std": 0.02,
    "embedding_scale": 4.0,
    "feature_dropout": 0.5,
    "warmup_from_zero": False,
    "decay_matrices_only": True,
}
SHARED = {
    "fusion": True,
    "gate": True,
    "auxiliary_target": "current",
    "label_smoothing": 0.02,
    "auxiliary_weight": 0.5,
    "uniformizer_weight": 0.01,
    "membership_centres": (0.2, 0.6, 1.0),
    "membership_temperature": 0.35,
    "learnable_memberships": False,
    "exclamation_nudge": 0.2,
    "learning_rate": 3e-4,
    "weight_decay": 0.01,
    "warmup_fraction": 0.1,
    "seed": 5,
}


HELD_OUT = ("wonderful", "excellent", "great", "terrible", "awful", "unpleasant")
PAPER_WEIGHTS = {
    "second_clause_probability": 0.6,
    "intensifier_weights": {"slightly": 2, "moderately": 2, "very": 3, "extremely": 2},
    "punctuation_weights": {".": 8, "!": 3, "?": 1},
}


def random_tables(seed: int = 0) -> ClauseTables:
    """Every conditional its own random row: any mix-up of axes shows."""
    rng = np.random.default_rng(seed)
    sizes = {"S": 5, "V": 5, "O": 5, "I": 4, "P": 2, "C": 2, "Q": 3}
    tables = {}
    for field in dataclasses.fields(ClauseTables)[1:]:
        *context, outcome = (sizes[letter] for letter in field.name.rpartition("_")[2])
        tables[field.name] = rng.dirichlet(np.ones(outcome), size=tuple(context))
    return ClauseTables(second_clause=0.7, **tables)


@pytest.fixture(scope="session")
def vocabulary() -> ClauseVocabulary:
    return ClauseVocabulary()


@pytest.fixture
def make_module(vocabulary):
    """Return a factory: ``make_module(published=False, dropout=0.0, **changes)``."""

    def make(published: bool = False, dropout: float = 0.0, **changes: Any) -> SemanticFusionModule:
        options = SHARED | (PUBLISHED if published else CORRECTED) | changes
        torch.manual_seed(options["seed"])
        backbone = TransformerBackbone(
            dim=16,
            layers=2,
            heads=2,
            feedforward_dim=24,
            dropout=dropout,
            norm_position="post",
            causal=options["causal"],
        )
        return SemanticFusionModule(**{"vocabulary": vocabulary, "backbone": backbone, **options})

    return make


def clause_data(size: int = 48, seed: int = 3) -> ClauseDataModule:
    return ClauseDataModule(
        train_size=size,
        val_size=size,
        max_length=28,
        batch_size=size,
        held_out={"positive": HELD_OUT[:3], "negative": HELD_OUT[3:]},
        seed=seed,
        **PAPER_WEIGHTS,
    )


@pytest.fixture
def model_batch():
    """Return a factory: ``model_batch(module, size=48)`` gives a validation batch with the module's features."""

    def make(module: SemanticFusionModule, size: int = 48, seed: int = 3) -> dict[str, torch.Tensor]:
        data = clause_data(size, seed)
        data.corpus_transform = module.corpus_transform
        data.setup("fit")
        return next(iter(data.val_dataloader()))

    return make


@pytest.fixture(scope="session")
def sentences() -> list[list[int]]:
    """Several hundred sentences as lists of ids, <bos> and <eos> included."""
    ids_NT, lengths_N = clause_data(400).corpus("val")
    return [row[:length].tolist() for row, length in zip(ids_NT, lengths_N, strict=True)]

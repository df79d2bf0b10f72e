"""A small gated model, and the tokenizer it speaks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lit_ctg.data.byte_pair import TrainedBPETokenizer
from lit_ctg.network.gpt2 import GPT2Backbone
from lit_ctg.papers.idea_gate import IdeaGateModule
from tests.metric.conftest import counted_nlls, make_batch, nll, split  # noqa: F401 - fixtures of all metrics

SETTINGS = {
    "gated": True,
    "clamp": "after_scaling",
    "alpha": 0.5,
    "beta": -2.0,
    "epsilon": 1e-8,
    "alpha_ramp_fraction": 0.04,
    "window": 4,
    "window_start": 1,
    "positive_weight": 5.0,
    "idea_weight": 0.01,
    "idea_bias": "zero",
    "stopwords": "authors",
    "stopword_count": 5,
    "learning_rate": 1e-3,
    "final_fraction": 0.1,
    "weight_decay": 0.01,
    "warmup_fraction": 0.02,
}
TEXT = "The market is a place, and the price of a share in the market is what traders pay. " * 8


@pytest.fixture(scope="session")
def vocabulary() -> TrainedBPETokenizer:
    tokenizer = TrainedBPETokenizer(size=300)
    tokenizer.train([TEXT])
    return tokenizer


@pytest.fixture
def settings() -> dict[str, Any]:
    return dict(SETTINGS)


@pytest.fixture
def make_module(vocabulary):
    """Return a factory: ``make_module(double=True, dropout=0.0, **changes)``; weights large enough to matter."""

    def make(double: bool = True, dropout: float = 0.0, **changes: Any) -> IdeaGateModule:
        torch.manual_seed(5)
        backbone = GPT2Backbone(dim=16, layers=2, heads=2, context=32, dropout=dropout)
        module = IdeaGateModule(vocabulary=vocabulary, backbone=backbone, **SETTINGS | changes)
        for parameter in module.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        return module.double() if double else module

    return make


@pytest.fixture
def batch(vocabulary) -> dict[str, torch.Tensor]:
    """Three rows of 14, the last one shorter."""
    ids = torch.tensor(vocabulary.encode(TEXT)[: 3 * 15]).view(3, 15)
    mask = torch.ones(3, 14, dtype=torch.bool)
    mask[2, 9:] = False
    return {"input_ids_BT": ids[:, :-1], "target_ids_BT": ids[:, 1:], "mask_input_BT": mask, "mask_target_BT": mask}

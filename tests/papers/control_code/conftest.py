"""Small models of every arm over a made-up vocabulary, and batches as the data module makes them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from lit_ctg.data.tokenizer import WordTokenizer
from lit_ctg.papers.control_code import ControlCodeModule
from lit_ctg.papers.control_code.model import CodeGRUBackbone, CodeTransformerBackbone
from tests.data.conftest import network as book_server  # noqa: F401 - a fixture
from tests.metric.conftest import counted_nlls, nll  # noqa: F401 - fixtures
from tests.metric.conftest import make_batch as make_scored_batch  # noqa: F401 - a fixture

OPTIONS = {
    "corpus": "toy",
    "injection": "neuron",
    "injection_layers": None,
    "match_parameters": False,
    "position": "sinusoidal",
    "code_start": "word",
    "scale_words": True,
    "init_range": 0.1,
    "embedding_dropout": 0.2,
    "optimizer": "adamw",
    "optimizers": {
        "sgd": {"learning_rate": 5.0, "gamma": 0.95},
        "adam": {"learning_rate": 1e-3},
        "adamw": {"learning_rate": 1e-3, "weight_decay": 0.01, "warmup_fraction": 0.1},
    },
    "seed": 3,
}
SIZES = {"dim": 8, "layers": 3, "heads": 2, "feedforward_dim": 12, "dropout": 0.2, "identical_layers": False}


def words(size: int = 30) -> WordTokenizer:
    """A trained vocabulary: <unk>, a full stop and single words."""
    tokenizer = WordTokenizer(eol=None)
    tokenizer.train([" ".join([".", *(f"w{number}" for number in range(size - 2))])])
    return tokenizer


@pytest.fixture
def make_module():
    """Return a maker of modules; ``network="gru"`` gives a GRU, ``sizes`` changes the network's."""

    def make(network: str = "transformer", sizes: dict[str, Any] | None = None, size: int = 30, **options: Any):
        vocabulary = words(size)
        if network == "gru":
            backbone = partial(CodeGRUBackbone, **{"dim": 8, "layers": 3, "dropout": 0.0, **(sizes or {})})
            options = {"position": "none", **options}
        else:
            backbone = partial(CodeTransformerBackbone, **{**SIZES, **(sizes or {})})
        options = {**OPTIONS, "codes": 3, **options}
        return ControlCodeModule(vocabulary=vocabulary, backbone=backbone, **options)

    return make


@pytest.fixture
def make_batch():
    """Return a maker of batches; the last row is padded at its end."""

    def make(size: int = 3, width: int = 7, vocabulary: int = 30) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(1)
        ids_BT = torch.randint(1, vocabulary, (size, width + 1), generator=generator)
        mask_BT = torch.ones(size, width, dtype=torch.bool)
        mask_BT[-1, 4:] = False
        return {
            "input_ids_BT": ids_BT[:, :-1],
            "target_ids_BT": ids_BT[:, 1:],
            "mask_input_BT": mask_BT,
            "mask_target_BT": mask_BT.clone(),
            "control_code_B": torch.arange(size) % 3,
        }

    return make

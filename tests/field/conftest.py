"""A bench of the smallest size: sample text, a random Llama, a random encoder."""

from __future__ import annotations

from pathlib import Path

import pytest

from lit_ctg.data.sample_text import sample_documents
from lit_ctg.field.bench import Bench
from lit_ctg.field.command import compose
from lit_ctg.field.run import build_bench
from tests.tiny import make_tokenizer, save_encoder, save_llama


@pytest.fixture(scope="session")
def field_words(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The words of a run whose models are tiny."""
    root = tmp_path_factory.mktemp("field")
    texts = [each.text for each in sample_documents("reviews", "train", size=3000, source="yelp")]
    tokenizer = make_tokenizer(texts, 400)
    encoder = save_encoder(root / "encoder", make_tokenizer(texts, 400))
    models = [f"model={save_llama(root / 'model', tokenizer)}", f"fluency={save_llama(root / 'other', tokenizer, 1)}"]
    return [
        "size=smoke",
        "dtype=float32",
        *models,
        f"judges.encoder={encoder}",
        "task.least_accuracy=0",
        f"output_root={root / 'out'}",
    ]


@pytest.fixture(scope="session")
def bench(field_words: list[str]) -> Bench:
    """Of sentiment."""
    return build_bench(compose(field_words))


@pytest.fixture
def field_root(field_words: list[str]) -> Path:
    """Where runs and parts are kept."""
    return Path(field_words[-1].partition("=")[2]) / "field"

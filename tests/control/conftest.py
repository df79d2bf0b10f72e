"""A tiny random GPT-2 and its tokenizer under short names."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import WORDS, make_model, make_tokenizer

__all__ = ["WORDS", "make_model", "make_tokenizer"]


@pytest.fixture(scope="session")
def tokenizer(word_tokenizer: Any) -> Any:
    """Of a few words."""
    return word_tokenizer


@pytest.fixture(scope="session")
def model(word_model: Any) -> Any:
    """Random, for those words."""
    return word_model

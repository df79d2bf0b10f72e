"""A tiny random GPT-2 and its tokenizer under short names."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="session")
def tokenizer(word_tokenizer: Any) -> Any:
    """Of a few words."""
    return word_tokenizer


@pytest.fixture(scope="session")
def model(word_model: Any) -> Any:
    """Random, for those words."""
    return word_model

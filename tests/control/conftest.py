"""A tiny random GPT-2 with a word tokenizer, made on the spot."""

from __future__ import annotations

from typing import Any

import pytest
import torch

WORDS = ("<end>", "the", "a", "acid", "metal", "war", "began", "in", "1914", "1918", "1939", "good", "bad", ".")


def make_tokenizer(words: tuple[str, ...] = WORDS) -> Any:
    """Return a fast tokenizer of whole words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    engine = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<end>"))
    engine.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=engine, unk_token="<end>", eos_token="<end>", bos_token="<end>")


def make_model(size: int, **options: Any) -> Any:
    """Return a random GPT-2 of one layer with sharp scores, so that greedy choices do not hang on rounding."""
    import transformers

    given = {"n_positions": 64, "n_embd": 16, "n_layer": 1, "n_head": 2} | options
    config = transformers.GPT2Config(vocab_size=size, bos_token_id=0, eos_token_id=0, **given)
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        model.transformer.wte.weight.mul_(20)
    return model


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """Of WORDS."""
    return make_tokenizer()


@pytest.fixture(scope="module")
def model() -> Any:
    """Random, for WORDS."""
    return make_model(len(WORDS))

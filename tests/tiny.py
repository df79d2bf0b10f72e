"""Tiny models of transformers for tests, with random weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from lit_ctg.data.byte_pair import TrainedBPETokenizer
from lit_ctg.data.huggingface_tokenizer import fast_tokenizer

TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


def make_tokenizer(texts: Sequence[str], size: int) -> Any:
    """Return a byte-level BPE tokenizer for transformers, trained on texts."""
    vocabulary = TrainedBPETokenizer(size=size)
    vocabulary.train(texts)
    return fast_tokenizer(vocabulary)[0]


def make_gpt2(size: int, *, layers: int, dim: int, heads: int, positions: int, end: int, seed: int) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(seed)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=size,
            n_positions=positions,
            n_embd=dim,
            n_layer=layers,
            n_head=heads,
            bos_token_id=end,
            eos_token_id=end,
        )
    )


def save_llama(folder: Path, tokenizer: Any, seed: int = 0) -> str:
    """Save a chat model of the Llama architecture."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    end = tokenizer.eos_token_id
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    ids = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end}
    LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes, **ids)).save_pretrained(folder)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return str(folder)


def save_encoder(folder: Path, tokenizer: Any) -> str:
    """Save a sentence encoder of the BERT architecture."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    BertModel(BertConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(folder)
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer.save_pretrained(folder)
    return str(folder)

"""Tokenizers of the Llama family: they put a space before every text, which decoding takes away again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

SPACE = "\u2581"


def llama_tokenizer(texts: Sequence[str], normalised: bool, size: int = 300) -> Any:
    """Return a trained tokenizer of the family.

    Args:
        texts: to train on.
        normalised: the space is put before a text by a normaliser, so that " a" gets two; otherwise by the
            pre-tokenizer, so that " a" and "a" are alike.
        size: of the vocabulary.
    """
    engine = Tokenizer(models.BPE(unk_token="<unk>"))
    if normalised:
        engine.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
        engine.pre_tokenizer = pre_tokenizers.Split(SPACE, "merged_with_next")
        engine.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    else:
        engine.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
        engine.decoder = decoders.Metaspace(prepend_scheme="always")
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=["<unk>", "</s>"], show_progress=False)
    engine.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=engine, eos_token="</s>", unk_token="<unk>")

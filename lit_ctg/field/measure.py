"""Measures of generated texts other than control: fluency, variety, repetition, copying, attribute words.

Shape letters: B texts, T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch

from lit_ctg.control.base import added_ids
from lit_ctg.data.huggingface_tokenizer import HuggingFaceTokenizer
from lit_ctg.data.tokenizer import ids_behind
from lit_ctg.field.task import words_of


def ngrams(words: Sequence[str], order: int) -> list[tuple[str, ...]]:
    """Return the n-grams of a text in order."""
    return [tuple(words[start : start + order]) for start in range(len(words) - order + 1)]


def distinct(texts: Iterable[str], order: int) -> float:
    """Return distinct-n: distinct n-grams divided by all n-grams of all texts (Li et al., 2016); 0 without any."""
    found = [gram for text in texts for gram in ngrams(words_of(text), order)]
    return len(set(found)) / len(found) if found else 0.0


def repetition(text: str, order: int = 3) -> float:
    """Return the share of a text's n-grams that occurred in it before; 0 for a text without any."""
    grams = ngrams(words_of(text), order)
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


class Overlap:
    """The share of a text's n-grams that occur verbatim in a training text."""

    def __init__(self, texts: Iterable[str], order: int = 5) -> None:
        self.order = order
        self.known = {gram for text in texts for gram in ngrams(words_of(text), order)}

    def __call__(self, text: str) -> float:
        """Return the share; 0 for a text shorter than an n-gram."""
        grams = ngrams(words_of(text), self.order)
        return sum(gram in self.known for gram in grams) / len(grams) if grams else 0.0


def word_share(text: str, words: Collection[str]) -> float:
    """Return the share of a text's words that are in a list; 0 for an empty text."""
    own = words_of(text)
    return sum(word in words for word in own) / len(own) if own else 0.0


@torch.no_grad()
def text_cost(
    model: Any, tokenizer: Any, prompts: Sequence[str], texts: Sequence[str], batch: int = 64
) -> list[tuple[float, int]]:
    """Return (nats, tokens) of each continuation after its prompt under a language model.

    The texts are tokenised for this model, whatever wrote them. An empty continuation has (0, 0).

    Args:
        model: a Hugging Face causal language model, in evaluation mode.
    """
    # what the tokenizer puts before a text (Gemma's <bos>), else the end of another text
    start, found = added_ids(tokenizer)[0] or [int(tokenizer.eos_token_id)], []
    longest = int(getattr(model.config, "max_position_embeddings", 1024))
    reader = HuggingFaceTokenizer.of(tokenizer)
    for first in range(0, len(texts), batch):
        rows, kept = [], []
        for prompt, text in zip(prompts[first : first + batch], texts[first : first + batch], strict=True):
            (own,) = ids_behind(reader, prompt, [text])
            rows.append((start + reader.encode(prompt) + own)[-longest:])
            kept.append(len(own))
        width = max(map(len, rows))
        ids_BT = torch.tensor([row + start[-1:] * (width - len(row)) for row in rows])
        log_p_BTV = model(input_ids=ids_BT).logits[:, :-1].float().log_softmax(-1)
        said_BT = log_p_BTV.gather(2, ids_BT[:, 1:].unsqueeze(2)).squeeze(2).double()
        for place, (row, new) in enumerate(zip(rows, kept, strict=True)):
            last = len(row) - 1
            found.append((-float(said_BT[place, max(0, last - new) : last].sum()), min(new, last)))
    return found

"""Perplexity a word: the same cost divided by words instead of tokens, so that tokenizers can be compared.

Shape letters: B rows, T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lit_ctg.core.metric import pick_mask
from lit_ctg.metric.perplexity import Perplexity
from lit_ctg.papers.idea_gate.gated_perplexity import cost

# how many ids are tried to see whether decoding puts blanks between tokens
_TRIED = 50


class WordPerplexity(Perplexity):
    """exp of the total cost divided by the number of words of the targets.

    Words are runs without white space in the targets' text. A token continues a word when the token before it (the
    position's input) does not end in white space and it does not begin with any, so a row that starts inside a word
    counts that word not again. The end-of-text token is no word, its cost counts. Where tokens are words (no blanks
    inside the tokens), every token but the line end is one.

    Args:
        scores: ``"gated"`` or ``"ungated"``, see ``GatedPerplexity``.
    """

    unit = "perplexity a word"

    def __init__(self, *, scores: str, mask: str = "target", **kwargs: Any) -> None:
        super().__init__(mask=mask, **kwargs)
        self.scores = scores
        self.words_V: Tensor | None = None

    def bind(self, datamodule: Any, module: Any = None) -> WordPerplexity:
        """Take the text of every token from the data module's vocabulary."""
        if self.words_V is None:
            vocabulary = datamodule.vocabulary
            texts = token_texts(vocabulary)
            self.words_V = torch.tensor([len(text.split()) for text in texts])
            self.opens_V = torch.tensor([text[:1].isspace() or not text for text in texts])
            self.closes_V = torch.tensor([text[-1:].isspace() or not text for text in texts])
        return self

    def words(self, input_BT: Tensor, target_BT: Tensor) -> Tensor:
        """Return how many words begin in each target, (B, T)."""
        assert self.words_V is not None, "call bind(datamodule) first"
        tables = (self.words_V, self.opens_V, self.closes_V)
        words_V, opens_V, closes_V = (table.to(target_BT.device) for table in tables)
        goes_on_BT = ~opens_V[target_BT] & ~closes_V[input_BT]
        return words_V[target_BT] - goes_on_BT.long()

    def update_from(self, output: Any, batch: Mapping[str, Tensor]) -> None:
        """Add a batch's costs and words."""
        mask_BT = pick_mask(batch, self.mask)
        self.follow(mask_BT)
        words_BT = self.words(batch["input_ids_BT"], batch["target_ids_BT"]).masked_fill(~mask_BT, 0)
        self.add_rows(cost(output, batch, self.scores).sum(1), words_BT.sum(1))


def token_texts(vocabulary: Any) -> list[str]:
    """Return the text of every token, white space included; a special token has none.

    A vocabulary of words, whose ``decode`` puts blanks between tokens, gives every word with a blank before it.
    """
    texts = [vocabulary.decode([number]) for number in range(len(vocabulary))]
    special = {vocabulary.eos_id, vocabulary.bos_id, vocabulary.pad_id}
    # half a character decodes to U+FFFD by itself and to something else with its other half
    whole = [number for number, text in enumerate(texts) if number not in special and "\ufffd" not in text][:_TRIED]
    blank = "" if vocabulary.decode(whole) == "".join(texts[number] for number in whole) else " "
    return ["" if number in special and not text.isspace() else blank + text for number, text in enumerate(texts)]

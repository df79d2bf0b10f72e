"""Which tokens the idea loss leaves out: the authors' list, or the commonest tokens of the training text (sec. 3.3).

Shape letter: V vocabulary.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_ctg.errors import UserError, did_you_mean

RULES = ("authors", "frequent", "none")
# eight words, punctuation and the line end; FACTS names the words and says how many strings there are
AUTHORS = ("the", "The", "and", "to", "of", "a", "in", "is", ",", ".", "-", "(", ")", '"', "'", ":", "\n")


def check_rule(rule: str) -> str:
    """Return ``rule`` when there is one of this name; ``UserError`` otherwise."""
    if rule not in RULES:
        raise UserError(f"model.stopwords={rule!r}{did_you_mean(str(rule), RULES)}: use one of {', '.join(RULES)}")
    return rule


def authors_mask(vocabulary: Any, size: int) -> Tensor:
    """Return [V] bool, True at the authors' strings, alone or after a blank, where each is one token."""
    mask_V = torch.zeros(size, dtype=torch.bool)
    for string in AUTHORS:
        for text in (string, f" {string}"):
            ids = vocabulary.encode(text)
            if len(ids) == 1 and ids[0] != vocabulary.unknown_id:
                mask_V[ids[0]] = True
    return mask_V


def frequent_mask(ids_N: Any, size: int, count: int) -> Tensor:
    """Return [V] bool, True at the ``count`` commonest tokens of a text (ties: the smaller id)."""
    frequency_V = np.bincount(np.asarray(ids_N), minlength=size)
    mask_V = torch.zeros(size, dtype=torch.bool)
    mask_V[torch.from_numpy(np.argsort(-frequency_V, kind="stable")[:count].copy())] = True
    return mask_V

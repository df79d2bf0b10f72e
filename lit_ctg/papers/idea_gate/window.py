"""The future window of each position and the idea loss over it, without a multi-hot target (sec. 3.3).

Shape letters: B rows, T positions, K window, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

PADDING = -1


def future_window(target_ids_BT: Tensor, mask_BT: Tensor | None = None, *, size: int, start: int) -> Tensor:
    """Return the tokens x_{t+start} .. x_{t+start+size-1} that follow each position t, [B, T, K].

    Args:
        target_ids_BT: the text moved by one: at t stands x_{t+1}.
        mask_BT: False where there is no target.
        size: K.
        start: 1 (the paper: the next token is in the window) or more.

    Returns:
        ids, -1 where the row has ended.
    """
    ids_BT = target_ids_BT if mask_BT is None else target_ids_BT.masked_fill(~mask_BT, PADDING)
    padded = F.pad(ids_BT[:, start - 1 :], (0, size + start - 2), value=PADDING)
    return padded.unfold(1, size, 1)[:, : ids_BT.shape[1]]


def distinct(window: Tensor, stopword_mask_V: Tensor | None = None) -> Tensor:
    """Return each window [..., K] with every token once: repetitions and stopwords become -1 (sorted)."""
    tokens = window.sort(dim=-1).values
    again = torch.zeros_like(tokens, dtype=torch.bool)
    again[..., 1:] = tokens[..., 1:] == tokens[..., :-1]
    if stopword_mask_V is not None:
        again |= stopword_mask_V[tokens.clamp(min=0)]
    return tokens.masked_fill(again, PADDING)


def idea_loss(
    idea_logits_BTV: Tensor, window_BTK: Tensor, *, positive_weight: float, stopword_mask: Tensor | None = None
) -> Tensor:
    """Return the weighted binary cross-entropy against the set of tokens in the window, in nats.

    Sum over the vocabulary but for stopwords, mean over positions:
    sum_v softplus(z_v) + sum_{v in window} (positive_weight * softplus(-z_v) - softplus(z_v)).

    Args:
        idea_logits_BTV: of any leading shape.
        window_BTK: token ids, -1 pads; a token that stands twice counts once.
        positive_weight: of tokens in the window.
        stopword_mask: [V] bool, True where a token is left out.
    """
    softplus = F.softplus(idea_logits_BTV)
    everywhere = softplus if stopword_mask is None else softplus.masked_fill(stopword_mask, 0.0)
    ids = distinct(window_BTK, stopword_mask)
    found = idea_logits_BTV.gather(-1, ids.clamp(min=0))
    correction = (positive_weight * F.softplus(-found) - F.softplus(found)).masked_fill(ids == PADDING, 0.0)
    return (everywhere.sum(-1) + correction.sum(-1)).mean()

"""The idea gate, top to bottom: window, idea loss, stopwords, gate, and the heads that predict what comes (sec. 3).

The equations are as in the paper. The model that they make is in ``model.py``.

Shape letters: V vocabulary, T positions, D hidden size, K window.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, cast

import numpy as np
import torch
from annotated_types import Interval
from torch import Tensor, nn
from torch.nn import functional as F

from lit_ctg.data.tokenizer import ids_behind
from lit_ctg.limits import Choice, Positive, checked

EMBEDDING_STD = 0.02  # GPT-2's
PADDING = -1  # in a window, after the end of the row
# scale first, then clamp (Eq. 4 and 5), or clamp first, then scale (the authors' first code)
CLAMPS = ("after_scaling", "before_scaling")
# eight words after a blank, punctuation without one, and the line end: the list in the authors' first code
AUTHORS = (*(f" {word}" for word in ["the", "The", "and", "to", "of", "a", "in", "is"]), *".,:;?!-'\"", "\n")
Bound = Annotated[float, Interval(ge=-math.inf, le=0)]

# the window and its loss ---------------------------------------------------------------------------------------------


def future_window(target_ids_BT: Tensor, mask_BT: Tensor | None = None, *, size: int, start: int) -> Tensor:
    """Return the tokens x_{t+start} .. x_{t+start+size-1} that follow each position t, [B, T, K].

    Args:
        target_ids_BT: the text shifted by one: position t holds x_{t+1}.
        mask_BT: False where there is no target.
        size: K.
        start: 1 (the paper: the window includes the next token) or more.

    Returns:
        ids, -1 where the row has ended.
    """
    ids_BT = target_ids_BT if mask_BT is None else target_ids_BT.masked_fill(~mask_BT, PADDING)
    padded = F.pad(ids_BT[:, start - 1 :], (0, size + start - 2), value=PADDING)
    return padded.unfold(1, size, 1)[:, : ids_BT.shape[1]]


def distinct(window: Tensor, stopword_mask_V: Tensor | None = None) -> Tensor:
    """Return each window [..., K] with every token once, sorted; repetitions and stopwords become -1."""
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

    Sum over the vocabulary except stopwords, mean over positions:
    sum_v softplus(z_v) + sum_{v in window} (positive_weight * softplus(-z_v) - softplus(z_v)).

    Args:
        idea_logits_BTV: of any leading shape.
        window_BTK: token ids, -1 pads; a repeated token counts once.
        positive_weight: of tokens in the window.
        stopword_mask: [V] bool, True where a token is left out.
    """
    softplus = F.softplus(idea_logits_BTV)
    everywhere = softplus if stopword_mask is None else softplus.masked_fill(stopword_mask, 0.0)
    ids = distinct(window_BTK, stopword_mask)
    found = idea_logits_BTV.gather(-1, ids.clamp(min=0))
    correction = (positive_weight * F.softplus(-found) - F.softplus(found)).masked_fill(ids == PADDING, 0.0)
    return (everywhere.sum(-1) + correction.sum(-1)).mean()


# stopwords -----------------------------------------------------------------------------------------------------------


def authors_mask(vocabulary: Any, size: int) -> Tensor:
    """Return [V] bool, True at the authors' strings where they are single tokens (all of them, with GPT-2's)."""
    mask_V = torch.zeros(size, dtype=torch.bool)
    for ids in ids_behind(vocabulary, "a", AUTHORS):
        if len(ids) == 1 and ids[0] != vocabulary.unknown_id:
            mask_V[ids[0]] = True
    return mask_V


def frequent_mask(ids_N: Any, size: int, count: int) -> Tensor:
    """Return [V] bool, True at the ``count`` most frequent tokens of a text (ties: the smaller id)."""
    frequency_V = np.bincount(np.asarray(ids_N), minlength=size)
    mask_V = torch.zeros(size, dtype=torch.bool)
    mask_V[torch.from_numpy(np.argsort(-frequency_V, kind="stable")[:count].copy())] = True
    return mask_V


# the gate ------------------------------------------------------------------------------------------------------------


@checked
@dataclass(frozen=True, kw_only=True)
class GateForm:
    """The fixed form of a gate.

    Attributes:
        clamp: ``after_scaling``: max(alpha * log(p + epsilon), beta), Eq. 4 and 5; ``before_scaling``:
            alpha * max(log(p + epsilon), beta).
        epsilon: keeps the logarithm finite.
    """

    clamp: Annotated[str, Choice(CLAMPS)]
    epsilon: Positive

    def __call__(
        self, idea_logits: Tensor, alpha: float | Tensor, beta: float | Tensor, base_V: Tensor | None = None
    ) -> Tensor:
        """Return the gate, in nats to add to the token logits.

        Without ``base_V`` it is the paper's, never above 0 (except for rounding and epsilon). With it the gate is ours,
        the *lift*: log p minus the logarithm of the token's base rate, bounded by beta below and -beta above, so that a
        token that is as likely as usual is neither raised nor lowered.

        Args:
            idea_logits: [..., V].
            alpha: strength, at least 0; a number or something that broadcasts. 0 gives 0.
            beta: lower bound, at most 0; likewise.
            base_V: logarithm of the idea head's probability of each token without any context.
        """
        log_p = self.log_p(idea_logits, base_V)
        # torch's stubs want two numbers or two tensors; torch accepts one of each
        least, most = cast(Any, beta), cast(Any, None if base_V is None else -beta)
        if self.clamp == "after_scaling":
            return (log_p * alpha).clamp(min=least, max=most)
        return log_p.clamp(min=least, max=most) * alpha

    def log_p(self, idea_logits: Tensor, base_V: Tensor | None = None) -> Tensor:
        """Return log(p + epsilon), minus the logarithm of the base rate if there is one."""
        log_p = (torch.sigmoid(idea_logits) + self.epsilon).log()
        return log_p if base_V is None else log_p - base_V

    def floor(self, alpha: float, beta: float) -> float:
        """Return the value of ``log_p`` below which the gate is flat; alpha > 0."""
        return beta / alpha if self.clamp == "after_scaling" else beta

    def clamped(self, idea_logits: Tensor, alpha: float, beta: float, base_V: Tensor | None = None) -> Tensor:
        """Return where the lower bound is active, bool of the logits' shape; nowhere without strength."""
        if alpha == 0:
            return torch.zeros_like(idea_logits, dtype=torch.bool)
        return self.log_p(idea_logits, base_V) <= self.floor(alpha, beta)


def gated_scores(token_logits: Tensor, gate: Tensor, neutral_V: Tensor | None = None) -> Tensor:
    """Return the token logits with the gate (Eq. 6), [..., V].

    Args:
        token_logits: [..., V].
        gate: likewise.
        neutral_V: ours: True at tokens whose joint probability the gate must not change; the gate then moves
            probability only among the others. The paper's gate raises stopwords: the idea loss does not constrain their
            idea logits, so the token loss raises these, and all other tokens are lowered.
    """
    scores = token_logits + gate
    if neutral_V is None:
        return scores

    # indices: on a CPU a mask over a vocabulary takes four times as long
    ids = neutral_V.nonzero().squeeze(1)
    before, after = (
        logits.index_fill(-1, ids, -torch.inf).logsumexp(-1, keepdim=True) for logits in (token_logits, scores)
    )
    # decoding may have forbidden all of them: there is nothing to move
    shift = torch.where(before.isfinite(), after - before, 0.0)
    return scores.index_copy(-1, ids, token_logits.index_select(-1, ids) + shift)


def base_rates(ids_N: Any, size: int, window: int) -> Tensor:
    """Return for each token the share of the windows of a text that contain it, [V] float64.

    A token at a distance g after its last occurrence (or the start of the text) adds min(g, window) windows.

    Args:
        ids_N: the text.
        size: V.
        window: K.
    """
    ids_N = np.asarray(ids_N)
    order_N = np.argsort(ids_N, kind="stable")
    gap_N = np.diff(order_N, prepend=0)
    first_N = np.diff(ids_N[order_N].astype(np.int64), prepend=-1) != 0
    gap_N[first_N] = order_N[first_N] + 1
    windows_V = np.bincount(ids_N[order_N], weights=np.minimum(gap_N, window), minlength=size)
    return torch.from_numpy(windows_V / max(1, len(ids_N))).clamp_(max=1.0)


# the model -----------------------------------------------------------------------------------------------------------


class IdeaHead(nn.Module):
    """z_idea = W2 relu(W1 h + b1) + b2 (Eq. 2)."""

    def __init__(self, dim: int, size: int) -> None:
        """Build a head from hidden states of size ``dim`` to ``size`` tokens."""
        super().__init__()
        self.inner, self.outer = nn.Linear(dim, dim), nn.Linear(dim, size)
        for layer in (self.inner, self.outer):
            nn.init.normal_(layer.weight, std=EMBEDDING_STD)
            nn.init.zeros_(layer.bias)

    @property
    def weight(self) -> Tensor:
        """The last layer's weight [V, D]."""
        return self.outer.weight

    @property
    def bias(self) -> nn.Parameter:
        """The last layer's bias [V]."""
        return self.outer.bias

    def features(self, hidden: Tensor) -> Tensor:
        """Return the input of the last layer, [..., D]."""
        return torch.relu(self.inner(hidden))

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the idea logits [..., V]."""
        return F.linear(self.features(hidden), self.weight, self.bias)


class LowRankIdeaHead(IdeaHead):
    """z_idea = W (s * h + U relu(W1 h + b1)) + b2 (ours): Eq. 2 with W the token head, neither trained nor kept.

    It has 2 D r + 2 D + r + V numbers in place of D^2 + D V + D + V.

    Attributes:
        token_weight: W [V, D], to be set to that of the model before use.
    """

    def __init__(self, dim: int, size: int, rank: int) -> None:
        """Build a head of rank r; it begins as the bias."""
        nn.Module.__init__(self)
        self.inner, self.back = nn.Linear(dim, rank), nn.Linear(rank, dim, bias=False)
        self.share = nn.Parameter(torch.zeros(dim))
        self.own_bias = nn.Parameter(torch.zeros(size))
        self.token_weight: Tensor | None = None
        nn.init.normal_(self.inner.weight, std=EMBEDDING_STD)
        nn.init.zeros_(self.inner.bias)
        nn.init.zeros_(self.back.weight)

    @property
    def weight(self) -> Tensor:
        """The token head's weight [V, D]."""
        assert self.token_weight is not None, "set token_weight first"
        return self.token_weight

    @property
    def bias(self) -> nn.Parameter:
        """The bias [V]."""
        return self.own_bias

    def features(self, hidden: Tensor) -> Tensor:
        """Return the input of the token head, [..., D]."""
        return self.share * hidden + self.back(torch.relu(self.inner(hidden)))

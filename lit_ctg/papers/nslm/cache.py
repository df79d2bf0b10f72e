"""Neural cache (Grave et al. 2017): words of the recent past, weighted by how alike their hidden states are.

Shape letters: B streams, T positions, D hidden size, W cached positions, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class CacheState:
    """The last positions of every stream: hidden states [B, W, D], the words that followed them [B, W], -1 for none."""

    hidden_BWD: Tensor
    word_BW: Tensor


@dataclass(frozen=True)
class NeuralCache:
    """p_cache(w | h_t) is proportional to the sum over cached i with x_{i+1} = w of exp(temperature * h_t . h_i).

    Attributes:
        window: cached positions (paper: 500).
        weight: of the cache in the mixture (paper: 0.25); a cache with nothing in it has none.
        temperature: factor of the product of hidden states (paper: 0.75), as in Grave et al., eq. 5.
    """

    window: int
    weight: float
    temperature: float

    def start(self, hidden_BTD: Tensor) -> CacheState:
        """Return an empty cache for streams like these."""
        batch, _, dim = hidden_BTD.shape
        empty = hidden_BTD.new_zeros(batch, 0, dim, dtype=torch.float32)
        return CacheState(empty, torch.zeros(batch, 0, dtype=torch.long, device=hidden_BTD.device))

    def attend(self, hidden_BTD: Tensor, word_BT: Tensor, state: CacheState) -> tuple[Tensor, Tensor, CacheState]:
        """Return log weights [B, T, W + T] over the positions, the words there [B, W + T], and the grown cache.

        Args:
            hidden_BTD: states of the stretch.
            word_BT: the words that follow them, -1 where there is none; position t attends to earlier ones only.
            state: cache of what came before.

        Rows with an empty cache hold -inf throughout.
        """
        with torch.autocast(hidden_BTD.device.type, enabled=False):
            hidden_BTD = hidden_BTD.float()
            keys_BXD = torch.cat((state.hidden_BWD, hidden_BTD), 1)
            words_BX = torch.cat((state.word_BW, word_BT), 1)
            score_BTX = self.temperature * (hidden_BTD @ keys_BXD.mT)
        before, length = state.word_BW.shape[1], hidden_BTD.shape[1]
        at_T1 = before + torch.arange(length, device=score_BTX.device).unsqueeze(1)
        key_X = torch.arange(before + length, device=score_BTX.device)
        seen_BTX = (key_X < at_T1) & (key_X >= at_T1 - self.window) & (words_BX >= 0).unsqueeze(1)
        score_BTX = score_BTX.masked_fill(~seen_BTX, -torch.inf)
        total_BT1 = score_BTX.logsumexp(2, keepdim=True)
        log_BTX = torch.where(total_BT1 == -torch.inf, -torch.inf, score_BTX - total_BT1)
        kept = CacheState(keys_BXD[:, -self.window :], words_BX[:, -self.window :])
        return log_BTX, words_BX, kept

    def target(self, hidden_BTD: Tensor, word_BT: Tensor, state: CacheState) -> tuple[Tensor, CacheState]:
        """Return log p_cache of the words themselves [B, T] (NaN: the cache is empty), and the grown cache."""
        log_BTX, words_BX, state = self.attend(hidden_BTD, word_BT, state)
        same_BTX = words_BX.unsqueeze(1) == word_BT.unsqueeze(2)
        log_BT = log_BTX.masked_fill(~same_BTX, -torch.inf).logsumexp(2)
        empty_BT = (log_BTX == -torch.inf).all(2)
        return log_BT.masked_fill(empty_BT, torch.nan), state

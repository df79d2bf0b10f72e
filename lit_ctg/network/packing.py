"""The real tokens of a padded batch: sentences of equal length side by side, without padding.

Shape letters: B sentences, T positions, N real tokens of the batch, L length of the sentences of one group.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# with more distinct sentence lengths in a batch, running them one by one costs more than padding
MAX_GROUPS = 4


@dataclass(frozen=True)
class Packing:
    """The packed order of a batch.

    Attributes:
        shape: (B, T) of the padded batch.
        index_N: place of every packed token in the flattened batch; None when there is no padding.
        groups: (sentences, length) of each run of equally long sentences, in packed order.
        valid_BT: only for batches that stay padded: which keys may be attended to.
    """

    shape: tuple[int, int]
    index_N: Tensor | None
    groups: tuple[tuple[int, int], ...]
    valid_BT: Tensor | None = None

    @classmethod
    def of(cls, valid_BT: Tensor) -> Packing:
        """Pack by a mask of real tokens.

        Sentences are sorted by length. A batch with more than ``MAX_GROUPS`` lengths, or with padding
        anywhere but at the end of sentences, stays as it is and is masked instead.
        """
        sentences, columns = valid_BT.shape
        shape = (sentences, columns)
        if bool(valid_BT.all()):
            return cls(shape, None, (shape,))
        lengths_B = valid_BT.sum(1)
        at_end = torch.equal(torch.arange(columns, device=valid_BT.device) < lengths_B[:, None], valid_BT)
        sorted_B, order_B = lengths_B.sort(stable=True)
        runs = torch.unique_consecutive(sorted_B, return_counts=True)
        lengths, counts = runs[0].tolist(), runs[1].tolist()
        if len(lengths) > MAX_GROUPS or not at_end:
            return cls(shape, None, (shape,), valid_BT)
        places_BT = torch.arange(sentences * columns, device=valid_BT.device).view(sentences, columns)
        index_N = places_BT[order_B][valid_BT[order_B]]
        groups = tuple((count, length) for count, length in zip(counts, lengths, strict=True) if length)
        return cls(shape, index_N, groups)

    def gather(self, values_BT: Tensor) -> Tensor:
        """Return the values of the packed tokens, [N, ...], from [B, T, ...]."""
        flat = values_BT.flatten(0, 1)
        return flat if self.index_N is None else flat.index_select(0, self.index_N)

    def scatter(self, values_N: Tensor) -> Tensor:
        """Put packed values [N, ...] back into [B, T, ...]; zeros at padding."""
        if self.index_N is not None:
            flat = values_N.new_zeros(self.shape[0] * self.shape[1], *values_N.shape[1:])
            return flat.index_copy(0, self.index_N, values_N).unflatten(0, self.shape)
        values_BT = values_N.unflatten(0, self.shape)
        if self.valid_BT is None:
            return values_BT
        return values_BT * self.valid_BT.view(*self.shape, *[1] * (values_BT.ndim - 2))

    def positions(self, device: torch.device) -> Tensor:
        """Return the column of every packed token, [N]."""
        column_T = torch.arange(self.shape[1], device=device)
        return self.gather(column_T.expand(self.shape))

    def split(self, values_N: Tensor) -> tuple[Tensor, ...]:
        """Return views of packed values, one per group."""
        return values_N.split([count * length for count, length in self.groups])

    def forbidden(self, causal: bool, device: torch.device) -> list[Tensor | None]:
        """Return for each group which (query, key) pairs are masked, as [B, L, L] or [L, L], or None."""
        masks: list[Tensor | None] = []
        for _, length in self.groups:
            mask = torch.ones(length, length, dtype=torch.bool, device=device).triu(1) if causal else None
            if self.valid_BT is not None:
                # padding sees itself, so that no row is empty
                own = torch.eye(length, dtype=torch.bool, device=device)
                padding = ~(self.valid_BT[:, None, :] | own)
                mask = padding if mask is None else padding | mask
            masks.append(mask)
        return masks

"""Perplexity over positions whose target was seen in training (semantic fusion, Appendix B)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from lit_ctg.errors import UserError
from lit_ctg.metric.perplexity import Perplexity


class SeenOnlyPerplexity(Perplexity):
    """Perplexity without positions whose *target* is a held-out token; NaN when none is left (Appendix B, note ii).

    The input is not filtered (note iii): a held-out word may stand before a counted position.

    Args:
        held_out_ids: the held-out token ids; left out, ``bind`` takes them from the data module.
        mask: as for ``Perplexity``.
    """

    def __init__(self, *, held_out_ids: Iterable[int] | None = None, mask: str = "target", **kwargs: Any) -> None:
        super().__init__(mask=mask, **kwargs)
        self.held_out_ids = None if held_out_ids is None else tuple(int(i) for i in held_out_ids)
        self._ids_given = held_out_ids is not None

    def bind(self, datamodule: Any, module: Any = None) -> SeenOnlyPerplexity:
        """Take ``held_out_ids`` from the data module, unless they were given to the constructor."""
        if not self._ids_given:
            if not hasattr(datamodule, "held_out_ids"):
                raise UserError(
                    f"metric SeenOnlyPerplexity: {type(datamodule).__name__} holds no tokens out (no held_out_ids); "
                    "leave the metric out or give it held_out_ids"
                )
            self.held_out_ids = tuple(int(i) for i in datamodule.held_out_ids)
        return self

    def keep(self, target_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """Return the masked positions whose target is not held out.

        Raises:
            UserError: neither the constructor nor ``bind`` gave the ids.
        """
        if self.held_out_ids is None:
            raise UserError("metric SeenOnlyPerplexity: held_out_ids unknown; pass them or call bind(datamodule) first")
        return mask_BT & ~torch.isin(target_BT, target_BT.new_tensor(self.held_out_ids))

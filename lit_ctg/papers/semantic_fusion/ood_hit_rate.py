"""How often a controlled generation picks a word that training never showed (semantic fusion, Table 4)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from lit_ctg.core.metric import RateMetric
from lit_ctg.errors import UserError


class OodHitRate(RateMetric):
    """Share of controlled generations whose adjective is held out (Appendix A, Metrics), with its Wilson interval.

    Much of it is the sampler's doing: its uniform share alone gives about .58 / .41 under the paper's settings with
    a model that gives held-out words nothing. So neither direction is better. A held-out adjective of the *wrong*
    class counts too; give only the asked class's ids to count that class alone.

    Args:
        held_out_ids: ids that are hits; left out, ``bind`` takes all held-out ids of the data module.
    """

    direction = "none"

    def __init__(self, *, held_out_ids: Iterable[int] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.held_out_ids = None if held_out_ids is None else tuple(int(i) for i in held_out_ids)
        self._ids_given = held_out_ids is not None

    def bind(self, datamodule: Any, module: Any = None) -> OodHitRate:
        """Take ``held_out_ids`` from the data module, unless they were given to the constructor."""
        if not self._ids_given:
            self.held_out_ids = tuple(int(i) for i in datamodule.held_out_ids)
        return self

    def update(self, adjective_ids_N: Tensor | Sequence[int]) -> None:
        """Add N generations: the id of the adjective each realized, or -1 where none was (a trial without a hit).

        Raises:
            UserError: neither the constructor nor ``bind`` gave the held-out ids.
        """
        if self.held_out_ids is None:
            raise UserError("metric OodHitRate: held_out_ids unknown; pass them or call bind(datamodule) first")
        ids_N = torch.as_tensor(adjective_ids_N, dtype=torch.long, device=self.device)
        self.add_trials(torch.isin(ids_N, ids_N.new_tensor(self.held_out_ids)))

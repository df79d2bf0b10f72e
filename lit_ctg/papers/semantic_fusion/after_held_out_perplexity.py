"""Perplexity where it matters whether a model knows what an unseen word means: after one was read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from lit_ctg.core.metric import pick_mask
from lit_ctg.papers.semantic_fusion.seen_only_perplexity import SeenOnlyPerplexity


class AfterHeldOutPerplexity(SeenOnlyPerplexity):
    """Seen-only perplexity over the positions whose prefix holds a held-out token (that position's input included).

    Seen-only perplexity spreads the effect of an unseen word over all positions; here only those count that come after
    one. NaN when no sentence holds one.
    """

    def update_from(self, output: Any, batch: Mapping[str, Tensor]) -> None:
        """Take the scores, the targets and the mask narrowed to what follows a held-out token."""
        ids_BT = batch["input_ids_BT"]
        held_out = ids_BT.new_tensor(self.held_out_ids or ())
        after_BT = (ids_BT.unsqueeze(-1) == held_out).any(-1).cummax(dim=1).values
        self.update(output.scores_BTV, batch["target_ids_BT"], pick_mask(batch, self.mask) & after_BT)

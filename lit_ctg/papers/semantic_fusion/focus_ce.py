"""Cross-entropy at the positions where a given token is the target (semantic fusion, Table 6)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from lit_ctg.core.metric import RatioMetric, pick_mask, token_nll
from lit_ctg.core.result import MetricResult
from lit_ctg.errors import UserError, did_you_mean


class FocusCE(RatioMetric):
    """Mean cross-entropy in nats for each focus token, over the positions where it is the target (Appendix A, Metrics).

    ``compute`` and ``result`` give a dict keyed by token; NaN with ``n`` 0 for one that is never a target.

    Args:
        tokens: the focus tokens.
        token_ids: their ids in the same order; left out, ``bind`` takes them from the data module's vocabulary.
        mask: as for ``Perplexity``; both count the same positions unless pad is a focus token.

    Raises:
        UserError: no token, a token twice, or as many ids as tokens are not given.
    """

    unit = "nats"
    direction = "lower"

    def __init__(
        self,
        *,
        tokens: Iterable[str],
        token_ids: Iterable[int] | None = None,
        mask: str = "target",
        **kwargs: Any,
    ) -> None:
        names = tuple(str(token) for token in tokens)
        if not names or len(set(names)) != len(names):
            raise UserError(f"metric FocusCE: tokens must be one or more different tokens, got {list(names)}")
        super().__init__(mask=mask, groups=len(names), **kwargs)
        self.tokens = names
        self.token_ids = None if token_ids is None else tuple(int(i) for i in token_ids)
        self._ids_given = token_ids is not None
        if self.token_ids is not None and len(self.token_ids) != len(self.tokens):
            raise UserError(f"metric FocusCE: {len(self.tokens)} tokens but {len(self.token_ids)} token_ids")

    def bind(self, datamodule: Any, module: Any = None) -> FocusCE:
        """Look the tokens up in ``datamodule.vocabulary``, unless ids were given to the constructor.

        Raises:
            UserError: a token is not in the vocabulary.
        """
        if not self._ids_given:
            vocabulary = datamodule.vocabulary
            for token in self.tokens:
                if token not in vocabulary.tokens:
                    raise UserError(
                        f"metric FocusCE: token '{token}' is not in the vocabulary"
                        f"{did_you_mean(token, vocabulary.tokens)}"
                    )
            self.token_ids = tuple(vocabulary.id(token) for token in self.tokens)
        return self

    def update(self, scores_BTV: Tensor, target_BT: Tensor, mask_BT: Tensor) -> None:
        """Add sentences: scores (logits or log-probabilities), target ids, and True where a position counts."""
        if self.token_ids is None:
            raise UserError("metric FocusCE: token ids unknown; pass token_ids or call bind(datamodule) first")
        self.follow(scores_BTV)
        is_focus_BTK = (target_BT.unsqueeze(-1) == target_BT.new_tensor(self.token_ids)) & mask_BT.unsqueeze(-1)
        nll_BT = token_nll(scores_BTV, target_BT, is_focus_BTK.any(-1))
        is_focus_BTK = is_focus_BTK.to(nll_BT.device)
        # not a product: an infinite nll of one token times 0 would be NaN for the others
        nll_BTK = torch.where(is_focus_BTK, nll_BT.unsqueeze(-1), 0.0)
        self.add_rows(nll_BTK.sum(1), is_focus_BTK.sum(1))

    def update_from(self, output: Any, batch: Mapping[str, Tensor]) -> None:
        """Read ``output.scores_BTV`` and the batch's targets and mask."""
        self.update(output.scores_BTV, batch["target_ids_BT"], pick_mask(batch, self.mask))

    def compute(self) -> dict[str, Tensor]:
        """Return token -> mean cross-entropy in nats, float64, ()."""
        return dict(zip(self.tokens, self.ratio().unbind(), strict=True))

    def _result(self) -> dict[str, MetricResult]:
        rows = zip(self.tokens, self.ratio().tolist(), self.count.tolist(), self.intervals(), strict=True)
        return {
            token: MetricResult(value, self.unit, self.direction, int(n), ci95, self.version)
            for token, value, n, ci95 in rows
        }

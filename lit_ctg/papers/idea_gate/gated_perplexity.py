"""Validation cost of a gated model with its gate and without: nats and perplexity over the full split.

Shape letters: B rows, T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from lit_ctg.core.metric import pick_mask, token_nll
from lit_ctg.core.result import MetricResult
from lit_ctg.metric.perplexity import Perplexity

GATED, UNGATED = "gated", "ungated"


def has_gate(output: Any) -> bool:
    """Return whether a model's output has a gate that could be left out."""
    return output.extras.get("idea_logits") is not None


def cost(output: Any, batch: Mapping[str, Tensor], which: str) -> Tensor:
    """Return the negative log-probability of each counted target in nats, float64 (B, T).

    Computed once a batch and kept in ``output.extras``: several metrics read it, and over 50,257 tokens it is most of
    what a validation costs.

    Args:
        output: a model's output; ``extras["token_logits"]`` are the scores before the gate (idea gate, Eq. 1).
        batch: with targets and their mask.
        which: ``"gated"`` (the model's scores) or ``"ungated"``.
    """
    # without a gate both are one
    ungated = which == UNGATED and has_gate(output)
    key = f"{UNGATED if ungated else GATED}_nll_BT"
    if key not in output.extras:
        scores_BTV = output.extras["token_logits"] if ungated else output.scores_BTV
        output.extras[key] = token_nll(scores_BTV, batch["target_ids_BT"], batch["mask_target_BT"])
    return output.extras[key]


class GatedPerplexity(Perplexity):
    """Mean cost in nats (``loss``) and its exp (``perplexity``) of one pair of scores, over counted targets.

    Args:
        scores: ``"gated"``, what the model is trained and evaluated with, or ``"ungated"``: the token head alone, the
            gate left out at inference. A model without a gate has the same numbers for both.
    """

    def __init__(self, *, scores: str, mask: str = "target", **kwargs: Any) -> None:
        super().__init__(mask=mask, **kwargs)
        self.scores = scores

    def update_from(self, output: Any, batch: Mapping[str, Tensor]) -> None:
        """Add a batch's costs."""
        mask_BT = pick_mask(batch, self.mask)
        self.follow(mask_BT)
        self.add_rows(cost(output, batch, self.scores).sum(1), mask_BT.sum(1))

    def _result(self) -> dict[str, MetricResult]:
        (interval,) = self.intervals()
        nats = MetricResult(float(self.ratio()), "nats", "lower", int(self.count), interval, self.version)
        perplexity = super()._result()
        return {"loss": nats, "perplexity": perplexity}

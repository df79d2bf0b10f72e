"""Next-token perplexity: one sum of float64 log-probabilities over the corpus, one division, one exp."""

from __future__ import annotations

from torch import Tensor

from lit_ctg.core.metric import TokenLoss


class Perplexity(TokenLoss):
    """exp of the mean cross-entropy over counted positions, without label smoothing (Appendix A, Metrics).

    NaN where no position was counted; infinite where the model gives a target zero probability. The interval is by the
    delta method over sentences, on the log scale. ``mask``: see ``RatioMetric``.
    """

    unit = "perplexity"

    def transform(self, nats: Tensor) -> Tensor:
        """Return exp(nats)."""
        return nats.exp()

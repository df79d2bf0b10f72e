"""Cross-entropy of the next token: what the control-code paper plots as "loss" (sec. 4.4, Figures 3 to 5)."""

from __future__ import annotations

from torch import Tensor

from lit_ctg.metric.perplexity import Perplexity


class CrossEntropy(Perplexity):
    """Mean cross-entropy of the counted positions in nats; masks, NaN rule and interval as for ``Perplexity``."""

    unit = "nats"

    def transform(self, nats: Tensor) -> Tensor:
        """Return nats."""
        return nats

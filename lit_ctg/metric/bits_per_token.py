"""Bits per token: the base-2 logarithm of the perplexity, comparable with an entropy floor in bits."""

from __future__ import annotations

import math

from torch import Tensor

from lit_ctg.metric.perplexity import Perplexity


class BitsPerToken(Perplexity):
    """Mean cross-entropy of the counted positions in bits; masks, NaN rule and interval as for ``Perplexity``."""

    unit = "bits/token"

    def transform(self, nats: Tensor) -> Tensor:
        """Convert nats to bits."""
        return nats / math.log(2)

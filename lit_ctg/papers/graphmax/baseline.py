"""What graphmax is compared with (sec. 5.1): softmax and sparsemax, as functions of the logits.

Kernelised Bayesian softmax, the third baseline, has several sense vectors a word inside the language model, so it is no
function of the logits: see ``bayesian.py``.
"""

from __future__ import annotations

import entmax
from torch import Tensor


def softmax(logits_BV: Tensor) -> Tensor:
    """Return ``argmin -<x,z> + <x, log x>`` on the simplex (Eq. 1 and 2)."""
    return logits_BV.softmax(dim=-1)


def sparsemax(logits_BV: Tensor) -> Tensor:
    """Return the Euclidean projection of the logits on the simplex (Martins & Astudillo 2016), exact."""
    shifted_BV = logits_BV - logits_BV.amax(dim=-1, keepdim=True)
    # the support lies within 1 of the largest entry, so what is cut here gets 0 either way, and -inf does no harm
    return entmax.sparsemax(shifted_BV.clamp(min=-2), dim=-1)

"""What graphmax is compared with (sec. 5.1): softmax and sparsemax, as functions of the logits.

Kernelised Bayesian softmax is not here: neither the paper nor our specification defines the variant that was run (it
needs several sense embeddings a word inside the language model, so it is no function of the logits).
"""

from __future__ import annotations

import torch
from torch import Tensor

from lit_ctg.model.graphmax.simplex import project_on_simplex


def softmax(logits_BV: Tensor) -> Tensor:
    """Return ``argmin -<x,z> + <x, log x>`` on the simplex (Eq. 1 and 2)."""
    return logits_BV.softmax(dim=-1)


def sparsemax(logits_BV: Tensor) -> Tensor:
    """Return the Euclidean projection of the logits on the simplex (Martins & Astudillo 2016), exact."""
    shifted_BV = logits_BV - logits_BV.amax(dim=-1, keepdim=True)
    # the support lies within 1 of the largest entry, so what is cut here gets 0 either way
    return project_on_simplex(shifted_BV.clamp(min=-2))


class Sparsemax(torch.nn.Module):
    """:func:`sparsemax` as a layer."""

    def forward(self, logits_BV: Tensor) -> Tensor:
        """Return the probabilities, ``[B, V]``."""
        return sparsemax(logits_BV)

"""Kernelised Bayesian softmax (Miao et al. 2019), a baseline of Fig. 5: an output layer with several senses a word.

The paper names the layer and no settings. Here every word has the same fixed number of senses, each with its own
variance; the original moves senses from words that do not need them to words that do. Shape suffixes: N positions,
D hidden size, V vocabulary, M senses a word.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lit_ctg.errors import UserError


class KernelBayesianSoftmax(nn.Module):
    """``p(w | h) = sum_m exp K(h, e_wm) / sum over all senses``, with a kernel that is wider for a larger theta.

    ``K(h, e) = |h| |e| a (exp(-theta cos(h, e)) - 1)`` with ``a = -theta / (2 (exp(-theta) + theta - 1))``; as theta
    tends to 0 it is the inner product, so one sense a word and theta 0 is softmax.

    Args:
        vocab_size, dim: V and D.
        senses: M.
        theta: initial value of every sense's theta, above 0.
        std: of the initial sense vectors.
    """

    def __init__(self, vocab_size: int, dim: int, *, senses: int = 2, theta: float = 0.1, std: float = 0.02):
        super().__init__()
        if senses < 1 or theta <= 0:
            raise UserError(f"a kernelised Bayesian softmax needs senses >= 1 and theta > 0, not {senses} and {theta}")
        self.vocab_size, self.senses = vocab_size, senses
        self.sense_MVD = nn.Parameter(torch.randn(senses, vocab_size, dim) * std)
        # theta = exp of this, so that it stays above 0
        self.log_theta_MV = nn.Parameter(torch.full((senses, vocab_size), theta).log())

    def forward(self, hidden_ND: Tensor) -> Tensor:
        """Return log-probabilities ``[N, V]``."""
        score_NV = torch.logsumexp(torch.stack([self._kernel(hidden_ND, m) for m in range(self.senses)]), dim=0)
        return score_NV.log_softmax(dim=-1)

    def _kernel(self, hidden_ND: Tensor, m: int) -> Tensor:
        theta_V = self.log_theta_MV[m].exp()
        # the denominator is theta^2 / 2 next to 0: float32 would lose it
        wide_V = theta_V.double()
        a_V = (-wide_V / (2 * (torch.expm1(-wide_V) + wide_V))).to(theta_V)
        sense_VD = self.sense_MVD[m]
        cosine_NV = F.normalize(hidden_ND, dim=-1) @ F.normalize(sense_VD, dim=-1).T
        length_NV = hidden_ND.norm(dim=-1, keepdim=True) * sense_VD.norm(dim=-1)
        return length_NV * a_V * torch.expm1(-theta_V * cosine_NV)

"""Euclidean projection on the probability simplex (Eq. 6 and 7), with the sort that is right and the one printed.

Shape suffixes: B rows, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

SORTS = ("descending", "ascending")


def project_on_simplex(a_BV: Tensor, sort: str = "descending") -> Tensor:
    """Return ``max(a + gamma, 0)`` of each row, gamma from the sorted entries b as in steps 4 to 7 of Algorithm 1.

    Args:
        a_BV: any finite rows.
        sort: ``descending`` gives the projection; ``ascending`` is what sec. 3.2 prints (``b_1 <= ... <= b_N``), whose
            output does not sum to 1.
    """
    b_BV = a_BV.sort(dim=-1, descending=sort == "descending").values
    rank_V = torch.arange(1, a_BV.shape[-1] + 1, dtype=a_BV.dtype, device=a_BV.device)
    gamma_BV = (1 - b_BV.cumsum(dim=-1)) / rank_V
    # k: the last rank at which b + gamma is positive (the first always is, as it gives 1)
    k_B1 = ((b_BV + gamma_BV > 0) * rank_V).amax(dim=-1, keepdim=True).long() - 1
    return (a_BV + gamma_BV.gather(-1, k_B1.clamp(min=0))).clamp(min=0)

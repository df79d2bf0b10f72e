"""Algorithm 1 of the paper: projected gradient descent from x = 0, with every choice explicit.

It does not compute graphmax (see docs/papers/graphmax.md); it is here so that its output can be compared. Shape
suffixes: B rows, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from lit_ctg.errors import UserError
from lit_ctg.limits import Choice, Count, NonNegative, Positive, checked
from lit_ctg.papers.graphmax.graph import GraphOperator
from lit_ctg.papers.graphmax.model_step import duality_gap
from lit_ctg.papers.graphmax.solver import Solution

# Euclidean projection on the probability simplex (Eq. 6 and 7), with the correct sort and the printed one.


SORTS = ("descending", "ascending")


def project_on_simplex(a_BV: Tensor, sort: str = "descending") -> Tensor:
    """Return ``max(a + gamma, 0)`` of each row, gamma from the sorted entries b as in steps 4 to 7 of Algorithm 1.

    Args:
        sort: ``descending`` gives the projection; ``ascending`` is what sec. 3.2 prints (``b_1 <= ... <= b_N``), whose
            output does not sum to 1.
    """
    b_BV = a_BV.sort(dim=-1, descending=sort == "descending").values
    rank_V = torch.arange(1, a_BV.shape[-1] + 1, dtype=a_BV.dtype, device=a_BV.device)
    gamma_BV = (1 - b_BV.cumsum(dim=-1)) / rank_V
    # k: the last rank at which b + gamma is positive (the first always is, as it gives 1)
    k_B1 = ((b_BV + gamma_BV > 0) * rank_V).amax(dim=-1, keepdim=True).long() - 1
    return (a_BV + gamma_BV.gather(-1, k_B1.clamp(min=0))).clamp(min=0)


# Algorithm 1.


def check_runs(published: AlgorithmOne | None, where: str, *, needed: bool = False) -> None:
    """Refuse the printed log 0 in a run, which would end in NaN once a text is drawn.

    Raises:
        UserError: ``log_floor`` is 0, or there is no Algorithm 1 and it is needed.
    """
    if needed if published is None else published.log_floor == 0:
        raise UserError(
            f"{where}.log_floor: give Algorithm 1 its numbers (sec. 4.1), with a log_floor above 0, such as 1e-12; as "
            "printed the first step is infinite and no row becomes a distribution"
        )


@checked
@dataclass(frozen=True, kw_only=True)
class AlgorithmOne:
    """The published solver.

    Attributes:
        step_size: alpha (sec. 4.1: 1e-4).
        steps: T, the maximum number of steps (sec. 4.1: 20).
        threshold: stop a row when ``||x_{t+1} - x_t||_2`` is below this (sec. 4.1: 1e-4).
        sort: ``descending`` (a projection) or ``ascending`` (as printed, sec. 3.2).
        log_floor: ``log max(x, log_floor)`` in the gradient; 0 is as printed, where x = 0 gives an infinite step.
    """

    step_size: Positive
    steps: Count
    threshold: NonNegative
    sort: Annotated[str, Choice(SORTS)]
    log_floor: NonNegative

    def solve(self, operator: GraphOperator, logits_BV: Tensor, strength_B1: Tensor) -> Solution:
        """Run Algorithm 1 on each row. The gap is NaN where the output is not a distribution."""
        x_BV = torch.zeros_like(logits_BV)
        open_B1 = torch.ones_like(strength_B1, dtype=torch.bool).expand(len(x_BV), 1)
        iterations_B = torch.zeros(len(x_BV), dtype=torch.long, device=x_BV.device)
        for _ in range(self.steps):
            gradient_BV = (
                -logits_BV + x_BV.clamp(min=self.log_floor).log() + 1 + 2 * strength_B1 * operator.product(x_BV)
            )
            new_BV = project_on_simplex(x_BV - self.step_size * gradient_BV, self.sort)
            moved_B1 = (new_BV - x_BV).norm(dim=-1, keepdim=True)
            x_BV = torch.where(open_B1, new_BV, x_BV)
            iterations_B += open_B1[:, 0]
            open_B1 = open_B1 & ~(moved_B1 < self.threshold)
            if not open_B1.any():
                break
        log_x_BV, wide_BV = x_BV.log(), x_BV.double() / x_BV.double().sum(dim=-1, keepdim=True)
        y_BV = logits_BV.double() - 2 * strength_B1.double() * operator.product(wide_BV)
        sums_to_one_B = (x_BV.sum(dim=-1) - 1).abs() < 1e-3
        gap_B = duality_gap(wide_BV.log(), y_BV).masked_fill(~sums_to_one_B, float("nan"))
        return Solution(log_x_BV, gap_B, iterations_B, iterations_B + 1)

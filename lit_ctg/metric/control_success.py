"""How often a controlled generation does what was asked, and how much more often than without control."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lit_ctg.core.metric import RateMetric
from lit_ctg.core.result import MetricResult
from lit_ctg.statistics import newcombe_interval


class ControlSuccess(RateMetric):
    """Share of generations that realize the control (Appendix A, Metrics; Table 2), with its Wilson interval.

    A generation that cannot be judged (it reached no adjective) is a failed trial: pass False for it.
    """

    def update(self, success_N: Tensor | Sequence[bool]) -> None:
        """Add N generations: True where the control was realized.

        Raises:
            TypeError: the values are not booleans (a probability is not a success).
        """
        success_N = torch.as_tensor(success_N, device=self.device)
        if success_N.dtype != torch.bool and success_N.numel():
            raise TypeError(f"success must be boolean, got {success_N.dtype}")
        self.add_trials(success_N)


@dataclass(frozen=True)
class ControlComparison:
    """Control-on rate, its control-off base rate, and the difference (on minus off) with Newcombe's interval."""

    success: MetricResult
    base: MetricResult
    difference: MetricResult


def against_base(success: RateMetric, base: RateMetric) -> ControlComparison:
    """Compare a rate under control with the base rate of the same event with the control off.

    The two must come from different generations. ``difference.n`` is the smaller number of trials; its value is NaN and
    its interval ``None`` when either has none.
    """
    hits, trials = success.counts()
    base_hits, base_trials = base.counts()
    ours, off = success.number(), base.number()
    interval = newcombe_interval(hits, trials, base_hits, base_trials)
    difference = MetricResult(
        ours.value - off.value, "rate difference", "higher", min(trials, base_trials), interval, success.version
    )
    return ControlComparison(ours, off, difference)

"""Mean squared error of the auxiliary head's features, and of the best constant guess beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from lit_ctg.core.metric import BatchMetric, RatioMetric, checked_mask, float64, pick_mask
from lit_ctg.core.result import MetricResult
from lit_ctg.errors import UserError


class SemanticMSE(RatioMetric):
    """Mean over counted positions and features of (predicted - true membership)^2 (Appendix A, Metrics).

    Reads ``output.extras["aux_BTF"]`` (after the sigmoid) and ``output.extras["aux_target_BTF"]``. The mask is the
    input's as published: features belong to input tokens. NaN where nothing was counted; the interval is the delta
    method's over sentences.

    Raises:
        UserError: the model has no auxiliary head.
    """

    unit = "squared membership"
    direction = "lower"

    def __init__(self, *, mask: str = "input", **kwargs: Any) -> None:
        super().__init__(mask=mask, **kwargs)

    def update(self, aux_BTF: Tensor, target_BTF: Tensor, mask_BT: Tensor) -> None:
        """Add sentences: predicted and true memberships, and True where a position counts."""
        if aux_BTF.shape != target_BTF.shape or mask_BT.shape != target_BTF.shape[:-1]:
            shapes = [tuple(tensor.shape) for tensor in (aux_BTF, target_BTF, mask_BT)]
            raise ValueError("predicted {}, true {} and mask {} do not fit".format(*shapes))
        self.follow(aux_BTF)
        self.add_rows(*_squared_error(aux_BTF, target_BTF, mask_BT))

    def update_from(self, output: Any, batch: Mapping[str, Tensor]) -> None:
        """Read the head's output and its target from ``output.extras``."""
        aux_BTF, target_BTF = (_extra(self, output, key) for key in ("aux_BTF", "aux_target_BTF"))
        self.update(aux_BTF, target_BTF, pick_mask(batch, self.mask))

    def compute(self) -> Tensor:
        """Return the mean squared error, float64, ()."""
        return self.ratio()

    def _result(self) -> MetricResult:
        (ci95,) = self.intervals()
        value = float(self.ratio())
        return MetricResult(value, self.unit, self.direction, int(self.count), ci95, self.version)


class SemanticMSEConstant(BatchMetric):
    """The error ``SemanticMSE`` has for the best constant guess: each feature's own mean over the same positions.

    It equals the mean of the features' variances. A head must beat it before its error says anything.

    Args:
        num_features: F, the number of features.
        mask: as for ``SemanticMSE``.
    """

    unit = "squared membership"
    direction = "none"

    def __init__(self, *, num_features: int, mask: str = "input", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.mask = checked_mask(self, mask)
        self.num_features = num_features
        self.add_sum("positions")
        self.add_sum("sum_F", (num_features,))
        self.add_sum("sum_sq_F", (num_features,))

    def update(self, target_BTF: Tensor, mask_BT: Tensor) -> None:
        """Add sentences: true memberships, and True where a position counts."""
        if target_BTF.shape[-1] != self.num_features:
            raise UserError(
                f"metric SemanticMSEConstant: num_features is {self.num_features}, "
                f"but the auxiliary target has {target_BTF.shape[-1]} features"
            )
        self.follow(target_BTF)
        counted_PF = float64(target_BTF[mask_BT])
        self.add(positions=mask_BT.sum(), sum_F=counted_PF.sum(0), sum_sq_F=counted_PF.square().sum(0))

    def update_from(self, output: Any, batch: Mapping[str, Tensor]) -> None:
        """Read the auxiliary target from ``output.extras``."""
        self.update(_extra(self, output, "aux_target_BTF"), pick_mask(batch, self.mask))

    def compute(self) -> Tensor:
        """Return the mean over features of their variance (over positions, not sample-corrected), float64, ()."""
        return _mean_variance(self.positions, self.sum_F, self.sum_sq_F)

    def _result(self) -> MetricResult:
        value = float(_mean_variance(self.positions, self.sum_F, self.sum_sq_F))
        return MetricResult(value, self.unit, self.direction, int(self.positions), None, self.version)


def _extra(metric: BatchMetric, output: Any, key: str) -> Tensor:
    if key not in output.extras:
        raise UserError(
            f"metric {type(metric).__name__}: the model gives no '{key}' (no auxiliary head); leave this metric out"
        )
    return output.extras[key]


def _squared_error(aux_BTF: Tensor, target_BTF: Tensor, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
    error_BT = (float64(aux_BTF) - float64(target_BTF)).square().mean(-1)
    mask_BT = mask_BT.to(error_BT.device)
    return error_BT.masked_fill(~mask_BT, 0.0).sum(1), mask_BT.sum(1)


def _mean_variance(positions: Tensor, sum_F: Tensor, sum_sq_F: Tensor) -> Tensor:
    # rounding may leave a constant feature a tiny negative variance
    return (sum_sq_F / positions - (sum_F / positions).square()).clamp(min=0).mean()

"""What a metric passes to the run record: plain Python values, no tensors."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Direction = Literal["lower", "higher", "none"]


@dataclass(frozen=True)
class MetricResult:
    """One measured number.

    Attributes:
        value: the number; NaN where the metric is undefined (nothing to measure, then ``n`` is 0).
        unit: what it counts, e.g. ``"nats"`` or ``"rate"``.
        direction: whether ``"lower"`` or ``"higher"`` is better, or ``"none"``.
        n: number of observations behind it (positions, trials).
        ci95: 95% interval, or ``None`` where there is none.
        version: incremented when the metric's definition changes, so that old records are not compared with new ones.
    """

    value: float
    unit: str
    direction: Direction
    n: int
    ci95: tuple[float, float] | None
    version: int

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of ``run.json``; the interval becomes a list, as JSON has no tuples."""
        return asdict(self) | {"ci95": None if self.ci95 is None else list(self.ci95)}

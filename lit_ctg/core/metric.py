"""What all metrics share: float64 sums that add up over batches and processes, divided once at the end.

Shape suffixes: B sentences, T positions, V vocabulary, F features, K groups (focus tokens), N trials.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torchmetrics import Metric

from lit_ctg.core.result import Direction, MetricResult
from lit_ctg.figure import Bar, BarGroup, Chart, Line, bar_chart, line_chart
from lit_ctg.limits import Checked, Whole
from lit_ctg.statistics import Interval, ratio_interval, wilson_interval

Mask = Literal["target", "input"]

# scores converted to float64 at a time: 4 M of them are 32 MB, whatever the vocabulary
_CHUNK = 1 << 22


class LitMetric(Checked, Metric):
    """A ``torchmetrics.Metric`` with this package's conventions.

    States are float64 sums with ``dist_reduce_fx="sum"`` and stay float64 under every ``.to``, ``.half`` and
    ``set_dtype``. Subclasses declare states with ``add_sum``, feed them with ``add``, and give ``update``,
    ``compute`` and ``_result``.

    Class attributes: ``unit``, ``direction`` (sets ``higher_is_better``), ``version``.
    """

    unit: ClassVar[str]
    direction: ClassVar[Direction]
    version: ClassVar[int] = 1
    is_differentiable = False
    full_state_update = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if hasattr(cls, "direction"):
            cls.higher_is_better = {"lower": False, "higher": True, "none": None}[cls.direction]

    def bind(self, datamodule: Any, module: Any = None) -> LitMetric:
        """Take what the metric needs from the set-up data module or the model; return the metric itself.

        Called once, before the first ``update``. Most metrics need nothing.
        """
        return self

    def result(self) -> MetricResult | dict[str, MetricResult]:
        """Return plain numbers with unit, count and interval, over all processes.

        In a distributed run every process must call it, as for ``compute``.
        """
        with self.merged():
            return self._result()

    def number(self) -> MetricResult:
        """Return the result of a metric that has one number."""
        result = self.result()
        assert isinstance(result, MetricResult), f"{type(self).__name__} has several numbers"
        return result

    def named(self) -> dict[str, MetricResult]:
        """Return the results by name; a single number is named after the metric."""
        result = self.result()
        return result if isinstance(result, dict) else {type(self).__name__: result}

    @contextmanager
    def merged(self) -> Iterator[None]:
        """Context in which the states hold the sums over all processes, ``compute`` included."""
        should_sync, before = self.sync_on_compute and not self._is_synced, (self._to_sync, self._should_unsync)
        # what an outer context has merged it also takes apart
        with self.sync_context(dist_sync_fn=self.dist_sync_fn, should_sync=should_sync, should_unsync=should_sync):
            self._to_sync = self._should_unsync = False
            try:
                yield
            finally:
                self._to_sync, self._should_unsync = before

    @abstractmethod
    def _result(self) -> MetricResult | dict[str, MetricResult]:
        """Turn the (already merged) states into results."""

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Draw the metric on ``ax``, by default on a new figure of pyplot; return matplotlib's figure and axes.

        Args:
            val: what ``compute`` returned, or a list of what it returned at successive moments, drawn as lines; by
                default the current ``result`` is drawn with its 95% intervals.
        """
        return self.chart(val).on(ax)

    def chart(self, val: Any = None) -> Chart:
        name = type(self).__name__
        if isinstance(val, list | tuple):
            return _history(val, name, self.unit)
        if val is None:
            groups = [
                BarGroup(f"{each} (n = {r.n:,})", [Bar("series0", r.value, r.ci95)]) for each, r in self.named().items()
            ]
        else:
            groups = [BarGroup(each, [Bar("series0", value)]) for each, value in _numbers(val, name).items()]
        return bar_chart(name, groups, measure=self.unit)

    def merge_state(self, incoming_state: dict[str, Any] | Metric) -> None:
        """Add another metric's sums to this one's, e.g. from processes that ran separately."""
        super().merge_state(incoming_state)
        # torchmetrics keeps the old cached value and the old "never updated" flag
        self._computed = None
        self._update_count += incoming_state._update_count if isinstance(incoming_state, Metric) else 1

    def add_sum(self, name: str, shape: tuple[int, ...] = ()) -> None:
        """Declare a float64 state that starts at zero and is summed over processes."""
        self.add_state(name, torch.zeros(shape, dtype=torch.float64), dist_reduce_fx="sum")

    def add(self, **increments: Tensor) -> None:
        """Add to the named states; not in place, because a state made in inference mode cannot be changed in place."""
        for name, increment in increments.items():
            state = getattr(self, name)
            setattr(self, name, state + float64(increment).to(state))

    def follow(self, tensor: Tensor) -> None:
        """Move the states to the device of ``tensor``, unless they are there; MPS has no float64, so they stay put."""
        if tensor.device != self.device and tensor.device.type != "mps":
            self.to(tensor.device)

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> LitMetric:
        def move_only(tensor: Tensor) -> Tensor:
            if tensor.dtype != torch.float64:
                return fn(tensor)
            target = fn(torch.zeros(0, device=tensor.device))
            return tensor if target.device.type == "mps" else tensor.to(target.device)

        super()._apply(move_only, exclude_state)
        return self


class BatchMetric(LitMetric):
    """A metric of a language model's output on a batch; the metric callback feeds it."""

    @abstractmethod
    def update_from(self, output: Any, batch: Mapping[str, Tensor]) -> None:
        """Take what ``update`` needs from a model's ``LMOutput`` and its batch, and call ``update``."""


class RatioMetric(BatchMetric):
    """A corpus ratio: a sum over positions divided once by their number, or K such ratios side by side.

    Besides the two sums it keeps their second moments over sentences, for the delta-method interval. That interval
    treats sentences as independent and the weights as fixed: it does not cover what another seed would have learned.

    Args:
        mask: which positions count: ``"target"`` (target is not pad) or ``"input"`` (input is not pad; the authors'
            choice, which also counts the pad target after ``<eos>``).
        groups: number of ratios K; ``None`` for a single one.
    """

    _SUMS = ("total", "count", "total_sq", "cross", "count_sq", "rows")
    total: Tensor
    count: Tensor
    total_sq: Tensor
    cross: Tensor
    count_sq: Tensor
    rows: Tensor

    def __init__(self, *, mask: Mask, groups: Whole | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.mask = mask
        for name in self._SUMS:
            self.add_sum(name, () if groups is None else (groups,))

    def add_rows(self, total_B: Tensor, count_B: Tensor) -> None:
        """Add sentences: per sentence (B,) or (B, K) the sum and the number of positions behind it."""
        total_B, count_B = float64(total_B), float64(count_B)
        self.add(
            total=total_B.sum(0),
            count=count_B.sum(0),
            total_sq=total_B.square().sum(0),
            cross=(total_B * count_B).sum(0),
            count_sq=count_B.square().sum(0),
            rows=(count_B > 0).sum(0),
        )

    def ratio(self) -> Tensor:
        """Return sum divided by count, float64, () or (K,); NaN where nothing was counted."""
        return self.total / self.count

    def compute(self) -> Any:
        """Return the ratio, float64, () or (K,)."""
        return self.ratio()

    def results(self, *names: str) -> dict[str, MetricResult]:
        values, counts = self.ratio().reshape(-1).tolist(), self.count.reshape(-1).tolist()
        return {
            name: MetricResult(value, self.unit, self.direction, int(n), ci95, self.version)
            for name, value, n, ci95 in zip(names, values, counts, self.intervals(), strict=True)
        }

    def _result(self) -> MetricResult | dict[str, MetricResult]:
        return self.results("")[""]

    def intervals(self) -> list[Interval | None]:
        """Return the 95% interval of each ratio (a list of one for a single ratio)."""
        sums = torch.stack([getattr(self, name).reshape(-1) for name in self._SUMS], dim=1).tolist()
        return [
            ratio_interval(total=t, count=c, total_sq=tt, cross=tc, count_sq=cc, rows=int(rows))
            for t, c, tt, tc, cc, rows in sums
        ]


class TokenLoss(RatioMetric):
    """Mean cross-entropy in nats over counted positions, without label smoothing; NaN where none was counted."""

    unit = "nats"
    direction: ClassVar[Direction] = "lower"

    def __init__(self, *, mask: Mask = "target", **kwargs: Any) -> None:
        super().__init__(mask=mask, **kwargs)

    def update(self, scores_BTV: Tensor, target_BT: Tensor, mask_BT: Tensor) -> None:
        """Add sentences: scores (logits or log-probabilities), target ids, and True where a position counts."""
        self.follow(scores_BTV)
        counted_BT = self.keep(target_BT, mask_BT)
        self.add_rows(token_nll(scores_BTV, target_BT, counted_BT).sum(1), counted_BT.sum(1))

    def update_from(self, output: Any, batch: Mapping[str, Tensor]) -> None:
        """Read ``output.scores_BTV`` and the batch's targets and mask."""
        self.update(output.scores_BTV, batch["target_ids_BT"], pick_mask(batch, self.mask))

    def keep(self, target_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """Return which of the masked positions count: here, all of them."""
        return mask_BT

    def compute(self) -> Tensor:
        """Return the loss in the reported unit, float64, ()."""
        return self.transform(self.ratio())

    def transform(self, nats: Tensor) -> Tensor:
        """Convert a mean cross-entropy in nats to the reported unit: here, nats."""
        return nats

    def _result(self) -> MetricResult | dict[str, MetricResult]:
        (nats,) = self.intervals()
        ci95 = None
        if nats is not None:
            low, high = self.transform(torch.tensor(nats, dtype=torch.float64)).tolist()
            ci95 = (low, high) if math.isfinite(high) else None
        value = float(self.transform(self.ratio()))
        return MetricResult(value, self.unit, self.direction, int(self.count), ci95, self.version)


class RateMetric(LitMetric):
    """A share of trials, with its Wilson interval; NaN before the first trial."""

    unit = "rate"
    direction: ClassVar[Direction] = "higher"
    hits: Tensor
    trials: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_sum("hits")
        self.add_sum("trials")

    def add_trials(self, hit_N: Tensor) -> None:
        """Add N trials, each a hit (True) or not."""
        self.add(hits=hit_N.sum(), trials=torch.tensor(hit_N.numel()))

    def compute(self) -> Tensor:
        """Return hits / trials, float64, ()."""
        return self.hits / self.trials

    def counts(self) -> tuple[int, int]:
        """Return (hits, trials) over all processes."""
        with self.merged():
            return int(self.hits), int(self.trials)

    def _result(self) -> MetricResult:
        hits, trials = int(self.hits), int(self.trials)
        rate = hits / trials if trials else float("nan")
        return MetricResult(rate, self.unit, self.direction, trials, wilson_interval(hits, trials), self.version)


def pick_mask(batch: Mapping[str, Tensor], mask: str) -> Tensor:
    return batch[f"mask_{mask}_BT"]


def float64(tensor: Tensor) -> Tensor:
    """Return the tensor in float64, on its own device or, since MPS has no float64, on the CPU."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()


def token_nll(scores_BTV: Tensor, target_BT: Tensor, mask_BT: Tensor, chunk: int = _CHUNK) -> Tensor:
    """Return the negative log-probability of each target in nats, float64 (B, T); 0 where masked out.

    ``scores_BTV`` are logits or normalised log-probabilities of any float type; they become float64 before the
    log-softmax, so nothing overflows and normalised scores are unchanged. Masked-out positions are never read:
    their targets may be any number and their scores NaN.

    Args:
        chunk: number of scores held in float64 at a time.

    Raises:
        ValueError: shapes do not fit, or a counted target is outside the vocabulary.
    """
    if scores_BTV.shape[:-1] != target_BT.shape or target_BT.shape != mask_BT.shape:
        shapes = [tuple(tensor.shape) for tensor in (scores_BTV, target_BT, mask_BT)]
        raise ValueError("scores {}, targets {} and mask {} do not fit".format(*shapes))
    vocabulary = scores_BTV.shape[-1]
    if scores_BTV.device.type == "mps":  # see ``float64``
        scores_BTV, target_BT, mask_BT = scores_BTV.cpu(), target_BT.cpu(), mask_BT.cpu()
    rows_PV, targets_P = scores_BTV.reshape(-1, vocabulary), target_BT.reshape(-1)
    counted_P = mask_BT.reshape(-1).nonzero().squeeze(1)
    chosen_P = targets_P[counted_P]
    if chosen_P.numel() and not 0 <= int(chosen_P.min()) <= int(chosen_P.max()) < vocabulary:
        raise ValueError(f"a counted target is outside the {vocabulary} scores of the vocabulary")
    nll_P = torch.zeros(targets_P.shape, dtype=torch.float64, device=rows_PV.device)
    for index in counted_P.split(max(1, chunk // vocabulary)):
        scores_PV = rows_PV[index].double()
        nll_P[index] = scores_PV.logsumexp(dim=-1) - scores_PV.gather(1, targets_P[index].unsqueeze(1)).squeeze(1)
    return nll_P.reshape(target_BT.shape)


def _numbers(val: Any, name: str) -> dict[str, float]:
    """Return a value of ``compute`` as numbers by name; several without a name are numbered."""
    if isinstance(val, Mapping):
        return {str(each): float(value) for each, value in val.items()}
    flat = torch.as_tensor(val).reshape(-1).tolist()
    return {name: flat[0]} if len(flat) == 1 else {f"{name} {number}": value for number, value in enumerate(flat)}


def _history(values: Sequence[Any], title: str, unit: str) -> Chart:
    points = [_numbers(value, title) for value in values]
    lines = []
    for number, name in enumerate(dict.fromkeys(name for point in points for name in point)):
        line = [(float(step), point[name]) for step, point in enumerate(points) if name in point]
        lines.append(Line(f"series{number % 6}", line, name=name))
    return line_chart(title, lines, x="step", y=unit)

"""Metrics of semantic fusion (Appendix A, Metrics; Appendix B): perplexities, focus tokens, features, controls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import torch
from annotated_types import MinLen
from torch import Tensor

from lit_ctg.core.metric import BatchMetric, LitMetric, Mask, RateMetric, RatioMetric, float64, pick_mask, token_nll
from lit_ctg.core.result import MetricResult
from lit_ctg.errors import UserError, refuse
from lit_ctg.figure import Chart, heat_map
from lit_ctg.limits import Count
from lit_ctg.metric.perplexity import Perplexity
from lit_ctg.papers.semantic_fusion.model import FusionOutput

# perplexity of words seen in training, and after unseen ones (Appendix B) ------------------------------------


class HeldOutTokens(LitMetric):
    """A metric that needs the held-out token ids.

    Args:
        held_out_ids: by default ``bind`` takes them from the data module.
    """

    def __init__(self, *, held_out_ids: Iterable[int] | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._given = held_out_ids is not None
        self.held_out_ids = tuple(int(i) for i in held_out_ids or ())

    def bind(self, datamodule: Any, module: Any = None) -> Any:
        """Take ``held_out_ids`` from the data module, unless they were given to the constructor.

        Raises:
            UserError: the data module holds no tokens out.
        """
        if not self._given:
            if not hasattr(datamodule, "held_out_ids"):
                raise UserError(
                    f"metric {type(self).__name__}: {type(datamodule).__name__} holds no tokens out (no held_out_ids); "
                    "leave the metric out or give it held_out_ids"
                )
            self.held_out_ids = tuple(int(i) for i in datamodule.held_out_ids)
        return self


class SeenOnlyPerplexity(HeldOutTokens, Perplexity):
    """Perplexity without positions whose *target* is a held-out token; NaN if none is left (Appendix B, note ii).

    The input is not filtered (note iii): a held-out word may precede a counted position.
    """

    def keep(self, target_BT: Tensor, mask_BT: Tensor) -> Tensor:
        """Return the masked positions whose target is not held out."""
        return mask_BT & ~torch.isin(target_BT, target_BT.new_tensor(self.held_out_ids))


class AfterHeldOutPerplexity(SeenOnlyPerplexity):
    """Seen-only perplexity over the positions whose prefix (including the position's input) has a held-out token.

    Seen-only perplexity spreads the effect of an unseen word over all positions; here only those after one count. NaN
    if no sentence has one.
    """

    def update_from(self, output: Any, batch: Mapping[str, Tensor]) -> None:
        """Take the scores, the targets and the mask restricted to positions after a held-out token."""
        ids_BT = batch["input_ids_BT"]
        held_out = ids_BT.new_tensor(self.held_out_ids)
        after_BT = (ids_BT.unsqueeze(-1) == held_out).any(-1).cummax(dim=1).values
        self.update(output.scores_BTV, batch["target_ids_BT"], pick_mask(batch, self.mask) & after_BT)


class BarePerplexity(Perplexity):
    """Perplexity of the model of text without its feature channel: of a frozen model, its own.

    Raises:
        UserError: ``bind`` to a model that has no such scores.
    """

    bare: Any = None

    def bind(self, datamodule: Any, module: Any = None) -> BarePerplexity:
        """Take the model's scores without its channel."""
        self.bare = getattr(module, "bare_scores", None)
        refuse({"metric BarePerplexity is of a TextFusionModule: leave it out": self.bare is None})
        return self

    def update_from(self, output: Any, batch: Mapping[str, Tensor]) -> None:
        """Score the batch once more, without features."""
        self.update(self.bare(batch["input_ids_BT"]), batch["target_ids_BT"], pick_mask(batch, self.mask))


# cross-entropy of single words (Table 6) ------------------------------------------------------------------------------


class FocusCE(RatioMetric):
    """Mean cross-entropy in nats for each focus token, over the positions where it is the target (Appendix A, Metrics).

    ``compute`` and ``result`` give a dict keyed by token; NaN with ``n`` 0 for one that is never a target.

    Args:
        token_ids: their ids in the same order; by default ``bind`` takes them from the data module's vocabulary.
        mask: as for ``Perplexity``; both count the same positions unless pad is a focus token.

    Raises:
        ValueError: not as many ids as tokens.
    """

    unit = "nats"
    direction = "lower"

    def __init__(
        self,
        *,
        tokens: Annotated[Sequence[str], MinLen(1)],
        token_ids: Iterable[int] | None = None,
        mask: Mask = "target",
        **kwargs: Any,
    ) -> None:
        self.tokens = tuple(dict.fromkeys(tokens))
        super().__init__(mask=mask, groups=len(self.tokens), **kwargs)
        self.token_ids = None if token_ids is None else tuple(int(i) for i in token_ids)
        if self.token_ids is not None:
            dict(zip(self.tokens, self.token_ids, strict=True))
        self._ids_given = token_ids is not None

    def bind(self, datamodule: Any, module: Any = None) -> FocusCE:
        """Look the tokens up in ``datamodule.vocabulary``, unless ids were given; it refuses unknown ones."""
        if not self._ids_given:
            self.token_ids = tuple(datamodule.vocabulary.id(token) for token in self.tokens)
        return self

    def update(self, scores_BTV: Tensor, target_BT: Tensor, mask_BT: Tensor) -> None:
        """Add sentences: scores (logits or log-probabilities), target ids, and True where a position counts."""
        assert self.token_ids is not None, "pass token_ids or call bind(datamodule) first"
        self.follow(scores_BTV)
        is_focus_BTK = (target_BT.unsqueeze(-1) == target_BT.new_tensor(self.token_ids)) & mask_BT.unsqueeze(-1)
        nll_BT = token_nll(scores_BTV, target_BT, is_focus_BTK.any(-1))
        is_focus_BTK = is_focus_BTK.to(nll_BT.device)
        # no product: an infinite nll of one token times 0 would be NaN for the others
        nll_BTK = torch.where(is_focus_BTK, nll_BT.unsqueeze(-1), 0.0)
        self.add_rows(nll_BTK.sum(1), is_focus_BTK.sum(1))

    def update_from(self, output: Any, batch: Mapping[str, Tensor]) -> None:
        self.update(output.scores_BTV, batch["target_ids_BT"], pick_mask(batch, self.mask))

    def compute(self) -> dict[str, Tensor]:
        """Return token -> mean cross-entropy in nats, float64, ()."""
        return dict(zip(self.tokens, self.ratio().unbind(), strict=True))

    def _result(self) -> dict[str, MetricResult]:
        return self.results(*self.tokens)


# the auxiliary head (Appendix A, Metrics) -----------------------------------------------------------------------------


class SemanticMSE(RatioMetric):
    """Mean over counted positions and features of (predicted - true membership)^2 (Appendix A, Metrics).

    Reads ``aux_BTF`` (after the sigmoid) and ``aux_target_BTF`` of a ``FusionOutput``. The mask is the input's as
    published: features belong to input tokens. NaN where nothing was counted; the interval is the delta method's over
    sentences.

    Raises:
        UserError: the model has no auxiliary head.
    """

    unit = "squared membership"
    direction = "lower"

    def __init__(self, *, mask: Mask = "input", **kwargs: Any) -> None:
        super().__init__(mask=mask, **kwargs)

    def update(self, aux_BTF: Tensor, target_BTF: Tensor, mask_BT: Tensor) -> None:
        """Add sentences: predicted and true memberships, and True where a position counts."""
        if aux_BTF.shape != target_BTF.shape or mask_BT.shape != target_BTF.shape[:-1]:
            shapes = [tuple(tensor.shape) for tensor in (aux_BTF, target_BTF, mask_BT)]
            raise ValueError("predicted {}, true {} and mask {} do not fit".format(*shapes))
        self.follow(aux_BTF)
        error_BT = (float64(aux_BTF) - float64(target_BTF)).square().mean(-1)
        mask_BT = mask_BT.to(error_BT.device)
        self.add_rows(error_BT.masked_fill(~mask_BT, 0.0).sum(1), mask_BT.sum(1))

    def update_from(self, output: Any, batch: Mapping[str, Tensor]) -> None:
        fused = _fused(self, output)
        self.update(fused.aux_BTF, fused.aux_target_BTF, pick_mask(batch, self.mask))


class SemanticMSEConstant(BatchMetric):
    """The error ``SemanticMSE`` has for the best constant guess: each feature's own mean over the same positions.

    It equals the mean of the features' variances. A head's error is meaningful only if it is lower.

    Args:
        num_features: F, the number of features.
    """

    unit = "squared membership"
    direction = "none"
    positions: Tensor
    sum_F: Tensor
    sum_sq_F: Tensor

    def __init__(self, *, num_features: Count, mask: Mask = "input", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.mask = mask
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
        self.update(_fused(self, output).aux_target_BTF, pick_mask(batch, self.mask))

    def compute(self) -> Tensor:
        """Return the mean over features of their variance (over positions, not sample-corrected), float64, ()."""
        return self._variance()

    def _variance(self) -> Tensor:
        # rounding may leave a constant feature a tiny negative variance
        return (self.sum_sq_F / self.positions - (self.sum_F / self.positions).square()).clamp(min=0).mean()

    def _result(self) -> MetricResult:
        value = float(self._variance())
        return MetricResult(value, self.unit, self.direction, int(self.positions), None, self.version)


def _fused(metric: BatchMetric, output: Any) -> FusionOutput:
    if not isinstance(output, FusionOutput):
        raise UserError(f"metric {type(metric).__name__}: the model has no auxiliary head; leave this metric out")
    return output


# requested and realized controls (Tables 3 and 4) --------------------------------------------------------------

CLASSES = ("positive", "negative", "other")


class PolarityConfusion(LitMetric):
    """Counts of (intended, realized) polarity over positive, negative and other: rows intended, columns realized.

    ``result`` gives a dict keyed ``"<intended>/<realized>"`` with all nine counts; ``n`` is the row's number of trials.
    """

    unit = "count"
    direction = "none"
    counts_33: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_sum("counts_33", (3, 3))

    def update(self, intended_N: Tensor | Sequence[int], realized_N: Tensor | Sequence[int]) -> None:
        """Add N generations as class numbers (places in ``CLASSES``).

        Raises:
            ValueError: lengths differ or a class number is not 0, 1 or 2.
        """
        intended_N = torch.as_tensor(intended_N, dtype=torch.long, device=self.device)
        realized_N = torch.as_tensor(realized_N, dtype=torch.long, device=self.device)
        if intended_N.shape != realized_N.shape:
            raise ValueError(f"{intended_N.numel()} intended but {realized_N.numel()} realized polarities")
        both = torch.cat([intended_N, realized_N])
        if both.numel() and not 0 <= int(both.min()) <= int(both.max()) < len(CLASSES):
            raise ValueError(f"polarity classes are 0, 1, 2 ({', '.join(CLASSES)}), got {sorted(set(both.tolist()))}")
        self.add(counts_33=torch.bincount(3 * intended_N + realized_N, minlength=9).reshape(3, 3))

    def compute(self) -> Tensor:
        """Return the counts, float64 (3, 3), rows intended."""
        return self.counts_33

    def _result(self) -> dict[str, MetricResult]:
        return {
            f"{intended}/{realized}": MetricResult(count, self.unit, self.direction, int(sum(row)), None, self.version)
            for intended, row in zip(CLASSES, self.counts_33.tolist(), strict=True)
            for realized, count in zip(CLASSES, row, strict=True)
        }

    def chart(self, val: Any = None) -> Chart:
        """Return the counts as a matrix: the current ones, those given, or the last of a list."""
        last = self.compute() if val is None else val[-1] if isinstance(val, list | tuple) else val
        counts_33 = torch.as_tensor(last).tolist()
        counts = {(row, column): counts_33[i][j] for i, row in enumerate(CLASSES) for j, column in enumerate(CLASSES)}
        return heat_map(type(self).__name__, CLASSES, CLASSES, counts, x="realized", y="intended", kind="series0")


class OodHitRate(HeldOutTokens, RateMetric):
    """Share of controlled generations whose adjective is held out (Appendix A, Metrics), with its Wilson interval.

    Much of it is due to the sampler: its uniform share alone gives about .58 / .41 under the paper's settings with a
    model that gives held-out words no mass. So neither direction is better. A held-out adjective of the *wrong* class
    also counts; pass only the ids of the requested class to count that class alone.
    """

    direction = "none"

    def update(self, adjective_ids_N: Tensor | Sequence[int]) -> None:
        """Add N generations: the id of the adjective each realized, or -1 where none was (a trial without a hit)."""
        ids_N = torch.as_tensor(adjective_ids_N, dtype=torch.long, device=self.device)
        self.add_trials(torch.isin(ids_N, ids_N.new_tensor(self.held_out_ids)))

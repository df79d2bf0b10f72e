"""Does a model look ahead? The probe changes later tokens at random and watches the scores of earlier positions.

It works on any LightningModule whose ``forward(batch)`` gives scores for every position, ours or not.
Shape letters: B sentences, T positions, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from lightning import Callback, LightningModule, Trainer
from torch import Tensor

from lit_ctg.core.divergence import REMEDY, Diverged
from lit_ctg.core.generation import evaluating
from lit_ctg.core.result import MetricResult
from lit_ctg.errors import UserError
from lit_ctg.limits import Checked, Count, NonNegative, Whole

Batch = Mapping[str, Tensor]
Transform = Callable[[Tensor, Tensor], Mapping[str, Tensor]]
POSITIONS = 2048  # that the callback probes at a time: their scores are all in memory


class ProbeResult(NamedTuple):
    """What the probe found.

    Attributes:
        is_causal: no earlier score moved by more than rounding.
        max_change: largest absolute change of a score at a position before the first changed token; NaN where a score
            is not a number.
    """

    is_causal: bool
    max_change: float
    n: int


@torch.no_grad()
def probe(
    forward: Callable[[Batch], Any],
    batch: Batch,
    *,
    transform: Transform | None = None,
    pad_id: int | None = None,
    trials: int = 4,
    seed: int = 0,
    tolerance: float = 1e-4,
) -> ProbeResult:
    """Compare the scores at positions 0 .. t before and after the tokens following t are changed.

    Each sentence has its own t in every trial. Later tokens are redrawn from the whole vocabulary; with ``pad_id``,
    every other sentence is cut off after t instead, which reveals a dependence on the length.

    Args:
        forward: the model in evaluation mode; gives an LMOutput, anything with ``logits``, or the scores [B, T, V].
        batch: ``input_ids_BT`` and ``target_ids_BT`` (the same, shifted by one), ``mask_input_BT`` and
            ``mask_target_BT`` where there is padding, and anything else that ``forward`` needs.
        transform: ``(ids [B, T + 1], lengths_B) -> tensors [B, T + 1, ...]`` that made entries of the batch from its
        ids: they are recomputed from the changed ids, so that a leak through features is also found.
        trials: how many times to change tokens.
        seed: of the changes; no other random state is read or advanced.
        tolerance: largest change attributed to rounding, as a share of the largest score (or of 1, if larger).
    """
    generator = torch.Generator().manual_seed(seed)
    ids_BT, real_BT = _whole(batch)
    before_BTV = _scores(forward(batch))
    finite = before_BTV[before_BTV.isfinite()]
    scale = max(1.0, float(finite.abs().max()) if finite.numel() else 0.0)
    largest, compared = 0.0, 0
    for trial in range(trials):
        last_B1 = _last_unchanged(real_BT, generator)
        column_T = torch.arange(ids_BT.shape[1], device=ids_BT.device)
        drawn_BT = torch.randint(before_BTV.shape[-1], ids_BT.shape, generator=generator).to(ids_BT.device)
        if pad_id is not None:
            drawn_BT = torch.where(drawn_BT == pad_id, ids_BT, drawn_BT)
            drawn_BT[trial % 2 :: 2] = pad_id
        changed_BT = torch.where((column_T > last_B1) & real_BT, drawn_BT, ids_BT)
        after_BTV = _scores(forward(_rebuild(batch, changed_BT, real_BT, pad_id, transform)))
        kept_BT = (column_T[:-1] <= last_B1) & real_BT[:, :-1]
        before, after = before_BTV[kept_BT], after_BTV[kept_BT]
        # equal infinities are not a change; their difference would be NaN
        change = torch.where(before == after, 0.0, (after - before).abs())
        largest = max(largest, float(change.max())) if not change.isnan().any() else math.nan
        compared += int(kept_BT.sum())
    return ProbeResult(largest <= tolerance * scale, largest, compared)


class CausalityProbe(Checked, Callback):
    """Probe a model before its first training step and after every validation.

    ``results`` holds ``probe/causal`` (1 or 0) and ``probe/max_change`` (in units of the scores), which are logged too.

    Raises:
        UserError: the model says ``causal = True`` and is not.
        Diverged: a score is not a number.
    """

    def __init__(self, *, trials: Count = 4, seed: Whole = 0, tolerance: NonNegative = 1e-4) -> None:
        super().__init__()
        self.options: dict[str, Any] = {"trials": trials, "seed": seed, "tolerance": tolerance}
        self.results: dict[str, dict[str, Any]] = {}
        self._batch: Batch | None = None
        self._begun = False

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begun = False

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Probe once, so that a leak is found before hours of training."""
        if not self._begun:
            self._begun = True
            self.run(pl_module, batch)

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._batch = None

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, *_: Any, **__: Any
    ) -> None:
        self._batch = batch if self._batch is None else self._batch

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Probe the trained weights and log the result."""
        if self._batch is None:
            return
        found = self.run(pl_module, self._batch)
        pl_module.log_dict({"probe/causal": float(found.is_causal), "probe/max_change": found.max_change})

    def run(self, module: LightningModule, batch: Batch) -> ProbeResult:
        """Probe ``module`` on ``batch`` and keep the result."""
        with evaluating(module):
            found = probe(
                module,
                _few(batch),
                transform=getattr(module, "corpus_transform", None),
                pad_id=getattr(getattr(module, "vocabulary", None), "pad_id", None),
                **self.options,
            )
        for name, value in (("causal", float(found.is_causal)), ("max_change", found.max_change)):
            unit = "truth value" if name == "causal" else "score"
            self.results[f"probe/{name}"] = MetricResult(value, unit, "none", found.n, None, 1).to_dict()
        if math.isnan(found.max_change):
            raise Diverged(f"{type(module).__name__} gives scores that are no numbers: {REMEDY}")
        if getattr(module, "causal", False) and not found.is_causal:
            raise UserError(
                f"{type(module).__name__} says causal=True, but changing later tokens moves earlier scores by up to "
                f"{found.max_change:.3g}: fix its attention mask or its features, or set causal to False"
            )
        return found


def _scores(output: Any) -> Tensor:
    """Return the scores [B, T, V] in a model's output."""
    for name in ("scores_BTV", "logits"):
        if hasattr(output, name):
            return getattr(output, name)
    if isinstance(output, Tensor):
        return output
    raise UserError(
        f"the causality probe needs scores_BTV, logits or a tensor from forward, not {type(output).__name__}"
    )


def _few(batch: Batch) -> Batch:
    """Return the first rows of a batch, at least one, with no more than ``POSITIONS`` positions."""
    rows, columns = batch["input_ids_BT"].shape
    few = max(1, POSITIONS // columns)
    if few >= rows:
        return batch
    return {name: value[:few] if value.ndim and len(value) == rows else value for name, value in batch.items()}


def _whole(batch: Batch) -> tuple[Tensor, Tensor]:
    """Return whole sentences [B, T + 1] (input and last target), and which of their tokens are real."""
    ids_BT = torch.cat((batch["input_ids_BT"], batch["target_ids_BT"][:, -1:]), dim=1)
    if "mask_input_BT" not in batch:
        return ids_BT, torch.ones_like(ids_BT, dtype=torch.bool)
    return ids_BT, torch.cat((batch["mask_input_BT"], batch["mask_target_BT"][:, -1:]), dim=1)


def _last_unchanged(real_BT: Tensor, generator: torch.Generator) -> Tensor:
    """Draw for each sentence the last position that stays, [B, 1], with at least one real token after it."""
    choices_B1 = (real_BT.sum(1, keepdim=True) - 1).clamp(min=1)
    drawn_B1 = torch.rand(len(real_BT), 1, generator=generator).to(real_BT.device)
    return (drawn_B1 * choices_B1).long().clamp(max=choices_B1 - 1)


def _rebuild(
    batch: Batch, ids_BT: Tensor, real_BT: Tensor, pad_id: int | None, transform: Transform | None
) -> dict[str, Tensor]:
    """Return the batch as the data module would have made it from other sentences of the same width."""
    real_BT = real_BT if pad_id is None else ids_BT != pad_id
    rebuilt = {**batch, "input_ids_BT": ids_BT[:, :-1], "target_ids_BT": ids_BT[:, 1:]}
    if "mask_input_BT" in batch:
        rebuilt |= {"mask_input_BT": real_BT[:, :-1], "mask_target_BT": real_BT[:, 1:]}
    if transform is not None:
        columns = ids_BT.shape[1]
        for name, made in transform(ids_BT, real_BT.sum(1)).items():
            per_position = made.ndim > 1 and made.shape[1] == columns
            rebuilt[name] = made[:, :-1] if per_position else made
    return rebuilt

"""What the language models of all five papers share: their output, their training loop, their optimiser.

Shape letters: B sentences, T positions, V vocabulary, D hidden size, N sentences of a corpus.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import lightning
import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from lit_ctg.core.batch import Batch, datamodule_of
from lit_ctg.core.build import from_checkpoint, link
from lit_ctg.core.checkpoint import FORMAT, KEY
from lit_ctg.core.metric import token_nll
from lit_ctg.core.metric_callback import MetricCallback, ModelMetrics
from lit_ctg.limits import Checked, Fraction, NonNegative, checked


@dataclass
class LMOutput:
    """What ``forward(batch)`` of a language model returns.

    Attributes:
        scores_BTV: logits or normalised log-probabilities of the token after each position (softmax leaves
            the latter unchanged, so metrics take both). Zeros where the batch holds padding.
        hidden_BTD: the states the scores were read from.

    A model that returns more uses a subclass with its own fields; only its paper's metrics and
    callbacks read them.
    """

    scores_BTV: Tensor
    hidden_BTD: Tensor


class LitLanguageModel(Checked, lightning.LightningModule, abc.ABC):
    """A LightningModule whose forward gives an LMOutput; ``core/metric_callback.py`` updates metrics from it.

    Subclasses give ``forward``, ``losses`` and ``configure_optimizers``, and set ``causal`` and ``learning_rate``. A
    model whose inputs need more than token ids may define ``corpus_transform(ids_NT, lengths_N) -> dict[str, Tensor]``:
    the data module calls it once for the whole corpus and cuts the results ([N, T, ...]) into batches like the ids.

    Attributes:
        hparams: the arguments of the constructor that are plain values.
        learning_rate: peak rate; ``configure_optimizers`` reads it, so that ``lr_find`` may set it.
        metrics: name -> metric, for a Trainer without a ``MetricCallback``.
        composed: the configuration and the corpus's checksums, which checkpoints hold; empty without a configuration.
    """

    causal: bool = True
    learning_rate: float
    metrics: Mapping[str, Any] = {}
    composed: Mapping[str, Mapping[str, Any]] = {"config": {}, "corpus": {}}

    def note_arguments(self, arguments: Mapping[str, Any]) -> None:
        """Keep the plain arguments of the constructor as ``hparams``; called once it has returned."""
        if isinstance(settings := getattr(self, "adamw", None), AdamW):
            self.learning_rate = settings.learning_rate
        self.save_hyperparameters({name: plain for name, value in arguments.items() if (plain := _plain(value)) != ...})

    @classmethod
    def load_from_checkpoint(  # type: ignore[override]  # Lightning's is a descriptor of its own
        cls,
        checkpoint_path: str | Path,
        map_location: Any = None,
        strict: bool | None = None,
        weights_only: bool | None = None,
        **changes: Any,
    ) -> Self:
        """Return the model of a checkpoint with its weights; the file is read as plain values, nothing is executed.

        A model that ``lit-ctg train`` or ``lit_ctg.load`` built is built from its configuration, with its corpus. One
        built in Python is built from its plain arguments; pass the others, such as ``vocabulary`` and ``backbone``.

        Args:
            checkpoint_path: a file.
            map_location: a device.
            strict: False allows missing and unexpected weights.
            weights_only: always True.
            changes: arguments of the constructor to change; ``data``: a data module in place of the checkpoint's.

        Raises:
            UserError: no checkpoint of ours, one of another class, or one that does not fit.
        """
        module = from_checkpoint(cls, Path(checkpoint_path), changes, strict is not False)
        return module if map_location is None or callable(map_location) else module.to(map_location)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what the model can be built from again."""
        checkpoint.setdefault(KEY, {"format": FORMAT, **self.composed})

    def configure_callbacks(self) -> list[Any]:
        """Return the metrics, unless the Trainer was given a ``MetricCallback``, which wins."""
        callbacks: list[Any] = self.trainer.callbacks  # type: ignore[attr-defined]  # set by a connector
        there = [one for one in callbacks if isinstance(one, MetricCallback)]
        other = all(isinstance(one, ModelMetrics) and one.of is not self.metrics for one in there)
        return [ModelMetrics(self.metrics)] if other else []

    def setup(self, stage: str) -> None:
        """Take from the Trainer's data module what the model needs."""
        if (datamodule := datamodule_of(self.trainer)) is not None:
            self.bind_data(datamodule)

    def bind_data(self, datamodule: Any) -> None:
        """Take from a data module what the model needs beyond its weights, and give it what it computes with them.

        Raises:
            UserError: the data module lacks something.
        """
        link(self, datamodule)

    @abc.abstractmethod
    def forward(self, batch: Batch) -> LMOutput:
        """Score every position of a batch (keys: see the data module)."""

    @abc.abstractmethod
    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return the training loss as "loss", in nats, and its named, unweighted parts."""

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        """Return the loss and its detached parts, for callbacks; log ``train/<part>`` where someone will read it."""
        losses = self.losses(batch)
        parts = {name: value.detach() for name, value in losses.items()}
        if self._step_is_read():
            self.log_dict({f"train/{name}": value for name, value in parts.items()})
        return parts | {"loss": losses["loss"]}

    def contrast(self, batch: Batch) -> tuple[Tensor, Tensor] | None:
        """Return the scores [B, T, V] with what the model's control asks for, and those without; None: it has none."""
        return None

    def effect_note(self, batch: Batch, metrics: Mapping[str, Mapping[str, Any]]) -> str:
        """Return what a training's last line adds about the control, from a batch and the run's metrics."""
        return ""

    def _step_is_read(self) -> bool:
        """Return whether loggers write this step (Lightning's rule), or it is the last of an epoch or of the run.

        Lightning's ``log`` costs up to a millisecond a value: for small models a fifth of a step.
        """
        trainer, step = self.trainer, self.global_step + 1
        every = trainer.log_every_n_steps  # type: ignore[attr-defined]  # set by a connector, declared nowhere
        written = every > 0 and step % every == 0
        return written or trainer.should_stop or trainer.is_last_batch or step == trainer.max_steps

    def validation_step(self, batch: Batch, batch_idx: int) -> Any:
        """Return the output; the metric callback turns it into numbers."""
        return self(batch)

    def test_step(self, batch: Batch, batch_idx: int) -> Any:
        """Return the output; the metric callback turns it into numbers."""
        return self(batch)

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return log P of every target in nats, float64 [B, T]; 0 at padding."""
        return -token_nll(self(batch).scores_BTV, batch["target_ids_BT"], batch["mask_target_BT"])


def _plain(value: Any) -> Any:
    """Return a value in the form of YAML, or ``...`` for one that has none."""
    if isinstance(value, bool | int | float | str | type(None)):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        inner: Any = {name: _plain(part) for name, part in value.items()}
        return ... if ... in inner.values() or not all(isinstance(name, str) for name in inner) else inner
    if isinstance(value, list | tuple):
        inner = [_plain(part) for part in value]
        return ... if ... in inner else inner
    return ...


def warmup_cosine(
    step: int, total_steps: int, warmup_fraction: float, start_at_zero: bool, final_fraction: float = 0.0
) -> float:
    """Factor of the learning rate at ``step`` (from 0): linear warm-up, then cosine to ``final_fraction`` at the end.

    Args:
        total_steps: length of the training run in steps.
        warmup_fraction: share of the run that warms up, in [0, 1].
        start_at_zero: the factor starts at 0 (so the first step changes nothing) instead of 1 / warm-up steps.
        final_fraction: factor at the end, at ``total_steps``.
    """
    warmup_steps = int(warmup_fraction * total_steps)
    if step < warmup_steps:
        return (step if start_at_zero else step + 1) / warmup_steps
    progress = (step - warmup_steps) / max(1, total_steps - warmup_steps)
    falling = 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))
    return final_fraction + (1.0 - final_fraction) * falling


def adamw_warmup_cosine(
    parameters: Iterable[nn.Parameter],
    *,
    learning_rate: float,
    weight_decay: float,
    warmup_fraction: float,
    total_steps: int,
    decay_matrices_only: bool = True,
    warmup_from_zero: bool = False,
    final_fraction: float = 0.0,
) -> OptimizerLRSchedulerConfig:
    """AdamW with decoupled decay and a per-step warm-up and cosine, as ``configure_optimizers`` returns it.

    Args:
        weight_decay: of the parameters to which it applies.
        warmup_fraction: share of the run that warms up.
        total_steps: optimiser steps of the whole run (``trainer.estimated_stepping_batches``).
        decay_matrices_only: no decay of biases, norms and other vectors.
        final_fraction: share of the peak rate that is left at the end.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    groups = [{"params": trained, "weight_decay": weight_decay}]
    if decay_matrices_only:
        vectors = [parameter for parameter in trained if parameter.ndim < 2]
        matrices = [parameter for parameter in trained if parameter.ndim >= 2]
        groups = [
            {"params": matrices, "weight_decay": weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
    # fused: one pass over all parameters instead of a dozen small kernels each
    optimizer = torch.optim.AdamW(groups, lr=learning_rate, fused=True)
    # it declares that it undoes float16's loss scaling, and then Lightning refuses to clip gradients; without this
    # claim the scaler does it, and bfloat16 needs none
    optimizer._step_supports_amp_scaling = False

    def factor(step: int) -> float:
        return warmup_cosine(step, total_steps, warmup_fraction, warmup_from_zero, final_fraction)

    return {
        "optimizer": optimizer,
        "lr_scheduler": {"scheduler": LambdaLR(optimizer, factor), "interval": "step"},
    }


@checked
@dataclass(frozen=True, kw_only=True)
class AdamW:
    """Settings of ``adamw_warmup_cosine``."""

    learning_rate: NonNegative
    weight_decay: NonNegative
    warmup_fraction: Fraction
    warmup_from_zero: bool | None = None
    decay_matrices_only: bool = True
    final_fraction: Fraction = 0.0

    def configure(self, module: lightning.LightningModule) -> OptimizerLRSchedulerConfig:
        """Return what ``configure_optimizers`` of a module returns, with one step a batch over the whole run."""
        total_steps = int(module.trainer.estimated_stepping_batches)
        settings = vars(self) | {"warmup_from_zero": bool(self.warmup_from_zero), "learning_rate": module.learning_rate}
        return adamw_warmup_cosine(module.parameters(), total_steps=total_steps, **settings)

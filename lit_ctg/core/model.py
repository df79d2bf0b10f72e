"""What the language models of all five papers share: their output, their training loop, their optimiser.

Shape letters: B sentences, T positions, V vocabulary, D hidden size, N sentences of a corpus.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import lightning
import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from lit_ctg.core.batch import Batch
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


def datamodule_of(trainer: lightning.Trainer) -> Any:
    """Return the data module that a trainer runs on: a ``core/batch.py:Corpus`` with what its paper adds."""
    return trainer.datamodule  # type: ignore[attr-defined]  # Lightning sets it from outside and declares it nowhere


class LitLanguageModel(Checked, lightning.LightningModule, abc.ABC):
    """A LightningModule whose forward gives an LMOutput; ``callback/metric.py`` updates metrics from it.

    Subclasses give ``forward``, ``losses`` and ``configure_optimizers``, and set ``causal``. A model whose
    inputs need more than token ids may define ``corpus_transform(ids_NT, lengths_N) -> dict[str, Tensor]``:
    the data module calls it once for the whole corpus and cuts the results ([N, T, ...]) into batches like
    the ids.
    """

    causal: bool = True

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


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Run without dropout; every part of the module then returns to its previous mode."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


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
        settings = vars(self) | {"warmup_from_zero": bool(self.warmup_from_zero)}
        return adamw_warmup_cosine(module.parameters(), total_steps=total_steps, **settings)

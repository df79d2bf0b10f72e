"""Perplexity as a generator runs the weights: every token is predicted from its prefix alone.

A model that attends to what comes later, or has features of it, scores well on whole sentences and cannot use that
when it generates. For a causal model this equals the ordinary perplexity.
Shape letters: B sentences, T positions, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from torch import Tensor

from lit_ctg.errors import UserError
from lit_ctg.metric.perplexity import Perplexity

NAME = "val/perplexity_prefix_only"


def prefix_scores(module: Any, ids_BT: Tensor) -> Tensor:
    """Return scores [B, T, V] of the token after each prefix, through the module's own generation steps.

    Args:
        module: has ``start(batch_size, controls)`` and ``step(ids_B1, state) -> (scores_BV, state)``; sees nothing of
            column t + 1 when it scores column t. Sentences of a batch take each step together.
        ids_BT: ``<bos>`` first; what the rows of finished sentences give is for the caller's mask to drop.
    """
    state = module.start(len(ids_BT), None)
    columns = []
    for t in range(ids_BT.shape[1]):
        scores_BV, state = module.step(ids_BT[:, t : t + 1], state)
        columns.append(scores_BV)
    return torch.stack(columns, dim=1)


class PrefixEvaluation(Callback):
    """Measure ``val/perplexity_prefix_only`` on the last validation of a training run and in ``trainer.validate``.

    ``results`` holds it in run-record form (targets that are not padding, float64); it is logged too.

    Raises:
        UserError: the module has no ``start`` and ``step``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.results: dict[str, dict[str, Any]] = {}
        self.perplexity = Perplexity(mask="target")
        self._on = False

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """See whether this validation is the one, and start from empty sums."""
        self._on = is_last_validation(trainer)
        if self._on and not (hasattr(pl_module, "start") and hasattr(pl_module, "step")):
            raise UserError(
                f"callback prefix_evaluation: {type(pl_module).__name__} has no start and step to generate with; "
                "remove the callback"
            )
        self.perplexity.to(pl_module.device).reset()

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Score the batch column by column (the loop has the module in evaluation mode)."""
        if self._on:
            scores_BTV = prefix_scores(pl_module, batch["input_ids_BT"])
            self.perplexity.update(scores_BTV, batch["target_ids_BT"], batch["mask_target_BT"])

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep and log the result."""
        if self._on:
            result = self.perplexity.result()
            self.results[NAME] = result.to_dict()
            pl_module.log(NAME, torch.tensor(result.value, dtype=torch.float32))


def is_last_validation(trainer: Trainer) -> bool:
    """Return whether training ends with the epoch being validated, or only validation was asked for."""
    if trainer.sanity_checking:
        return False
    if trainer.state.fn != "fit":
        return True
    epochs, steps = trainer.max_epochs, trainer.max_steps
    return (
        trainer.should_stop
        or (epochs is not None and 0 <= epochs <= trainer.current_epoch + 1)
        or 0 <= steps <= trainer.global_step
    )

"""The last line of a training: what the trained control changes on validation text.

Shape letters: N counted positions, V vocabulary.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from lightning import LightningModule
from lightning.pytorch.utilities import move_data_to_device

from lit_ctg.core.model import LitLanguageModel

# validation batches that are read
BATCHES = 8
# nats below which a change of the next token's distribution is none
LEAST = 0.01


@dataclass(frozen=True)
class Effect:
    """What a control changes.

    Attributes:
        divergence: of the distribution without the control from that with it, nats a token.
        saving: nats a token that the control saves on the text.
        note: what the model adds, see ``LitLanguageModel.effect_note``.
    """

    divergence: float
    saving: float
    positions: int
    note: str = ""

    def line(self) -> str:
        """Return one line for the user, with what to try where the control does nothing."""
        line = (
            f"control: it moves the next token's distribution by {self.divergence:.3f} nats and saves "
            f"{self.saving:+.3f} nats a token ({self.positions:,} tokens of validation text)"
        )
        if self.divergence < LEAST:
            line += ": it does next to nothing; train longer (trainer.max_epochs) or faster (model.learning_rate)"
        return f"{line}; {self.note}" if self.note else line


@torch.no_grad()
def effect(module: LightningModule, loaders: Any, metrics: Mapping[str, Any] | None = None) -> Effect | None:
    """Compare a model's scores with and without its control on the first validation batches; None: it has no control.

    Args:
        module: the trained model; one without ``contrast`` (see ``LitLanguageModel``) has no control.
        metrics: of the run's record.
    """
    if (contrast := getattr(module, "contrast", None)) is None:
        return None
    loader = next(iter(loaders), ()) if isinstance(loaders, list | tuple) else loaders or ()
    divergence = saving = positions = 0.0
    note = ""
    was_training = module.training
    module.eval()
    try:
        for batch in itertools.islice(loader, BATCHES):
            batch = move_data_to_device(batch, module.device)
            if (both := contrast(batch)) is None:
                return None
            if not note and isinstance(module, LitLanguageModel):
                note = module.effect_note(batch, metrics or {})
            counted_BT = batch["mask_target_BT"]
            with_NV, without_NV = (scores_BTV[counted_BT].float().log_softmax(-1) for scores_BTV in both)
            target_N1 = batch["target_ids_BT"][counted_BT].unsqueeze(1)
            moved_NV = with_NV.exp() * (with_NV - without_NV)
            divergence += float(moved_NV.nan_to_num(0.0).sum())
            saving += float((with_NV - without_NV).gather(1, target_N1).nan_to_num(0.0).sum())
            positions += len(target_N1)
    finally:
        module.train(was_training)
    return Effect(divergence / positions, saving / positions, int(positions), note) if positions else None

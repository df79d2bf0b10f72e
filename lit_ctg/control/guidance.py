"""Guidance: what the controls before it change in the scores, more strongly (Sanchez et al., 2023, Eq. 7).

With controls on and off: log p_on + strength (log p_on - log p_off). Theirs has the weight gamma = 1 + strength and a
prompt for the control; here any control that acts before this one, such as the feature channel or codes in layers.

Shape letters: B prompts, N rows, T prefix tokens, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lit_ctg.control.base import PREPARE, Control, Prefix, Stage, Values, row_values
from lit_ctg.control.class_models import Reader
from lit_ctg.core.generation import ControlSetting
from lit_ctg.decoding.rule import ScoreRule
from lit_ctg.errors import UserError

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle


class Guidance(Control):
    """Exaggerates what the network's controls, and those on scores given before it, change.

    A second forward pass of the same weights, without any hook (also without the user's own), gives the scores without
    them: a step costs about twice the model's. Options of ``generate`` that change scores before any control
    (``repetition_penalty`` and the like) count as changes and are exaggerated too. Where a model has no cache of keys
    and values (Mamba), the second pass reads the whole text for every token.
    """

    kind, stage = "guidance", Stage.LOGITS
    whole_prompt = True  # its second pass answers the same prompt
    of_ids = False
    excludes = frozenset({"guidance"})
    _bare: Any = None

    @property
    def settings(self) -> tuple[ControlSetting, ...]:
        meaning = "how often the change that the controls before this one make is made once more; 0: not again"
        return (ControlSetting("strength", meaning, 1.0, low=0.0),)

    def check_model(self, model: Any) -> None:
        """Refuse a model that cannot share its weights with a copy.

        Raises:
            UserError: see ``Control.check_model``; or it is an RWKV, which scales its own weights when it first runs.
        """
        super().check_model(model)
        if any(hasattr(module, "layers_are_rescaled") for module in model.modules()):
            raise UserError(
                f"control {self.name}: a {type(model).__name__} scales its own weights as it runs, so a second pass "
                "over them is another model's: leave the control out or use another model"
            )

    def hooks(self, model: Any, values: Values, prefix: Prefix) -> Iterable[RemovableHandle]:
        """Take the model without hooks; the network's controls are attached before (their stage is earlier)."""
        self._bare = without_hooks(model)
        return ()

    def rule(self, values: Values, prefix: Prefix) -> ScoreRule:
        bare, self._bare = self._bare, None  # the control does not keep the model
        return _Exaggerated(bare, values["strength"])


def without_hooks(model: Any) -> Any:
    """Return a copy of a model that shares its weights and has no hooks, so it is the model without any control."""
    watched = [module.__dict__.get(PREPARE) for module in model.modules()]  # by ``Prefix.watch``
    shared = {id(each): each for each in [*model.parameters(), *model.buffers(), *watched]}
    bare = copy.deepcopy(model, shared)
    for module in bare.modules():
        module.__dict__.pop(PREPARE, None)
        module._forward_hooks.clear()
        module._forward_pre_hooks.clear()
    return bare


class _Exaggerated(ScoreRule):
    def __init__(self, bare: Any, strength_B: Tensor) -> None:
        self.reader, self.strength_B = Reader(bare, likelihood=False), strength_B

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        off_NV = self.reader(input_ids)[0].to(scores)
        on_NV = scores.log_softmax(-1)
        strength_N1 = row_values(self.strength_B, len(scores)).unsqueeze(1).to(scores)
        # forbidden tokens stay forbidden
        return torch.where(on_NV.isneginf(), on_NV, on_NV + strength_N1 * (on_NV - off_NV))

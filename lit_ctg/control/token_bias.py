"""A bias on every token: how much more likely it is in one class of texts than in the others.

Shape letters: B prompts, N rows, V vocabulary, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lit_ctg.control.base import Control, Prefix, Stage, Values, row_values, shares
from lit_ctg.core.generation import ControlSetting
from lit_ctg.decoding.rule import ScoreRule
from lit_ctg.errors import UserError


def check_classes(classes: Sequence[str]) -> tuple[str, ...]:
    """Return the names of classes, each of which becomes a setting ``to_<class>``.

    Raises:
        UserError: fewer than two, a duplicate, or a name that is not a word of letters, digits and _.
    """
    names = tuple(classes)
    if len(names) < 2 or len(set(names)) < len(names) or not all(f"to_{name}".isidentifier() for name in names):
        raise UserError(f"classes {', '.join(names) or '(none)'}: give two or more, words of letters, digits and _")
    return names


def check_count(name: str, classes: Sequence[str], size: int) -> None:
    """Refuse a classifier of another number of classes than its control has."""
    if size != len(classes):
        raise UserError(f"control {name}: {len(classes)} classes for a classifier of {size}")


def class_settings(classes: Sequence[str]) -> tuple[ControlSetting, ...]:
    """Return a setting ``to_<class>`` for each class: its weight."""
    return tuple(ControlSetting(f"to_{name}", f"weight of {name}", None, low=0.0) for name in classes)


def class_shares(classes: Sequence[str], values: Values) -> Tensor:
    """Return the shares [B, C] of the requested classes, 0 for a prompt that requests none."""
    return shares([f"to_{name}" for name in classes], values)


class ClassControl(Control):
    """A control towards one of several classes: weights ``to_<class>``; it is off where none is requested."""

    classes: tuple[str, ...]

    @property
    def settings(self) -> tuple[ControlSetting, ...]:
        return (ControlSetting("strength", "strength; 0: the model alone", 1.0, low=0.0), *class_settings(self.classes))

    def off(self, values: Values) -> Tensor:
        return super().off(values) | (class_shares(self.classes, values).sum(1) == 0)


def log_odds(counts_CV: Tensor, prior: float = 0.5) -> Tensor:
    """Return log p(v | c) - log p(v | the other classes), [C, V] float64, with ``prior`` counts added to each token.

    Args:
        counts_CV: how often each class has each token.
        prior: above 0.
    """
    own_CV = counts_CV.double() + prior
    rest_CV = counts_CV.double().sum(0, keepdim=True) - counts_CV.double() + prior
    return (own_CV / own_CV.sum(1, keepdim=True)).log() - (rest_CV / rest_CV.sum(1, keepdim=True)).log()


class TokenBias(ClassControl):
    """Adds strength times the log-odds of a class to each token's score.

    Args:
        weights: class -> additions to the tokens' scores at strength 1, [V].
    """

    kind, stage = "token_bias", Stage.LOGITS

    def __init__(self, weights: Mapping[str, Tensor], *, name: str | None = None) -> None:
        super().__init__(name=name)
        self.classes = check_classes(list(weights))
        self.weights_CV = torch.stack([weights[each].detach().double() for each in self.classes])

    def rule(self, values: Values, prefix: Prefix) -> ScoreRule:
        shares_BC = class_shares(self.classes, values)
        return _Added(values["strength"].unsqueeze(1) * (shares_BC @ self.weights_CV))

    def shape(self) -> dict[str, int]:
        return {"vocab_size": self.weights_CV.shape[1]}

    def config(self) -> dict[str, Any]:
        return {"classes": list(self.classes)}

    def tensors(self) -> dict[str, Tensor]:
        return {f"weight.{name}": self.weights_CV[place] for place, name in enumerate(self.classes)}

    @classmethod
    def restore(cls, config: dict[str, Any], tensors: dict[str, Tensor]) -> TokenBias:
        return cls({name: tensors[f"weight.{name}"] for name in config["classes"]})


class _Added(ScoreRule):
    """Adds a row's numbers to its scores."""

    def __init__(self, added_BV: Tensor) -> None:
        self.added_BV = added_BV

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores + row_values(self.added_BV, len(scores)).to(scores)

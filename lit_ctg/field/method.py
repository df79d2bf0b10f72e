"""A method of the field: for each class an arm, a model under controls whose strength can be swept.

A new method is one file in ``lit_ctg/field/methods`` and one in ``conf/field/method`` (``lit-ctg field add name=...``
writes both).
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import MinLen

from lit_ctg.control import Control
from lit_ctg.errors import UserError
from lit_ctg.limits import Checked, Positive

if TYPE_CHECKING:
    from lit_ctg.field.bench import Bench


@contextlib.contextmanager
def _unchanged(strength: float) -> Iterator[None]:
    yield


@dataclass
class Arm:
    """How a method steers towards one class.

    Attributes:
        model: a Hugging Face causal language model.
        controls: attached to it.
        settings: strength -> settings of the controls, ``{"<control>.<setting>": value}``.
        prefix: (strength, index of the prompt) -> text before the prompt that is not part of the result.
        at: strength -> context in which the model has that strength (for moved weights).
    """

    model: Any
    controls: Sequence[Control] = ()
    settings: Callable[[float], Mapping[str, Any]] = field(default=lambda strength: {})
    prefix: Callable[[float, int], str] = field(default=lambda strength, place: "")
    at: Callable[[float], AbstractContextManager[None]] = _unchanged


class Method(Checked, ABC):
    """One way of steering.

    Args:
        strengths: the values to sweep, ascending, all above 0.

    Attributes:
        ngram: it learns n-grams of text, so a judge or fluency model of n-grams would favour it (none of ours is one).
    """

    def __init__(self, *, strengths: Annotated[Sequence[Positive], MinLen(1)]) -> None:
        self.strengths = tuple(float(value) for value in strengths)
        if list(self.strengths) != sorted(set(self.strengths)):
            raise UserError(f"method.strengths={list(self.strengths)}: give numbers that ascend, each once")

    @abstractmethod
    def fit(self, bench: Bench) -> None:
        """Learn from the training split; called once, before any ``arm``."""

    @abstractmethod
    def arm(self, bench: Bench, target: str) -> Arm:
        """Return the arm for one class."""

    def read(self) -> str:
        """Return a digest of what the arms have read besides the bench's texts and models; "" for nothing."""
        return ""

    def parameters(self) -> int:
        """Return how many parameters were learned, over all classes, in addition to the base model."""
        return 0


def move_towards(model: Any, base: Mapping[str, Any], tuned: Mapping[str, Any]) -> Callable[[float], Any]:
    """Return ``at`` of an arm whose weights are base + strength (tuned - base) (Ilharco et al., 2023, sec. 2).

    Args:
        model: the one whose weights are set, and then reset to the base's.
        base, tuned: weights by name, as in ``state_dict``.
    """

    @contextlib.contextmanager
    def at(strength: float) -> Iterator[None]:
        moved = {
            name: value + strength * (tuned[name] - value) if value.is_floating_point() else value
            for name, value in base.items()
        }
        model.load_state_dict(moved)
        try:
            yield
        finally:
            model.load_state_dict(base)

    return at

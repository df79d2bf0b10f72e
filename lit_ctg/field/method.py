"""A method of the field: for each class an arm, a model under controls whose strength can be swept.

A new method is one file in ``lit_ctg/field/methods`` and one in ``conf/field/method`` (``lit-ctg field add name=...``
writes both).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated

from annotated_types import MinLen

from lit_ctg.control import Control
from lit_ctg.errors import UserError
from lit_ctg.field.bench import Arm, Bench
from lit_ctg.limits import Checked, Positive


class Method(Checked, ABC):
    """One way of steering.

    Args:
        strengths: the values to sweep, ascending, all above 0.
        most: the largest of them that has a meaning; None: any.

    Attributes:
        ngram: it learns n-grams of text, so a judge or fluency model of n-grams would favour it (none of ours is one).
    """

    def __init__(self, *, strengths: Annotated[Sequence[Positive], MinLen(1)], most: float | None = None) -> None:
        self.strengths = tuple(float(value) for value in strengths)
        limit = math.inf if most is None else most
        if list(self.strengths) != sorted(set(self.strengths)) or self.strengths[-1] > limit:
            ends = "" if most is None else f", at most {most:g}"
            raise UserError(f"method.strengths={list(self.strengths)}: give numbers that ascend, each once{ends}")

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


class ControlMethod(Method):
    """A method that steers the base model by one control for each class, or by one that has a setting for each.

    Attributes:
        controls: class -> its control, made by ``fit``.
    """

    def __init__(self, *, strengths: Sequence[Positive], most: float | None = None) -> None:
        super().__init__(strengths=strengths, most=most)
        self.controls: dict[str, Control] = {}

    def settings(self, control: Control, target: str, strength: float) -> dict[str, float]:
        """Return the settings of a class's control at a strength, by their own names."""
        known = {setting.name for setting in control.settings}
        return {control.strength: strength, **{name: 1 for name in (f"to_{target}", target) if name in known}}

    def arm(self, bench: Bench, target: str) -> Arm:
        control = self.controls[target]

        def settings(strength: float) -> dict[str, float]:
            own = self.settings(control, target, strength)
            return {f"{control.name}.{name}": value for name, value in own.items()}

        return Arm(bench.model, [control], settings)

    def parameters(self) -> int:
        controls = {id(control): control for control in self.controls.values()}
        return sum(value.numel() for control in controls.values() for value in control.tensors().values())

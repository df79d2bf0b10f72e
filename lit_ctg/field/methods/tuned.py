"""One fine-tuned model per class, used directly, as experts, or as a generative classifier."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from lit_ctg.control import lora
from lit_ctg.control.class_models import ClassModels, Experts, GenerativeClassifier
from lit_ctg.field.bench import Arm, Bench
from lit_ctg.field.method import ControlMethod, Method
from lit_ctg.limits import Count, NonNegative, Nucleus, Positive
from lit_ctg.network.huggingface import adapters_of, add_adapters


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


class FineTuned(Method):
    """The base model fine-tuned on the class; strength s: weights base + s (tuned - base)."""

    def __init__(self, *, strengths: Sequence[Positive]) -> None:
        super().__init__(strengths=strengths)
        self.models: dict[str, Any] = {}

    def fit(self, bench: Bench) -> None:
        self.models = {label: bench.tuned(label) for label in bench.task.targets}

    def arm(self, bench: Bench, target: str) -> Arm:
        model = bench.copy().requires_grad_(False)
        return Arm(model, at=move_towards(model, bench.model.state_dict(), self.models[target].state_dict()))

    def parameters(self) -> int:
        return sum(model.num_parameters() for model in self.models.values())


class LoRA(ControlMethod):
    """Low-rank adapters trained on the texts of the class with peft; the strength multiplies their output.

    Args:
        alpha: peft's ``lora_alpha``.
    """

    def __init__(
        self, *, strengths: Sequence[Positive], rank: Count, alpha: NonNegative, learning_rate: NonNegative
    ) -> None:
        super().__init__(strengths=strengths)
        self.rank, self.alpha, self.learning_rate = rank, alpha, learning_rate

    def fit(self, bench: Bench) -> None:
        def prepare(model: Any) -> Any:
            model.requires_grad_(False)
            add_adapters(model, {"rank": self.rank, "alpha": self.alpha})
            return model

        options: dict[str, Any] = {
            "prepare": prepare,
            "name": f"lora{self.rank}-{self.alpha:g}",
            "learning_rate": self.learning_rate,
        }
        for label in bench.task.targets:
            self.controls[label] = lora.LoRA(adapters_of(bench.tuned(label, **options)))


class OfClassModels(ControlMethod):
    """Base class of methods that steer by a fine-tuned model of every class."""

    models: dict[str, Any]

    @abstractmethod
    def make(self, models: dict[str, Any]) -> ClassModels:
        """Return the control of these models, class -> model."""

    def fit(self, bench: Bench) -> None:
        self.models = {label: bench.tuned(label) for label in bench.task.targets}
        self.controls = dict.fromkeys(bench.task.targets, self.make(self.models))

    def parameters(self) -> int:
        return sum(model.num_parameters() for model in self.models.values())


class DExperts(OfClassModels):
    """The expert of the class against those of the others (Liu et al., 2021): ``control/class_models.py``."""

    def __init__(self, *, strengths: Sequence[Positive], filter_p: Nucleus) -> None:
        super().__init__(strengths=strengths)
        self.filter_p = filter_p

    def make(self, models: dict[str, Any]) -> ClassModels:
        return Experts(models, filter_p=self.filter_p)


class GeDi(OfClassModels):
    """The models of the classes as a generative classifier (Krause et al., 2021): ``control/class_models.py``."""

    def make(self, models: dict[str, Any]) -> ClassModels:
        return GenerativeClassifier(models)

"""One fine-tuned model per class, used directly, as experts, or as a generative classifier."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

from lit_ctg.control.class_models import ClassModels, Experts, GenerativeClassifier
from lit_ctg.field.bench import Bench
from lit_ctg.field.method import Arm, Method, move_towards
from lit_ctg.limits import Count, NonNegative, Nucleus, Positive


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


class LoRA(Method):
    """Low-rank adapters trained on the texts of the class with peft; the strength multiplies their output.

    Args:
        rank: of the adapters.
        alpha: peft's ``lora_alpha``.
        learning_rate: of their training.
    """

    def __init__(
        self, *, strengths: Sequence[Positive], rank: Count, alpha: NonNegative, learning_rate: NonNegative
    ) -> None:
        super().__init__(strengths=strengths)
        self.rank, self.alpha, self.learning_rate = rank, alpha, learning_rate
        self.models: dict[str, Any] = {}

    def fit(self, bench: Bench) -> None:
        from lit_ctg.network.huggingface import add_adapters

        options = {"rank": self.rank, "alpha": self.alpha, "dropout": 0.0, "targets": None}

        def prepare(model: Any) -> Any:
            model.requires_grad_(False)
            add_adapters(model, options)
            return model

        name = f"lora{self.rank}-{self.alpha:g}"
        rate = self.learning_rate
        self.models = {
            label: bench.tuned(label, prepare=prepare, name=name, learning_rate=rate) for label in bench.task.targets
        }

    def arm(self, bench: Bench, target: str) -> Arm:
        # an adapter adds scale * B A: multiplying B by the strength multiplies the whole
        model = self.models[target]
        tuned = {name: value.clone() for name, value in model.state_dict().items()}
        base = {name: value * 0 if "lora_B" in name else value for name, value in tuned.items()}
        return Arm(model, at=move_towards(model, base, tuned))

    def parameters(self) -> int:
        return sum(
            value.numel()
            for model in self.models.values()
            for name, value in model.named_parameters()
            if "lora_" in name
        )


class OfClassModels(Method):
    """Base class of methods that steer by a fine-tuned model of every class."""

    def __init__(self, *, strengths: Sequence[Positive]) -> None:
        super().__init__(strengths=strengths)
        self.control: ClassModels | None = None

    @abc.abstractmethod
    def make(self, models: dict[str, Any]) -> ClassModels:
        """Return the control of these models, class -> model."""

    def fit(self, bench: Bench) -> None:
        self.control = self.make({label: bench.tuned(label) for label in bench.task.targets})

    def arm(self, bench: Bench, target: str) -> Arm:
        assert self.control is not None
        name = self.control.name
        return Arm(bench.model, [self.control], lambda s: {f"{name}.strength": s, f"{name}.to_{target}": 1})

    def parameters(self) -> int:
        return 0 if self.control is None else sum(m.num_parameters() for m in self.control.models.values())


class DExperts(OfClassModels):
    """The expert of the class against those of the others (Liu et al., 2021): ``control/class_models.py``.

    Args:
        strengths: see ``Method``.
        filter_p: of ``Experts``.
    """

    def __init__(self, *, strengths: Sequence[Positive], filter_p: Nucleus) -> None:
        super().__init__(strengths=strengths)
        self.filter_p = filter_p

    def make(self, models: dict[str, Any]) -> ClassModels:
        return Experts(models, filter_p=self.filter_p)


class GeDi(OfClassModels):
    """The models of the classes as a generative classifier (Krause et al., 2021): ``control/class_models.py``."""

    def make(self, models: dict[str, Any]) -> ClassModels:
        return GenerativeClassifier(models)

"""The idea gate over the frozen base model, with an idea head for each class, trained on its texts.

The paper's gate has no class: it keeps a text with what its own head expects soon. Here the head of a class expects
what its texts bring. Losses and gate are the paper's (Eq. 2-7); decoding uses its control ``idea_gate``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_ctg.control import Control
from lit_ctg.data.huggingface_tokenizer import HuggingFaceTokenizer
from lit_ctg.field.bench import Bench
from lit_ctg.field.method import ControlMethod
from lit_ctg.field.tune import Stream, batch_of
from lit_ctg.limits import NonNegative, Positive
from lit_ctg.papers.idea_gate.control import of_run


class IdeaGates(ControlMethod):
    """Gates the base model's logits by the idea head of the class.

    Args:
        strengths: multiples of the gate: alpha and its bound beta are scaled together, so 1 is the module's own gate.
        module: makes the module that is trained, from ``vocabulary`` and ``backbone``.
        learning_rate: of its training; 0: nothing is trained, the head gives the token rates of the class alone.
    """

    def __init__(
        self, *, strengths: Sequence[Positive], module: Callable[..., Any], learning_rate: NonNegative
    ) -> None:
        super().__init__(strengths=strengths)
        self.module, self.learning_rate, self.learned = module, learning_rate, 0

    def fit(self, bench: Bench) -> None:
        vocabulary, backbone = HuggingFaceTokenizer.of(bench.tokenizer), bench.backbone()
        everything = bench.stream().ids
        for target in bench.task.targets:
            torch.manual_seed(bench.seed)
            module = self.module(vocabulary=vocabulary, backbone=backbone)
            stream = bench.stream(target)
            module.count_text(stream.ids, everything)
            if self.learning_rate:
                self._train(bench, module, stream, target)
                self.learned += sum(value.numel() for value in module.idea_head.parameters())
            self.controls[target] = of_run(module.eval(), None, None)

    def _train(self, bench: Bench, module: Any, stream: Stream, target: str) -> None:
        """Train the idea head on the texts of a class, as long as a model is fine-tuned on them."""

        def loss_of(generator: np.random.Generator) -> Tensor:
            return module.losses(batch_of(stream.windows(generator, int(bench.tune_options["batch"]))))["loss"]

        key = {"learning_rate": self.learning_rate, "module": getattr(self.module, "keywords", {}), "label": target}
        bench.train("idea_head", key, dict(module.idea_head.named_parameters()), loss_of, self.learning_rate)

    def settings(self, control: Control, target: str, strength: float) -> dict[str, float]:
        return {setting.name: strength * setting.default for setting in control.settings}

    def parameters(self) -> int:
        return self.learned

"""One control code per class, learned on the frozen base model: c W_c in layers, or positions before the text.

Both train the control-code paper's adapter and decode by its controls (``neuron_codes``, ``soft_prompt``).
Shape letters: B rows, T positions, C classes, P places, D hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lit_ctg.data.huggingface_tokenizer import HuggingFaceTokenizer
from lit_ctg.field.bench import Bench
from lit_ctg.field.method import ControlMethod
from lit_ctg.field.tune import batch_of
from lit_ctg.limits import Count, NonNegative, Positive
from lit_ctg.papers.control_code.adapter import CodeAdapterModule


class _Codes(ControlMethod):
    """Shared by both: windows of every class in equal parts, each with its class."""

    def __init__(self, *, strengths: Sequence[Positive], learning_rate: NonNegative) -> None:
        super().__init__(strengths=strengths)
        self.learning_rate = learning_rate

    def _module(self, bench: Bench, **options: Any) -> CodeAdapterModule:
        """Return the paper's adapter on a frozen copy of the base model."""
        targets = bench.task.targets
        module = CodeAdapterModule(
            vocabulary=HuggingFaceTokenizer.of(bench.tokenizer), backbone=bench.backbone(),
            corpus=bench.task.name, codes=len(targets), learning_rate=0.0, weight_decay=0.0,
            warmup_fraction=0.0, seed=bench.seed, **options,
        )  # fmt: skip
        module.bind(targets)
        return module

    def _learn(self, bench: Bench, module: CodeAdapterModule, key: dict[str, Any]) -> None:
        """Train the codes, or read those trained before; ``key`` holds what else they depend on."""
        targets = bench.task.targets
        streams = [bench.stream(target) for target in targets]
        each = max(1, int(bench.tune_options["batch"]) // len(targets))
        class_B = torch.arange(len(targets)).repeat_interleave(each)

        def loss_of(generator: np.random.Generator) -> Tensor:
            ids_BT = torch.cat([stream.windows(generator, each) for stream in streams])
            batch = batch_of(ids_BT[:, : ids_BT.shape[1] - module.places])
            return module.losses({**batch, "control_code_B": class_B})["loss"]

        trained = {name: value for name, value in module.named_parameters() if value.requires_grad}
        # earlier code kept the tensors under other names
        key = {**key, "learning_rate": self.learning_rate, "targets": list(targets), "form": "adapter"}
        control = module.control()
        # as many steps as all fine-tuned models together
        bench.train(control.kind, key, trained, loss_of, self.learning_rate, times=len(targets))
        self.controls = dict.fromkeys(targets, control)


class NeuronCodes(_Codes):
    """A code for each class, fed into layers: c W_c is added to their output (control codes, sec. 3.3).

    Args:
        layers: suffixes of the names of the layers.
    """

    def __init__(
        self, *, strengths: Sequence[Positive], learning_rate: NonNegative, code: Count, layers: Sequence[str]
    ) -> None:
        super().__init__(strengths=strengths, learning_rate=learning_rate)
        self.code, self.layers = code, list(layers)

    def fit(self, bench: Bench) -> None:
        module = self._module(bench, injection="neuron", code_dim=self.code, layers=self.layers, output=False)
        self._learn(bench, module, {"code": self.code, "layers": self.layers})


class SoftPrompt(_Codes):
    """Learned embeddings of a class before the text (Lester et al., 2021).

    Args:
        places: how many; they take up positions of the prompt.
    """

    def __init__(self, *, strengths: Sequence[Positive], learning_rate: NonNegative, places: Count) -> None:
        super().__init__(strengths=strengths, learning_rate=learning_rate)
        self.places = places

    def fit(self, bench: Bench) -> None:
        module = self._module(bench, injection="prompt", code_dim=1, layers=[], output=True)
        generator = np.random.default_rng(bench.seed)
        # initialised with tokens of the class
        streams = [bench.stream(target) for target in bench.task.targets]
        first_CP = torch.stack([stream.windows(generator, 1)[0, : self.places] for stream in streams])
        module.places, module.prompts = self.places, nn.Parameter(module.backbone.embed(first_CP).detach().clone())
        self._learn(bench, module, {"places": self.places})

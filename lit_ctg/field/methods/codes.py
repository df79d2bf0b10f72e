"""One control code per class, learned on the frozen base model: c W_c in layers, or positions before the text.

Training is here; decoding uses the control-code paper's own controls (``neuron_codes``, ``soft_prompt``).
Shape letters: B rows, T positions, C classes, K code size, O outputs of a layer, P places, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lit_ctg.control import Control
from lit_ctg.errors import UserError
from lit_ctg.field.bench import Bench
from lit_ctg.field.method import Arm, Method
from lit_ctg.field.tune import optimise
from lit_ctg.limits import Count, NonNegative, Positive
from lit_ctg.papers.control_code import control

Loss = Callable[[Tensor, Tensor], Tensor]


class _Codes(Method):
    """Shared by both: windows of every class in equal parts, each with its class."""

    kind: str

    def __init__(self, *, strengths: Sequence[Positive], learning_rate: NonNegative) -> None:
        super().__init__(strengths=strengths)
        self.learning_rate = learning_rate
        self.control: Control | None = None

    def _learn(self, bench: Bench, key: Mapping[str, Any], parameters: Mapping[str, nn.Parameter], loss: Loss) -> None:
        """Train the parameters in place, or read those trained before.

        Args:
            bench: the source of training texts.
            key: other dependencies of the result.
            parameters: by name.
            loss: of ids [B, T + 1] and classes [B].
        """
        targets = bench.task.targets
        streams = [bench.stream(target) for target in targets]
        each = max(1, int(bench.tune_options["batch"]) // len(targets))

        def loss_of(generator: np.random.Generator) -> Tensor:
            ids = torch.cat([stream.windows(generator, each) for stream in streams])
            return loss(ids, torch.arange(len(targets)).repeat_interleave(each))

        def train(checkpoint: Path) -> dict[str, float]:
            return optimise(
                parameters.values(),
                loss_of,
                steps=int(bench.tune_options["steps"])
                * len(targets),  # as many steps as all fine-tuned models together
                learning_rate=self.learning_rate,
                seed=bench.seed,
                weight_decay=0.0,
                checkpoint=checkpoint,
            )

        whole = {**key, "learning_rate": self.learning_rate, "targets": list(targets)}
        bench.learn(self.kind, whole, parameters, train)

    def arm(self, bench: Bench, target: str) -> Arm:
        assert self.control is not None
        return Arm(bench.model, [self.control], lambda s: {f"{self.kind}.strength": s, f"{self.kind}.{target}": 1})

    def parameters(self) -> int:
        return 0 if self.control is None else sum(value.numel() for value in self.control.tensors().values())


class NeuronCodes(_Codes):
    """A code for each class, fed into layers: c W_c is added to their output (control codes, sec. 3.3).

    Args:
        code: size of a code.
        layers: suffixes of the names of the layers.
    """

    kind = "neuron_codes"

    def __init__(
        self, *, strengths: Sequence[Positive], learning_rate: NonNegative, code: Count, layers: Sequence[str]
    ) -> None:
        super().__init__(strengths=strengths, learning_rate=learning_rate)
        self.code, self.layers = code, tuple(layers)

    def fit(self, bench: Bench) -> None:
        model, targets = bench.copy().requires_grad_(False), bench.task.targets
        found = {path: layer for path, layer in model.named_modules() if path.endswith(self.layers)}
        if not found:
            raise UserError(
                f"method.layers={list(self.layers)}: the model has no layer whose name ends so; name linear layers of "
                "its own, such as [mlp.up_proj]"
            )
        torch.manual_seed(bench.seed)
        codes_CK = nn.Parameter(torch.randn(len(targets), self.code))
        sizes = {path: getattr(layer, "nf", None) or layer.out_features for path, layer in found.items()}
        weights = {path: nn.Parameter(torch.zeros(size, self.code)) for path, size in sizes.items()}
        current: list[Tensor] = []

        def adds(path: str) -> Callable[..., Tensor]:
            return lambda _module, _inputs, output: output + (current[0] @ weights[path].T).unsqueeze(1)

        for path, layer in found.items():
            layer.register_forward_hook(adds(path))

        def loss(ids_BT: Tensor, class_B: Tensor) -> Tensor:
            current[:] = [codes_CK[class_B]]
            logits_BTV = model(input_ids=ids_BT[:, :-1]).logits
            return nn.functional.cross_entropy(logits_BTV.flatten(0, 1), ids_BT[:, 1:].flatten())

        key = {"code": self.code, "layers": list(self.layers)}
        self._learn(bench, key, {"codes": codes_CK, **{f"weight.{path}": w for path, w in weights.items()}}, loss)
        self.control = control.NeuronCodes(targets, codes_CK, weights)


class SoftPrompt(_Codes):
    """Learned embeddings of a class before the text (Lester et al., 2021).

    Args:
        places: how many; they take up positions of the prompt.
    """

    kind = "soft_prompt"

    def __init__(self, *, strengths: Sequence[Positive], learning_rate: NonNegative, places: Count) -> None:
        super().__init__(strengths=strengths, learning_rate=learning_rate)
        self.places = places

    def fit(self, bench: Bench) -> None:
        model, targets = bench.model, bench.task.targets
        embedding = model.get_input_embeddings()
        generator = np.random.default_rng(bench.seed)
        # initialised with tokens of the class
        first_CP = torch.stack([bench.stream(target).windows(generator, 1)[0, : self.places] for target in targets])
        prompts_CPD = nn.Parameter(embedding(first_CP).detach().clone())

        def loss(ids_BT: Tensor, class_B: Tensor) -> Tensor:
            given_BTD = torch.cat([prompts_CPD[class_B], embedding(ids_BT[:, : -1 - self.places])], dim=1)
            logits_BTV = model(inputs_embeds=given_BTD).logits[:, self.places :]
            return nn.functional.cross_entropy(logits_BTV.flatten(0, 1), ids_BT[:, 1 : -self.places].flatten())

        self._learn(bench, {"places": self.places}, {"prompts": prompts_CPD}, loss)
        self.control = control.SoftPrompt(targets, prompts_CPD)

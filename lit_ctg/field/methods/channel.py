"""Semantic fusion's feature channel, learned over the base model: graded words of the classes are its features.

Training is the paper's (Eq. 2-7, with hindsight controls); decoding uses its control ``feature_channel``.
Shape letters: B rows, T positions, F features, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_ctg.control import Control
from lit_ctg.control.guidance import Guidance
from lit_ctg.data.huggingface_tokenizer import HuggingFaceTokenizer
from lit_ctg.errors import UserError
from lit_ctg.field.bench import Bench
from lit_ctg.field.method import Arm, Method
from lit_ctg.field.tune import batch_of, optimise
from lit_ctg.limits import NonNegative, Positive
from lit_ctg.network.huggingface import HuggingFaceBackbone
from lit_ctg.papers.semantic_fusion import control as channel

CENTRES, TEMPERATURE = (0.2, 0.6, 1.0), 0.35  # Eq. 1; the features here have no memberships, so they are not used


class FeatureChannel(Method):
    """Asks the channel for words of the class: what the next of its words should be, from 0 to 1.

    A feature of each class is the grade of the word that ends here; another is the decaying mean of the grades so far,
    which only the text sets. What follows a held-out word is not trained on (``Bench.held_out_words``).

    Args:
        strengths: what is asked for, from 0 to 1; of ``guided``, the strength of the guidance, with 1 asked for.
        module: makes the module that is trained, from ``vocabulary``, ``backbone``, ``bank`` and ``seed``.
        learning_rate: of its training.
        frozen: train the adapter at the embedding alone, not the model.
        guided: exaggerate the channel's effect by guidance: channel on minus off (``control/guidance.py``).

    Raises:
        UserError: strengths above 1 without guidance.
    """

    def __init__(
        self,
        *,
        strengths: Sequence[Positive],
        module: Callable[..., Any],
        learning_rate: NonNegative,
        frozen: bool,
        guided: bool,
    ) -> None:
        super().__init__(strengths=strengths)
        if not guided and self.strengths[-1] > 1:
            raise UserError(f"method.strengths={list(self.strengths)}: what is asked of the channel is at most 1")
        self.module, self.learning_rate, self.frozen, self.guided = module, learning_rate, frozen, guided
        self.control: Control | None = None
        self.model: Any = None
        self.learned = 0

    def fit(self, bench: Bench) -> None:
        where = str(bench.model_name or bench.base_folder)
        backbone = HuggingFaceBackbone(path=where, frozen=self.frozen, where="model")
        features = _features(bench.task.targets)
        config = {"lexicon": _lexicon(bench), "features": features, "centres": CENTRES, "temperature": TEMPERATURE}
        nothing = {
            "project.weight": torch.zeros(backbone.dim, len(features)),
            "project.bias": torch.zeros(backbone.dim),
        }
        module = self.module(
            vocabulary=HuggingFaceTokenizer.of(bench.tokenizer),
            backbone=backbone,
            bank=channel.FeatureChannel.restore({**config, "gate": False}, nothing).bank,
            seed=bench.seed,
        )
        trained = {name: value for name, value in module.named_parameters() if value.requires_grad}
        stream = bench.stream()

        def loss_of(generator: np.random.Generator) -> Tensor:
            module.channel_generator.manual_seed(int(generator.integers(2**31)))
            batch = batch_of(stream.windows(generator, int(bench.tune_options["batch"])))
            return module.losses(batch)["loss"]

        def train(checkpoint: Path) -> dict[str, float]:
            module.train()
            # as many steps as all fine-tuned models together
            steps = int(bench.tune_options["steps"]) * len(bench.task.targets)
            return optimise(
                trained.values(),
                loss_of,
                steps=steps,
                learning_rate=self.learning_rate,
                seed=bench.seed,
                weight_decay=0.0,
                checkpoint=checkpoint,
            )

        options = {
            "learning_rate": self.learning_rate,
            "frozen": self.frozen,
            "module": getattr(self.module, "keywords", {}),
        }
        key = {**options, "lexicon": config["lexicon"], "features": features}
        bench.learn("channel", key, trained, train)
        self.control = channel.FeatureChannel(module.fuse, module.bank)
        self.model = bench.model if self.frozen else backbone.model.eval().requires_grad_(False)
        self.learned = sum(value.numel() for name, value in trained.items() if not name.startswith("auxiliary"))

    def arm(self, bench: Bench, target: str) -> Arm:
        assert self.control is not None
        name = f"feature_channel.to_{target}"
        if self.guided:
            return Arm(self.model, [self.control, Guidance()],
                       lambda s: {"feature_channel.strength": 1, name: 1, "guidance.strength": s})  # fmt: skip
        return Arm(self.model, [self.control], lambda s: {"feature_channel.strength": 1, name: s})

    def parameters(self) -> int:
        return self.learned


def _lexicon(bench: Bench) -> dict[str, Any]:
    """Return the graded words of all classes as plain values, a column for each class."""
    words = list(dict.fromkeys(word for grades in bench.graded_words.values() for word in grades))
    if not words:
        raise UserError("no word sets the classes apart in the training texts: give more text")
    columns = {label: [grades.get(word, 0.0) for word in words] for label, grades in bench.graded_words.items()}
    held_out = sorted({word for own in bench.held_out_words.values() for word in own})
    return {"words": words, "columns": columns, "classes": [""] * len(words), "held_out": held_out}


def _features(labels: Sequence[str]) -> dict[str, Any]:
    """Return two features for each class: one that can be asked for, and the mood of the text."""
    asked = {
        f"to_{label}": {"kind": "Graded", "column": label, "sign": 1, "group": "class", "hindsight": "next",
                        "membership": "identity"} for label in labels
    }  # fmt: skip
    mood = {
        f"mood_{label}": {"kind": "Recent", "column": label, "sign": 1, "half_life": 20.0, "group": None,
                          "hindsight": "next", "membership": "identity"} for label in labels
    }  # fmt: skip
    return {**asked, **mood}

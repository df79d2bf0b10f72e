"""Semantic fusion's feature channel, learned over the base model: graded words of the classes are its features.

Training is the paper's (Eq. 2-7, with hindsight controls); decoding uses its control ``feature_channel``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from lit_ctg.control.guidance import Guidance
from lit_ctg.data.huggingface_tokenizer import HuggingFaceTokenizer
from lit_ctg.errors import UserError
from lit_ctg.field.bench import Arm, Bench
from lit_ctg.field.method import ControlMethod
from lit_ctg.field.tune import batch_of
from lit_ctg.limits import NonNegative, Positive
from lit_ctg.papers.semantic_fusion import control as channel
from lit_ctg.papers.semantic_fusion.bank import FeatureBank, Graded, Recent
from lit_ctg.papers.semantic_fusion.lexicon import Lexicon

CENTRES, TEMPERATURE = (0.2, 0.6, 1.0), 0.35  # Eq. 1; the features here have no memberships, so they are not used


class FeatureChannel(ControlMethod):
    """Asks the channel for words of the class: what the next of its words should be, from 0 to 1.

    A feature of each class is the grade of the word that ends here; another is the decaying mean of the grades so far,
    which only the text sets. What follows a held-out word is not trained on (``Bench.held_out_words``).

    Args:
        strengths: the value asked for, from 0 to 1; of ``guided``, the strength of the guidance, with 1 asked for.
        module: makes the module that is trained, from ``vocabulary``, ``backbone``, ``bank`` and ``seed``.
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
        super().__init__(strengths=strengths, most=None if guided else 1.0)
        self.module, self.learning_rate, self.frozen, self.guided = module, learning_rate, frozen, guided
        self.model: Any = None
        self.learned = 0

    def fit(self, bench: Bench) -> None:
        vocabulary, backbone = HuggingFaceTokenizer.of(bench.tokenizer), bench.backbone(frozen=self.frozen)
        words = list(dict.fromkeys(word for grades in bench.graded_words.values() for word in grades))
        if not words:
            raise UserError("no word sets the classes apart in the training texts: give more text")
        columns = {label: [grades.get(word, 0.0) for word in words] for label, grades in bench.graded_words.items()}
        held_out = sorted({word for own in bench.held_out_words.values() for word in own})
        asked = {f"to_{label}": Graded(column=label, group="class") for label in columns}
        mood = {f"mood_{label}": Recent(column=label) for label in columns}
        lexicon = Lexicon.of(words, columns, [""] * len(words), held_out)
        module = self.module(
            vocabulary=vocabulary,
            backbone=backbone,
            bank=FeatureBank(lexicon=lexicon, features={**asked, **mood}, centres=CENTRES, temperature=TEMPERATURE),
            seed=bench.seed,
            deep=False,  # the committed records are of the adapter at the embedding
        )
        trained = {name: value for name, value in module.named_parameters() if value.requires_grad}
        stream = bench.stream()

        def loss_of(generator: np.random.Generator) -> Tensor:
            module.channel_generator.manual_seed(int(generator.integers(2**31)))
            return module.losses(batch_of(stream.windows(generator, int(bench.tune_options["batch"]))))["loss"]

        key = {
            "learning_rate": self.learning_rate,
            "frozen": self.frozen,
            "module": getattr(self.module, "keywords", {}),
            "words": bench.graded_words,
            "held_out": {label: sorted(words) for label, words in bench.held_out_words.items()},
        }
        targets = bench.task.targets
        # as many steps as all fine-tuned models together
        bench.train("channel", key, trained, loss_of, self.learning_rate, times=len(targets))
        self.controls = dict.fromkeys(targets, channel.FeatureChannel(module.fuse, module.bank))
        self.model = bench.model if self.frozen else backbone.model.eval().requires_grad_(False)
        self.learned = sum(value.numel() for name, value in trained.items() if not name.startswith("auxiliary"))

    def arm(self, bench: Bench, target: str) -> Arm:
        control, on, name = self.controls[target], "feature_channel.strength", f"feature_channel.to_{target}"
        if self.guided:
            return Arm(self.model, [control, Guidance()], lambda s: {on: 1, name: 1, "guidance.strength": s})
        return Arm(self.model, [control], lambda s: {on: 1, name: s})

    def parameters(self) -> int:
        return self.learned

"""Word lists and token counts: methods that only count the training texts."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lit_ctg.control import Control
from lit_ctg.control.memory import MIXTURES, Memory, buckets
from lit_ctg.control.token_bias import TokenBias, log_odds
from lit_ctg.decoding.ngram import NgramModel
from lit_ctg.errors import UserError
from lit_ctg.field.bench import Bench
from lit_ctg.field.method import Arm, Method
from lit_ctg.limits import Count, Positive
from lit_ctg.papers.graphmax.control import Graphmax
from lit_ctg.papers.semantic_fusion.control import LexiconSteering


class LogOdds(Method):
    """Adds to every token's score how much more likely it is in the class (``control/token_bias.py``).

    Args:
        prior: counts added to every token.
    """

    def __init__(self, *, strengths: Sequence[Positive], prior: Positive) -> None:
        super().__init__(strengths=strengths)
        self.prior = prior
        self.control: TokenBias | None = None

    def fit(self, bench: Bench) -> None:
        size = int(bench.model.get_output_embeddings().weight.shape[0])
        ids = {label: torch.from_numpy(bench.stream(label).ids) for label in bench.task.targets}
        counts_CV = torch.stack([torch.bincount(found, minlength=size) for found in ids.values()])
        self.control = TokenBias(dict(zip(ids, log_odds(counts_CV, self.prior), strict=True)))

    def arm(self, bench: Bench, target: str) -> Arm:
        assert self.control is not None
        return Arm(bench.model, [self.control],
                   lambda s: {"token_bias.strength": s, f"token_bias.to_{target}": 1})  # fmt: skip

    def parameters(self) -> int:
        return 0 if self.control is None else self.control.weights_CV.numel()


def _training_ids(bench: Bench, label: str) -> list[list[int]]:
    """Return the base model's ids of each training text of a class."""
    return bench.ids([example.text for example in bench.task.examples("train", label)])


class WordList(Method):
    """Steers by the words that distinguish the class, or by the task's lexicon, with semantic fusion's lexicon control
    (``kind="lexicon"``); a word of grade 1 gains the strength, in nats."""

    def fit(self, bench: Bench) -> None:
        """Learn nothing more: the bench has counted the words."""

    def arm(self, bench: Bench, target: str) -> Arm:
        grades = bench.graded_words[target]
        if not grades:
            raise UserError(f"no word sets {target} apart in the training texts: give more text")
        lexicon = {"words": list(grades), "columns": {target: list(grades.values())}, "classes": [""] * len(grades)}
        control = LexiconSteering.restore({"lexicon": lexicon, "gain": 1.0}, {})
        return Arm(bench.model, [control], lambda s: {"lexicon.strength": s, f"lexicon.to_{target}": 1})


class ClassGraph(Method):
    """Graphmax, or another of the paper's output layers, over the word pairs of the class's training texts.

    Args:
        strengths: of lambda.
        variant: output layer, ``graphmax`` or a name that the graphmax control knows.
    """

    def __init__(self, *, strengths: Sequence[Positive], variant: str) -> None:
        super().__init__(strengths=strengths)
        self.variant = variant
        self.controls: dict[str, Control] = {}

    def fit(self, bench: Bench) -> None:
        size = int(bench.model.get_output_embeddings().weight.shape[0])
        for label in bench.task.targets:
            self.controls[label] = Graphmax.counted(_training_ids(bench, label), size, variant=self.variant)

    def arm(self, bench: Bench, target: str) -> Arm:
        return Arm(bench.model, [self.controls[target]], lambda s: {"graphmax.strength": s})

    def parameters(self) -> int:
        return sum(value.numel() for control in self.controls.values() for value in control.tensors().values())


class ClassMemory(Method):
    """Mixes in the n-grams of the class's training texts (``kind="memory"``); the strength is the weight.

    Args:
        strengths: weights from 0 to 1.
        order: longest n-grams.
    """

    def __init__(self, *, strengths: Sequence[Positive], order: Count) -> None:
        super().__init__(strengths=strengths)
        if self.strengths[-1] > 1:
            raise UserError(f"method.strengths={list(self.strengths)}: weights lie between 0 and 1")
        self.order, self.kept = order, 0
        self.models: dict[str, NgramModel] = {}

    def fit(self, bench: Bench) -> None:
        size = int(bench.model.get_output_embeddings().weight.shape[0])
        for label in bench.task.targets:
            self.models[label] = NgramModel.count(_training_ids(bench, label), size, order=self.order)

    def arm(self, bench: Bench, target: str) -> Arm:
        one = {mixture: torch.ones(buckets(self.order)) for mixture in MIXTURES}
        memory = Memory(self.models[target], weights=one, mixture="linear")
        return Arm(bench.model, [memory], lambda s: {"memory.strength": s})

    def parameters(self) -> int:
        return sum(len(getattr(model, f"gram_{k}")) for model in self.models.values() for k in range(self.order))

"""Word lists and token counts: methods that only count the training texts."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lit_ctg.control.memory import MIXTURES, Memory, buckets
from lit_ctg.control.token_bias import TokenBias, log_odds
from lit_ctg.decoding.ngram import NgramModel
from lit_ctg.errors import UserError
from lit_ctg.field.bench import Bench
from lit_ctg.field.method import ControlMethod
from lit_ctg.limits import Count, Positive
from lit_ctg.papers.graphmax.control import Graphmax
from lit_ctg.papers.semantic_fusion.control import LexiconSteering
from lit_ctg.papers.semantic_fusion.lexicon import Lexicon


class LogOdds(ControlMethod):
    """Adds to every token's score how much more likely it is in the class (``control/token_bias.py``).

    Args:
        prior: counts added to every token.
    """

    def __init__(self, *, strengths: Sequence[Positive], prior: Positive) -> None:
        super().__init__(strengths=strengths)
        self.prior = prior

    def fit(self, bench: Bench) -> None:
        ids = {label: torch.from_numpy(bench.stream(label).ids) for label in bench.task.targets}
        counts_CV = torch.stack([torch.bincount(found, minlength=bench.head_size) for found in ids.values()])
        control = TokenBias(dict(zip(ids, log_odds(counts_CV, self.prior), strict=True)))
        self.controls = dict.fromkeys(ids, control)


class WordList(ControlMethod):
    """Steers by the words that distinguish the class, or by the task's lexicon, with semantic fusion's lexicon control
    (``kind="lexicon"``); a word of grade 1 gains the strength, in nats."""

    def fit(self, bench: Bench) -> None:
        for label, grades in bench.graded_words.items():
            if not grades:
                raise UserError(f"no word sets {label} apart in the training texts: give more text")
            lexicon = Lexicon.of(list(grades), {label: list(grades.values())}, [""] * len(grades))
            self.controls[label] = LexiconSteering(lexicon, gain=1.0)


class ClassGraph(ControlMethod):
    """Graphmax, or another of the paper's output layers, over the word pairs of the class's training texts.

    Args:
        strengths: of lambda.
        variant: output layer, ``graphmax`` or a name that the graphmax control knows.
    """

    def __init__(self, *, strengths: Sequence[Positive], variant: str) -> None:
        super().__init__(strengths=strengths)
        self.variant = variant

    def fit(self, bench: Bench) -> None:
        for label in bench.task.targets:
            self.controls[label] = Graphmax.counted(bench.class_ids(label), bench.head_size, variant=self.variant)


class ClassMemory(ControlMethod):
    """Mixes in the n-grams of the class's training texts (``kind="memory"``); the strength is the weight.

    Args:
        strengths: weights from 0 to 1.
    """

    def __init__(self, *, strengths: Sequence[Positive], order: Count) -> None:
        super().__init__(strengths=strengths, most=1.0)
        self.order = order

    def fit(self, bench: Bench) -> None:
        one = {mixture: torch.ones(buckets(self.order)) for mixture in MIXTURES}
        for label in bench.task.targets:
            ngram = NgramModel.count(bench.class_ids(label), bench.head_size, order=self.order)
            self.controls[label] = Memory(ngram, weights=one)

    def parameters(self) -> int:
        return sum(sum(control.costs().values()) for control in self.controls.values() if isinstance(control, Memory))

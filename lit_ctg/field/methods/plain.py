"""Methods without learning: the bare model, and a few examples before the prompt."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lit_ctg.field.bench import Arm, Bench
from lit_ctg.field.method import Method
from lit_ctg.field.task import first_words
from lit_ctg.limits import Count, Positive


class Bare(Method):
    """The unchanged base model, the reference for every other method. Its only strength changes nothing."""

    def fit(self, bench: Bench) -> None:
        """Learn nothing."""

    def arm(self, bench: Bench, target: str) -> Arm:
        return Arm(bench.model)


class Prefix(Method):
    """Puts training passages of the class before the prompt; the strength is their number."""

    def __init__(self, *, strengths: Sequence[Positive], words: Count) -> None:
        super().__init__(strengths=strengths)
        self.words = words

    def fit(self, bench: Bench) -> None:
        """Learn nothing."""

    def arm(self, bench: Bench, target: str) -> Arm:
        texts = [first_words(example.text, self.words) for example in bench.task.examples("train", target)]

        def prefix(strength: float, place: int) -> str:
            # every prompt has its own examples, in the same order at every strength
            chosen = np.random.default_rng([bench.seed, place]).permutation(len(texts))[: int(strength)]
            end = bench.tokenizer.eos_token
            return "".join(texts[number] + end for number in chosen)

        return Arm(bench.model, prefix=prefix)

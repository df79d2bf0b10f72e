"""Steering by the gradient of a classifier of hidden states, of the kind of PPLM: ``control/gradient.py``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from lit_ctg.control.gradient import Gradient
from lit_ctg.field.bench import Bench
from lit_ctg.field.judge import balanced
from lit_ctg.field.method import ControlMethod
from lit_ctg.field.tune import optimise
from lit_ctg.limits import Count, NonNegative, Positive

BATCH = 64  # passages read at a time


class GradientSteering(ControlMethod):
    """Trains a linear classifier on the base model's last hidden states of the training passages.

    Args:
        steps: of each move (Dathathri et al., 2020, sec. 3.3: 3 to 10).
        kl: weight of the divergence to the bare model's distribution (theirs: 0.01).
        places: states taken of a passage, at random, so that it knows beginnings too.
    """

    def __init__(
        self,
        *,
        strengths: Sequence[Positive],
        steps: Count,
        kl: NonNegative,
        updates: Count,
        batch: Count,
        learning_rate: NonNegative,
        longest: Count,
        places: Count,
    ) -> None:
        super().__init__(strengths=strengths)
        self.steps, self.kl = steps, kl
        self.options = {"updates": updates, "batch": batch, "learning_rate": learning_rate, "longest": longest,
                        "places": places}  # fmt: skip

    def fit(self, bench: Bench) -> None:
        targets, options = bench.task.targets, self.options
        width = int(bench.model.get_output_embeddings().weight.shape[1])  # may train the base: before the seed
        torch.manual_seed(bench.seed)
        classifier = nn.Linear(width, len(targets))

        def train(checkpoint: Path) -> dict[str, float]:
            state_XD, label_X = states(bench, int(options["longest"]), int(options["places"]))

            def loss_of(generator: np.random.Generator) -> Tensor:
                chosen = torch.from_numpy(generator.integers(0, len(label_X), size=int(options["batch"])))
                return nn.functional.cross_entropy(classifier(state_XD[chosen]), label_X[chosen])

            facts = optimise(
                classifier.parameters(),
                loss_of,
                steps=int(options["updates"]),
                learning_rate=options["learning_rate"],
                seed=bench.seed,
                checkpoint=checkpoint,
            )
            right = (classifier(state_XD).argmax(1) == label_X).float().mean()
            return {**facts, "accuracy_on_training_states": float(right)}

        bench.learn("gradient", {"classifier": options, "targets": list(targets)}, classifier.state_dict(), train)
        control = Gradient(classifier.weight, classifier.bias, targets, steps=self.steps, kl=self.kl)
        self.controls = dict.fromkeys(targets, control)


@torch.no_grad()
def states(bench: Bench, longest: int, places: int) -> tuple[Tensor, Tensor]:
    """Return states [X, D] that the output head reads, at random tokens of training passages, and their classes [X].

    As many passages of every class; of each as many tokens as it has, at most ``places``.
    """
    generator = np.random.default_rng(bench.seed)
    examples = balanced(bench.task.examples("train"), bench.seed)
    rows = bench.ids([example.text for example in examples])
    pairs = [
        (row[:longest], bench.task.targets.index(str(example.label)))
        for row, example in zip(rows, examples, strict=True)
        if row
    ]
    found, labels = [], []
    for first in range(0, len(pairs), BATCH):
        part = pairs[first : first + BATCH]
        width = max(len(row) for row, _ in part)
        # padding after a text changes none of its states
        ids_BT = torch.tensor([row + [0] * (width - len(row)) for row, _ in part])
        state_BTD = bench.model.base_model(input_ids=ids_BT, use_cache=False).last_hidden_state.float()
        for (row, label), state_TD in zip(part, state_BTD, strict=True):
            chosen = generator.permutation(len(row))[:places]
            found.append(state_TD[torch.from_numpy(chosen)])
            labels += [label] * len(chosen)
    return torch.cat(found), torch.tensor(labels)

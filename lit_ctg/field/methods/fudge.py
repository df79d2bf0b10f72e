"""A classifier of unfinished texts that weights the next token (FUDGE): ``control/future.py``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from lit_ctg.control.future import Future, FutureClassifier
from lit_ctg.field.bench import Bench
from lit_ctg.field.method import ControlMethod
from lit_ctg.field.tune import optimise
from lit_ctg.limits import Count, NonNegative, Positive

AT_ONCE = 512  # held-out passages read at a time


class Fudge(ControlMethod):
    """Trains p(class | prefix) on every prefix of the training passages, of every class as many.

    The last tenth of each class's passages (whole documents but for one) is held out, and the classifier of the least
    loss on them is kept, as the authors' code keeps that of the least validation loss: trained to the end it knows
    its passages by heart.

    Args:
        longest: maximum tokens read of a passage.
        candidates: number of most likely tokens considered in decoding.
    """

    def __init__(
        self,
        *,
        strengths: Sequence[Positive],
        dim: Count,
        steps: Count,
        batch: Count,
        learning_rate: NonNegative,
        longest: Count,
        candidates: Count,
    ) -> None:
        super().__init__(strengths=strengths)
        self.options = {"dim": dim, "steps": steps, "batch": batch, "learning_rate": learning_rate, "longest": longest}
        self.candidates = candidates

    def fit(self, bench: Bench) -> None:
        targets, options = bench.task.targets, self.options
        size = bench.head_size  # may train the base: before the seed
        torch.manual_seed(bench.seed)
        classifier = FutureClassifier(size, len(targets), int(options["dim"]))

        def train(checkpoint: Path) -> dict[str, float]:
            longest = int(options["longest"])
            parts = [_split(bench.class_ids(target), longest) for target in targets]

            def loss_of(generator: np.random.Generator) -> Tensor:
                return prefix_loss(classifier, *_batch([own for own, _ in parts], generator, int(options["batch"])))

            def held_out() -> float:
                costs = [_loss_of_class(classifier, tried, label) for label, (_, tried) in enumerate(parts)]
                return sum(costs) / len(costs)

            return optimise(
                classifier.parameters(),
                loss_of,
                steps=int(options["steps"]),
                learning_rate=options["learning_rate"],
                seed=bench.seed,
                checkpoint=checkpoint,
                held_out=held_out,
            )

        key = {"classifier": options, "targets": list(targets), "kept": "least held-out loss"}
        bench.learn("fudge", key, classifier.state_dict(), train)
        self.controls = dict.fromkeys(targets, Future(classifier, targets, candidates=self.candidates))


def _split(rows: Sequence[Sequence[int]], longest: int) -> tuple[Tensor, Tensor]:
    """Return the ids [X, T] of passages to train on, -1 after the end of a text, and of the last tenth, held out.

    A class of one passage trains on what it holds out.
    """
    ids = torch.full((len(rows), longest), -1)
    for place, row in enumerate(rows):
        ids[place, : min(len(row), longest)] = torch.tensor(row[:longest], dtype=torch.long)
    tried = max(1, len(rows) // 10)
    return ids[:-tried] if len(rows) > 1 else ids, ids[-tried:]


def _batch(ids_XT: Sequence[Tensor], generator: np.random.Generator, size: int) -> tuple[Tensor, Tensor]:
    """Return ids [B, T] of passages of random classes, each as likely, and their classes [B]."""
    label_B = generator.integers(0, len(ids_XT), size=size)
    rows = [ids_XT[label][generator.integers(0, len(ids_XT[label]))] for label in label_B]
    return torch.stack(rows), torch.from_numpy(label_B)


def _loss_of_class(classifier: FutureClassifier, ids_XT: Tensor, label: int) -> float:
    """Return ``prefix_loss`` of many passages [X, T] of one class, read in parts."""
    total, prefixes = 0.0, 0
    for ids_BT in ids_XT.split(AT_ONCE):
        count = int((ids_BT >= 0).sum())
        if count:
            total += count * float(prefix_loss(classifier, ids_BT, torch.full((len(ids_BT),), label)))
            prefixes += count
    return total / max(prefixes, 1)


def prefix_loss(classifier: FutureClassifier, ids_BT: Tensor, label_B: Tensor) -> Tensor:
    """Return the mean cost, nats, of the label over all prefixes; positions with id -1 do not count."""
    log_p_BTC = classifier(ids_BT)
    real_BT = ids_BT >= 0
    cost_BT = nn.functional.nll_loss(
        log_p_BTC.transpose(1, 2), label_B.unsqueeze(1).expand_as(ids_BT), reduction="none"
    )
    return (cost_BT * real_BT).sum() / real_BT.sum()

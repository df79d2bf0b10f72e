"""A classifier of unfinished texts that weights the next token (FUDGE): ``control/future.py``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lit_ctg.control.future import Future, FutureClassifier
from lit_ctg.field.bench import Bench
from lit_ctg.field.judge import balanced
from lit_ctg.field.method import Arm, Method
from lit_ctg.field.tune import optimise


class Fudge(Method):
    """Trains p(class | prefix) on every prefix of the training passages, balanced by class.

    Args:
        dim: of the classifier.
        steps, batch, learning_rate: of its training.
        longest: maximum tokens read of a passage.
        candidates: number of most likely tokens considered in decoding.
    """

    def __init__(
        self,
        *,
        strengths: Sequence[float],
        dim: int,
        steps: int,
        batch: int,
        learning_rate: float,
        longest: int,
        candidates: int,
    ) -> None:
        super().__init__(strengths=strengths)
        self.options = {"dim": dim, "steps": steps, "batch": batch, "learning_rate": learning_rate, "longest": longest}
        self.candidates = candidates
        self.control: Future | None = None

    def fit(self, bench: Bench) -> None:
        targets, options = bench.task.targets, self.options
        size = int(bench.model.get_output_embeddings().weight.shape[0])
        torch.manual_seed(bench.seed)
        classifier = FutureClassifier(size, len(targets), int(options["dim"]))

        def make(folder: Path, checkpoint: Path) -> dict[str, Any]:
            examples = balanced(bench.task.examples("train"), bench.seed)
            texts = [example.text for example in examples]
            rows = bench.ids(texts)
            labels = np.array([targets.index(str(example.label)) for example in examples])

            def loss_of(generator: np.random.Generator) -> Tensor:
                return prefix_loss(classifier, *_batch(rows, labels, generator, options))

            told = optimise(
                classifier.parameters(),
                loss_of,
                steps=int(options["steps"]),
                learning_rate=options["learning_rate"],
                seed=bench.seed,
                checkpoint=checkpoint,
            )
            torch.save(classifier.state_dict(), folder / "weights.pt")
            return told

        folder = bench.learned("fudge", {"classifier": options, "targets": list(targets)}, make)
        classifier.load_state_dict(torch.load(folder / "weights.pt", weights_only=True))
        self.control = Future(classifier, targets, candidates=self.candidates)

    def arm(self, bench: Bench, target: str) -> Arm:
        assert self.control is not None
        return Arm(bench.model, [self.control], lambda s: {"future.strength": s, f"future.to_{target}": 1})

    def parameters(self) -> int:
        return 0 if self.control is None else sum(value.numel() for value in self.control.classifier.parameters())


def _batch(
    rows: Sequence[Sequence[int]], labels: np.ndarray, generator: np.random.Generator, options: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """Return ids [B, T], -1 after the end of a text, and labels [B]."""
    chosen = generator.integers(0, len(rows), size=int(options["batch"]))
    longest = int(options["longest"])
    ids = np.full((len(chosen), longest), -1, dtype=np.int64)
    for place, number in enumerate(chosen):
        part = rows[number][:longest]
        ids[place, : len(part)] = part
    return torch.from_numpy(ids), torch.from_numpy(labels[chosen])


def prefix_loss(classifier: FutureClassifier, ids_BT: Tensor, label_B: Tensor) -> Tensor:
    """Return the mean cost, nats, of the label over all prefixes; positions with id -1 do not count."""
    log_p_BTC = classifier(ids_BT)
    real_BT = ids_BT >= 0
    cost_BT = nn.functional.nll_loss(
        log_p_BTC.transpose(1, 2), label_B.unsqueeze(1).expand_as(ids_BT), reduction="none"
    )
    return (cost_BT * real_BT).sum() / real_BT.sum()

"""What a training step costs beside its model: logging, and the search for garbage.

    python benchmarks/bench_logging.py [--steps 60] [--rounds 5] [--parts 4] [--objects 400000]

- A step that logs its parts each time, against one that logs only what loggers write.
- The latter beside ``--objects`` lists that stay (a vocabulary, a corpus), which Python's garbage collector searches
  again and again, against one from which ``lit_ctg/run/train.py: uncollected`` keeps it away.

The model is a linear layer, so what is timed is Lightning's loop; a CSV logger writes every 10th step. The arms take
turns; printed is the share of the processor time of a step that is saved (medians). The more a model itself computes,
the smaller is the share.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import warnings
from contextlib import nullcontext

import lightning
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lit_ctg.core.model import LitLanguageModel, LMOutput
from lit_ctg.run.train import uncollected

WARM = 20  # steps before the clock starts


class Line(LitLanguageModel):
    """A linear layer whose loss has some parts."""

    def __init__(self, parts: int, *, always: bool) -> None:
        super().__init__()
        self.layer, self.parts, self.always, self.began = nn.Linear(1, 1), parts, always, 0.0

    def forward(self, batch: list[Tensor]) -> LMOutput:  # type: ignore[override]
        return LMOutput(scores := self.layer(batch[0]), scores)

    def losses(self, batch: list[Tensor]) -> dict[str, Tensor]:  # type: ignore[override]
        loss = self(batch).scores_BTV.square().mean()
        return {"loss": loss} | {f"part{number}": loss for number in range(self.parts - 1)}

    def _step_is_read(self) -> bool:
        return self.always or super()._step_is_read()

    def on_train_batch_start(self, batch: object, batch_idx: int) -> None:
        if batch_idx == WARM:
            self.began = time.process_time()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def seconds(parts: int, steps: int, *, always: bool) -> float:
    """Return the processor time of a step."""
    module = Line(parts, always=always)
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            max_epochs=1,
            accelerator="cpu",
            logger=CSVLogger(folder),
            log_every_n_steps=10,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, DataLoader(TensorDataset(torch.ones(WARM + steps, 1))))
        return (time.process_time() - module.began) / steps


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--objects", type=int, default=400_000)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    taken: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(options.rounds):
        for always, own in taken.items():
            own.append(seconds(options.parts, options.steps, always=always))
    each, read = (statistics.median(taken[always]) for always in (True, False))
    print(
        f"{options.parts} parts: a step that logs only what is read saves {1 - read / each:.0%} of one that logs always"
    )
    kept = [[number] for number in range(options.objects)]
    searched: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(options.rounds):
        for away, own in searched.items():
            with uncollected() if away else nullcontext():
                own.append(seconds(options.parts, options.steps, always=False))
    away, each = (statistics.median(searched[away]) for away in (True, False))
    print(f"{len(kept):,} lists that stay: a step saves {1 - away / each:.0%} if they are kept from the collector")


if __name__ == "__main__":
    main()

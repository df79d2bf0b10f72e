"""Training losses of the first 20 steps, which a refactor must not move.

A change that moves them on purpose runs this file as a script, which rewrites ``losses.json``, and says so in the
CHANGELOG with old and new values.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
import torch
from lightning import Callback

from lit_ctg.config import compose
from lit_ctg.run.build import build

GOLDEN = Path(__file__).with_name("losses.json")
# experiment -> what makes its epochs at size=smoke four batches long
EPOCHS: dict[str, list[str]] = {
    "semantic_fusion/main": [],
    "semantic_fusion/baseline": [],
    "idea_gate/main": ["data.steps_per_epoch=4"],
    "nslm/numbers": ["trainer.limit_train_batches=4"],
}
RUNS = {
    f"{name} {regime}": [f"experiment={name}", f"regime={regime}", *words]
    for name, words in EPOCHS.items()
    for regime in ("as_published", "corrected")
}


class Losses(Callback):
    """Keeps the loss of every step."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        self.values.append(float(outputs["loss"]))


def first_losses(words: list[str], folder: Path) -> list[float]:
    """Return the losses of 20 steps (5 epochs of 4 batches) on one thread."""
    torch.set_num_threads(1)
    words = [*words, "size=smoke", "seed=0", "trainer.max_epochs=5"]
    words += ["callback=[epoch_seed]", "metric=[]", "trainer.accelerator=cpu", "trainer.enable_progress_bar=false"]
    experiment = build(compose(words), folder, loggers=False)
    experiment.trainer.limit_val_batches = 0  # a configuration may not: such a run measures nothing
    losses = Losses()
    experiment.trainer.callbacks.append(losses)
    experiment.trainer.fit(experiment.module, experiment.datamodule)
    return losses.values


@pytest.mark.parametrize("name", RUNS)
def test_the_first_losses_have_not_moved(name: str, tmp_path: Path) -> None:
    expected = json.loads(GOLDEN.read_text(encoding="utf-8"))[name]
    assert len(expected) == 20
    # other processors add up in another order; a change of the method moves more than this
    assert first_losses(RUNS[name], tmp_path) == pytest.approx(expected, rel=1e-3)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        golden = {name: [round(x, 6) for x in first_losses(words, Path(scratch))] for name, words in RUNS.items()}
    GOLDEN.write_text(json.dumps(golden, indent=1) + "\n", encoding="utf-8")

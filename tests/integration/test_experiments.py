"""Every experiment configuration is composed, built and run for two steps, in both regimes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from lit_ctg.config import compose, experiments
from lit_ctg.run.train import train

QUICK = ("size=smoke", "logger=none", "trainer.limit_val_batches=1", "trainer.accelerator=cpu")
# they need a pretrained model: the tests of their papers run them on tiny ones
PRETRAINED = (
    "control_code/pretrained",
    "graphmax/pretrained",
    "graphmax/pretrained_translation",
    "idea_gate/pretrained",
    "idea_gate/pretrained_baseline",
    "semantic_fusion/pretrained",
)


@pytest.mark.parametrize("regime", ["corrected", "as_published"])
@pytest.mark.parametrize("name", [name for name in experiments() if name not in PRETRAINED])
def test_two_steps(name: str, regime: str, tmp_path: Path) -> None:
    words = [f"experiment={name}", f"regime={regime}", f"output_root={tmp_path}", *QUICK]
    # max_steps ends the run in the first epoch
    outcome = train(compose([*words, "trainer.max_steps=2"]))
    record = json.loads((outcome.folder / "run.json").read_text(encoding="utf-8"))
    assert record["status"] == "DONE"
    assert record["experiment"] == f"{record['paper']}/{record['name']}"
    assert record["paper"] == name.partition("/")[0]
    assert record["parameters"] > 0
    metrics = record["metrics"]
    perplexity = metrics.get("val/perplexity", metrics.get("val/gated/perplexity"))["value"]
    assert math.isfinite(perplexity) and perplexity > 1

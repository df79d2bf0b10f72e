"""W&B runs are offline unless told otherwise, hold what is on disk, and are finished also when the run fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lit_ctg.config import compose
from lit_ctg.errors import UserError
from lit_ctg.train import train

WORDS = ["experiment=semantic_fusion/baseline", "size=smoke", "logger=wandb", "trainer.accelerator=cpu"]
QUICK = ["callback=[run_record,checkpoint,epoch_seed,finite_loss]", "metric=[perplexity]"]


def test_an_offline_run_lies_in_the_run_directory_and_is_finished(tmp_path: Path) -> None:
    import wandb

    folder = train(compose([*WORDS, *QUICK, f"output_root={tmp_path}"])).folder
    assert wandb.run is None
    (log,) = folder.rglob("*.wandb")
    content = log.read_bytes()
    value = json.loads((folder / "run.json").read_text())["metrics"]["val/perplexity"]["value"]
    assert b"val/perplexity" in content and f"{value:.4f}"[:5].encode() in content
    assert b"semantic_fusion/baseline" in content and b"corrected" in content
    # nothing is there that is not also on disk
    assert "val/perplexity" in (folder / "metrics.csv").read_text().splitlines()[0]


def test_a_failed_run_is_finished_too(tmp_path: Path) -> None:
    import wandb

    bad = ["model.learning_rate=1e30", "trainer.gradient_clip_val=null", "model.warmup_fraction=0"]
    with pytest.raises(UserError):
        train(compose([*WORDS, *QUICK, *bad, "trainer.max_epochs=3", f"output_root={tmp_path}"]))
    assert wandb.run is None

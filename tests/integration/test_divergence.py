"""A run that blows up is told in every paper: one line, and a record that says what was no number and when."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

QUICK = ("size=smoke", "logger=none", "trainer.accelerator=cpu", "seed=1")
CORE = "callback=[default]"
# a rate at which each of them diverges: found by trying
SLOWEST = "nslm/numbers"
CASES = {
    "semantic_fusion/main": ["model.learning_rate=1e3", "data.train_size=200", "data.val_size=64",
                             "trainer.max_epochs=2", CORE, "metric=[perplexity]"],
    "idea_gate/main": ["model.learning_rate=1e3", "trainer.limit_val_batches=2", CORE, "metric=[perplexity]"],
    "graphmax/main": ["model.learning_rate=1e6", "data.sample_size=3000", "trainer.limit_train_batches=4", CORE,
                      "metric=[perplexity]"],
    "nslm/numbers": ["model.learning_rate=1e8", "data.sample_size=3000", "trainer.limit_train_batches=4",
                     "callback=[default,nslm_evaluation]"],
    "control_code/transformer": ["model.optimizers.adamw.learning_rate=1e30", "data.sample_size=3000",
                                 "trainer.limit_train_batches=4", CORE, "metric=[perplexity]"],
}  # fmt: skip


@pytest.mark.parametrize(
    "experiment", [pytest.param(name, marks=[pytest.mark.long] if name == SLOWEST else []) for name in CASES]
)
def test_a_run_that_blows_up_is_told(experiment: str, run_cli: Any, tmp_path: Path) -> None:
    words = ("train", f"experiment={experiment}", *QUICK, *CASES[experiment], f"output_root={tmp_path}")
    code, _, err = run_cli(*words)
    told = [line for line in err.splitlines() if line.startswith("lit-ctg: ")]
    assert code == 2 and len(told) == 1 and "step" in told[0] and "lower the model's learning_rate" in told[0], err
    (path,) = tmp_path.glob("*/*/*/run.json")
    record = json.loads(path.read_text(encoding="utf-8"))
    assert record["status"] == "DIVERGED" and told[0] == f"lit-ctg: {record['error']}"
    # it would do so again: told, not hidden and not repeated
    code, out, _ = run_cli(*words, "skip_completed=true")
    assert code == 0 and "done already, skipped" in out


@pytest.mark.long
def test_a_sweep_tells_what_diverged_and_goes_on(run_cli: Any, tmp_path: Path) -> None:
    words = ["experiment=idea_gate/main", *QUICK, *CASES["idea_gate/main"][1:], "model.learning_rate=1e3,1e-3"]
    code, out, err = run_cli("train", "-m", *words, f"output_root={tmp_path}")
    assert code == 0, (out, err)
    assert "1 done, 0 skipped, 1 diverged, 0 failed" in out
    assert "[1/2] diverged idea_gate/main" in err and "DIVERGED idea_gate/main corrected smoke seed 1: " in out

"""Same seed, same numbers; batch jobs survive a bad one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lit_ctg.config import compose
from lit_ctg.errors import UserError
from lit_ctg.run.sweep import _new_folder
from lit_ctg.run.train import train

SMOKE = ["size=smoke", "logger=none", "trainer.accelerator=cpu"]
EXPERIMENT = "experiment=semantic_fusion/main"


def record_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "run.json").read_text(encoding="utf-8"))


def run(root: Path, *words: str) -> dict[str, Any]:
    return record_of(train(compose([EXPERIMENT, *SMOKE, f"output_root={root}", *words])).folder)


@pytest.mark.long
@pytest.mark.parametrize("regime", ["corrected", "as_published"])
def test_same_seed_same_record_to_the_bit(tmp_path: Path, regime: str) -> None:
    first = run(tmp_path / "a", f"regime={regime}", "seed=5")
    second = run(tmp_path / "b", f"regime={regime}", "seed=5")
    assert first["metrics"] == second["metrics"]
    assert first["history"] == second["history"]
    assert first["config_hash"] == second["config_hash"]
    other = run(tmp_path / "c", f"regime={regime}", "seed=6")
    assert other["metrics"]["val/perplexity"] != first["metrics"]["val/perplexity"]


@pytest.mark.long
def test_sweep_skips_what_is_done_reports_what_fails_and_goes_on(run_cli, tmp_path: Path) -> None:
    words = ["train", "-m", EXPERIMENT, *SMOKE, "skip_completed=true", "metric=[perplexity]"]
    code, out, err = run_cli(*words, "model.dropout_typo=1")
    assert code == 2 and "dropout_typo" in err
    code, out, err = run_cli(
        *words, "seed=0,1", "data.held_out={positive:[good],negative:[bad]},{positive:[nonsense],negative:[bad]}"
    )
    assert code == 1
    assert "4 jobs" in out and "2 done" in out and "2 failed" in out
    assert err.count("] failed") == 2 and "nonsense" in err
    code, out, err = run_cli(*words, "seed=0,1", "data.held_out={positive:[good],negative:[bad]}")
    assert code == 0
    assert "2 skipped" in out
    records = list((tmp_path / "outputs" / "semantic_fusion").rglob("run.json"))
    assert sum(json.loads(path.read_text())["status"] == "DONE" for path in records) == 2


def test_sweeps_of_the_same_second_have_folders_of_their_own(tmp_path: Path) -> None:
    folders = {_new_folder(tmp_path / "sweeps") for _ in range(20)}
    assert len(folders) == 20 and all(folder.is_dir() for folder in folders)
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(UserError, match="output_root"):
        _new_folder(tmp_path / "file" / "sweeps")

"""A run of seconds that the playground's tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def smoke_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a finished smoke run of semantic fusion, two steps long; its root is ``outputs``."""
    from lit_ctg.cli import main

    folder = tmp_path_factory.mktemp("play")
    before = Path.cwd()
    os.chdir(folder)
    try:
        words = ["experiment=semantic_fusion/main", "size=smoke", "trainer.accelerator=cpu"]
        words += ["trainer.limit_train_batches=2", "trainer.limit_val_batches=1", "~callback.control_trial"]
        assert main(["train", *words]) == 0
    finally:
        os.chdir(before)
    (run,) = (path.parent for path in (folder / "outputs").rglob("run.json"))
    return run

"""The parts of `lit-ctg train` that its runs do not show."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from lit_ctg.run.train import uncollected


def test_what_exists_is_kept_from_the_collector_for_a_while() -> None:
    before = gc.get_freeze_count()
    with uncollected():
        # as many as there are objects in a process that has imported torch
        assert gc.get_freeze_count() - before > 100_000
        assert len(gc.get_objects()) < 10_000
    assert gc.get_freeze_count() == 0


def test_the_collector_is_back_after_an_error() -> None:
    with pytest.raises(ValueError, match="within"), uncollected():
        raise ValueError("within")
    assert gc.get_freeze_count() == 0


def test_garbage_from_before_is_not_kept() -> None:
    class Node:
        def __init__(self) -> None:
            self.own = self

    found: list[int] = []
    Node.__del__ = lambda node: found.append(1)  # type: ignore[attr-defined]
    Node()
    with uncollected():
        assert found == [1]


def test_a_folder_may_be_called_what_rich_reads_as_a_tag(run_cli) -> None:
    """The path was shown without it, or the command ended in an error after the run was done."""
    words = [
        "experiment=semantic_fusion/main",
        "size=smoke",
        "trainer.limit_train_batches=2",
        "~callback.control_trial",
    ]
    code, out, err = run_cli("train", *words, "trainer.limit_val_batches=1", "output_root='[draft] a[/b]'")
    assert code == 0 and "record: [draft] a[/b]/semantic_fusion/main/corrected-smoke-seed0-" in out, err
    (run,) = Path.cwd().glob("*/b]/semantic_fusion/main/*")
    assert run.parents[3].name == "[draft] a["
    code, out, err = run_cli("evaluate", str(run), "trainer.limit_val_batches=1")
    assert code == 0 and "[draft] a[/b]/semantic_fusion" in out, err

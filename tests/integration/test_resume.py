"""A run stopped inside an epoch and started again equals an undisturbed one to the bit, for every paper."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Callback, LightningModule, Trainer

from lit_ctg.config import compose
from lit_ctg.run import build
from lit_ctg.run.train import train

WORDS = [
    "size=smoke",
    "seed=3",
    "logger=none",
    "callback=[run_record,checkpoint,epoch_seed]",
    "trainer.accelerator=cpu",
    "trainer.enable_progress_bar=false",
    "trainer.max_epochs=3",
    "trainer.limit_train_batches=4",
    "trainer.limit_val_batches=1",
]
PERPLEXITY = "metric=[perplexity]"
PAPERS = {
    "idea_gate/main": [PERPLEXITY, "data.steps_per_epoch=4"],
    # its state runs through the batches of an epoch
    "nslm/numbers": ["data.sample_size=3000"],
    "control_code/transformer": [PERPLEXITY, "data.sample_size=3000"],
    "graphmax/main": [PERPLEXITY, "data.sample_size=3000"],
    "semantic_fusion/main": [PERPLEXITY, "data.batch_size=16", "data.train_size=64", "data.val_size=32"],
}
# with the sums that its curves are means of
NSLM_CALLBACKS = "callback=[run_record,checkpoint,epoch_seed,nslm_evaluation]"
# the others are long
QUICK = {("idea_gate/main", 0), ("graphmax/main", 0)}
# everything that training goes on from
KEPT = ("state_dict", "optimizer_states", "lr_schedulers", "loops", "lit_ctg_generators")


class Stopped(Exception):
    """Stands for a process that is killed."""


class Stop(Callback):
    """Ends the run after a batch of the second epoch; with ``save`` it leaves a checkpoint from there."""

    def __init__(self, folder: Path, batch: int, save: bool) -> None:
        self.folder, self.batch, self.save = folder, batch, save

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.current_epoch == 1 and batch_idx == self.batch:
            if self.save:
                trainer.save_checkpoint(self.folder / build.CHECKPOINT)
            raise Stopped


def run(root: Path, words: list[str]) -> dict[str, Any]:
    """Return what must be equal: the numbers of the record and what the last checkpoint holds."""
    folder = train(compose([*WORDS, *words, f"output_root={root}"])).folder
    record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    checkpoint = torch.load(folder / build.CHECKPOINT, weights_only=True)
    numbers = {"metrics": record["metrics"], "history": record["history"]}
    numbers["tokens"] = checkpoint["callbacks"]["RunRecordCallback"]["tokens"]
    return numbers | {key: checkpoint[key] for key in KEPT}


def differences(
    root: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], batch: int = 1, save: bool = False
) -> list[str]:
    """Hold an undisturbed run against one that is stopped after a batch of its second epoch and started again.

    Return the places where they differ, and those that only one of them has.
    """
    whole = dict(leaves(run(root / "whole", words)))
    callbacks = build._callbacks
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(build, "_callbacks", lambda cfg, folder: [*callbacks(cfg, folder), Stop(folder, batch, save)])
        run(root / "stopped", words)
    resumed = dict(leaves(run(root / "stopped", words)))
    assert whole
    return [
        place
        for place in sorted(whole.keys() | resumed.keys())
        if place not in whole or place not in resumed or not same(whole[place], resumed[place])
    ]


def leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (place, value) of everything in nested dicts and lists."""
    if isinstance(value, (dict, list, tuple)):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(part, f"{place}/{key}")
    else:
        yield place, value


def same(left: Any, right: Any) -> bool:
    return torch.equal(left, right) if isinstance(left, torch.Tensor) else left == right


@pytest.mark.parametrize(
    ("paper", "workers"),
    [
        pytest.param(paper, workers, marks=[] if (paper, workers) in QUICK else [pytest.mark.long])
        for paper in PAPERS
        for workers in (0, 2)
    ],
)
def test_an_epoch_that_was_cut_off_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paper: str, workers: int
) -> None:
    """Also where worker processes read ahead of training (Lightning's issue 21938)."""
    # max_steps ends the run inside the third epoch
    words = [f"experiment={paper}", *PAPERS[paper], "trainer.max_steps=10", f"++data.num_workers={workers}"]
    assert differences(tmp_path, monkeypatch, words) == []


@pytest.mark.long
@pytest.mark.parametrize(
    "words",
    [[], ["trainer.accumulate_grad_batches=3", "trainer.max_steps=5"], ["trainer.check_val_every_n_epoch=3"]],
    ids=["epochs", "accumulated", "validated_once"],
)
def test_that_holds_however_the_run_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    assert differences(tmp_path, monkeypatch, ["experiment=idea_gate/main", *PAPERS["idea_gate/main"], *words]) == []


@pytest.mark.parametrize(
    ("paper", "words"),
    [
        ("idea_gate/main", []),
        pytest.param("idea_gate/main", ["++data.num_workers=2"], marks=pytest.mark.long),
        pytest.param(
            "idea_gate/main", ["trainer.accumulate_grad_batches=2", "trainer.max_steps=5"], marks=pytest.mark.long
        ),
        pytest.param("control_code/transformer", [], marks=pytest.mark.long),
        pytest.param("graphmax/main", [], marks=pytest.mark.long),
        pytest.param("nslm/numbers", [NSLM_CALLBACKS], marks=pytest.mark.long),
        pytest.param("semantic_fusion/main", [], marks=pytest.mark.long),
    ],
    ids=["idea_gate", "idea_gate_workers", "idea_gate_accumulated", "control_code", "graphmax", "nslm", "fusion"],
)
def test_a_checkpoint_made_inside_an_epoch_goes_on_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paper: str, words: list[str]
) -> None:
    assert differences(tmp_path, monkeypatch, [f"experiment={paper}", *PAPERS[paper], *words], save=True) == []


@pytest.mark.long
def test_a_damaged_checkpoint_costs_an_epoch_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run goes on from the checkpoint before it, and ends as if nothing had happened."""
    words = ["experiment=idea_gate/main", *PAPERS["idea_gate/main"], "trainer.max_epochs=4"]
    whole = dict(leaves(run(tmp_path / "whole", words)))
    callbacks = build._callbacks
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(build, "_callbacks", lambda cfg, folder: [*callbacks(cfg, folder), Stop(folder, 1, save=True)])
        run(tmp_path / "stopped", words)
    (last,) = tmp_path.glob("stopped/**/last.ckpt")
    data = bytearray(last.read_bytes())
    data[len(data) // 2] ^= 1
    last.write_bytes(data)
    resumed = dict(leaves(run(tmp_path / "stopped", words)))
    assert last.with_name("last.before-0.ckpt").read_bytes() == data
    assert whole.keys() == resumed.keys() and all(same(whole[place], resumed[place]) for place in whole)

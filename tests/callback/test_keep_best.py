"""A run that stops when validation no longer improves, and keeps the weights of the best one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Callback

from lit_ctg.callback.keep_best import LAST, KeepBest
from lit_ctg.config import compose
from lit_ctg.errors import UserError
from lit_ctg.run import build
from lit_ctg.run.train import train

COSTS = (5.0, 3.0, 4.0, 2.0, 2.5, 2.0, 2.1, 1.0)


class Costs(Callback):
    """Logs made-up validation costs, and keeps the weights after every epoch."""

    def __init__(self, costs: tuple[float, ...] = COSTS) -> None:
        self.costs, self.seen = costs, []

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        pl_module.log("val/cross_entropy", torch.tensor(self.costs[min(trainer.current_epoch, len(self.costs) - 1)]))
        if trainer.state.fn == "fit":
            self.seen.append({name: value.clone() for name, value in pl_module.state_dict().items()})


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_training_stops_and_the_best_weights_stay(tiny: Any, trainer_of: Any, tmp_path: Path) -> None:
    module, data = tiny()
    costs, keep = Costs(), KeepBest(monitor="val/cross_entropy", patience=3)
    trainer = trainer_of(costs, keep, max_epochs=8)
    trainer.fit(module, data)
    # the best is that of the fourth epoch; an equal one is no improvement
    assert len(costs.seen) == 7 and keep.results["best_epoch"]["value"] == 4.0
    assert same(module.state_dict(), costs.seen[3]) and not same(costs.seen[3], costs.seen[6])


def test_a_run_that_goes_on_improving_ends_at_its_last_epoch(tiny: Any, trainer_of: Any) -> None:
    module, data = tiny()
    costs, keep = Costs((5.0, 4.0, 3.0)), KeepBest(monitor="val/cross_entropy", patience=1)
    trainer_of(costs, keep, max_epochs=3).fit(module, data)
    assert len(costs.seen) == 3 and keep.results["best_epoch"]["value"] == 3.0
    assert same(module.state_dict(), costs.seen[2])


class Save(Callback):
    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        trainer.save_checkpoint(self.path, weights_only=False)


def test_a_run_that_had_all_its_epochs_when_it_was_interrupted_has_its_best_weights(
    tiny: Any, trainer_of: Any, tmp_path: Path
) -> None:
    path, costs = tmp_path / "last.ckpt", Costs((5.0, 3.0, 4.0))
    for callbacks in ((costs, Save(path)), (Costs(),)):
        module, data = tiny()
        keep = KeepBest(monitor="val/cross_entropy", patience=3)
        trainer_of(*callbacks, keep, max_epochs=3).fit(module, data, ckpt_path=path if path.exists() else None)
        assert keep.results["best_epoch"]["value"] == 2.0
        assert same(module.state_dict(), costs.seen[1]) and not same(costs.seen[1], costs.seen[2])
    assert not callbacks[0].seen, "it trained on"


@pytest.mark.parametrize("epochs", [3, 5, 7])
def test_a_checkpoint_has_the_best_weights_and_the_last(
    tiny: Any, trainer_of: Any, tmp_path: Path, epochs: int
) -> None:
    module, data = tiny()
    costs, save = Costs(), Save(tmp_path / "last.ckpt")
    trainer_of(costs, KeepBest(monitor="val/cross_entropy", patience=3), save, max_epochs=epochs).fit(module, data)
    content = torch.load(tmp_path / "last.ckpt", weights_only=True)
    best = min(range(epochs), key=lambda epoch: COSTS[epoch])
    assert same(content["state_dict"], costs.seen[best])
    assert same(content[LAST], costs.seen[epochs - 1])


def test_an_unknown_metric_is_named(tiny: Any, trainer_of: Any) -> None:
    module, data = tiny()
    with pytest.raises(UserError, match=r"keep_best\.monitor=val/cross_entropie: .*did you mean 'val/cross_entropy'"):
        trainer_of(Costs(), KeepBest(monitor="val/cross_entropie", patience=3)).fit(module, data)


WORDS = (
    "experiment=control_code/converged",
    "size=smoke",
    "logger=none",
    "trainer.accelerator=cpu",
    "data.sample_size=3000",
    "trainer.max_epochs=20",
    # so large a rate that held-out text is soon predicted worse
    "model.optimizers.adamw.learning_rate=0.02",
    "callback.keep_best.patience=2",
)


class Stopped(Exception):
    """Stands for a process that is killed."""


class Stop(Callback):
    """Ends the run within the epoch after the first one that is not the best."""

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        keep = next(callback for callback in trainer.callbacks if isinstance(callback, KeepBest))
        if keep.wait_count:
            raise Stopped


def test_a_run_is_measured_and_saved_at_its_best_also_if_it_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
        folder = train(compose([*WORDS, f"output_root={tmp_path / name}"])).folder
        record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        return record, torch.load(folder / build.CHECKPOINT, weights_only=True)

    record, content = run("whole")
    curve = record["history"]["val/cross_entropy"]
    epoch, best = min(curve, key=lambda pair: pair[1])
    assert record["metrics"]["best_epoch"]["value"] == epoch < len(curve) < 20
    assert record["metrics"]["val/cross_entropy"]["value"] == pytest.approx(best, rel=1e-6)
    callbacks = build._callbacks
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(build, "_callbacks", lambda cfg, folder: [*callbacks(cfg, folder), Stop()])
        run("stopped")
    resumed, again = run("stopped")
    assert resumed["metrics"] == record["metrics"] and resumed["history"] == record["history"]
    best_weights, last_weights = (
        {name: part[name] for name in content[LAST]} for part in (content["state_dict"], content[LAST])
    )
    assert same({name: again["state_dict"][name] for name in content[LAST]}, best_weights)
    assert same(again[LAST], last_weights) and not same(best_weights, last_weights)
    # a run that had stopped, and was killed before it was measured, trains no further
    next((tmp_path / "stopped").rglob("run.json")).unlink()
    assert run("stopped")[0]["history"] == record["history"]

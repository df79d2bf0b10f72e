"""The entries of Table 7 in a run record."""

from __future__ import annotations

from lit_ctg.callback.metric import MetricCallback
from lit_ctg.papers.nslm.increment import IncrementModule
from lit_ctg.papers.nslm.increment_corpus import IncrementDataModule
from lit_ctg.papers.nslm.increment_trial import IncrementTrial


def test_results_history_and_stopping(trainer_of) -> None:
    datamodule = IncrementDataModule(n=40, held_out=0.1, batch_size=16, seed=0)
    module = IncrementModule(vocabulary=datamodule.vocabulary, dim=32, learning_rate=0.03)
    trial = IncrementTrial(stop_at_loss=0.05)
    trainer = trainer_of(MetricCallback({}), trial, max_epochs=200)
    trainer.fit(module, datamodule)
    assert trainer.current_epoch < 200
    trainer.validate(module, datamodule, verbose=False)
    value = {name.partition("/")[2]: entry["value"] for name, entry in trial.results.items()}
    assert value["accuracy"] == 1.0 and value["train"] < 1.1
    assert value["nslm_unseen"] < 1.01 < value["unseen_best"] <= value["unseen"]
    assert value["uniform"] == 41
    epochs = [epoch for epoch, _ in trial.history["increment/unseen"]]
    assert epochs == list(range(trainer.current_epoch + 1))
    again = IncrementTrial(stop_at_loss=0.05)
    again.load_state_dict(trial.state_dict())
    assert again.history == trial.history

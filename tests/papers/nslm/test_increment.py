"""Pairs of consecutive integers."""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from lit_ctg.core.metric_callback import MetricCallback
from lit_ctg.errors import UserError
from lit_ctg.papers.nslm.increment import IncrementDataModule, IncrementModule, IncrementTrial, micro_model_perplexities


def test_every_pair_is_in_one_split() -> None:
    datamodule = IncrementDataModule(n=200, held_out=0.1, batch_size=None, seed=3)
    rows = [tuple(pair) for split in ("train", "val", "test") for pair in datamodule.pairs(split).tolist()]
    assert sorted(rows) == [(number, number + 1) for number in range(200)]
    assert [len(datamodule.pairs(split)) for split in ("train", "val", "test")] == [160, 20, 20]
    other = IncrementDataModule(n=200, held_out=0.1, batch_size=None, seed=4)
    assert other.pairs("test").tolist() != datamodule.pairs("test").tolist()


def test_batches_and_texts() -> None:
    datamodule = IncrementDataModule(n=200, held_out=0.1, batch_size=None, seed=3)
    batches = list(datamodule.train_dataloader())
    assert len(batches) == 4 and datamodule.batch_size == 50
    for batch in batches:
        assert (batch["target_ids_BT"] == batch["input_ids_BT"] + 1).all()
        assert batch["mask_target_BT"].all() and batch["input_ids_BT"].shape[1] == 1
    first, second = datamodule.texts(1)[0].split()
    assert int(second) == int(first) + 1
    assert datamodule.vocabulary.tokens[-1] == "200" and len(datamodule.vocabulary) == 201


@pytest.mark.parametrize(("n", "held_out"), [(3, 0.49), (4, 0.49), (5, 0.01), (100, 0.49)])
def test_no_part_is_empty(n: int, held_out: float) -> None:
    datamodule = IncrementDataModule(n=n, held_out=held_out, batch_size=None, seed=0)
    assert all(len(datamodule.pairs(split)) for split in ("train", "val", "test"))


DATA = {"n": 60, "held_out": 0.1, "batch_size": 24, "seed": 0}


def test_lstm_learns_by_heart_and_guesses_on_unseen_pairs() -> None:
    torch.manual_seed(0)
    datamodule = IncrementDataModule(**DATA)
    module = IncrementModule(vocabulary=datamodule.vocabulary, dim=32, learning_rate=0.02)
    perplexities, pair = micro_model_perplexities(datamodule)
    assert perplexities == pytest.approx({"train": 1, "test": 1}, abs=0.01) and pair.startswith("difference/")
    untrained, _ = module.score(datamodule.pairs("test"))
    assert untrained == pytest.approx(len(datamodule.vocabulary), rel=0.05)
    optimizer = module.configure_optimizers()
    for _ in range(60):
        for batch in datamodule.train_dataloader():
            optimizer.zero_grad()
            module.losses(batch)["loss"].backward()
            optimizer.step()
    assert module.score(datamodule.pairs("train"))[1] == 1.0
    assert module.score(datamodule.pairs("test"))[0] > 60


def test_score_is_the_perplexity_of_the_second_integer() -> None:
    torch.manual_seed(0)
    datamodule = IncrementDataModule(**DATA)
    module = IncrementModule(vocabulary=datamodule.vocabulary, dim=8, learning_rate=0.02)
    pairs_N2 = datamodule.pairs("val")
    probs = [
        module({"input_ids_BT": pair[None, :1]}).scores_BTV[0, 0].double().softmax(0)[pair[1]].item()
        for pair in pairs_N2
    ]
    assert module.score(pairs_N2)[0] == pytest.approx(np.exp(-np.log(probs).mean()))
    with torch.no_grad():
        module.output.weight.mul_(1e6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert module.score(pairs_N2)[0] == math.inf, "a model that diverged"


def test_vectors_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "vectors.txt").write_text("7 1 2 3\nhello 4 5 6\n8 7 8 9\n", encoding="utf-8")
    datamodule = IncrementDataModule(**DATA)
    options = {"vocabulary": datamodule.vocabulary, "dim": 3, "learning_rate": 0.1}
    module = IncrementModule(embedding_file=str(tmp_path / "vectors.txt"), **options)
    assert module.embedding.weight[8].tolist() == [7, 8, 9] and module.vectors_found == 2
    small = IncrementModule(initial_range=0.05, **options)
    assert all(0.03 < float(parameter.abs().max()) <= 0.05 for parameter in small.parameters())
    assert module.embedding.weight[9].isfinite().all() and module.embedding.weight[9].abs().min() > 0, "drawn as before"
    assert not module.output.bias.any()
    with pytest.raises(UserError):
        IncrementModule(embedding_file=str(tmp_path / "none.txt"), **options)


def test_loss_in_chunks_is_the_loss_of_all_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    datamodule = IncrementDataModule(n=400, held_out=0.1, batch_size=300, seed=0)
    module = IncrementModule(vocabulary=datamodule.vocabulary, dim=8, learning_rate=0.02).double()
    batch = next(iter(datamodule.train_dataloader()))

    def found() -> list[torch.Tensor]:
        module.zero_grad()
        loss = module.losses(batch)["loss"]
        loss.backward()
        return [loss.detach(), *(parameter.grad.clone() for parameter in module.parameters())]

    at_once = found()
    monkeypatch.setattr("lit_ctg.papers.nslm.increment.BLOCK", 1000)
    monkeypatch.setattr(IncrementModule, "forward", None)  # the scores of all pairs are never made
    for one, other in zip(at_once, found(), strict=True):
        torch.testing.assert_close(other, one)


def test_results_history_and_stopping(trainer_of, tmp_path: Path) -> None:
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
    assert value["uniform"] == 41 and {entry["n"] for entry in trial.results.values()} == {32, 4}
    epochs = [epoch for epoch, _ in trial.history["increment/unseen"]]
    assert epochs == list(range(trainer.current_epoch + 1))
    again = IncrementTrial(stop_at_loss=0.05)
    again.load_state_dict(trial.state_dict())
    assert again.history == trial.history
    # killed before the record was written: it does not train on
    steps = trainer.global_step
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    resumed = trainer_of(MetricCallback({}), IncrementTrial(stop_at_loss=0.05), max_epochs=200)
    resumed.fit(module, datamodule, ckpt_path=tmp_path / "last.ckpt", weights_only=False)
    assert resumed.global_step == steps

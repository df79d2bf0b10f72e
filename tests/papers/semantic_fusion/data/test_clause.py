"""The plain data module: configuration, splits, corpus transform, floors, overlap, refusals."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning import Callback
from omegaconf import OmegaConf

from lit_ctg import config
from lit_ctg.errors import UserError
from lit_ctg.papers.semantic_fusion.clause import ClauseDataModule
from lit_ctg.papers.semantic_fusion.clause_vocabulary import NEGATIVE
from lit_ctg.run.build import instantiate

FOLDER = Path(__file__).resolve().parents[4] / "conf" / "data"


def make(
    name: str = "clause", *, regime: str = "corrected", size: str = "paper", seed: int = 111, **changes: Any
) -> Any:
    """The data module of conf/data/<name>.yaml with some values changed."""
    config.register()
    root = {"regime": regime, "size": size, "seed": seed, "data": OmegaConf.load(FOLDER / f"{name}.yaml")}
    values = OmegaConf.to_container(OmegaConf.create(root), resolve=True)["data"] | changes
    return instantiate(OmegaConf.create(values), "data")


def batches(loader: Any) -> list[dict[str, torch.Tensor]]:
    return list(loader)


def rows(datamodule: ClauseDataModule, split: str) -> np.ndarray:
    return datamodule.corpus(split)[0]


@pytest.mark.parametrize("size", ["smoke", "small", "paper"])
def test_sizes_of_the_configuration(size: str) -> None:
    data = make(size=size)
    train, val = {"smoke": (256, 64), "small": (2000, 600), "paper": (8000, 1200)}[size]
    assert (len(rows(data, "train")), len(rows(data, "val")), len(rows(data, "test"))) == (train, val, val)
    assert rows(data, "train").shape[1] == 28


def test_held_out_words_by_regime() -> None:
    paper = {"wonderful", "excellent", "great", "terrible", "awful", "unpleasant"}
    assert set(make().held_out_words) == set(make(seed=7).held_out_words) == paper
    published = make(regime="as_published")
    assert set(published.held_out_words) == paper
    assert set(make(regime="as_published", seed=112).held_out_words) != paper
    assert published.held_out_ids == tuple(sorted(published.vocabulary.id(word) for word in paper))


def test_training_has_trained_adjectives_only_and_validation_all_ten() -> None:
    data = make()
    adjectives = {*data.vocabulary.ids("adjective_positive"), *data.vocabulary.ids("adjective_negative")}
    for split, expected in (("train", adjectives - set(data.held_out_ids)), ("val", adjectives), ("test", adjectives)):
        assert set(np.unique(rows(data, split))) & adjectives == expected


def test_corpora_depend_on_the_seed_only_and_are_separate_streams() -> None:
    one, same, other = make(size="small"), make(size="small"), make(size="small", seed=112)
    for split in ("test", "val", "train"):  # in another order than the first time
        rows(same, split)
    for split in ("train", "val", "test"):
        assert np.array_equal(rows(one, split), rows(same, split))
        assert not np.array_equal(rows(one, split), rows(other, split))
    assert not np.array_equal(rows(one, "val"), rows(one, "test"))


def test_batches_of_a_split() -> None:
    data = make(size="small")
    data.setup("fit")
    train, val = batches(data.train_dataloader()), batches(data.val_dataloader())
    assert [len(batch["input_ids_BT"]) for batch in train] == [64] * 31 + [16]
    assert torch.equal(torch.cat([batch["sentence_index_B"] for batch in val]), torch.arange(600))
    batch = train[0]
    assert batch["input_ids_BT"].shape == (64, 18)
    expected = rows(data, "train")[batch["sentence_index_B"].numpy()]
    assert np.array_equal(batch["input_ids_BT"], expected[:, :18])
    assert np.array_equal(batch["target_ids_BT"], expected[:, 1:19])
    wide = make(size="smoke", crop=False)
    assert batches(wide.val_dataloader())[0]["input_ids_BT"].shape == (64, 27)


def test_corpus_transform_is_called_once_a_split_on_all_sentences() -> None:
    data, calls = make(size="smoke"), []

    def transform(ids_NT: torch.Tensor, lengths_N: torch.Tensor) -> dict[str, torch.Tensor]:
        calls.append(tuple(ids_NT.shape))
        assert torch.equal((ids_NT != 0).sum(1), lengths_N)
        return {"double_BT": 2 * ids_NT, "length_B": lengths_N}

    data.corpus_transform = transform
    for _ in range(2):
        data.setup("fit")
        data.setup("validate")
        found = batches(data.train_dataloader()) + batches(data.val_dataloader())
    assert calls == [(256, 28), (64, 28)]
    for batch in found:
        assert torch.equal(batch["double_BT"], 2 * batch["input_ids_BT"])
        assert torch.equal(batch["length_B"], batch["mask_input_BT"].sum(1))
    data.corpus_transform = None
    assert "length_B" not in batches(data.val_dataloader())[0]


def test_stages_prepare_what_they_need() -> None:
    seen: list[int] = []
    data = make(size="smoke", val_size=40)
    data.corpus_transform = lambda ids_NT, lengths_N: seen.append(len(ids_NT)) or {}
    data.setup("test")
    assert seen == [40]
    data.setup(None)
    assert sorted(seen) == [40, 40, 256]


def test_a_trainer_runs_epochs_in_the_samplers_order(tiny: Any, trainer_of: Any) -> None:
    class Watch(Callback):
        def __init__(self) -> None:
            self.epochs: dict[int, list[int]] = {}

        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            self.epochs.setdefault(trainer.current_epoch, []).extend(batch["sentence_index_B"].tolist())

    module, _ = tiny()
    module.embedding = torch.nn.Embedding(41, 4)
    watch = Watch()
    trainer_of(watch, max_epochs=3).fit(module, make(size="smoke"))
    for epoch in range(3):
        stream = np.random.SeedSequence(111, spawn_key=(100, epoch))
        assert watch.epochs[epoch] == np.random.default_rng(stream).permutation(256).tolist()


def test_module_can_be_pickled_and_workers_give_the_same() -> None:
    data = make(size="smoke")
    copy = pickle.loads(pickle.dumps(data))
    copy.num_workers = 1
    for left, right in zip(data.val_dataloader(), copy.val_dataloader(), strict=True):
        assert torch.equal(left["input_ids_BT"], right["input_ids_BT"])


def test_floors_of_the_paper_and_of_its_sample() -> None:
    data = make()
    floor, oracle = data.entropy_floor(), data.oracle()
    assert floor.exact.perplexity(mask="input") == pytest.approx(2.672, abs=5e-4)
    assert floor.exact == data.entropy_floor("test").exact != data.entropy_floor("train").exact
    for name, value in floor.metrics().items():
        assert oracle.metrics()[name] == pytest.approx(value, rel=0.01) and oracle.metrics()[name] != value
    nats = data.sentence_nats(torch.from_numpy(rows(data, "val")))
    assert nats.sum() / (rows(data, "val") != 0)[:, 1:].sum() == pytest.approx(np.log(oracle.metrics()["perplexity"]))
    assert data.floor_given_polarity_unknown().metrics() == pytest.approx(floor.metrics())


def test_about_a_hundred_validation_sentences_occur_in_training() -> None:
    found = make().overlap()  # 106 of 1,200 in the authors' corpus
    assert 70 < found.count < 145 and found.size == 1200
    assert found.share == found.count / 1200
    data = make(size="smoke")
    data._corpora["val"] = data.corpus("train")
    assert data.overlap().share == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_size": 0}, "train_size=0"),
        ({"val_size": -1}, "val_size=-1"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": 1.5}, "batch_size=1.5"),
        ({"max_length": 17}, "max_length=17.*from 18"),
        ({"seed": -1}, "seed=-1"),
        ({"num_workers": -1}, "num_workers=-1"),
        ({"second_clause_probability": 2}, "second_clause_probability=2"),
        (
            {"intensifier_weights": {"slightly": -1, "moderately": 1, "very": 1, "extremely": 1}},
            "weight -1 of 'slightly'",
        ),
        ({"punctuation_weights": {}}, "punctuation_weights"),
        ({"held_out": {"positive": ["task"], "negative": []}}, "held_out.positive: unknown 'task'"),
        ({"held_out": {"positive": [], "negative": list(NEGATIVE)}}, "all negative"),
    ],
)
def test_bad_values_end_in_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        make(**changes)
    assert "\n" not in str(caught.value)


def test_a_cap_of_ten_does_for_one_clause() -> None:
    data = make(size="smoke", second_clause_probability=0, max_length=10)
    assert batches(data.val_dataloader())[0]["input_ids_BT"].shape == (64, 10)
    with pytest.raises(UserError, match="from 10"):
        make(size="smoke", second_clause_probability=0, max_length=9)


@pytest.mark.parametrize("method", ["corpus", "entropy_floor", "overlap", "oracle", "floor_given_polarity_unknown"])
def test_unknown_splits_are_refused(method: str) -> None:
    with pytest.raises(UserError, match="split: unknown 'vla'; did you mean 'val'"):
        getattr(make(size="smoke"), method)("vla")

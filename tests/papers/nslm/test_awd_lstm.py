"""The weight-dropped LSTM against its equations, its regularisation, NT-ASGD, and the module on real contexts."""

from __future__ import annotations

import copy
import itertools
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning import Callback

from lit_ctg.config import compose
from lit_ctg.core.causality_probe import probe
from lit_ctg.errors import UserError
from lit_ctg.papers.nslm.awd_lstm import HISTORY, LAST, AWDBackbone, AWDModule, locked_dropout
from lit_ctg.papers.nslm.baselines import forget
from lit_ctg.papers.nslm.model import NSLMModule, Stream
from lit_ctg.run import build
from lit_ctg.run.build import build_datamodule, build_model
from lit_ctg.run.train import train
from tests.papers.nslm.conftest import lstm_layer

NONE = {"dropout": 0.0, "dropout_between": 0.0, "dropout_input": 0.0, "dropout_weight": 0.0}
OUTPUT = 4


def make(**options: Any) -> AWDBackbone:
    torch.manual_seed(3)
    return AWDBackbone(**({"dim": OUTPUT, "hidden": 6, "layers": 3, "alpha": 2.0, "beta": 1.0} | NONE | options))


def slow(backbone: AWDBackbone, x_TD: torch.Tensor) -> torch.Tensor:
    """All layers for one text, without dropout, in float64."""
    for lstm in backbone.layers:
        x_TD = lstm_layer(lstm, 0, x_TD)
    return x_TD


def test_equals_the_equations_and_so_does_the_penalty() -> None:
    backbone, x = make().train(), torch.randn(3, 7, OUTPUT)
    expected = torch.stack([slow(backbone, row) for row in x])
    torch.testing.assert_close(backbone(x).double(), expected, atol=1e-6, rtol=0)
    expected = expected.detach()
    change = sum(float(((row[t + 1] - row[t]) ** 2).sum()) for row in expected for t in range(6)) / (3 * 6 * OUTPUT)
    size = float((expected**2).sum()) / (3 * 7 * OUTPUT)
    penalty = backbone.penalty()
    assert penalty is not None and penalty.item() == pytest.approx(2.0 * size + 1.0 * change, rel=1e-5)
    # once, and in training only
    assert backbone.penalty() is None
    backbone.eval()(x)
    assert backbone.penalty() is None


def test_activation_regularisation_sees_the_dropout_and_the_temporal_one_does_not() -> None:
    x = torch.randn(2, 9, OUTPUT)
    bare = make(alpha=0.0).train()
    bare(x)
    dropped = make(alpha=0.0, dropout=0.5).train()
    dropped(x)
    torch.testing.assert_close(dropped.penalty(), bare.penalty())
    seen = make(beta=0.0, dropout=0.5).train()
    output = seen(x)
    torch.testing.assert_close(seen.penalty(), 2.0 * output.square().mean())
    assert (output == 0).any()


def test_state_is_carried_and_forgotten_and_step_is_the_last_column() -> None:
    backbone, x = make().eval(), torch.randn(2, 9, OUTPUT)
    whole = backbone(x)
    _, state = backbone.run(x[:, :4], None)
    rest, _ = backbone.run(x[:, 4:], state)
    torch.testing.assert_close(rest, whole[:, 4:])
    mixed, _ = backbone.run(x[:, 4:], forget(state, torch.tensor([True, False])))
    torch.testing.assert_close(mixed[1], whole[1, 4:])
    torch.testing.assert_close(mixed[0], backbone(x[:1, 4:])[0])
    cache = None
    for t in range(9):
        hidden, cache = backbone.step(x[:, t], cache)
    torch.testing.assert_close(hidden, whole[:, -1])


def test_a_mask_is_the_same_at_every_position_and_differs_between_rows() -> None:
    torch.manual_seed(0)
    dropped = locked_dropout(torch.ones(8, 5, 50), 0.4, True)
    assert torch.equal(dropped, dropped[:, :1].expand_as(dropped))
    assert not torch.equal(dropped[0], dropped[1])
    torch.testing.assert_close(dropped.unique(), torch.tensor([0.0, 1 / 0.6]))
    assert float((dropped == 0).float().mean()) == pytest.approx(0.4, abs=0.1)
    values = torch.randn(2, 3, 4)
    assert locked_dropout(values, 0.4, False) is values


def test_only_weights_between_states_are_dropped() -> None:
    x = torch.randn(2, 2, OUTPUT)
    backbone = make(dropout_weight=0.5)
    bare, dropped = backbone.eval()(x), backbone.train()(x)
    # the first position has a zero state before it
    torch.testing.assert_close(dropped[:, 0], bare[:, 0])
    assert not torch.allclose(dropped[:, 1], bare[:, 1])
    assert not torch.allclose(backbone(x)[:, 1], dropped[:, 1]), "the same weights are dropped in every step"
    backbone(x).sum().backward()
    assert all(lstm.weight_hh_l0.grad.abs().sum() > 0 for lstm in backbone.layers)


@pytest.mark.parametrize("name", NONE)
def test_every_dropout_acts_in_training_only(name: str) -> None:
    backbone, x = make(**{name: 0.5}), torch.randn(2, 6, OUTPUT)
    torch.testing.assert_close(backbone.eval()(x), make().eval()(x))
    assert not torch.allclose(backbone.train()(x), make().eval()(x))


WORDS = ("size=smoke", "data.sample_size=6000", "data.batch_size=4", "model.cache.window=30")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[AWDModule, Any]:
    cache = tmp_path_factory.mktemp("cache")
    cfg = compose(["experiment=nslm/awd_lstm", *WORDS, "model.samples=null", f"+data.cache_root={cache}"])
    datamodule = build_datamodule(cfg)
    datamodule.setup("fit")
    module = build_model(cfg, datamodule)
    assert isinstance(module, AWDModule)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(4)
    module.choose_micro_models(datamodule)
    return module.eval(), datamodule


NAMES = ("nnlm", "hnlm", "nslm_alone", "nslm")


def test_every_model_sums_to_one_and_scores_are_entries(built: Any) -> None:
    module, datamodule = built
    assert {"year", "city"} <= set(module.table.names)
    in_class = 0
    module.streams["evaluation"] = Stream()
    stream = Stream()
    with torch.no_grad():
        for batch in list(datamodule.val_dataloader())[:3]:
            hidden, contexts = module._run(batch, stream)
            full = module.log_probs(hidden, contexts, NAMES)
            scores = module.score(batch, characters=False)
            in_class += int((scores.class_N >= 0).sum())
            mask = batch["mask_target_BT"]
            found = scores.models(float(module.mixture_weight))
            for name, log_probs in full.items():
                total = log_probs.double().exp().sum(2)
                torch.testing.assert_close(total, torch.ones_like(total), atol=1e-5, rtol=0, msg=name)
                expected = log_probs[mask].gather(1, batch["target_ids_BT"][mask].unsqueeze(1)).squeeze(1)
                torch.testing.assert_close(torch.from_numpy(found[name]).float(), expected, atol=2e-4, rtol=0)
            # P(c) is a sum of the same words, so Eq. 3 equals the NNLM and Eq. 4 is the summed model
            torch.testing.assert_close(full["hnlm"], full["nnlm"], atol=1e-4, rtol=0)
            assert (found["nslm_alone"] == found["summed"]).all()
    assert in_class > 5
    result = probe(module, batch)
    assert result.is_causal and result.n > 0


def test_generation_step_equals_the_forward_pass(built: Any) -> None:
    module, datamodule = built
    ids_BT = next(iter(datamodule.val_dataloader()))["input_ids_BT"][:2, :12]
    batch = {"input_ids_BT": ids_BT, "target_ids_BT": ids_BT, "document_BT": torch.zeros_like(ids_BT)}
    with torch.no_grad():
        whole = module(batch).scores_BTV
        state = module.start(2)
        for t in range(12):
            scores, state = module.step(ids_BT[:, t : t + 1], state)
            torch.testing.assert_close(scores, whole[:, t], atol=1e-4, rtol=0)


def test_words_are_dropped_whole_and_rows_are_tied(built: Any) -> None:
    module, _ = built
    assert module.heads.word_VD is module.embedding.weight
    ids = torch.arange(40).repeat(3, 1)
    module.train()
    torch.manual_seed(0)
    module.embedding_dropout = 0.3
    embedded = module.embed(ids)
    module.eval()
    assert torch.equal(embedded[0], embedded[1]) and torch.equal(embedded[0], embedded[2])
    gone = (embedded[0] == 0).all(1)
    assert 2 < int(gone.sum()) < 25
    torch.testing.assert_close(embedded[0][~gone], module.embed(ids)[0][~gone] / 0.7)


def test_a_step_costs_the_words_and_the_penalty(built: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module, datamodule = built
    batch = next(iter(datamodule.train_dataloader()))
    module.streams["train"], module.streams["evaluation"] = Stream(), Stream()
    for name in ("dropout", "dropout_between", "dropout_input", "dropout_weight"):
        monkeypatch.setattr(module.backbone, name, 0.0)
    monkeypatch.setattr(module, "embedding_dropout", 0.0)
    module.train()
    losses = module.losses(batch)
    module.eval()
    with torch.no_grad():
        scores = module.score(batch, characters=False)
    assert float(losses["nnlm"]) == pytest.approx(-scores.nnlm_N.mean(), rel=1e-5)
    assert float(losses["loss"]) == pytest.approx(float(losses["nnlm"] + losses["penalty"]), rel=1e-6)
    assert set(losses) == {"loss", "nnlm", "penalty"} and float(losses["penalty"]) > 0


def test_a_model_that_has_run_or_learned_is_copied(built: Any) -> None:
    module, datamodule = built
    batch = next(iter(datamodule.train_dataloader()))
    backbone = copy.deepcopy(module.backbone)
    for mode in (False, True):
        backbone.train(mode)(module.embedding(batch["input_ids_BT"]).detach()).sum().backward()
        backbone.penalty()
        other = copy.deepcopy(backbone).eval()
        assert all(torch.equal(a, b) for a, b in zip(other.parameters(), backbone.parameters(), strict=True))
        x = torch.randn(2, 5, backbone.dim)
        torch.testing.assert_close(other(x), backbone.eval()(x))


def test_the_rate_of_a_step_is_in_proportion_to_its_length(built: Any) -> None:
    """The gradient is clipped, then scaled, and so is the decay that the optimiser adds."""
    module, datamodule = built
    lengths = {}
    assert module.weight_decay == 1.2e-6
    module.streams["train"] = Stream()
    for batch in itertools.islice(datamodule.train_dataloader(), 20):
        module.losses(batch)
        lengths[batch["input_ids_BT"].shape[1]] = module._share
    assert len(lengths) > 1 and all(share == length / module.length for length, share in lengths.items())
    module._share, module.weight_decay = 0.5, 0.0
    for parameter in module.parameters():
        parameter.grad = torch.full_like(parameter, 3.0)
    module.configure_gradient_clipping(None, 0.25)
    grads = torch.cat([parameter.grad.flatten() for parameter in module.parameters()])
    assert float(torch.linalg.vector_norm(grads)) == pytest.approx(0.125, rel=1e-4)
    module.weight_decay = 1.2e-6
    optimizer = module.configure_optimizers()
    assert optimizer.param_groups[0]["weight_decay"] == 1.2e-6
    kept = {name: value.clone() for name, value in module.state_dict().items()}
    module.weight_decay = 0.1
    optimizer = module.configure_optimizers()
    weight = module.embedding.weight
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    module.configure_gradient_clipping(None, 0.25)
    before = weight.detach().clone()
    optimizer.step()
    torch.testing.assert_close(weight.detach(), before * (1 - 0.5 * 0.1 * module.learning_rate), rtol=1e-4, atol=1e-6)
    module.weight_decay = 1.2e-6
    module.zero_grad()
    module.load_state_dict(kept)


def trained(module: AWDModule) -> Any:
    """Give the module a trainer with its optimiser after some steps; return the optimiser."""
    optimizer = module.configure_optimizers()
    module._trainer = SimpleNamespace(optimizers=[optimizer])
    return optimizer


def steps(module: AWDModule, optimizer: Any, count: int) -> list[torch.Tensor]:
    """Take steps with random gradients; return the embeddings after each."""
    seen = []
    for _ in range(count):
        for parameter in module.parameters():
            parameter.grad = torch.randn_like(parameter) / 100
        optimizer.step()
        seen.append(module.embedding.weight.detach().clone())
    module.zero_grad()
    return seen


@pytest.mark.parametrize(
    ("costs", "begins"),
    [
        ([9.0, 8.0, 7.0, 6.0], None),
        # worse than the one before, better than all but the last two
        ([9.0, 8.0, 6.0, 7.0], None),
        # the best before the last two is 9, then 6
        ([9.0, 6.0, 6.5, 6.4, 6.2], 5),
        ([5.0, 6.0, 7.0], None),
        # the best of them is not the last of them
        ([6.0, 8.0, 5.9, 5.8, 7.0], 5),
        ([5.0, 6.0, 7.0, 7.5], 4),
    ],
)
def test_averaging_begins_when_validation_no_longer_improves(
    built: Any, costs: list[float], begins: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, _ = built
    monkeypatch.setattr(module, "_trainer", None)
    monkeypatch.setattr(module, "costs", [])
    monkeypatch.setattr(module, "patience", 2)
    optimizer = trained(module)
    began = None
    for number, cost in enumerate(costs, 1):
        steps(module, optimizer, 1)
        module.see(cost)
        if module.averages and began is None:
            began = number
    assert began == begins
    if begins is not None:
        assert optimizer.param_groups[0]["t0"] == begins
    module._trainer = None


def test_the_average_is_that_of_the_weights_since_then(built: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module, _ = built
    kept = {name: value.clone() for name, value in module.state_dict().items()}
    monkeypatch.setattr(module, "costs", [1.0] * 6)
    optimizer = trained(module)
    steps(module, optimizer, 3)
    assert module.averages == {}
    module.see(2.0)
    seen = steps(module, optimizer, 5)
    # torch leaves the first step after t0 out, as Merity et al.'s own optimiser did
    expected = torch.stack(seen[1:]).mean(0)
    torch.testing.assert_close(module.averages[module.embedding.weight], expected)
    # validation is of the average, and training continues from the last weights
    module.on_validation_epoch_start()
    torch.testing.assert_close(module.embedding.weight.detach(), expected)
    monkeypatch.setattr(NSLMModule, "on_validation_epoch_end", lambda self: None)
    module._trainer.state = SimpleNamespace(fn="validate")
    module.on_validation_epoch_end()
    assert torch.equal(module.embedding.weight, seen[-1])
    checkpoint = {"state_dict": module.state_dict()}
    module.on_save_checkpoint(checkpoint)
    torch.testing.assert_close(checkpoint["state_dict"]["embedding.weight"], expected)
    torch.testing.assert_close(checkpoint["state_dict"]["heads.word_VD"], expected)
    assert torch.equal(checkpoint[LAST]["embedding.weight"], seen[-1])
    module.on_train_end()
    torch.testing.assert_close(module.embedding.weight.detach(), expected)
    module._swap()
    torch.testing.assert_close(module.embedding.weight.detach(), expected)
    module._trainer = None
    module.load_state_dict(kept)


QUICK = (
    "experiment=nslm/awd_lstm",
    "size=smoke",
    "seed=1",
    "logger=none",
    "callback=[run_record,checkpoint,epoch_seed,nslm_evaluation]",
    "data.sample_size=6000",
    "trainer.accelerator=cpu",
    "trainer.enable_progress_bar=false",
    "trainer.limit_train_batches=2",
    "trainer.limit_val_batches=1",
    "model.patience=1",
    # so large that validation gets worse
    "model.learning_rate=300",
)


class Stopped(Exception):
    """Stands for a process that is killed."""


class Stop(Callback):
    """Ends the run within an epoch."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.current_epoch == self.epoch:
            raise Stopped


def run(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train eight epochs, or what is left of them; return the checkpoint and the record."""
    found = train(compose([*QUICK, f"output_root={folder}", "trainer.max_epochs=8"])).folder
    record = json.loads((found / "run.json").read_text(encoding="utf-8"))
    return torch.load(found / build.CHECKPOINT, weights_only=True), record


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    return run(tmp_path_factory.mktemp("whole"))


def test_validation_decides_by_the_networks_own_cost(undisturbed: Any) -> None:
    checkpoint, record = undisturbed
    assert checkpoint[HISTORY][-1] == pytest.approx(math.log(record["metrics"]["val/nnlm/global"]["value"]), rel=1e-5)


@pytest.mark.parametrize("epoch", [2, 6])
def test_a_run_that_averages_goes_on_from_its_last_weights(
    undisturbed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epoch: int
) -> None:
    """Stopped before or after averaging began and started again equals undisturbed; all that is kept is averaged."""
    whole, record = undisturbed
    callbacks = build._callbacks
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(build, "_callbacks", lambda cfg, folder: [*callbacks(cfg, folder), Stop(epoch)])
        run(tmp_path)
    parts, other = run(tmp_path)
    assert whole["optimizer_states"][0]["param_groups"][0]["t0"] <= 8, "nothing to average when it stopped"
    assert record["metrics"] == other["metrics"]
    assert whole[HISTORY] == parts[HISTORY] and len(whole[HISTORY]) == 8
    for key in ("state_dict", LAST):
        assert whole[key] and all(torch.equal(whole[key][name], parts[key][name]) for name in whole[key]), key
    assert not torch.equal(whole["state_dict"]["embedding.weight"], whole[LAST]["embedding.weight"])
    assert {"test/nslm/numbers", "test/nslm/places", "test/nslm/global"} <= set(record["metrics"])


def test_what_does_not_fit_ends_in_one_line(tmp_path: Path) -> None:
    for words, message in (
        (["model.samples=null", "+model.cutoffs=[100,300]"], r"model\.cutoffs"),
        (["+model.grounding=true"], r"model\.grounding"),
        (["backbone=recurrent"], "dropout_weight"),
        (["data.batching=chunks"], r"data\.vary_length"),
        (["data.length=10"], r"data\.length"),
    ):
        cfg = compose(["experiment=nslm/awd_lstm", *WORDS, *words])
        with pytest.raises(UserError, match=message):
            datamodule = build_datamodule(cfg)
            build_model(cfg, datamodule)
            datamodule.train_dataloader()
    words = [*WORDS, "model.cutoffs=[100,300]", "+model.tied=true", "model.samples=null"]
    cfg = compose(["experiment=nslm/numbers", *words])
    with pytest.raises(UserError, match="several sizes"):
        build_model(cfg, build_datamodule(cfg))
    for change, message in (
        ("callback.nslm_evaluation.total.numbers=[yaer]", r"total\.numbers: yaer; did you mean 'year'"),
        ("callback=[default,nslm_evaluation,keep_best]", r"callback=keep_best"),
    ):
        with pytest.raises(UserError, match=message):
            train(compose(["experiment=nslm/awd_lstm", *WORDS, f"output_root={tmp_path}", change]))
    # tied rows do not begin as two tables
    single = ["experiment=nslm/numbers", *QUICK[1:7], "+model.single_task=true", "model.character_dim=0"]
    folder = train(compose([*single, "trainer.max_steps=2", f"output_root={tmp_path}"])).folder
    cfg = compose([*single, "+model.tied=true", f"+model.start_from={folder / build.CHECKPOINT}"])
    with pytest.raises(UserError, match=r"model\.start_from=.*model\.tied"):
        build_model(cfg, build_datamodule(cfg))


def test_evaluation_text_has_its_own_streams_and_is_not_cut_anew() -> None:
    paper = compose(["experiment=nslm/awd_lstm", "size=paper"])
    assert (paper.data.batch_size, paper.data.evaluation_streams) == (80, 10)
    words = ["experiment=nslm/awd_lstm", *WORDS]
    datamodule = build_datamodule(compose(words))
    for split, varies in (("train", True), ("val", False), ("test", False)):
        batches = datamodule.batches(split)
        lengths = {batches[epoch, i]["input_ids_BT"].shape[1] for epoch in (0, 1) for i in range(len(batches) - 1)}
        assert (len(lengths) > 1) is varies, split
    rows = {}
    for streams in ("null", 3):
        datamodule = build_datamodule(compose([*words, f"data.evaluation_streams={streams}"]))
        rows[streams] = [len(datamodule.batches(split)[0, 0]["reset_B"]) for split in ("train", "val", "test")]
    assert rows == {"null": [4, 4, 4], 3: [4, 3, 3]}
    for wrong in (["data.evaluation_streams=0"], ["data.evaluation_streams=3", "data.batching=chunks"]):
        with pytest.raises(UserError, match="evaluation_streams"):
            build_datamodule(compose([*words, "data.vary_length=false", *wrong]))

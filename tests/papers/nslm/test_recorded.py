"""The recorded step against the plain one: costs, gradients, whole trainings; on a CUDA device the recording itself."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensor, FakeTensorMode

from lit_ctg.config import compose
from lit_ctg.papers.nslm import recorded
from lit_ctg.papers.nslm.baselines import CharacterRNNs, RecurrentBackbone
from lit_ctg.papers.nslm.model import NSLMModule
from lit_ctg.run.build import build_datamodule, build_model

WORDS = (
    "experiment=nslm/numbers",
    "size=smoke",
    "data.sample_size=3000",
    "data.batch_size=4",
    "model.samples=null",
    "+model.character_every=2",
)


class Recorder:
    """What a recorded graph does to its callers: inputs are copied, outputs hold only until the next call."""

    def __init__(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self.module, self.inputs, self.calls = module, [part.clone() for part in inputs], 0
        self.outputs: tuple[Tensor, ...] = ()

    def __call__(self, *inputs: Tensor) -> Any:
        for own, given in zip(self.inputs, inputs, strict=True):
            assert not given.requires_grad
            own.copy_(given)
        for part in self.outputs:
            part.detach().fill_(torch.nan)
        self.calls += 1
        found = self.module(*(part.clone() for part in self.inputs))
        self.outputs = found if isinstance(found, tuple) else (found,)
        return found


@pytest.fixture
def recorders(monkeypatch: pytest.MonkeyPatch) -> list[Recorder]:
    """Record on the processor; return the recorders made."""
    made: list[Recorder] = []

    def record(module: nn.Module, inputs: tuple[Tensor, ...]) -> Recorder:
        made.append(Recorder(module, inputs))
        return made[-1]

    monkeypatch.setitem(recorded.RECORDERS, "cpu", record)
    return made


def of(recorders: list[Recorder], kind: type) -> list[Recorder]:
    return [recorder for recorder in recorders if isinstance(recorder.module, kind)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[NSLMModule, Any]:
    cfg = compose([*WORDS, f"+data.cache_root={tmp_path_factory.mktemp('cache')}"])
    datamodule = build_datamodule(cfg)
    datamodule.setup("fit")
    torch.manual_seed(0)
    return build_model(cfg, datamodule).train(), datamodule


def batches(datamodule: Any, count: int = 6) -> Iterator[Any]:
    for _, batch in zip(range(count), datamodule.train_dataloader(), strict=False):
        yield batch


def train(
    module: NSLMModule, datamodule: Any, form: str = "auto", device: str = "cpu", mixed: bool = False
) -> list[dict[str, float]]:
    """Take a few steps; return the costs of each."""
    module.heads.fast = form
    module.to(device)
    module.on_train_epoch_start()
    torch.manual_seed(1)
    optimizer = module.configure_optimizers()["optimizer"]
    costs = []
    for batch in batches(datamodule):
        moved = module.transfer_batch_to_device(batch, torch.empty(0, device=device).device, 0)
        with torch.autocast(device, torch.bfloat16, enabled=mixed):
            losses = module.losses(moved)
        losses["loss"].backward()
        module.configure_gradient_clipping(optimizer, 5.0)
        optimizer.step()
        optimizer.zero_grad()
        costs.append({name: float(value.detach()) for name, value in losses.items()})
    return costs


def test_a_training_is_the_plain_one(made: tuple[NSLMModule, Any], recorders: list[Recorder]) -> None:
    module, datamodule = made
    ours, plain = copy.deepcopy(module), copy.deepcopy(module)
    found = train(ours, datamodule)
    steps, characters = of(recorders, recorded.StepCosts), of(recorders, recorded.CharacterCosts)
    assert len(steps) == 1 and steps[0].calls == len(found) == 6
    assert sum(recorder.calls for recorder in characters) == sum("characters" in costs for costs in found) == 3
    count = len(recorders)
    # with the plain form of the softmaxes nothing is recorded
    expected = train(plain, datamodule, "off")
    assert len(recorders) == count
    assert all(costs["within"] > 0 for costs in found)
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, rel=1e-5)
    for one, other in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    ours.on_train_end()
    assert ours._recorded is None and not ours._recorded_characters.runs


def test_costs_have_the_gradients_of_the_plain_form(made: tuple[NSLMModule, Any]) -> None:
    ours, plain = copy.deepcopy(made[0]).eval(), copy.deepcopy(made[0]).eval()
    batch = next(batches(made[1]))
    plain.losses(batch)["loss"].backward()
    contexts, _ = ours.tracker.read(batch["input_ids_BT"].numpy(), batch["document_BT"].numpy())
    step = recorded.StepCosts(ours.embedding, ours.embed, ours.backbone, ours.heads)
    rows = len(batch["input_ids_BT"])
    state = ours.backbone.start(rows)
    reset_B = torch.zeros(rows, dtype=torch.bool)
    inputs = (batch["input_ids_BT"], batch["target_ids_BT"], torch.from_numpy(contexts.state_BT), reset_B)
    every, nnlm, tag, within, hidden_BTD, *after = step(*inputs, *state)
    assert float(every.detach()) == pytest.approx(float(nnlm + tag + within), rel=1e-6)
    (every / rows).backward()
    for (name, one), other in zip(ours.named_parameters(), plain.parameters(), strict=True):
        if not name.startswith("characters"):
            torch.testing.assert_close(one.grad.to_dense(), other.grad.to_dense(), rtol=1e-4, atol=1e-6)
    # streams that start afresh forget the state given to them
    again = step(*inputs[:3], ~reset_B, *(torch.ones_like(part) for part in state))
    torch.testing.assert_close(again[4], hidden_BTD)
    assert not torch.allclose(step(*inputs, *(torch.ones_like(part) for part in state))[4], hidden_BTD)
    assert not any(part.requires_grad for part in (hidden_BTD, *after))


def test_nothing_that_is_recorded_waits_for_a_value(made: tuple[NSLMModule, Any]) -> None:
    """Tensors without values replace a device that records: no shape may depend on them, the host may read none."""
    module = copy.deepcopy(made[0])
    batch = next(batches(made[1]))
    step = recorded.StepCosts(module.embedding, module.embed, module.backbone, module.heads)
    rows = len(batch["input_ids_BT"])
    inputs = (batch["input_ids_BT"], batch["target_ids_BT"], torch.zeros_like(batch["input_ids_BT"]))
    spelling = recorded.CharacterCosts(module.characters, 8)
    hidden_CND = torch.zeros(len(module.characters), 16, module.backbone.dim)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        given = mode.from_tensor(hidden_CND), mode.from_tensor(torch.zeros(hidden_CND.shape[:2], dtype=torch.long))
        assert isinstance(spelling(*given), FakeTensor)
        fakes = [mode.from_tensor(part) for part in (*inputs, torch.zeros(rows, dtype=torch.bool))]
        every, *_, hidden_BTD, _, _ = step(*fakes, *map(mode.from_tensor, module.backbone.start(rows)))
        assert isinstance(every, FakeTensor) and hidden_BTD.shape == (*fakes[0].shape, module.backbone.dim)
        gradients = torch.autograd.grad(every, list(step.parameters()))
        assert all(isinstance(part, FakeTensor) for part in gradients)
        # evaluation looks for the targets in a class: what this test would say if the recorded step did
        with pytest.raises(DynamicOutputShapeException):
            module.heads.score(hidden_BTD.flatten(0, 1), fakes[1].flatten(), fakes[2].flatten())


def test_character_costs_have_the_gradients_of_the_plain_form(recorders: list[Recorder]) -> None:
    """For one token, for many, for short and for long ones, without some classes: few shapes, whatever the tokens."""
    torch.manual_seed(0)
    classes = [["7", "12", "1984"], ["Bern", "Dar_es_Salaam", "Saint_Petersburg"], ["x"]]
    networks = CharacterRNNs(classes, context_dim=8, dim=6, every=1, renormalise=False)
    plain, run = copy.deepcopy(networks), recorded.RecordedCharacters(networks)
    generator = np.random.default_rng(0)
    for count, members in ((1, 1), (2, 2), (17, 1), (40, 3), (200, 3), (40, 2), (200, 2)):
        class_X = generator.integers(1 if count < 40 else 0, len(classes), count)
        index_X = np.array([generator.integers(min(members, len(classes[number]))) for number in class_X])
        hidden_XD = torch.randn(count, 8)
        cost, expected = run.cost(hidden_XD, class_X, index_X), plain.cost(hidden_XD, class_X, index_X)
        torch.testing.assert_close(cost, expected)
        networks.zero_grad()
        plain.zero_grad()
        cost.backward()
        expected.backward()
        for one, other in zip(networks.parameters(), plain.parameters(), strict=True):
            assert one.grad is not None
            torch.testing.assert_close(one.grad, torch.zeros_like(one) if other.grad is None else other.grad)
    assert sum(recorder.calls for recorder in recorders) == 7 and len(recorders) == len(run.runs) < 7
    assert min(run.runs) == (recorded.FEWEST, 8) and {longest for _, longest in run.runs} == {8, 16, 24}
    assert all(rows & (rows - 1) == 0 and rows <= 128 for rows, _ in run.runs)


def test_other_batches_go_the_plain_way(made: tuple[NSLMModule, Any], recorders: list[Recorder]) -> None:
    module, first = copy.deepcopy(made[0]), next(batches(made[1]))
    module.losses(first)
    short = {name: part[:, :-1] if part.dim() > 1 else part for name, part in first.items()}
    part = {**first, "mask_target_BT": first["mask_target_BT"].clone()}
    part["mask_target_BT"][0, 0] = False
    rows = {name: value for name, value in first.items() if name != "reset_B"}
    for batch in (short, part, rows):
        assert module.losses({**batch})["loss"].isfinite()
    (steps,) = of(recorders, recorded.StepCosts)
    assert steps.calls == 1
    module.losses(first)
    assert steps.calls == 2


@pytest.mark.parametrize("word", ["model.samples=20", "experiment=nslm/awd_lstm", "backbone=gpt2"])
def test_other_networks_and_softmaxes_are_not_recorded(word: str, recorders: list[Recorder], tmp_path: Path) -> None:
    words = [word if word.startswith("experiment") else WORDS[0], *WORDS[1:4], f"+data.cache_root={tmp_path}"]
    cfg = compose([*words, *(() if word.startswith("experiment") else [word])])
    datamodule = build_datamodule(cfg)
    datamodule.setup("fit")
    assert build_model(cfg, datamodule).train().losses(next(batches(datamodule)))["loss"].isfinite()
    assert recorders == []


def test_a_device_that_cannot_record_warns_and_trains(
    made: tuple[NSLMModule, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(module: nn.Module, inputs: tuple[Tensor, ...]) -> Any:
        raise RuntimeError("no graphs here\nat line 3")

    ours, plain, other = (copy.deepcopy(made[0]) for _ in range(3))
    expected = train(plain, made[1])
    # a device that records steps, but not these
    monkeypatch.setitem(
        recorded.RECORDERS,
        "cpu",
        lambda module, inputs: (refuse if isinstance(module, recorded.CharacterCosts) else Recorder)(module, inputs),
    )
    for one, costs in zip(train(other, made[1]), expected, strict=True):
        assert one == pytest.approx(costs, rel=1e-5)
    assert [record.message.partition(" could not")[0] for record in caplog.records] == ["the character RNNs' step"]
    caplog.clear()
    monkeypatch.setitem(recorded.RECORDERS, "cpu", refuse)
    taken, forward = [], recorded.StepCosts.forward
    monkeypatch.setattr(recorded.StepCosts, "forward", lambda *args: taken.append(1) or forward(*args))
    for one, other in zip(train(ours, made[1]), expected, strict=True):
        assert one == pytest.approx(other, rel=1e-5)
    # by the plain form, which scores a class only where there is a target in it
    assert len(taken) == 1
    assert [record.message.rpartition(": ")[2] for record in caplog.records] == ["no graphs here"]


@pytest.mark.gpu
@pytest.mark.parametrize("characters", [False, True], ids=["steps_alone", "characters_too"])
@pytest.mark.parametrize(("mixed", "near"), [(False, 1e-3), (True, 2e-2)])
def test_a_training_on_a_device_is_the_plain_one(
    made: tuple[NSLMModule, Any], mixed: bool, near: float, characters: bool
) -> None:
    module, datamodule = made
    module = copy.deepcopy(module)
    module.backbone.dropout.p = module.backbone.lstm.dropout = 0.0
    ours, plain = copy.deepcopy(module), copy.deepcopy(module)
    ours._recorded_characters.possible = characters
    found = train(ours, datamodule, device="cuda", mixed=mixed)
    expected = train(plain, datamodule, "off", device="cuda", mixed=mixed)
    # where recording failed, the plain form would be compared with itself
    assert ours._recorded is not None and ours._recorded.shape is not None and plain._recorded is None
    assert bool(ours._recorded_characters.runs) == ours._recorded_characters.possible == characters
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, rel=near)


@pytest.mark.gpu
def test_every_repetition_draws_its_own_dropout() -> None:
    """Between the layers, too, where the device's library keeps the generator."""
    torch.manual_seed(0)
    backbone = RecurrentBackbone(dim=16, layers=2, dropout=0.5, init_range=0.5).to("cuda")
    backbone.dropout.p = 0.0
    step, x, state = Network(backbone), torch.randn(3, 7, 16, device="cuda"), backbone.start(3)
    run = torch.cuda.make_graphed_callables(step, (x, *state))
    results = [run(x, *state).clone() for _ in range(4)]
    assert not any(torch.equal(one, other) for i, one in enumerate(results) for other in results[:i])


class Network(nn.Module):
    def __init__(self, backbone: RecurrentBackbone) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, x: Tensor, *state: Tensor) -> Tensor:
        return self.backbone.run(x, state)[0]

"""Both arms and networks: limits, published faults, steps, checkpoints, bad input."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from lit_ctg.core.causality_probe import probe
from lit_ctg.errors import UserError
from lit_ctg.papers.control_code.code_linear import concatenated

ARMS = pytest.mark.parametrize(
    ("network", "options"),
    [
        ("transformer", {"injection": "neuron"}),
        ("transformer", {"injection": "prompt"}),
        ("transformer", {"injection": "none"}),
        ("transformer", {"injection": "neuron", "injection_layers": [2, "output"]}),
        ("transformer", {"injection": "prompt", "position": "batch_row"}),
        ("transformer", {"injection": "neuron", "position": "batch_row"}),
        ("gru", {"injection": "neuron"}),
        ("gru", {"injection": "prompt"}),
    ],
    ids=["neuron", "prompt", "none", "some layers", "published prompt", "published neuron", "gru", "gru prompt"],
)


@ARMS
def test_shapes_and_zeros_at_padding(network, options, make_module, make_batch):
    module, batch = make_module(network, **options).eval(), make_batch()
    output = module(batch)
    assert output.scores_BTV.shape == (3, 7, 30)
    assert output.hidden_BTD.shape == (3, 7, 8)
    padding = ~batch["mask_input_BT"]
    assert not output.scores_BTV[padding].any() and not output.hidden_BTD[padding].any()


@ARMS
def test_causal(network, options, make_module, make_batch):
    module = make_module(network, **options).eval()
    found = probe(module, make_batch(width=9))
    assert found.is_causal and found.n > 0


@ARMS
def test_loss_is_the_mean_cross_entropy_of_the_scores(network, options, make_module, make_batch):
    module, batch = make_module(network, **options).double().eval(), make_batch()
    counted = batch["mask_target_BT"]
    expected = F.cross_entropy(module(batch).scores_BTV[counted], batch["target_ids_BT"][counted])
    assert torch.allclose(module.losses(batch)["loss"], expected, atol=1e-12)


@ARMS
def test_the_code_matters_unless_there_is_none(network, options, make_module, make_batch):
    module, batch = make_module(network, **options).eval(), make_batch()
    swapped = {**batch, "control_code_B": (batch["control_code_B"] + 1) % 3}
    same = torch.allclose(module(batch).scores_BTV, module(swapped).scores_BTV, atol=1e-6)
    assert same is (options["injection"] == "none")


@ARMS
def test_every_parameter_is_trained(network, options, make_module, make_batch):
    module = make_module(network, **options).train()
    module.losses(make_batch())["loss"].backward()
    still = [name for name, parameter in module.named_parameters() if parameter.grad is None]
    assert not still


@ARMS
def test_steps_are_the_columns_of_a_batch_of_one(network, options, make_module, make_batch):
    module, batch = make_module(network, **options).double().eval(), make_batch()
    for row in range(2):
        alone = {name: value[row : row + 1] for name, value in batch.items()}
        state = module.start(1, module.weights(alone))
        for column in range(7):
            scores_BV, state = module.step(alone["input_ids_BT"][:, column : column + 1], state)
            assert torch.allclose(scores_BV, module(alone).scores_BTV[:, column], atol=1e-12)


@pytest.mark.parametrize("position", ["sinusoidal", "batch_row"])
def test_published_positions_go_along_the_batch(position, make_module, make_batch):
    """Deviation 1: a row's scores depend on its place in the batch, and every place in the text has one vector."""
    module, batch = make_module(position=position).eval(), make_batch()
    alone = {name: value[1:2] for name, value in batch.items()}
    same = torch.allclose(module(alone).scores_BTV[0], module(batch).scores_BTV[1], atol=1e-5)
    assert same is (position == "sinusoidal")
    table = module.position.table_TD
    embedded_BTD = torch.zeros(3, 7, 8)
    vectors = module._positions(embedded_BTD, alone=False).expand_as(embedded_BTD)
    for row in range(3):
        for place in range(7):
            assert torch.equal(vectors[row, place], table[row if position == "batch_row" else place])


def test_published_positions_make_the_order_of_the_past_invisible_to_one_layer(make_module):
    """Without positions a causal layer sees a set: swapping earlier tokens changes nothing at the last place."""
    ids = torch.tensor([[5, 9, 7, 3]])
    changes = {}
    for position in ("sinusoidal", "batch_row"):
        module = make_module(position=position, sizes={"layers": 1}).double().eval()
        state = module.start(1, torch.eye(3)[:1])
        first, second = (module.hidden(ids[:, order], state)[0, -1] for order in ([0, 1, 2, 3], [2, 0, 1, 3]))
        changes[position] = float((first - second).abs().max().detach())
    assert changes["batch_row"] < 1e-12 < 1e-4 < changes["sinusoidal"]


def test_prompt_is_a_token_in_front(make_module, make_batch):
    module, batch = make_module(injection="prompt").double().eval(), make_batch()
    row = 1
    tokens = torch.cat((module.code.weight[1:2], module.embedding.weight[batch["input_ids_BT"][row]]))
    embedded_TD = tokens * math.sqrt(8) + module.position.table_TD[:8]
    hidden_TD = module.backbone(embedded_TD.unsqueeze(0), module.backbone.terms(None))[0, 1:]
    expected_TV = hidden_TD @ module.output.weight.T + module.output.bias
    assert torch.allclose(module(batch).scores_BTV[row], expected_TV, atol=1e-12)


@pytest.mark.parametrize("network", ["transformer", "gru"])
def test_a_code_of_zeros_is_the_model_without_codes_exactly(network, make_module, make_batch):
    neuron, none = (make_module(network, injection=name).double().eval() for name in ("neuron", "none"))
    state = {name: value for name, value in neuron.state_dict().items() if "code" not in name}
    if network == "gru":
        state = {name: value[:, :8] if "weight_ih" in name else value for name, value in state.items()}
    state["_extra_state"] = none.get_extra_state()
    none.load_state_dict(state)
    batch = make_batch()
    assert not torch.allclose(neuron(batch).scores_BTV, none(batch).scores_BTV)
    torch.nn.init.zeros_(neuron.code.weight)
    assert torch.allclose(neuron(batch).scores_BTV, none(batch).scores_BTV, atol=1e-14, rtol=0)


def test_weights_mix_the_codes(make_module, make_batch):
    module, batch = make_module().double().eval(), make_batch()
    one_hot = {**batch, "control_weights_BS": torch.eye(3)}
    assert torch.equal(module(one_hot).scores_BTV, module(batch).scores_BTV)
    mixed = module({**batch, "control_weights_BS": torch.tensor([[0.5, 0.5, 0.0]] * 3)}).scores_BTV
    module.code.weight.data[2] = module.code.weight.data[:2].mean(0)
    third = {**batch, "control_code_B": torch.full((3,), 2)}
    assert torch.allclose(module(third).scores_BTV, mixed, atol=1e-12)


def test_both_forms_of_the_weights_load(make_module, make_batch):
    module, other = make_module().double().eval(), make_module(seed=4).double().eval()
    batch = make_batch()
    whole = concatenated(module.state_dict())
    assert whole["output.weight"].shape == (30, 16) and not [name for name in whole if "code_weight" in name]
    assert not torch.allclose(other(batch).scores_BTV, module(batch).scores_BTV)
    other.load_state_dict(whole)
    assert torch.equal(other(batch).scores_BTV, module(batch).scores_BTV)


def test_seed_alone_decides_the_weights(make_module):
    torch.manual_seed(0)
    first = make_module()
    drawn = torch.rand(3)
    torch.manual_seed(0)
    assert torch.equal(torch.rand(3), drawn)
    again, other = make_module().state_dict(), make_module(seed=4).state_dict()
    assert torch.equal(first.state_dict()["output.weight"], again["output.weight"])
    assert not torch.equal(other["output.weight"], again["output.weight"])


def test_checkpoint_keeps_the_sources_and_refuses_the_other_arm(make_module, tmp_path):
    module = make_module()
    module.bind(("garden", "music", "news"))
    torch.save(module.state_dict(), tmp_path / "state")
    state = torch.load(tmp_path / "state", weights_only=True)
    same = make_module()
    same.load_state_dict(state)
    assert same.sources == ("garden", "music", "news")
    with pytest.raises(UserError, match="trained on garden, music, news, the corpus has garden, music, books"):
        same.bind(("garden", "music", "books"))
    with pytest.raises(UserError, match=r"checkpoint is of model\.injection=neuron, this model of prompt"):
        make_module(injection="prompt").load_state_dict(state, strict=False)


def test_bad_input(make_module, make_batch):
    with pytest.raises(UserError, match="did you mean 'sinusoidal'"):
        make_module(position="sinusoid")
    with pytest.raises(UserError, match=r"model\.optimizer=sdg"):
        make_module(optimizer="sdg")
    with pytest.raises(UserError, match=r"model\.codes=3 but the corpus has 2 sources"):
        make_module().bind(("garden", "music"))
    with pytest.raises(UserError, match=r"set data\.by_source=true"):
        make_module()({name: value for name, value in make_batch().items() if name != "control_code_B"})
    with pytest.raises(UserError, match="needs a code for every sequence"):
        make_module().start(2)

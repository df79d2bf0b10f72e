"""Both arms and networks: the equations of sec. 3 restated, published faults, steps, checkpoints, bad input."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lit_ctg.core.causality_probe import probe
from lit_ctg.errors import UserError
from lit_ctg.papers.control_code.model import (
    CodeGRUBackbone,
    CodeLinear,
    CodeTransformerBackbone,
    Injection,
    configured_optimizer,
    small_code_factors,
)
from tests.papers.control_code.conftest import OPTIONS


def linear_of(code_dim: int = 3, quick: bool = False) -> CodeLinear:
    torch.manual_seed(0)
    return CodeLinear(4, 5, code_dim, quick=quick).double()


def test_a_coded_layer_is_the_matrix_on_the_concatenation():
    linear, x_BTD, code_BC = linear_of(), torch.randn(2, 6, 4).double(), torch.randn(2, 3).double()
    assert linear.weight.shape == (5, 7)
    for row in range(2):
        for place in range(6):
            expected = linear.weight @ torch.cat((x_BTD[row, place], code_BC[row])) + linear.bias
            assert torch.allclose(linear(x_BTD, code_BC)[row, place], expected, atol=1e-12)
    torch.manual_seed(0)
    linear = CodeLinear(100, 300, 44, quick=True)
    for part in (linear.weight[:, :100], linear.weight[:, 100:]):
        assert 0.98 / 12 < float(part.detach().abs().max()) <= 1 / 12
    before = linear.weight.detach().clone()
    linear.scale_code_weight(3.0)
    assert torch.equal(linear.weight[:, :100], before[:, :100])
    assert torch.equal(linear.weight[:, 100:], 3.0 * before[:, 100:])


@pytest.mark.parametrize("arm", ["transformer", "gru"])
def test_a_share_of_the_neurons_takes_the_code_and_the_others_never_do(arm, make_module, make_batch):
    module = make_module(arm, injection="neuron", injection_neurons=0.25)
    whole = make_module(arm, injection="neuron")
    layers = [layer for layer in module.backbone.modules() if isinstance(layer, (CodeLinear, nn.GRU))]
    assert len(layers) in (3, 6)

    def code_weights(layer: nn.Module) -> torch.Tensor:
        """Return [neurons, gates * C]."""
        if isinstance(layer, nn.GRU):
            return layer.weight_ih_l0[:, layer.hidden_size :].unflatten(0, (3, -1)).transpose(0, 1).flatten(1)
        return layer.weight[:, layer.in_features - layer.code_dim :]

    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
    before = [code_weights(layer).detach().clone() for layer in layers]
    for _ in range(2):
        optimizer.zero_grad()
        module(make_batch()).scores_BTV.square().mean().backward()
        optimizer.step()
    for layer, old in zip(layers, before, strict=True):
        weights = code_weights(layer)
        kept = round(0.25 * len(weights))
        assert (weights[kept:] == 0).all() and (weights[:kept] != 0).any()
        assert not torch.equal(weights[:kept], old[:kept])
    assert module.state_dict().keys() == whole.state_dict().keys(), "a checkpoint of either loads"
    with pytest.raises(UserError, match=r"injection_neurons=0\.5"):
        make_module(arm, injection="prompt", injection_neurons=0.5)


def transformer(**options) -> CodeTransformerBackbone:
    torch.manual_seed(0)
    sizes = {"dim": 8, "layers": 3, "heads": 2, "feedforward_dim": 12, "dropout": 0.2, "identical_layers": False}
    return CodeTransformerBackbone(**{**sizes, **options}).double()


def restated(backbone: CodeTransformerBackbone, x_TD: torch.Tensor, code_C: torch.Tensor, coded: set[int]):
    """One sequence, loop by loop, with [x; c] written out."""
    for number, layer in enumerate(backbone.layers, start=1):
        weights = layer.self_attn
        attended = torch.zeros_like(x_TD)
        seen_TX = torch.cat((x_TD, code_C.expand(len(x_TD), -1)), dim=1) if layer.attention else x_TD
        query, key, value = (seen_TX @ weights.in_proj_weight.T + weights.in_proj_bias).chunk(3, dim=1)
        for head in (slice(0, 4), slice(4, 8)):
            for t in range(len(x_TD)):
                scores = torch.stack([query[t, head] @ key[s, head] for s in range(t + 1)]) / 2.0
                for s, weight in enumerate(scores.softmax(0)):
                    attended[t, head] = attended[t, head] + weight * value[s, head]
        x_TD = layer.norm1(x_TD + layer.self_attn.out_proj(attended))
        rows = []
        for x in x_TD:
            parts = [layer.linear1, layer.linear2]
            extra = code_C if number in coded else code_C[:0]
            inner = torch.clamp(parts[0].weight @ torch.cat((x, extra)) + parts[0].bias, min=0)
            rows.append(parts[1].weight @ torch.cat((inner, extra)) + parts[1].bias)
        x_TD = layer.norm2(x_TD + torch.stack(rows))
    return x_TD


@pytest.mark.parametrize("attention", [False, True])
@pytest.mark.parametrize("coded", [{1, 2, 3}, {2}, set()], ids=["all", "one", "none"])
def test_the_transformer_is_the_equation(coded, attention):
    backbone = transformer(code_dim=5, code_layers=coded, code_attention=attention).eval()
    wide = {layer.self_attn.in_proj_weight.shape[1] for layer in backbone.layers}
    assert (13 in wide) == (attention and bool(coded))
    x_BTD, code_BC = torch.randn(2, 6, 8).double(), torch.randn(2, 5).double()
    hidden_BTD = backbone(x_BTD, code_BC)
    for row in range(2):
        assert torch.allclose(hidden_BTD[row], restated(backbone, x_BTD[row], code_BC[row], coded), atol=1e-12)


def test_without_code_it_is_torchs_encoder():
    backbone = transformer().eval()
    layer = nn.TransformerEncoderLayer(8, 2, 12, 0.2, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).double().eval()
    encoder.load_state_dict(backbone.state_dict())
    x_BTD = torch.randn(2, 6, 8).double()
    mask = nn.Transformer.generate_square_subsequent_mask(6, dtype=torch.float64)
    assert torch.allclose(backbone(x_BTD, None), encoder(x_BTD, mask), atol=1e-12)
    seeing_all = backbone(x_BTD, None, causal=False)
    assert torch.allclose(seeing_all, encoder(x_BTD), atol=1e-12)


@pytest.mark.parametrize("attention", [False, True])
def test_gradients_of_the_transformer_are_those_of_the_equation(attention):
    backbone = transformer(code_dim=5, code_layers={1, 3}, code_attention=attention, dropout=0.0)
    x_BTD = torch.randn(1, 5, 8).double().requires_grad_()
    code_BC = torch.randn(1, 5).double().requires_grad_()
    inputs = [x_BTD, code_BC, *backbone.parameters()]
    found = torch.autograd.grad(backbone(x_BTD, code_BC).square().sum(), inputs)
    expected = torch.autograd.grad(restated(backbone, x_BTD[0], code_BC[0], {1, 3}).square().sum(), inputs)
    for own, other in zip(found, expected, strict=True):
        assert torch.allclose(own, other, atol=1e-9)


@pytest.mark.parametrize("identical", [True, False])
def test_identical_layers_start_alike(identical):
    backbone = transformer(code_dim=5, code_layers={2, 3}, identical_layers=identical)
    second, third = backbone.layers[1].state_dict(), backbone.layers[2].state_dict()
    assert torch.equal(second["linear1.weight"], third["linear1.weight"]) is identical
    assert backbone.layers[1].linear1.weight is not backbone.layers[2].linear1.weight


def gru(coded, code_dim=5) -> CodeGRUBackbone:
    torch.manual_seed(0)
    return CodeGRUBackbone(dim=6, layers=3, dropout=0.5, code_dim=code_dim, code_layers=coded).double().eval()


def cell(layer: torch.nn.GRU, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    """A gated recurrent unit, Cho et al. (2014) as torch has it."""
    from_x = (layer.weight_ih_l0 @ x + layer.bias_ih_l0).chunk(3)
    from_h = (layer.weight_hh_l0 @ h + layer.bias_hh_l0).chunk(3)
    reset, update = torch.sigmoid(from_x[0] + from_h[0]), torch.sigmoid(from_x[1] + from_h[1])
    return (1 - update) * torch.tanh(from_x[2] + reset * from_h[2]) + update * h


@pytest.mark.parametrize("coded", [{1, 2, 3}, {1}, set()], ids=["neuron", "prompt", "none"])
def test_the_gru_is_the_equation(coded):
    backbone = gru(coded)
    x_BTD, code_BC = torch.randn(2, 4, 6).double(), torch.randn(2, 5).double()
    hidden_BTD = backbone(x_BTD, code_BC)
    for row in range(2):
        states = [torch.zeros(6).double() for _ in range(3)]
        for place in range(4):
            below = x_BTD[row, place]
            for number in range(3):
                given = torch.cat((below, code_BC[row])) if number + 1 in coded else below
                below = states[number] = cell(backbone.layers[number], given, states[number])
            assert torch.allclose(hidden_BTD[row, place], below, atol=1e-12)


def test_the_gru_has_dropout_in_training_only():
    backbone, x_BTD = gru(set()), torch.randn(2, 4, 6).double()
    quiet = backbone(x_BTD, None)
    assert torch.equal(quiet, backbone(x_BTD, None))
    assert not torch.allclose(quiet, backbone.train()(x_BTD, None))


def read(name, chosen=None, recurrent=False, attention=False):
    return Injection.of(name, chosen, recurrent=recurrent, layers=6, code_dim=4, attention=attention)


def test_arms():
    assert read("prompt") == Injection(True, (), False, 0)
    assert read("neuron") == Injection(False, (1, 2, 3, 4, 5, 6), True, 4)
    assert read("none") == Injection(False, (), False, 0)
    assert read("prompt", recurrent=True) == Injection(False, (1,), False, 4)
    assert read("neuron", recurrent=True) == read("neuron")
    assert read("neuron", [4, 5, 6]) == Injection(False, (4, 5, 6), False, 4)
    assert read("neuron", [1, "output"]) == Injection(False, (1,), True, 4)
    assert read("neuron", [2], attention=True) == Injection(False, (2,), False, 4, True)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"name": "neurone"}, "did you mean 'neuron'"),
        ({"name": "neuron", "chosen": [7]}, "'7'"),
        ({"name": "neuron", "chosen": []}, "injection_layers"),
        ({"name": "prompt", "chosen": [1]}, "injection_layers"),
        ({"name": "prompt", "attention": True}, "injection_attention"),
        ({"name": "none", "attention": True}, "injection_attention"),
        ({"name": "neuron", "recurrent": True, "attention": True}, "injection_attention"),
        ({"name": "neuron", "chosen": ["output"], "attention": True}, "injection_attention"),
    ],
)
def test_bad_injections(arguments, named):
    with pytest.raises(UserError, match=named):
        read(**arguments)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (lambda make, batch: make(optimizer="sdg"), "did you mean 'sgd'"),
        (lambda make, batch: make().bind(("garden", "music")), "model.codes=3"),
        (lambda make, batch: make()({name: batch[name] for name in batch if name != "control_code_B"}), "by_source"),
        (lambda make, batch: make().start(2), "needs a code"),
    ],
)
def test_bad_input(wrong, named, make_module, make_batch):
    with pytest.raises(UserError, match=named):
        wrong(make_module, make_batch())


def count(module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("layers", [2, 8])
@pytest.mark.parametrize("codes", [2, 6])
def test_matched_transformers_are_equal_within_a_tenth_of_a_percent(layers, codes, make_module):
    sizes = {"dim": 40, "layers": layers, "feedforward_dim": 32}

    def parameters(**options):
        return count(make_module(sizes=sizes, size=3000, codes=codes, **{"match_parameters": True, **options}))

    whole = parameters(injection="neuron")
    attention = {"injection_attention": True}
    for options in ({"injection": "prompt"}, {"injection": "none"}, {"injection_layers": [2]}, attention):
        assert parameters(**options) == pytest.approx(whole, rel=1e-3)
    # published: far apart
    published = {"match_parameters": False}
    assert parameters(injection="neuron", **published) > 1.3 * parameters(injection="prompt", **published)


def test_matched_grus_are_equal_within_one_percent(make_module):
    sizes = {"dim": 256}
    arms = [
        count(make_module("gru", sizes=sizes, size=9000, codes=2, match_parameters=True, injection=injection))
        for injection in ("prompt", "neuron", "none")
    ]
    assert max(arms) < 1.01 * min(arms)
    published = [
        count(make_module("gru", sizes=sizes, size=9000, codes=2, injection=injection))
        for injection in ("prompt", "neuron")
    ]
    assert published[1] > 1.3 * published[0]


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_small_code_starts_and_learns_as_a_large_one(optimizer):
    """One step on a loss that is linear in W c moves W c as far, and W c has one variance at the start."""
    moved, spread = {}, {}
    torch.manual_seed(0)
    for code_dim in (4, 400):
        larger, smaller = small_code_factors(code_dim, 400, optimizer)
        code = larger * torch.empty(2000, code_dim).uniform_(-1, 1)
        weight = (smaller * torch.empty(1, code_dim).uniform_(-1, 1).expand(2000, -1)).clone().requires_grad_()
        spread[code_dim] = float((smaller * torch.empty(2000, code_dim).uniform_(-1, 1) * code).sum(1).std())
        kind = torch.optim.SGD if optimizer == "sgd" else torch.optim.Adam
        chosen = kind([weight], lr=1e-3)
        before = (weight * code).sum(1)
        before.sum().backward()
        chosen.step()
        moved[code_dim] = float(((weight * code).sum(1) - before).detach().mean())
    assert spread[4] == pytest.approx(spread[400], rel=0.1)
    assert moved[4] == pytest.approx(moved[400], rel=0.1) and moved[4] < 0
    assert small_code_factors(7, 7, optimizer) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("network", "where"),
    [("transformer", {}), ("transformer", {"injection_attention": True}), ("gru", {})],
    ids=["transformer", "attention", "gru"],
)
def test_factors_reach_code_and_weights(network, where, make_module):
    def state(**options):
        return make_module(network, codes=2, match_parameters=True, **where, **options)

    adam, sgd = state(), state(optimizer="sgd")
    assert adam.code_scale == pytest.approx(8**0.5 * 4) and sgd.code_scale == pytest.approx(8**0.5 * 2)
    coded = ["weight_ih", "linear1.weight", "linear2.weight", "output.weight", *["in_proj_weight"] * len(where)]
    for name, value in adam.state_dict().items():
        if any(part in name for part in coded):
            # the code's two columns stand behind those of x
            other = sgd.state_dict()[name]
            assert torch.allclose(value[:, -2:], other[:, -2:] / 2) and torch.equal(value[:, :-2], other[:, :-2])
        elif name != "_extra_state":
            assert torch.equal(value, sgd.state_dict()[name])


ARMS = pytest.mark.parametrize(
    ("network", "options"),
    [
        ("transformer", {"injection": "neuron"}),
        ("transformer", {"injection": "prompt"}),
        ("transformer", {"injection": "none"}),
        ("transformer", {"injection": "neuron", "injection_layers": [2, "output"]}),
        ("transformer", {"injection": "neuron", "injection_attention": True}),
        ("transformer", {"injection": "prompt", "position": "batch_row"}),
        ("transformer", {"injection": "neuron", "position": "batch_row"}),
        ("gru", {"injection": "neuron"}),
        ("gru", {"injection": "prompt"}),
    ],
    ids=["neuron", "prompt", "none", "some layers", "attention", "published prompt", "published", "gru", "gru prompt"],
)


@ARMS
def test_every_arm_scores_learns_and_is_causal(network, options, make_module, make_batch):
    """Zeros at padding; the loss is the mean cross-entropy of the scores, in bfloat16 too (size=paper) within 1%."""
    module, batch = make_module(network, **options).eval(), make_batch()
    output, padding, counted = module(batch), ~batch["mask_input_BT"], batch["mask_target_BT"]
    assert output.scores_BTV.shape == (3, 7, 30) and output.hidden_BTD.shape == (3, 7, 8)
    assert not output.scores_BTV[padding].any() and not output.hidden_BTD[padding].any()
    found = probe(module, make_batch(width=9))
    assert found.is_causal and found.n > 0
    swapped = {**batch, "control_code_B": (batch["control_code_B"] + 1) % 3}
    same = torch.allclose(output.scores_BTV, module(swapped).scores_BTV, atol=1e-6)
    assert same is (options["injection"] == "none")
    exact = module.losses(batch)["loss"]
    with torch.autocast("cpu", torch.bfloat16):
        rounded = module.losses(batch)["loss"]
    assert rounded.dtype == torch.float32 and torch.allclose(rounded, exact, rtol=0.01)
    module = module.double()
    expected = F.cross_entropy(module(batch).scores_BTV[counted], batch["target_ids_BT"][counted])
    loss = module.losses(batch)["loss"]
    assert torch.allclose(loss, expected, atol=1e-12)
    loss.backward()
    assert not [name for name, parameter in module.named_parameters() if parameter.grad is None]


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
    hidden_TD = module.backbone(embedded_TD.unsqueeze(0), None)[0, 1:]
    expected_TV = hidden_TD @ module.output.weight.T + module.output.bias
    assert torch.allclose(module(batch).scores_BTV[row], expected_TV, atol=1e-12)


@pytest.mark.parametrize(
    ("network", "where"), [("transformer", {}), ("transformer", {"injection_attention": True}), ("gru", {})]
)
def test_a_code_of_zeros_is_the_model_without_codes_exactly(network, where, make_module, make_batch):
    neuron = make_module(network, injection="neuron", **where).double().eval()
    none = make_module(network, injection="none").double().eval()
    given = neuron.state_dict() | {"_extra_state": none.get_extra_state()}
    sizes = {name: getattr(value, "shape", None) for name, value in none.state_dict().items()}
    # the weights of x stand before those of the code
    none.load_state_dict({name: given[name][..., : size[-1]] if size else given[name] for name, size in sizes.items()})
    batch = make_batch()
    assert not torch.allclose(neuron(batch).scores_BTV, none(batch).scores_BTV)
    torch.nn.init.zeros_(neuron.code.weight)
    assert torch.allclose(neuron(batch).scores_BTV, none(batch).scores_BTV, atol=1e-14, rtol=0)


def test_weights_mix_the_codes(make_module, make_batch):
    module, batch = make_module().double().eval(), make_batch()

    def scores_under(weights: torch.Tensor) -> torch.Tensor:
        state = module.start(3, weights)
        scores = module.scores(module.hidden(batch["input_ids_BT"], state), state)
        return scores * batch["mask_input_BT"].unsqueeze(-1)

    assert torch.equal(scores_under(torch.eye(3)), module(batch).scores_BTV)
    mixed = scores_under(torch.tensor([[0.5, 0.5, 0.0]] * 3))
    module.code.weight.data[2] = module.code.weight.data[:2].mean(0)
    third = {**batch, "control_code_B": torch.full((3,), 2)}
    assert torch.allclose(module(third).scores_BTV, mixed, atol=1e-12)


def test_quick_and_plain_forms_share_their_state_and_agree(make_module, make_batch):
    plain, quick = make_module(fast=False).double(), make_module(fast=True).double()
    batch = make_batch()
    assert torch.equal(plain.output.weight, quick.output.weight) and plain.output.weight.shape == (30, 16)
    found = []
    for module in (plain, quick):
        torch.manual_seed(0)
        loss = module.losses(batch)["loss"]
        loss.backward()
        found.append([loss.detach(), *(parameter.grad for parameter in module.parameters())])
    for mine, theirs in zip(*found, strict=True):
        assert torch.allclose(mine, theirs, atol=1e-12)


@pytest.mark.parametrize("injection", ["neuron", "prompt"])
def test_published_codes_start_normal_and_are_taken_as_they_are(injection, make_module):
    module = make_module(injection=injection, code_start="normal", codes=400)
    table = module.code.weight.detach()
    assert 0.95 < float(table.std()) < 1.05
    state = module.start(1, torch.eye(400)[:1])
    taken = state.token_BD if injection == "prompt" else state.code_BC
    assert torch.equal(taken[0], table[0])
    word = make_module(injection=injection, codes=400)
    assert float(word.code.weight.detach().abs().max()) <= 0.1
    state = word.start(1, torch.eye(400)[:1])
    taken = state.token_BD if injection == "prompt" else state.code_BC
    assert torch.allclose(taken[0], word.code.weight[0] * math.sqrt(8))


def test_the_published_gru_takes_words_unscaled_from_torchs_start(make_module):
    module = make_module("gru", size=400, code_start="normal", scale_words=False, init_range=None)
    ids = torch.tensor([[5, 9]])
    assert torch.equal(module.embed(ids), module.embedding(ids))
    assert 0.95 < float(module.embedding.weight.detach().std()) < 1.05
    # torch's linear layer of 8 states and a code of 8
    assert 0.24 < float(module.output.weight.detach().abs().max()) <= 0.25
    assert torch.equal(make_module().embed(ids), make_module().embedding(ids) * math.sqrt(8))
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


def made(name):
    layer = torch.nn.Linear(2, 3)
    return layer, configured_optimizer(name, layer.parameters(), OPTIONS["optimizers"][name], total_steps=100)


def test_sgd_falls_by_a_factor_every_epoch():
    layer, configured = made("sgd")
    assert configured["lr_scheduler"]["interval"] == "epoch"
    before = layer.weight.detach().clone()
    layer(torch.ones(1, 2)).sum().backward()
    gradient = layer.weight.grad
    configured["optimizer"].step()
    assert torch.allclose(layer.weight.detach(), before - 5.0 * gradient)
    for _ in range(3):
        configured["lr_scheduler"]["scheduler"].step()
    assert configured["optimizer"].param_groups[0]["lr"] == pytest.approx(5.0 * 0.95**3)
    adam, adamw = made("adam")[1], made("adamw")[1]
    assert set(adam) == {"optimizer"} and adam["optimizer"].param_groups[0]["lr"] == 1e-3, "a constant rate"
    assert adamw["optimizer"].param_groups[0]["lr"] == pytest.approx(1e-4), "the first of ten steps of warm-up"

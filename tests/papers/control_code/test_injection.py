"""Which places take the code in each arm, and that matched arms have equally many parameters."""

from __future__ import annotations

import pytest
import torch

from lit_ctg.errors import UserError
from lit_ctg.papers.control_code.injection import Injection, small_code_factors


def read(name, chosen=None, recurrent=False):
    return Injection.of(name, chosen, recurrent=recurrent, layers=6, code_dim=4)


def test_arms():
    assert read("prompt") == Injection(True, (), False, 0)
    assert read("neuron") == Injection(False, (1, 2, 3, 4, 5, 6), True, 4)
    assert read("none") == Injection(False, (), False, 0)
    assert read("prompt", recurrent=True) == Injection(False, (1,), False, 4)
    assert read("neuron", recurrent=True) == read("neuron")
    assert read("neuron", [4, 5, 6]) == Injection(False, (4, 5, 6), False, 4)
    assert read("neuron", [1, "output"]) == Injection(False, (1,), True, 4)


@pytest.mark.parametrize(
    ("name", "chosen", "message"),
    [
        ("neurone", None, "did you mean 'neuron'"),
        ("neuron", [7], "no place '7'; use some of 1 to 6 and output"),
        ("neuron", [], "no place at all"),
        ("prompt", [1], "is for model.injection=neuron"),
    ],
)
def test_bad_input(name, chosen, message):
    with pytest.raises(UserError, match=message):
        read(name, chosen)


def count(module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("layers", [2, 8])
@pytest.mark.parametrize("codes", [2, 6])
def test_matched_transformers_are_equal_within_a_tenth_of_a_percent(layers, codes, make_module):
    sizes = {"dim": 40, "layers": layers, "feedforward_dim": 32}

    def parameters(**options):
        return count(make_module(sizes=sizes, size=3000, codes=codes, **{"match_parameters": True, **options}))

    whole = parameters(injection="neuron")
    for options in ({"injection": "prompt"}, {"injection": "none"}, {"injection_layers": [2]}):
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


@pytest.mark.parametrize("network", ["transformer", "gru"])
def test_factors_reach_code_and_weights(network, make_module):
    def state(**options):
        return make_module(network, codes=2, match_parameters=True, **options)

    adam, sgd = state(), state(optimizer="sgd")
    assert adam.code_scale == pytest.approx(8**0.5 * 4) and sgd.code_scale == pytest.approx(8**0.5 * 2)
    for name, value in adam.state_dict().items():
        if "code_weight" in name:
            assert torch.allclose(value, sgd.state_dict()[name] / 2)
        elif "weight_ih" in name:
            assert torch.allclose(value[:, 8:], sgd.state_dict()[name][:, 8:] / 2)
            assert torch.equal(value[:, :8], sgd.state_dict()[name][:, :8])
        elif name != "_extra_state":
            assert torch.equal(value, sgd.state_dict()[name])

"""Which places take the code in each arm, and that matched arms have equally many parameters."""

from __future__ import annotations

import pytest

from lit_ctg.errors import UserError
from lit_ctg.model.control_code.injection import Injection


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

"""Codes as controls: those of our own Transformers on the model that is exported, checks of layers and sources."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from lit_ctg.control import Steered
from lit_ctg.errors import UserError
from lit_ctg.papers.control_code.control import NeuronCodes, SoftPrompt, of_run
from lit_ctg.papers.control_code.portable import portable

SOURCES = ("garden", "music", "news")


@pytest.fixture
def module(make_module: Callable[..., Any]) -> Any:
    """A Transformer with codes at the neurons, far from where it began."""
    made = make_module().eval()
    made.bind(SOURCES)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(std=0.5)
    return made


def test_codes_of_a_run_steer_its_exported_model(module: Any) -> None:
    model = portable(module, None).model
    control = of_run(module, None, None)
    assert isinstance(control, NeuronCodes) and set(control.layers) == {
        *(f"backbone.layers.{layer}.linear{number}" for layer in range(3) for number in (1, 2)), "output",
    }  # fmt: skip
    ids_BT = torch.randint(1, 30, (2, 5), generator=torch.Generator().manual_seed(1))
    weights_BS = torch.tensor([[0.0, 1.0, 0.0], [0.25, 0.0, 0.75]])
    settings = {f"neuron_codes.{name}": weights_BS[:, number].tolist() for number, name in enumerate(SOURCES)}
    options = {"output_scores": True, "return_dict_in_generate": True, "use_cache": False, "pad_token_id": 0}
    made = Steered(model, [control]).generate(ids_BT, settings, max_new_tokens=1, **options)
    with torch.no_grad():
        state = module.start(2, weights_BS)
        expected_BV = module.scores(module.hidden(ids_BT, state), state)[:, -1]
    assert torch.allclose(made.scores[0], expected_BV, atol=1e-4)


def test_codes_that_are_part_of_the_network_are_not_carried(make_module: Callable[..., Any]) -> None:
    for options in ({"injection": "prompt"}, {"network": "gru"}):
        with pytest.raises(UserError, match="lit-ctg export-model exports it with them"):
            of_run(make_module(**options), None, None)
    with pytest.raises(UserError, match="this run has no codes"):
        of_run(make_module(injection="none"), None, None)


def test_layers_and_sources_are_checked(word_model: Any) -> None:
    codes = torch.randn(2, 3)
    with pytest.raises(UserError, match="feeds the layer nowhere, which this model does not have"):
        NeuronCodes(["a", "b"], codes, {"nowhere": torch.randn(4, 3)}).check_model(word_model)
    with pytest.raises(UserError, match="lm_head gives 14 numbers, the code's weights 5"):
        NeuronCodes(["a", "b"], codes, {"lm_head": torch.randn(5, 3)}).check_model(word_model)
    with pytest.raises(UserError, match="weights of another code size"):
        NeuronCodes(["a", "b"], codes, {"lm_head": torch.randn(14, 2)})
    with pytest.raises(UserError, match="give each a name of its own"):
        NeuronCodes(["a", "a"], codes, {"lm_head": torch.randn(14, 3)})
    with pytest.raises(UserError, match=r"soft prompts of shape \(2, 3\) for 2 sources"):
        SoftPrompt(["a", "b"], codes)


def test_without_a_weight_the_codes_are_off(word_model: Any) -> None:
    control = NeuronCodes(["a", "b"], torch.randn(2, 3), {"lm_head": torch.randn(14, 3)})
    values = control.values({"a": [None, 0, 2], "strength": [1, 1, 1]}, 3)
    assert control.off(values).tolist() == [True, True, False]
    assert control.weights(values)[2].tolist() == [1.0, 0.0]

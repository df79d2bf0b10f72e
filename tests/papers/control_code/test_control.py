"""Codes as controls: those of our own Transformers on the model that is exported, checks of layers and sources."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from lit_ctg.control import Steered
from lit_ctg.control.base import Prefix
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


def test_on_the_exported_model_a_padded_row_is_the_row_alone(module: Any) -> None:
    """That model moves padding to the end of its row: where the caller put it, there is text."""
    model = portable(module, None).model
    steered = Steered(model, [of_run(module, None, None)])
    prompts = [[5, 9, 2, 7, 11], [3], [4, 8, 6]]
    options = {"output_scores": True, "return_dict_in_generate": True, "use_cache": False, "pad_token_id": 0,
               "max_new_tokens": 3, "do_sample": False}  # fmt: skip
    settings = {"neuron_codes.news": 1, "neuron_codes.strength": [1.0, 2.0, 0.5]}
    together = torch.stack(steered.generate(prompts, settings, **options).scores, dim=1)
    for row, prompt in enumerate(prompts):
        own = {"neuron_codes.news": 1, "neuron_codes.strength": settings["neuron_codes.strength"][row]}
        alone = torch.stack(steered.generate([prompt], own, **options).scores, dim=1)[0]
        assert torch.allclose(together[row], alone, atol=1e-4)


def test_codes_that_are_part_of_the_network_are_not_carried(make_module: Callable[..., Any]) -> None:
    for options in ({"injection": "prompt"}, {"network": "gru"}):
        with pytest.raises(UserError, match="lit-ctg export-model exports it with them"):
            of_run(make_module(**options), None, None)
    with pytest.raises(UserError, match="this run has no codes"):
        of_run(make_module(injection="none"), None, None)


def test_layers_and_sources_are_checked(word_model: Any) -> None:
    codes, head = torch.randn(2, 3), torch.randn(14, 3)
    for control, message in (
        (NeuronCodes(["a", "b"], codes, {"nowhere": torch.randn(4, 3)}), "nowhere"),
        (NeuronCodes(["a", "b"], codes, {"lm_head": torch.randn(5, 3)}), "lm_head gives 14 numbers"),
    ):
        with pytest.raises(UserError, match=message):
            control.check_model(word_model)
    for wrong, layers in ((codes, {"lm_head": head[:, :2]}), (codes[:1], {"lm_head": head}), (codes, {})):
        with pytest.raises(ValueError, match="codes for 2 sources"):
            NeuronCodes(["a", "b"], wrong, layers)
    for sources in (["a", "a"], ["a", "strength"], []):
        with pytest.raises(UserError, match="sources"):
            NeuronCodes(sources, codes[: len(sources)], {"lm_head": head})
    for prompts in (torch.randn(1, 3, 16), codes):
        with pytest.raises(ValueError, match="soft prompts of shape"):
            SoftPrompt(["a", "b"], prompts)


@torch.no_grad()
def test_a_layer_gains_strength_times_the_mean_code(word_model: Any) -> None:
    """y + strength (c W_c), rows of a prompt next to each other; the hook goes on when the number of rows changes."""
    torch.manual_seed(4)
    codes_SC, weight_OC = torch.randn(2, 3), torch.randn(14, 3)
    control = NeuronCodes(["a", "b"], codes_SC, {"lm_head": weight_OC})
    settings = {"a": [1, 3, None], "b": [None, 1, None], "strength": [2, 0.5, 1]}
    head = word_model.get_output_embeddings()
    hidden_NTD = torch.randn(6, 2, 16)
    bare_NTV = head(hidden_NTD)
    codes_BC = torch.stack([2 * codes_SC[0], 0.5 * (0.75 * codes_SC[0] + 0.25 * codes_SC[1]), torch.zeros(3)])
    added_BV = (codes_BC.double() @ weight_OC.double().T).float()
    with control.attach(word_model, settings, rows=3):
        three_BTV, six_NTV = head(hidden_NTD[:3]), head(hidden_NTD)
    torch.testing.assert_close(three_BTV, bare_NTV[:3] + added_BV.unsqueeze(1))
    torch.testing.assert_close(six_NTV, bare_NTV + added_BV.repeat_interleave(2, 0).unsqueeze(1))
    assert torch.equal(three_BTV[2], bare_NTV[2]) and torch.equal(head(hidden_NTD), bare_NTV)


@torch.no_grad()
def test_layers_that_see_positions_as_rows_take_the_code_of_their_row() -> None:
    """The feed-forward parts of OPT run on [B T, D]."""
    import transformers

    torch.manual_seed(5)
    sizes = {"hidden_size": 16, "word_embed_proj_dim": 16, "ffn_dim": 24, "num_hidden_layers": 1}
    config = transformers.OPTConfig(vocab_size=14, num_attention_heads=2, max_position_embeddings=32, **sizes)
    model = transformers.OPTForCausalLM(config).eval()
    layers = {"model.decoder.layers.0.fc1": torch.randn(24, 2), "model.decoder.layers.0.fc2": torch.randn(16, 2)}
    control = NeuronCodes(["a", "b"], torch.randn(2, 2), layers)
    ids_BT, asked = torch.randint(2, 14, (3, 5)), {"a": [1, 0, 1], "b": [0, 1, 1], "strength": [1, 1, 0]}
    with control.attach(model, asked, rows=3):
        together_BTV = model(ids_BT).logits
    for row in range(3):
        with control.attach(model, {name: values[row] for name, values in asked.items()}):
            torch.testing.assert_close(model(ids_BT[row : row + 1]).logits[0], together_BTV[row], rtol=0, atol=1e-5)
    assert not torch.allclose(together_BTV[1], model(ids_BT).logits[1], atol=1e-2)
    torch.testing.assert_close(together_BTV[2], model(ids_BT).logits[2])


@torch.no_grad()
def test_soft_prompts_take_their_places_in_any_number_of_steps(word_model: Any) -> None:
    torch.manual_seed(6)
    prompts_SPD = torch.randn(2, 3, 16)
    control = SoftPrompt(["a", "b"], prompts_SPD)
    settings = {"a": [1, 1], "b": [None, 3], "strength": [2, 1]}
    assert control.columns(settings, 2) == 3 and control.columns({"a": [0, None]}, 2) == 0
    with pytest.raises(UserError, match="all have a code in front or none"):
        control.columns({"a": [1, None]}, 2)
    table, ids_BT = word_model.get_input_embeddings(), torch.randint(1, 14, (2, 5))
    prefix = Prefix()
    prefix.hidden = 3
    given_BPD = torch.stack([2 * prompts_SPD[0], 0.25 * prompts_SPD[0] + 0.75 * prompts_SPD[1]])
    expected_BTD = torch.cat([given_BPD, table(ids_BT)[:, 3:]], dim=1)
    with control.attach(word_model, settings, rows=2, prefix=prefix):
        prefix.take(ids_BT, None)
        whole_BTD, parts = table(ids_BT), []
        for start, end in ((0, 2), (2, 4), (4, 5)):
            prefix.ids_NT = ids_BT[:, :end]
            parts.append(table(ids_BT[:, start:end]))
    torch.testing.assert_close(whole_BTD, expected_BTD)
    torch.testing.assert_close(torch.cat(parts, dim=1), expected_BTD)

"""Guidance against its equation with plain forward passes, alone and in a batch of ragged prompts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from lit_ctg.control import Control, Steered
from lit_ctg.control.base import Prefix, Stage, Values
from lit_ctg.control.guidance import Guidance, without_hooks
from lit_ctg.core.generation import ControlSetting
from lit_ctg.errors import UserError

PROMPTS = ["the war began in 1914", "a good acid", "in"]


def slow(
    model: Any, tokenizer: Any, control: Control, settings: dict[str, Any], prompt: str, strength: float, new: int
) -> list[int]:
    """Greedy: log p_on + strength (log p_on - log p_off), the whole prefix read anew by both for every token."""
    ids = tokenizer(prompt).input_ids
    for _ in range(new):
        ids_1T = torch.tensor([ids])
        with torch.no_grad():
            off_V = model(input_ids=ids_1T).logits[0, -1].double().log_softmax(-1)
            with Steered(model, [control], tokenizer=tokenizer).attached(settings, 1):
                on_V = model(input_ids=ids_1T).logits[0, -1].double().log_softmax(-1)
        ids.append(int((on_V + strength * (on_V - off_V)).argmax()))
    return ids[len(tokenizer(prompt).input_ids) :]


def test_guidance_is_its_equation_in_a_batch_of_ragged_prompts(
    model: Any, tokenizer: Any, carried_controls: Any
) -> None:
    channel = carried_controls()["feature_channel"]
    steered = Steered(model, [Guidance(), channel], tokenizer=tokenizer)
    strengths, settings = [0.5, 3.0, 8.0], {"feature_channel.pos": 1}
    options = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False}
    made = steered.generate(PROMPTS, {**settings, "guidance.strength": strengths}, **options)
    start = made.shape[1] - 5
    for row, (prompt, strength) in enumerate(zip(PROMPTS, strengths, strict=True)):
        expected = slow(model, tokenizer, channel, settings, prompt, strength, 5)
        end = expected.index(0) if 0 in expected else 5  # the end is put off by ``min_new_tokens``
        assert made[row, start : start + end].tolist() == expected[:end], prompt
    plain = Steered(model, [channel], tokenizer=tokenizer).generate(PROMPTS, settings, **options)
    assert not torch.equal(made, plain), "it changes something"
    assert torch.equal(steered.generate(PROMPTS, {**settings, "guidance.strength": 0}, **options), plain)
    assert all(control._bare is None for control in steered.controls if isinstance(control, Guidance))


class Nudge(Control):
    """Adds one vector to all embeddings."""

    kind, stage = "nudge", Stage.NETWORK
    settings = (ControlSetting("strength", "0 or 1", 1.0),)

    def hooks(self, model: Any, values: Values, prefix: Prefix) -> Iterator[Any]:
        nudge_D = 20 * torch.randn(16, generator=torch.Generator().manual_seed(3))
        yield model.get_input_embeddings().register_forward_hook(lambda module, given, out: out + nudge_D)


def test_guidance_is_its_equation_for_a_model_without_a_cache_of_keys_and_values(tokenizer: Any) -> None:
    torch.manual_seed(0)
    config = transformers.MambaConfig(vocab_size=14, hidden_size=16, state_size=4, num_hidden_layers=2)
    mamba = transformers.MambaForCausalLM(config).eval()
    with torch.no_grad():
        mamba.backbone.embeddings.weight.mul_(20)
    assert not hasattr(mamba(torch.tensor([[1]])), "past_key_values")
    steered, given = Steered(mamba, [Nudge(), Guidance()], tokenizer=tokenizer), {"guidance.strength": 2.0}
    made = steered.generate(PROMPTS, given, max_new_tokens=5, do_sample=False, eos_token_id=None)
    for row, prompt in enumerate(PROMPTS):
        assert made[row, -5:].tolist() == slow(mamba, tokenizer, Nudge(), {}, prompt, 2.0, 5), prompt
    plain = Steered(mamba, [Nudge()], tokenizer=tokenizer)
    assert not torch.equal(made, plain.generate(PROMPTS, max_new_tokens=5, do_sample=False, eos_token_id=None))


def test_a_model_that_scales_its_own_weights_is_refused() -> None:
    rwkv = transformers.RwkvForCausalLM(transformers.RwkvConfig(vocab_size=14, hidden_size=16, num_hidden_layers=2))
    with pytest.raises(UserError, match=r"control guidance: a RwkvForCausalLM scales its own weights.* another model$"):
        Steered(rwkv, [Guidance()])


def test_without_another_control_guidance_changes_nothing(model: Any, tokenizer: Any) -> None:
    with Steered(model, [Guidance()], tokenizer=tokenizer).attached({"guidance.strength": 5}, 2) as rules:
        scores_NV = torch.randn(2, 14, generator=torch.Generator().manual_seed(0))
        ids_NT = torch.tensor([[1, 2], [3, 4]])
        with torch.no_grad():
            bare_NV = model(input_ids=ids_NT).logits[:, -1]
        (rule,) = rules
        assert torch.allclose(rule(ids_NT, bare_NV).softmax(-1), bare_NV.softmax(-1), atol=1e-5)
        off_NV = bare_NV.log_softmax(-1)
        on_NV = scores_NV.log_softmax(-1)
        assert torch.allclose(rule(ids_NT, scores_NV), on_NV + 5 * (on_NV - off_NV), atol=1e-4)
        scores_NV[0, 3] = -torch.inf
        assert rule(ids_NT, scores_NV)[0, 3] == -torch.inf, "what is forbidden stays so"


def test_the_copy_shares_weights_and_has_no_hooks(model: Any) -> None:
    handle = model.transformer.h[0].register_forward_hook(lambda *_: None)
    try:
        bare = without_hooks(model)
        assert len(model.transformer.h[0]._forward_hooks) == 1, "the model keeps its own"
    finally:
        handle.remove()
    assert not any(module._forward_hooks for module in bare.modules())
    own, other = dict(model.named_parameters()), dict(bare.named_parameters())
    assert all(own[name].data_ptr() == other[name].data_ptr() for name in own)


def test_a_bundle_of_guidance_comes_back_and_a_second_one_is_refused(tmp_path: Path, model: Any) -> None:
    Guidance().save_pretrained(tmp_path / "guidance")
    again = Control.from_pretrained(tmp_path / "guidance")
    assert isinstance(again, Guidance)
    with pytest.raises(UserError, match="cannot be composed with a second one"):
        Steered(model, [again, Guidance(name="other")])

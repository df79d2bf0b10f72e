"""Models of many architectures: layers by role, heads with a bias, a scale or a cap, adapters, trained parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from lit_ctg.control import Steered
from lit_ctg.network.huggingface import HuggingFaceBackbone, adapters_of
from lit_ctg.network.layers import attention_layers, feed_forward_layers
from lit_ctg.papers.control_code.adapter import CodeAdapterModule
from lit_ctg.papers.idea_gate.control import of_run
from lit_ctg.papers.idea_gate.model import IdeaGateModule
from tests.conftest import WORDS
from tests.papers.idea_gate.conftest import SETTINGS

V = len(WORDS)
ENDS = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
GPT2 = {
    "vocab_size": V,
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 32,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
NEOX = {"vocab_size": V, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
LLAMA = {**NEOX, "intermediate_size": 24, "num_key_value_heads": 1, "max_position_embeddings": 32, **ENDS}
GEMMA = {**LLAMA, "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 8}
# configuration, its settings, feed-forward layers of a block, layers of the attention of a block
KINDS: dict[str, tuple[str, dict[str, Any], int, int]] = {
    "gpt2": ("GPT2Config", GPT2, 2, 2),
    "gptj": ("GPTJConfig", {**GPT2, "rotary_dim": 4}, 2, 4),
    "gpt_neox": ("GPTNeoXConfig", {**NEOX, "intermediate_size": 24, "max_position_embeddings": 32}, 2, 2),
    "falcon": ("FalconConfig", NEOX, 2, 2),
    "opt": (
        "OPTConfig",
        {**NEOX, "ffn_dim": 24, "word_embed_proj_dim": 16, "max_position_embeddings": 32, **ENDS},
        2,
        4,
    ),
    "llama": ("LlamaConfig", LLAMA, 3, 4),
    "qwen3": ("Qwen3Config", {**LLAMA, "head_dim": 8}, 3, 4),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        {**LLAMA, "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12},
        1,
        4,
    ),
    "gemma2": ("Gemma2Config", GEMMA, 3, 4),
    "gemma3": ("Gemma3TextConfig", GEMMA, 3, 4),
    "granite": ("GraniteConfig", {**LLAMA, "logits_scaling": 8.0, "embedding_multiplier": 12.0}, 3, 4),
    "cohere": ("CohereConfig", {**LLAMA, "logit_scale": 0.25}, 3, 4),
    "phi3": ("Phi3Config", LLAMA, 2, 2),
    "olmo2": ("Olmo2Config", LLAMA, 3, 4),
    "mamba": (
        "MambaConfig",
        {"vocab_size": V, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4, **ENDS},
        2,
        0,
    ),
    "lfm2": ("Lfm2Config", {**LLAMA, "layer_types": ["full_attention"] * 2, "block_ff_dim": 24}, 3, 4),
}
BATCH = {
    "input_ids_BT": torch.tensor([[1, 5, 6], [2, 3, 6]]),
    "target_ids_BT": torch.tensor([[5, 6, 7], [3, 6, 7]]),
    "mask_input_BT": torch.ones(2, 3, dtype=torch.bool),
    "mask_target_BT": torch.ones(2, 3, dtype=torch.bool),
    "control_code_B": torch.tensor([0, 1]),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def folder(kind: str, tmp_path: Path) -> str:
    """A tiny random model."""
    torch.manual_seed(0)
    name, settings, _, _ = KINDS[kind]
    model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, name)(**settings))
    with torch.no_grad():  # so that a cap and a bias show
        model.get_input_embeddings().weight.mul_(20)
        if (bias := getattr(model.get_output_embeddings(), "bias", None)) is not None:
            bias.normal_()
    model.save_pretrained(tmp_path)
    return str(tmp_path)


def learned(module: torch.nn.Module) -> None:
    """Take some steps on the batch."""
    optimizer = torch.optim.Adam([each for each in module.parameters() if each.requires_grad], lr=0.1)
    before = float(module.losses(BATCH)["loss"].detach())
    for _ in range(10):
        optimizer.zero_grad()
        module.losses(BATCH)["loss"].backward()
        optimizer.step()
    assert float(module.losses(BATCH)["loss"].detach()) < before


def steers(path: str, control: Any, tokenizer: Any, settings: dict[str, Any]) -> None:
    """Compare the control at strength 0 with the bare model, and at the settings."""
    model = transformers.AutoModelForCausalLM.from_pretrained(path).eval()
    options: dict[str, Any] = {
        "max_new_tokens": 2, "do_sample": False, "output_scores": True, "return_dict_in_generate": True,
    }  # fmt: skip
    ids_BT = torch.tensor([[1, 5, 6], [2, 3, 6]])
    bare = model.generate(ids_BT, attention_mask=torch.ones_like(ids_BT), **options).scores[0]
    steered = Steered(model, [control], tokenizer=tokenizer)
    off = {f"{control.name}.{control.strength}": 0}
    assert torch.equal(steered.generate(ids_BT, {**settings, **off}, **options).scores[0], bare)
    assert not torch.allclose(steered.generate(ids_BT, settings, **options).scores[0], bare, atol=1e-3)


def test_layers_by_role(kind: str, folder: str) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    _, _, linear, attention = KINDS[kind]
    assert len(feed_forward_layers(model)) == 2 * linear
    assert len(attention_layers(model)) == 2 * attention
    assert not set(feed_forward_layers(model)) & set(attention_layers(model))


def test_the_head_gives_the_models_logits(folder: str) -> None:
    backbone = HuggingFaceBackbone(path=folder).eval()
    ids_BT = BATCH["input_ids_BT"]
    with torch.no_grad():
        expected = backbone.model(input_ids=ids_BT).logits
        hidden = backbone(backbone.embed(ids_BT))
    assert torch.allclose(backbone.head(hidden), expected, atol=1e-4)
    assert torch.allclose(hidden @ backbone.head_weight.T, expected, atol=1e-4) == backbone.matrix_head


def test_adapters_find_their_layers(folder: str) -> None:
    backbone = HuggingFaceBackbone(path=folder, frozen=False, lora={"rank": 2, "alpha": 4})
    assert adapters_of(backbone.model)


def test_codes_are_trained_and_carried(folder: str, word_tokenizer: Any) -> None:
    module = CodeAdapterModule(
        vocabulary=word_tokenizer, backbone=HuggingFaceBackbone(path=folder), corpus="tiny", codes=2, code_dim=None,
        injection="neuron", layers=None, output=False, learning_rate=0.1, weight_decay=0.0, warmup_fraction=0.1, seed=0,
    )  # fmt: skip
    module.bind(("news", "blog"))
    learned(module)
    steers(folder, module.control(), word_tokenizer, {"neuron_codes.news": 1.0})


@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize("from_token_head", [0.0, 0.5])
def test_a_gate_is_trained_and_carried(from_token_head: float, rank: int, folder: str, word_tokenizer: Any) -> None:
    backbone = HuggingFaceBackbone(path=folder)
    module = IdeaGateModule(
        vocabulary=word_tokenizer, backbone=backbone,
        **SETTINGS | {"idea_bias": "token_rate", "stopwords": "none", "from_token_head": from_token_head, "rank": rank},
    )  # fmt: skip
    # the hidden states of a real model reach -25
    with torch.no_grad():
        scale = 25 / backbone(backbone.embed(BATCH["input_ids_BT"])).abs().max()
    backbone.register_forward_hook(lambda layer, inputs, hidden: hidden * scale)
    ids_N = torch.randint(1, V, (200,), generator=torch.Generator().manual_seed(0)).numpy()
    module.count_text(ids_N)
    if from_token_head:
        with torch.no_grad():
            hidden_NTD = backbone(backbone.embed(torch.as_tensor(ids_N).view(-1, module.ideas.window)))
            deviation = hidden_NTD.flatten(0, 1) - hidden_NTD.flatten(0, 1).mean(0)
            started = module.head(hidden_NTD).flatten(0, 1)
            expected = from_token_head * backbone.scale * deviation @ backbone.head_weight.T
            assert torch.allclose(started - started.mean(0), expected, atol=1e-2, rtol=1e-3)
        return
    learned(module)
    steers(folder, of_run(module, None, None), word_tokenizer, {"idea_gate.alpha": 1.0})

"""The gate on a Hugging Face causal LM: the LM frozen, its own head, generation as from whole prefixes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lit_ctg.backbone.huggingface import HuggingFaceBackbone
from lit_ctg.errors import UserError
from lit_ctg.model.idea_gate import IdeaGateModule
from lit_ctg.model.idea_gate.generation import IdeaGateDecoding


def save(folder: Path, size: int) -> str:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=size, n_positions=32, n_embd=16, n_layer=1, n_head=2))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    return str(folder)


def gated(vocabulary, settings, path: str, **options) -> IdeaGateModule:
    backbone = HuggingFaceBackbone(path=path, **options)
    return IdeaGateModule(vocabulary=vocabulary, backbone=backbone, **settings)


def test_only_the_gate_is_trained_on_a_frozen_model(vocabulary, settings, batch, tmp_path):
    module = gated(vocabulary, settings, save(tmp_path, len(vocabulary) + 4))
    trained = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    assert trained and all(name.startswith("idea_head.") for name in trained)
    module.losses(batch)["loss"].backward()
    assert module.idea_head.inner.weight.grad.any()
    with torch.no_grad():
        own = module.backbone.model(input_ids=batch["input_ids_BT"]).logits
        output = module(batch)
    assert torch.allclose(output.extras["token_logits"], own, atol=1e-4)
    assert output.extras["idea_logits"].shape == own.shape
    assert len(module.stopword_mask_V) == len(vocabulary) + 4


def test_adapters_are_trained_with_the_gate(vocabulary, settings, batch, tmp_path):
    lora = {"rank": 2, "alpha": 4}
    module = gated(vocabulary, settings, save(tmp_path, len(vocabulary)), frozen=False, lora=lora)
    module.losses(batch)["loss"].backward()
    named = {name for name, p in module.named_parameters() if p.grad is not None and p.grad.any()}
    assert any("lora" in name for name in named) and any("idea_head" in name for name in named)
    assert not any(p.grad is not None for name, p in module.named_parameters() if "wte" in name)


def test_generation_uses_the_models_cache(vocabulary, settings, tmp_path):
    module = gated(vocabulary, settings, save(tmp_path, len(vocabulary))).eval()
    torch.nn.init.normal_(module.idea_head.outer.weight, std=2.0)
    decoding = IdeaGateDecoding(temperature=1.0, repetition_penalty=1.0, max_new_tokens=5)
    generator = decoding.generator(module, SimpleNamespace(vocabulary=vocabulary))
    for text in generator.generate(2, ["The market", "Traders pay a"], {"alpha": 1.5}, seed=None):
        ids = list(text.ids[: text.prompt_length])
        module.alpha = 1.5
        for _ in range(5):
            with torch.no_grad():
                ids.append(int(module({"input_ids_BT": torch.tensor([ids])}).scores_BTV[0, -1].argmax()))
        assert list(text.ids) == ids


def test_a_model_with_fewer_tokens_than_the_corpus(vocabulary, settings, tmp_path):
    with pytest.raises(UserError, match=f"backbone has 20 tokens, the corpus {len(vocabulary)}"):
        gated(vocabulary, settings, save(tmp_path, 20))


def test_nothing_to_train(vocabulary, settings, tmp_path):
    module = gated(vocabulary, settings | {"gated": False}, save(tmp_path, len(vocabulary)))
    module._trainer = SimpleNamespace(estimated_stepping_batches=10)
    with pytest.raises(UserError, match="nothing to train"):
        module.configure_optimizers()

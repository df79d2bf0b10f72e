"""A locally built model as a backbone: logits, cache, what is trained, and models that cannot be one."""

from __future__ import annotations

import logging
import re
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertLMHeadModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.utils import logging as transformers_logging

from lit_ctg.errors import UserError
from lit_ctg.network import huggingface
from lit_ctg.network.huggingface import HuggingFaceBackbone, load_model
from lit_ctg.network.pretrained import Loading

SIZE, DIM = 50, 16


def big(model):
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def save(kind: str, folder: Path) -> str:
    torch.manual_seed(0)
    if kind == "gpt2":
        small = GPT2Config(vocab_size=SIZE, n_positions=24, n_embd=DIM, n_layer=2, n_head=2)
        model = GPT2LMHeadModel(small)
    elif kind == "llama":
        sizes = {"hidden_size": DIM, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
        model = LlamaForCausalLM(LlamaConfig(vocab_size=SIZE, max_position_embeddings=24, **sizes))
    elif kind == "bert":
        sizes = {"hidden_size": DIM, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
        model = BertLMHeadModel(BertConfig(vocab_size=SIZE, **sizes))
    else:
        model = T5ForConditionalGeneration(T5Config(vocab_size=SIZE, d_model=DIM, num_layers=1, num_heads=2, d_ff=8))
    big(model).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory) -> str:
    return save("gpt2", tmp_path_factory.mktemp("gpt2"))


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_logits_are_the_models_own_with_and_without_cache(kind, tmp_path):
    path = save(kind, tmp_path)
    backbone = HuggingFaceBackbone(path=path).eval()
    assert (backbone.dim, backbone.vocabulary_size, backbone.context) == (DIM, SIZE, 24)
    ids = torch.randint(SIZE, (3, 9))
    with torch.no_grad():
        expected = backbone.model(input_ids=ids).logits
        got = backbone(backbone.embed(ids)) @ backbone.head_weight.T
        cache, columns = None, []
        for column in ids.unbind(1):
            hidden, cache = backbone.step(backbone.embed(column), cache)
            columns.append(hidden @ backbone.head_weight.T)
    assert torch.allclose(got, expected, atol=1e-4)
    assert torch.allclose(torch.stack(columns, 1), expected, atol=1e-4)


def test_a_frozen_model_is_not_trained_and_has_no_dropout(gpt2):
    backbone = HuggingFaceBackbone(path=gpt2).train()
    assert not any(parameter.requires_grad for parameter in backbone.parameters())
    embedded = torch.randn(2, 5, DIM)
    assert torch.equal(backbone(embedded), backbone(embedded))
    free = HuggingFaceBackbone(path=gpt2, frozen=False)  # Lightning leaves the mode as it finds it
    assert all(parameter.requires_grad for parameter in free.parameters())
    assert not torch.equal(free(embedded), free(embedded))


def test_adapters_begin_as_the_model_and_alone_are_trained(gpt2):
    lora = {"rank": 2, "alpha": 4, "dropout": 0.0, "targets": None}
    backbone, bare = HuggingFaceBackbone(path=gpt2, frozen=False, lora=lora), HuggingFaceBackbone(path=gpt2)
    trained = [name for name, parameter in backbone.named_parameters() if parameter.requires_grad]
    assert trained and all("lora" in name for name in trained)
    embedded = torch.randn(2, 5, DIM)
    backbone.eval()
    assert torch.allclose(backbone(embedded), bare(embedded), atol=1e-5)
    backbone(embedded).square().sum().backward()
    assert any(parameter.grad is not None and parameter.grad.any() for parameter in backbone.parameters())


def test_loading_leaves_the_reader_s_logging_as_it_was(gpt2, monkeypatch):
    logger, seen = transformers_logging.get_logger("transformers.distributed.tensor_parallel"), []
    inner = GPT2LMHeadModel.from_pretrained.__func__

    def spied(cls, *args, **options):
        seen.append((logger.level, transformers_logging.is_progress_bar_enabled()))
        return inner(cls, *args, **options)

    monkeypatch.setattr(GPT2LMHeadModel, "from_pretrained", classmethod(spied))
    monkeypatch.setattr("sys.stderr.isatty", lambda: False, raising=False)
    before = logger.level, transformers_logging.is_progress_bar_enabled()
    HuggingFaceBackbone(path=gpt2)
    assert seen == [(logging.ERROR, False)]
    assert (logger.level, transformers_logging.is_progress_bar_enabled()) == before


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("missing", "no such folder"),
        ("empty", "cannot be loaded"),
        pytest.param("t5", "is not a causal language model", marks=pytest.mark.long),
        ("bert", "not a causal model"),
    ],
)
def test_what_is_no_causal_model_is_refused(tmp_path, kind, message):
    folder = tmp_path / kind
    if kind != "missing":
        folder.mkdir()
    path = save(kind, folder) if kind in ("t5", "bert") else str(folder)
    with pytest.raises(UserError, match=message):
        HuggingFaceBackbone(path=path)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_what_is_damaged_is_told_in_one_line(tmp_path, name):
    """safetensors and the reader of configurations have errors of their own."""
    path = Path(save("gpt2", tmp_path)) / name
    broken = {"model.safetensors": path.read_bytes()[:-50], "config.json": b'{"model_type": "gpt2", "n_head": "x"}'}
    path.write_bytes(broken[name])
    with pytest.raises(UserError, match=rf"^backbone\.path={re.escape(str(tmp_path))} cannot be loaded: .+$"):
        HuggingFaceBackbone(path=str(tmp_path))


def test_weights_that_are_not_there_are_not_drawn_at_random(tmp_path):
    file = Path(save("gpt2", tmp_path)) / "model.safetensors"
    weights = load_file(file)
    for layer in (0, 1):
        del weights[f"transformer.h.{layer}.mlp.c_fc.weight"]
    save_file(weights, file, metadata={"format": "pt"})
    words = r"lacks weights of a GPT2LMHeadModel \(transformer\.h\.0\.mlp\.c_fc\.weight and 1 more\)"
    with pytest.raises(UserError, match=words):
        HuggingFaceBackbone(path=str(tmp_path))


def test_a_model_without_its_tied_head_is_whole(tmp_path):
    save("gpt2", tmp_path)
    base = GPT2LMHeadModel.from_pretrained(tmp_path).transformer
    base.save_pretrained(tmp_path / "base")
    assert HuggingFaceBackbone(path=str(tmp_path / "base")).vocabulary_size == SIZE


def test_a_head_that_is_no_plain_product_is_refused(gpt2, tmp_path, monkeypatch):
    monkeypatch.setattr(GPT2LMHeadModel, "forward", _capped(GPT2LMHeadModel.forward))
    with pytest.raises(UserError, match="its logits are not"):
        HuggingFaceBackbone(path=gpt2)


def _capped(forward):
    def capped(*args, **kwargs):
        output = forward(*args, **kwargs)
        output.logits = output.logits.tanh()
        return output

    return capped


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lora": {"rank": 2, "alpha": 4}}, "frozen=false"),
        ({"frozen": False, "lora": {"rang": 2}}, "give rank and alpha"),
        ({"frozen": False, "lora": {"rank": 2, "alpha": 4, "targets": ["absent"]}}, r"backbone\.lora:"),
    ],
)
def test_adapters_that_do_not_fit(gpt2, options, message):
    with pytest.raises(UserError, match=message):
        HuggingFaceBackbone(path=gpt2, **options)


def test_without_peft_the_extra_is_named(gpt2: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(UserError, match=r"backbone\.lora needs peft: pip install 'lit-ctg\[lora\]'"):
        HuggingFaceBackbone(path=gpt2, frozen=False, lora={"rank": 2, "alpha": 4})


# device and precision ------------------------------------------------------------------------------------------------


def test_auto_takes_bfloat16_where_it_pays(gpt2, tmp_path, monkeypatch):
    (tmp_path / "cpuinfo").write_text("flags : avx512f avx512_bf16 amx_tile\n")
    (tmp_path / "other").write_text("flags : avx512f\n")
    assert huggingface.has_bfloat16_units(str(tmp_path / "cpuinfo"))
    assert not huggingface.has_bfloat16_units(str(tmp_path / "other"))
    assert not huggingface.has_bfloat16_units(str(tmp_path / "none"))
    monkeypatch.setattr(huggingface, "has_bfloat16_units", lambda: True)
    loading = Loading(device="cpu")
    assert load_model(gpt2, where="model", loading=loading).dtype == torch.float32, "a small model gains nothing"
    monkeypatch.setattr(huggingface, "LARGE", 1)
    assert load_model(gpt2, where="model", loading=loading).dtype == torch.bfloat16
    assert load_model(gpt2, where="model").dtype == torch.float32, "what is trained or was measured before"
    monkeypatch.setattr(huggingface, "has_bfloat16_units", lambda: False)
    assert load_model(gpt2, where="model", loading=loading).dtype == torch.float32


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_model_is_held_as_asked(gpt2, dtype):
    for loading in (Loading("cpu", dtype), Loading(device_map="auto", dtype=dtype)):
        model = load_model(gpt2, where="model", loading=loading)
        assert {value.dtype for value in model.parameters()} == {getattr(torch, dtype)}
    assert loading.words == [f"dtype={dtype}", "device_map=auto"]


@pytest.mark.parametrize(
    ("loading", "named"),
    [
        (Loading(device="mps"), "device=mps"),
        (Loading(device="cpu", device_map="auto"), "device_map=auto"),
        (Loading(device="cpu", load="8bit"), "load=8bit"),
        (Loading(device="cpu", load="4bit"), "load=4bit"),
    ],
)
def test_what_is_not_there_is_named(gpt2, loading, named, monkeypatch):
    monkeypatch.setattr(huggingface, "find_spec", lambda name: None)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(UserError, match=named):
        load_model(gpt2, where="model", loading=loading)

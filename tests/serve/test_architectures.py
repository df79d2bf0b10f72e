"""Every architecture of network.py inside vLLM, on random models: each text is the one that ``Steered`` writes.

Of their own process: beside an engine of a real size they do not fit.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from lit_ctg.control import Control, Steered
from lit_ctg.control.lora import LoRA
from lit_ctg.control.vectors import ActivationVector
from lit_ctg.papers.control_code.control import NeuronCodes
from lit_ctg.papers.idea_gate.control import IdeaGate
from lit_ctg.papers.idea_gate.model import GateForm, IdeaHead
from lit_ctg.serve.plugin import ARCHITECTURES
from tests.conftest import WORDS
from tests.serve.conftest import LENGTH, ask, check, close, start

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]
V, D, INNER, HEADS = len(WORDS), 64, 96, 2
SMALL = {"max_model_len": 64, "kv_cache_memory_bytes": 2**24}
SETTINGS = {
    "idea_gate": {"idea_gate.alpha": 1.0, "idea_gate.beta": -6.0},
    "neuron_codes": {"neuron_codes.news": 1.0, "neuron_codes.strength": 1.0},
    "activation_vector": {"activation_vector.to_good": 1.0, "activation_vector.strength": 1.0},
    "lora": {"lora.strength": 1.0},
}
OFF = {"idea_gate.alpha": 0.0, **{f"{name}.strength": 0.0 for name in ("neuron_codes", "activation_vector", "lora")}}
PROMPTS = [[1, 2], [3, 4, 5, 6], [7], [8, 9, 2, 1, 11]]


def bundles() -> list[Control]:
    """Return controls of every kind that reads or changes hidden states, also of layers that vLLM joins."""
    torch.manual_seed(0)
    head = IdeaHead(D, V)
    torch.nn.init.normal_(head.outer.weight, std=3.0)
    layers = {
        "model.layers.0.self_attn.q_proj": D,
        "model.layers.0.self_attn.v_proj": D // HEADS,
        "model.layers.0.mlp.up_proj": INNER,
        "model.layers.1.mlp.down_proj": D,
    }
    return [
        IdeaGate(head, form=GateForm(clamp="after_scaling", epsilon=1e-8), alpha=1.0, beta=-6.0),
        NeuronCodes(["news", "blog"], torch.randn(2, 4), {path: torch.randn(n, 4) for path, n in layers.items()}),
        ActivationVector(["good", "bad"], {place: 4 * torch.randn(2, D) for place in (0, 1)}, scale="raw"),
        LoRA({"model.layers.0.mlp.gate_proj": (torch.randn(2, D), torch.randn(INNER, 2))}),
    ]


def saved(architecture: str, tokenizer: Any, folder: Path) -> Any:
    """Return a random model of two layers, and write it with a tokenizer into ``folder / "model"``."""
    import transformers

    config = getattr(transformers, architecture.replace("ForCausalLM", "Config"))(
        vocab_size=V, hidden_size=D, intermediate_size=INNER, num_hidden_layers=2, num_attention_heads=HEADS,
        num_key_value_heads=1, head_dim=D // HEADS, max_position_embeddings=64, initializer_range=0.3,
        bos_token_id=0, eos_token_id=0, tie_word_embeddings=False, sliding_window=None,
    )  # fmt: skip
    torch.manual_seed(1)
    model = getattr(transformers, architecture)(config).eval()
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    return model


@pytest.fixture(autouse=True)
def small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)  # it comes before the option


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_texts_are_those_of_steered(architecture: str, word_tokenizer: Any, tmp_path: Path) -> None:
    model = saved(architecture, word_tokenizer, tmp_path)
    steered = Steered(model, made := bundles(), tokenizer=word_tokenizer)
    for control in made:
        control.save_pretrained(tmp_path / control.name)
    words = [str(tmp_path / control.name) for control in made]
    engine = start(words, folder=tmp_path / "model", **SMALL)
    try:
        ways = [*SETTINGS.values(), {**SETTINGS["idea_gate"], **SETTINGS["neuron_codes"]}, {}, OFF]
        asked = [(prompt, way) for way in ways for prompt in PROMPTS]
        texts = ask(engine, [({"prompt_token_ids": prompt}, way) for prompt, way in asked])
        check(steered, asked, texts)
        bare, off = texts[-2 * len(PROMPTS) : -len(PROMPTS)], texts[-len(PROMPTS) :]
        assert off == bare, "strength 0 is the bare engine"
        for place, name in enumerate(SETTINGS):
            assert texts[len(PROMPTS) * place :][: len(PROMPTS)] != bare, f"{name} does something"
    finally:
        close(engine)


def test_vllms_own_adapters_write_the_texts_of_the_control(word_tokenizer: Any, tmp_path: Path) -> None:
    from vllm import SamplingParams
    from vllm.lora.request import LoRARequest

    steered = Steered(saved(ARCHITECTURES[0], word_tokenizer, tmp_path), bundles()[-1:], tokenizer=word_tokenizer)
    steered.controls[0].save_adapter(tmp_path / "adapter")
    engine = start([], folder=tmp_path / "model", **SMALL, enable_lora=True, max_lora_rank=8)
    try:
        params, own = SamplingParams(temperature=0, max_tokens=LENGTH), LoRARequest("own", 1, str(tmp_path / "adapter"))
        prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
        made = engine.generate(prompts, params, use_tqdm=False, lora_request=own)
        texts = [list(each.outputs[0].token_ids) for each in made]
        check(steered, [(prompt, SETTINGS["lora"]) for prompt in PROMPTS], texts)
        bare = engine.generate(prompts, params, use_tqdm=False)
        assert texts != [list(each.outputs[0].token_ids) for each in bare]
    finally:
        close(engine)


def test_a_file_of_texts_is_continued_where_it_stopped(word_tokenizer: Any, tmp_path: Path) -> None:
    saved(ARCHITECTURES[0], word_tokenizer, tmp_path)
    for control in bundles()[:1]:
        control.save_pretrained(tmp_path / control.name)
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "texts.jsonl"
    lines = [{"prompt": word, "settings": {"idea_gate.alpha": place}} for place, word in enumerate(WORDS[1:5])]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    words = [f"model={tmp_path / 'model'}", f"controls=[{tmp_path / 'idea_gate'}]", f"prompts={prompts}", f"out={out}"]
    words += ["engine=vllm", "dtype=float32", "device=cpu", "do_sample=false", "max_new_tokens=8"]
    made = []
    for _ in range(2):
        command = [str(Path(sys.executable).with_name("lit-ctg")), "generate", *words]
        environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1"}
        subprocess.run(command, env=environment, check=True, timeout=900)
        made.append(out.read_text(encoding="utf-8"))
        out.write_text("".join(made[0].splitlines(keepends=True)[:2]), encoding="utf-8")
    assert made[0] == made[1] and len(made[0].splitlines()) == len(lines)

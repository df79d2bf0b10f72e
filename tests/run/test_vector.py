"""`lit-ctg control vector` on a folder of texts, a tiny model and GGUF files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from lit_ctg.control import Control
from lit_ctg.control.vectors import ActivationVector
from lit_ctg.run.vector import vector


@pytest.fixture
def places(tmp_path: Path, word_tokenizer: Any, monkeypatch: Any) -> Path:
    """A folder with a model, texts of two classes, and texts of a condition."""
    monkeypatch.setenv("LIT_CTG_CACHE", str(tmp_path / "cache"))
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=14, n_embd=16, n_layer=3, n_head=2, n_positions=64, bos_token_id=0, eos_token_id=0
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "model")
    word_tokenizer.save_pretrained(tmp_path / "model")
    for folder, names in (("texts", ("good", "bad")), ("when", ("fires", "rest"))):
        (tmp_path / folder).mkdir()
        for number, name in enumerate(names):
            lines = [f"the war began in {year} {('good', 'bad')[number]} .\n\n" for year in (1914, 1918, 1939) * 8]
            (tmp_path / folder / f"{name}.txt").write_text("".join(lines))
    return tmp_path


def test_a_vector_of_texts_steers_and_becomes_a_gguf_file(places: Path, run_cli: Any) -> None:
    made = ["control", "vector", "data=texts", "model=model", "device=cpu", "dtype=float32"]
    code, out, err = run_cli(*made, "out=vector", "layers=[1]", "condition=when", "tokens=generated")
    assert code == 0 and "controls=[vector]" in out, err
    control = Control.from_pretrained(places / "vector")
    assert isinstance(control, ActivationVector) and control.classes == ("bad", "good")
    assert list(control.directions) == [1] and control.condition is not None and control.tokens == "generated"
    record = json.loads((places / "vector" / "run.json").read_text())["vector"]
    assert record["texts"] == {"bad": 24, "good": 24} and record["method"] == "means"
    words = ["generate", "model=model", "controls=[vector]", "prompt=the war", "do_sample=false", "max_new_tokens=4"]
    assert run_cli(*words, "control.activation_vector.to_bad=1", "control.activation_vector.strength=3")[0] == 0
    words = [word for word in words if "do_sample" not in word]
    code, _, err = run_cli(*words, "control.activation_vector.to_bad=1", "control.activation_vector.strength=kl:0.0001")
    assert code == 0 and "control.activation_vector.strength=" in err, err
    code, _, err = run_cli(*words, "control.activation_vector.to_bad=1", "control.activation_vector.strength=kl:x")
    assert code == 2 and "kl:" in err and err.count("\n") == 1
    assert "vector" in run_cli("control", "vector", "data=vector", "out=x.gguf")[2], "llama.cpp has no conditions"
    assert run_cli(*made, "out=plain", "layers=[1]")[0] == 0
    assert run_cli("control", "vector", "data=plain", "model=model", "out=x.gguf")[0] == 0
    assert run_cli("control", "vector", "data=x.gguf", "out=again")[0] == 0
    first, again = (Control.from_pretrained(places / name) for name in ("plain", "again"))
    assert isinstance(first, ActivationVector) and isinstance(again, ActivationVector) and again.scale == "raw"
    assert torch.equal(first.directions[1][0], again.directions[1][0])


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["data=texts"], "model="),
        (["data=texts", "model=model", "layers=top"], "layers=top"),
        (["data=texts", "model=model", "layers=[7]"], "layers"),
        (["data=texts", "model=model", "condition=texts"], "fires"),
        (["data=nothing.gguf"], "nothing.gguf"),
        (["data=nowhere", "model=model"], "nowhere"),
        (["data=texts", "model=model", "form=multiply"], "form"),
    ],
)
def test_bad_words_end_in_one_line(places: Path, run_cli: Any, words: list[str], named: str) -> None:
    code, _, err = run_cli("control", "vector", *words, "out=vector")
    assert code == 2 and err.count("\n") == 1 and re.search(named, err), err
    assert not (places / "vector").exists()


def test_function_has_the_options_of_the_command() -> None:
    from lit_ctg.cli import ControlVector

    assert set(vector.__annotations__) - {"return", "options"} <= set(ControlVector.options())

"""Codes on a frozen model: both arms begin as the model, with equal parameters, step as they read, can be carried."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lit_ctg.control import Control, Steered
from lit_ctg.errors import UserError
from lit_ctg.network.gpt2 import GPT2Backbone
from lit_ctg.network.huggingface import HuggingFaceBackbone
from lit_ctg.papers.control_code.adapter import CodeAdapterModule, code_layers
from lit_ctg.papers.control_code.control import NeuronCodes, SoftPrompt

SETTINGS: dict[str, Any] = {
    "corpus": "tiny", "codes": 2, "code_dim": None, "layers": None, "output": True, "learning_rate": 1e-2,
    "weight_decay": 0.0, "warmup_fraction": 0.1, "seed": 0,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, word_model: Any, word_tokenizer: Any) -> Path:
    """The tiny model as a folder."""
    word_model.save_pretrained(tmp_path / "lm")
    word_tokenizer.save_pretrained(tmp_path / "lm")
    return tmp_path / "lm"


@pytest.fixture
def make(folder: Path, word_tokenizer: Any) -> Callable[..., CodeAdapterModule]:
    """Return a maker of adapters on the tiny model, with sources bound."""

    def build(injection: str, **changes: Any) -> CodeAdapterModule:
        module = CodeAdapterModule(
            vocabulary=word_tokenizer, injection=injection,
            **{"backbone": HuggingFaceBackbone(path=str(folder)), **SETTINGS, **changes},
        )  # fmt: skip
        module.bind(["news", "blog"])
        return module.eval()

    return build


def batch(code: int = 0) -> dict[str, torch.Tensor]:
    ids_BT = torch.tensor([[1, 5, 6, 7], [2, 3, 6, 7]])
    mask_BT = torch.ones(2, 3, dtype=torch.bool)
    return {"input_ids_BT": ids_BT[:, :-1], "target_ids_BT": ids_BT[:, 1:], "mask_input_BT": mask_BT,
            "mask_target_BT": mask_BT, "control_code_B": torch.tensor([code, 1])}  # fmt: skip


def learned(module: CodeAdapterModule) -> CodeAdapterModule:
    """As if trained: everything of the arm away from where it began."""
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter))
    return module


def test_codes_begin_as_the_model_itself(make: Callable[..., CodeAdapterModule], word_model: Any) -> None:
    module = make("neuron")
    theirs = word_model(input_ids=batch()["input_ids_BT"]).logits
    assert torch.allclose(module(batch()).scores_BTV, theirs, atol=1e-5)
    assert not torch.allclose(learned(module)(batch()).scores_BTV, theirs, atol=1e-2)


def test_both_arms_train_as_many_parameters_and_nothing_of_the_model(make: Callable[..., CodeAdapterModule]) -> None:
    count = {}
    for arm in ("neuron", "prompt"):
        module = make(arm)
        trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        count[arm] = sum(p.numel() for p in trained.values())
        assert not [name for name in trained if name.startswith("backbone")]
        learned(module).losses(batch())["loss"].backward()
        assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in trained.values()), arm
    # both matrices of the layer, the output, the codes: 2 (64 + 16 + 14) + 2 * 2
    assert count["neuron"] == 2 * (64 + 16 + 14) + 4
    assert abs(count["prompt"] - count["neuron"]) <= 16  # half a place of two sources


@pytest.mark.parametrize("arm", ["neuron", "prompt"])
def test_steps_equal_reading_and_codes_differ(make: Callable[..., CodeAdapterModule], arm: str) -> None:
    module = learned(make(arm))
    with torch.no_grad():
        whole_BTV = module(batch()).scores_BTV
        state = module.start(2, torch.eye(2))
        for place in range(3):
            scores_BV, state = module.step(batch()["input_ids_BT"][:, place : place + 1], state)
            assert torch.allclose(scores_BV, whole_BTV[:, place], atol=1e-4)
        swapped_BTV = module(batch(code=1)).scores_BTV
    assert not torch.allclose(swapped_BTV[0], whole_BTV[0], atol=1e-2)
    assert torch.allclose(swapped_BTV[1], whole_BTV[1], atol=1e-5)


@pytest.mark.parametrize(("arm", "kind"), [("neuron", NeuronCodes), ("prompt", SoftPrompt)])
def test_what_was_learned_is_carried(
    make: Callable[..., CodeAdapterModule], arm: str, kind: type[Control], word_model: Any, tmp_path: Path
) -> None:
    module = learned(make(arm))
    module.control().save_pretrained(str(tmp_path / "codes"))
    control = Control.from_pretrained(str(tmp_path / "codes"))
    assert isinstance(control, kind)
    settings = {f"{control.name}.news": [1, 0], f"{control.name}.blog": [0, 1]}
    made = Steered(word_model, [control]).generate(
        batch()["input_ids_BT"], settings, max_new_tokens=1, output_scores=True, return_dict_in_generate=True,
        pad_token_id=0,
    )  # fmt: skip
    with torch.no_grad():
        assert torch.allclose(made.scores[0], module(batch()).scores_BTV[:, -1], atol=1e-4)


def test_layers_and_options_are_checked(make: Callable[..., CodeAdapterModule], word_model: Any) -> None:
    assert code_layers(word_model, None, True) == {
        "transformer.h.0.mlp.c_fc": 64, "transformer.h.0.mlp.c_proj": 16, "lm_head": 14,
    }  # fmt: skip
    with pytest.raises(UserError, match="no layer whose name ends so"):
        code_layers(word_model, ["nowhere"], False)
    with pytest.raises(UserError, match="a Dropout is no linear layer"):
        code_layers(word_model, ["drop"], False)
    with pytest.raises(UserError, match=r"model\.injection=neurons: use neuron or prompt; did you mean 'neuron'"):
        make("neurons")
    with pytest.raises(UserError, match="the corpus has 3 sources"):
        make("neuron").bind(["a", "b", "c"])
    with pytest.raises(UserError, match="this model cannot run on GPT2Backbone"):
        make("neuron", backbone=GPT2Backbone(dim=8, layers=1, heads=1, context=8, dropout=0.0, attention_dropout=0.0))


@pytest.mark.parametrize("arm", ["neuron", pytest.param("prompt", marks=pytest.mark.slow)])
def test_command_line(run_cli: Any, folder: Path, arm: str) -> None:
    """Train, record, export, and steer the frozen model with what was exported."""
    words = ["experiment=control_code/pretrained", "size=smoke", f"backbone.path={folder}", f"model.injection={arm}"]
    code, _, err = run_cli("train", *words, "trainer.max_steps=2", "callback.code_trial.prompts=2")
    assert code == 0, err
    (run,) = folder.parent.glob("outputs/control_code/*/*/run.json")
    code, out, err = run_cli("export", str(run.parent), "out=codes")
    assert code == 0, err
    name = {"neuron": "neuron_codes", "prompt": "soft_prompt"}[arm]
    assert out == f"exported: {name} ({name}) to codes\n"
    steer = [f"model={folder}", "controls=[codes]", f"control.{name}.news=1", "prompt=the war", "max_new_tokens=4"]
    code, out, err = run_cli("generate", *steer)
    assert code == 0, err
    assert out.startswith("the war")
    code, out, err = run_cli("generate", str(run.parent), "control.source=news", "n=1", "prompt=the war")
    assert code == 0 and out.startswith("the war"), err
    code, _, err = run_cli("generate", str(run.parent), "data=reviews")
    assert code == 2 and "a run keeps its own data" in err
    code, out, err = run_cli(
        "evaluate", str(run.parent), "trainer.limit_val_batches=1", "callback.code_trial.prompts=2"
    )
    assert code == 0 and "val/perplexity" in out, err

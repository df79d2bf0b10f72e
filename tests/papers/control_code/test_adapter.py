"""Codes on a frozen model: both arms begin as the model, with equal parameters, step as they read, can be carried."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

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

    def build(injection: str, sources: tuple[str, ...] = ("news", "blog"), **changes: Any) -> CodeAdapterModule:
        module = CodeAdapterModule(
            injection=injection,
            **{"vocabulary": word_tokenizer, "backbone": HuggingFaceBackbone(path=str(folder)), **SETTINGS, **changes},
        )  # fmt: skip
        module.bind(sources)
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
    assert list(code_layers(word_model, [], True)) == ["lm_head"]
    headed = torch.nn.Module()
    headed.head = torch.nn.Linear(2, 3)
    headed.get_output_embeddings = lambda: headed.head  # type: ignore[assignment]
    sizes = {"vocab_size": 8, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
             "num_key_value_heads": 2, "intermediate_size": 8, "num_local_experts": 2}  # fmt: skip
    mixture = transformers.MixtralForCausalLM(transformers.MixtralConfig(**sizes))
    assert code_layers(mixture, None, False) == {"model.layers.0.mlp": 8}
    assert list(code_layers(mixture, ["o_proj"], False)) == ["model.layers.0.self_attn.o_proj"]
    for model, ends, output, message in (
        (word_model, ["nowhere"], False, "'nowhere'"),
        (word_model, ["nowhere"], True, "'nowhere'"),  # the output layer alone would be another comparison
        (word_model, ["c_fc", "c_prj"], True, "'c_prj'"),
        (word_model, ["proj"], False, "'proj'"),  # the end of a word is not that of a name
        (word_model, [], False, "no layer takes a code"),
        (word_model, ["drop"], False, "a Dropout is not a linear layer"),
        (headed, None, True, "none was found"),
        (mixture, ["gate"], True, "a MixtralTopKRouter is not a linear layer"),
    ):
        with pytest.raises(UserError, match=message):
            code_layers(model, ends, output)
    with pytest.raises(UserError, match="the backbone has 14 tokens, the corpus 15"):
        make("neuron", vocabulary=range(15))
    with pytest.raises(UserError, match="this model cannot run on GPT2Backbone"):
        make("neuron", backbone=GPT2Backbone(dim=8, layers=1, heads=1, context=8, dropout=0.0, attention_dropout=0.0))


def test_sizes_and_beginnings_are_of_the_settings_and_the_seed(make: Callable[..., CodeAdapterModule]) -> None:
    """As many places as fit the neuron arm's parameters, rounded, at least one; the global stream is left alone."""
    small = {"layers": ["mlp.c_proj"], "output": False}
    code = make("neuron", code_dim=3, **small)
    assert code.code.shape == (2, 3) and [w.shape for w in code.code_weights] == [(16, 3)]
    # 2 * 5 + 5 * 16 parameters in rows of 2 * 16: 2.8
    assert make("prompt", code_dim=5, **small).places == 3
    wide = make("prompt", codes=4, code_dim=1, sources=("a", "b", "c", "d"), **small)  # 20 parameters, rows of 64
    assert wide.places == 1 and wide.prompts.shape == (4, 1, 16)
    prompt = make("prompt")
    assert prompt.context == 64 - prompt.places == 58 and make("neuron").context == 64
    with pytest.raises(UserError, match="a text of 59 tokens is longer than the model's 58 positions"):
        prompt.hidden(torch.zeros(1, 59, dtype=torch.long), prompt.start(1, torch.eye(2)[:1]))
    rows_VD = prompt.backbone.model.get_input_embeddings().weight
    assert all(bool((rows_VD == row_D).all(1).any()) for row_D in prompt.prompts.detach().flatten(0, 1))
    for arm, name in (("neuron", "code"), ("prompt", "prompts")):
        own, same, other = (getattr(make(arm, seed=seed), name) for seed in (7, 7, 8))
        assert torch.equal(own, same) and not torch.equal(own, other)
    following = set()
    for changes in ({"injection": "neuron"}, {"injection": "prompt"}, {"injection": "neuron", "seed": 3}):
        backbone = make("neuron").backbone
        torch.manual_seed(1)
        make(backbone=backbone, **changes)
        following.add(float(torch.rand(())))
    assert len(following) == 1


def test_padding_costs_nothing_and_codes_may_be_mixed(make: Callable[..., CodeAdapterModule]) -> None:
    module = learned(make("neuron"))
    data = {**batch(), "mask_target_BT": torch.tensor([[True] * 3, [True, False, False]])}
    nats = -module(data).scores_BTV.detach().double().log_softmax(-1)
    counted = [nats[row, place, data["target_ids_BT"][row, place]] for row, place in ((0, 0), (0, 1), (0, 2), (1, 0))]
    assert float(module.losses(data)["loss"].detach()) == pytest.approx(float(torch.stack(counted).mean()), rel=1e-5)
    state = module.start(2, torch.tensor([[0.5, 0.5], [0.0, 1.0]]))
    assert torch.allclose(state.code_BC[0], module.code.mean(0))
    mixed_BTV = module.scores(module.hidden(data["input_ids_BT"], state), state)
    assert not torch.allclose(mixed_BTV[0], module(data).scores_BTV[0], atol=1e-3)
    assert torch.allclose(mixed_BTV[1], module(data).scores_BTV[1], atol=1e-5)
    with pytest.raises(UserError, match="needs a code for every sequence"):
        module.start(2)
    with pytest.raises(UserError, match="a pretrained model cannot see what comes after"):
        module.hidden(data["input_ids_BT"], state, causal=False)


@torch.no_grad()
def test_layers_that_see_positions_as_rows_take_the_code_of_their_row(
    make: Callable[..., CodeAdapterModule], tmp_path: Path, word_tokenizer: Any
) -> None:
    """The feed-forward parts of OPT run on [B T, D]."""
    import transformers

    torch.manual_seed(5)
    sizes = {"hidden_size": 16, "word_embed_proj_dim": 16, "ffn_dim": 24, "num_hidden_layers": 1}
    config = transformers.OPTConfig(vocab_size=14, num_attention_heads=2, max_position_embeddings=32, **sizes)
    transformers.OPTForCausalLM(config).save_pretrained(tmp_path / "opt")
    module = learned(make("neuron", backbone=HuggingFaceBackbone(path=str(tmp_path / "opt"))))
    together_BTV, data = module(batch()).scores_BTV, batch()
    for row in range(2):
        alone_1TV = module({name: value[row : row + 1] for name, value in data.items()}).scores_BTV
        assert torch.allclose(alone_1TV[0], together_BTV[row], atol=1e-5)
    assert not torch.allclose(module(batch(code=1)).scores_BTV[0], together_BTV[0], atol=1e-2)


def test_a_model_that_is_trained_too_is_refused(make: Callable[..., CodeAdapterModule], folder: Path) -> None:
    """What was exported would be codes for another model."""
    with pytest.raises(UserError, match=r"backbone\.frozen=false"):
        make("neuron", backbone=HuggingFaceBackbone(path=str(folder), frozen=False))
    lora = {"rank": 2, "alpha": 4, "targets": ["c_attn"]}
    assert make("neuron", backbone=HuggingFaceBackbone(path=str(folder), frozen=False, lora=lora)), "exported beside"


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

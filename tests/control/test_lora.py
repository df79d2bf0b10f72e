"""Low-rank adapters as a control: what peft computes, for each row its own multiple."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lit_ctg.control import Control, Steered
from lit_ctg.control.lora import LoRA
from lit_ctg.errors import UserError
from lit_ctg.network.huggingface import HuggingFaceBackbone, adapters_of, add_adapters
from lit_ctg.run.export import note, with_adapters
from tests.conftest import make_model
from tests.controls import controls

PROMPTS = [[1, 2, 3, 4], [5, 6]]


@pytest.fixture(scope="module")
def adapted(model: Any) -> Any:
    """The model with trained adapters: B is not 0."""
    made = copy.deepcopy(model)
    add_adapters(made, {"rank": 3, "alpha": 12, "targets": ["c_attn", "c_fc"]})
    torch.manual_seed(3)
    for name, weight in made.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(weight, std=0.5)
    return made.eval()


def test_adapters_say_what_peft_says(model: Any, adapted: Any, tmp_path: Path) -> None:
    made = LoRA(adapters_of(adapted))
    assert sorted(made.adapters) == ["transformer.h.0.attn.c_attn", "transformer.h.0.mlp.c_fc"]
    made.save_pretrained(tmp_path / "lora")
    ids = torch.tensor(PROMPTS[:1])
    with torch.no_grad():
        theirs, bare = adapted(input_ids=ids).logits, model(input_ids=ids).logits
        for control in (made, Control.from_pretrained(tmp_path / "lora")):
            with control.attach(model):
                ours = model(input_ids=ids).logits
            assert torch.allclose(ours, theirs, atol=1e-4, rtol=1e-5) and not torch.allclose(ours, bare, atol=0.1)
        with made.attach(model, {"strength": [0, 1]}, rows=2):
            both = model(input_ids=ids.expand(2, -1)).logits
    assert torch.allclose(both[0], bare[0], atol=1e-5) and torch.allclose(both[1], theirs[0], atol=1e-4, rtol=1e-5)
    assert not model.transformer.h[0].mlp.c_fc._forward_hooks


def test_rows_and_beams_have_their_own_multiple(model: Any, adapted: Any) -> None:
    steered = Steered(model, [LoRA(adapters_of(adapted))])
    options = {"max_new_tokens": 5, "num_beams": 2, "num_return_sequences": 2, "eos_token_id": None, "pad_token_id": 0}
    together = steered.generate(PROMPTS, {"lora.strength": [0, 2]}, **options)
    for row, strength in enumerate((0, 2)):
        alone = steered.generate(PROMPTS[row : row + 1], {"lora.strength": strength}, **options)
        assert torch.equal(together[2 * row : 2 * row + 2, -5:], alone[:, -5:])


def test_another_model_is_one_line(model: Any, adapted: Any) -> None:
    made = LoRA(adapters_of(adapted))
    with pytest.raises(UserError, match=r"c_attn is made for 16 inputs and 48 outputs, this model's has 8 and 24: use"):
        Steered(make_model(14, n_embd=8), [made])
    with pytest.raises(UserError, match="feeds the layer nowhere, which this model does not have"):
        Steered(model, [LoRA({"nowhere": (torch.ones(1, 2), torch.ones(2, 1))})])
    with pytest.raises(UserError, match=r"a\.b has no two matrices of one rank"):
        LoRA({"a.b": (torch.ones(1, 2), torch.ones(2, 3))})
    with pytest.raises(UserError, match="it has no two matrices of one rank"):
        LoRA({})


def test_a_run_exports_its_adapters_too(model: Any, adapted: Any) -> None:
    gate, graph = (controls()[name] for name in ("idea_gate", "graphmax"))

    def module(network: Any, frozen: bool) -> Any:
        backbone = HuggingFaceBackbone.__new__(HuggingFaceBackbone)
        torch.nn.Module.__init__(backbone)
        backbone.model, backbone.frozen = network, frozen
        return SimpleNamespace(backbone=backbone)

    for kept in (module(model, True), module(model, False), SimpleNamespace()):
        assert with_adapters([gate], kept) == [gate]
    found = with_adapters([gate], module(adapted, False))
    assert found[0] is gate and isinstance(found[1], LoRA) and len(found[1].adapters) == 2
    assert note(gate, [gate], module(model, True)) == note(graph, [graph], module(model, False)) == ""
    further = "its states are those of the model that was trained on: lit-ctg export-model"
    assert note(gate, [gate], module(model, False)) == further
    beside = f"this run also has lora (kind=lora); {further}, or backbone.path with the control lora"
    assert note(gate, found, module(adapted, False)) == beside


def test_peft_reads_saved_adapters(model: Any, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    torch.manual_seed(2)
    shapes = {"transformer.h.0.attn.c_attn": (2, 16, 48), "transformer.h.0.mlp.c_fc": (3, 16, 64)}
    made = LoRA({path: (torch.randn(r, i), torch.randn(o, r)) for path, (r, i, o) in shapes.items()})
    made.save_adapter(tmp_path / "adapter")
    ids, loaded = torch.tensor(PROMPTS[:1]), peft.PeftModel.from_pretrained(copy.deepcopy(model), tmp_path / "adapter")
    with torch.no_grad(), made.attach(model):
        ours, theirs = model(input_ids=ids).logits, loaded(input_ids=ids).logits
    torch.testing.assert_close(ours, theirs)

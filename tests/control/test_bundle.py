"""Bundles: what is saved comes back, and nothing else is taken for one."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lit_ctg.control import Control, Origin, Steered, fingerprint
from lit_ctg.control.bundle import kind_named, kinds, save
from lit_ctg.errors import UserError
from lit_ctg.papers.graphmax.control import Graphmax
from lit_ctg.papers.graphmax.graph import CooccurrenceGraph
from lit_ctg.papers.idea_gate.control import IdeaGate
from lit_ctg.papers.idea_gate.gate import GateForm, IdeaHead

RECORD = {
    "paper": "idea_gate",
    "experiment": "idea_gate/main",
    "regime": "corrected",
    "size": "smoke",
    "seed": 3,
    "config_hash": "abc",
    "git": {"commit": "0123456789abcdef"},
    "metrics": {"val/perplexity": {"value": 12.5, "unit": "", "ci95": [12.0, 13.0], "n": 100}},
}


def gate(dim: int = 16, size: int = 14, **options: Any) -> IdeaGate:
    """Random, wide enough to steer."""
    torch.manual_seed(1)
    head = IdeaHead(dim, size)
    torch.nn.init.normal_(head.outer.weight, std=2.0)
    return IdeaGate(head, form=GateForm(clamp="after_scaling", epsilon=1e-8), alpha=1.0, beta=-4.0, **options)


def graph(size: int = 14) -> CooccurrenceGraph:
    """Of random texts."""
    generator = torch.Generator().manual_seed(0)
    return CooccurrenceGraph.from_token_ids(torch.randint(0, size, (20, 12), generator=generator).tolist(), size)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A gate with a record."""
    control = gate()
    control.origin = Origin(RECORD, "f" * 64)
    control.save_pretrained(tmp_path / "gate")
    return tmp_path / "gate"


def test_kinds_are_found_in_the_tree() -> None:
    assert {"graphmax", "idea_gate", "token_bias"} <= set(kinds())
    with pytest.raises(UserError, match="'idea_gat'; did you mean 'idea_gate'"):
        kind_named("idea_gat")


def test_a_gate_comes_back_with_its_origin(bundle: Path) -> None:
    again = Control.from_pretrained(bundle)
    assert isinstance(again, IdeaGate)
    assert all(torch.equal(value, gate().tensors()[name]) for name, value in again.tensors().items())
    assert again.config() == gate().config() and again.shape() == {"vocab_size": 14, "hidden_size": 16}
    assert again.origin is not None and again.origin.record == RECORD and again.origin.tokenizer == "f" * 64
    assert sorted(path.name for path in bundle.iterdir()) == [
        "README.md",
        "control.json",
        "control.safetensors",
        "run.json",
    ]
    card = (bundle / "README.md").read_text(encoding="utf-8")
    assert "| `alpha` | strength of the gate; 0: no gate | from 0 | 1 |" in card
    assert "idea_gate/main" in card and "| val/perplexity | 12.5 | 12 to 13 | 100 |" in card
    told = json.loads((bundle / "control.json").read_text(encoding="utf-8"))
    assert told["regime"] == "corrected" and told["run"]["config_hash"] == "abc"


def test_what_the_rest_of_a_gate_has_comes_back(tmp_path: Path) -> None:
    control = gate(base_V=torch.linspace(-3, -1, 14), neutral_V=torch.arange(14) < 3, name="lifted")
    control.save_pretrained(tmp_path / "gate")
    again = IdeaGate.from_pretrained(str(tmp_path / "gate"))
    assert again.name == "lifted" and again.base_V is not None and again.neutral_V is not None
    assert torch.equal(again.base_V, torch.linspace(-3, -1, 14)) and again.neutral_V.sum() == 3
    assert again.neutral_V.dtype == torch.bool
    with pytest.raises(UserError, match="holds a control of the kind idea_gate, not graphmax"):
        Graphmax.from_pretrained(str(tmp_path / "gate"))


@pytest.mark.slow
def test_round_trip_in_a_fresh_process(tmp_path: Path, model: Any) -> None:
    """Loaded elsewhere it writes the same ids."""
    gate().save_pretrained(tmp_path / "gate")
    Graphmax(graph(), variant="interpolation", lam=0.5).save_pretrained(tmp_path / "graph")
    model.save_pretrained(tmp_path / "model")
    script = """
import sys, torch
from transformers import AutoModelForCausalLM
from lit_ctg.control import Control, Steered
model = AutoModelForCausalLM.from_pretrained(sys.argv[1] + "/model").eval()
steered = Steered(model, [Control.from_pretrained(sys.argv[1] + "/" + name) for name in ("gate", "graph")])
print(steered.generate([[1, 2], [3]], {"idea_gate.alpha": [0.5, 2]}, max_new_tokens=8, pad_token_id=0).tolist())
"""
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    steered = Steered(model, [gate(), Graphmax(graph(), variant="interpolation", lam=0.5)])
    made = steered.generate([[1, 2], [3]], {"idea_gate.alpha": [0.5, 2]}, max_new_tokens=8, pad_token_id=0)
    assert json.loads(done.stdout.splitlines()[-1]) == made.tolist()


def rewritten(folder: Path, **changes: Any) -> None:
    """Change control.json without its checksum."""
    told = json.loads((folder / "control.json").read_text(encoding="utf-8"))
    (folder / "control.json").write_text(json.dumps({**told, **changes}), encoding="utf-8")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


# the part of a bundle that a message names -> what was done to it
DAMAGE: dict[str, list[Callable[[Path], Any]]] = {
    "control.safetensors": [
        lambda f: flip(f / "control.safetensors"),
        lambda f: (f / "control.safetensors").write_bytes((f / "control.safetensors").read_bytes()[:50]),
        lambda f: (f / "control.safetensors").unlink(),
    ],
    "README.md": [lambda f: flip(f / "README.md")],
    "run.json": [lambda f: (f / "run.json").write_text("{}")],
    "control.json": [
        lambda f: rewritten(f, config={"alpha": 9}),
        lambda f: rewritten(f, kind="graphmax"),
        lambda f: (f / "control.json").write_text('{"format": 1,'),
        lambda f: (f / "control.json").write_text('{"a": 1}'),
        lambda f: (f / "control.json").unlink(),
    ],
    "format 99": [lambda f: rewritten(f, format=99)],
    "extra.pkl": [lambda f: (f / "extra.pkl").write_bytes(pickle.dumps({}))],
    "pytorch_model.bin": [lambda f: torch.save({}, f / "pytorch_model.bin")],
}


@pytest.mark.parametrize(("named", "damage"), [(name, each) for name, several in DAMAGE.items() for each in several])
def test_damaged_and_foreign_bundles_are_one_line(bundle: Path, named: str, damage: Callable[[Path], Any]) -> None:
    damage(bundle)
    with pytest.raises(UserError, match=re.escape(named)) as caught:
        Control.from_pretrained(bundle)
    assert "\n" not in str(caught.value)


def test_a_pickle_in_the_place_of_the_tensors_is_not_opened(bundle: Path) -> None:
    """Even with checksums that agree."""
    from lit_ctg.control import bundle as module

    class Trap:
        def __reduce__(self) -> Any:
            return (pytest.fail, ("a pickle was opened",))

    (bundle / "control.safetensors").write_bytes(pickle.dumps(Trap()))
    told = json.loads((bundle / "control.json").read_text(encoding="utf-8"))
    told["files"]["control.safetensors"] = module._checksum(bundle / "control.safetensors")
    told["sha256"] = module._own_checksum(told)
    (bundle / "control.json").write_text(json.dumps(told), encoding="utf-8")
    with pytest.raises(UserError, match=r"control\.safetensors: cannot be read"):
        Control.from_pretrained(bundle)


def test_a_wrong_model_or_tokenizer_is_one_line(bundle: Path, model: Any, tokenizer: Any) -> None:
    with pytest.raises(UserError, match="idea_gate fits a model with hidden_size=8, this one has 16"):
        Steered(model, [gate(dim=8)])
    with pytest.raises(UserError, match="graphmax fits a model with vocab_size=20, this one has 14"):
        Steered(model, [Graphmax(graph(20))])
    with pytest.raises(UserError, match="idea_gate was made with another tokenizer"):
        Steered(model, [Control.from_pretrained(bundle)], tokenizer=tokenizer)
    fitting = gate()
    fitting.origin = Origin(None, fingerprint(tokenizer))
    assert fingerprint(tokenizer) == fingerprint([tokenizer.convert_ids_to_tokens(i) for i in range(len(tokenizer))])
    Steered(model, [fitting], tokenizer=tokenizer)


def test_no_folder_of_something_else_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    with pytest.raises(UserError, match="holds no control"):
        save(gate(), tmp_path / "mine")
    save(gate(), tmp_path / "gate")
    save(gate(name="again"), tmp_path / "gate")
    assert Control.from_pretrained(tmp_path / "gate").name == "again"
    (tmp_path / "gate" / "notes.txt").write_text("x")
    with pytest.raises(UserError, match=r"holds notes\.txt"):
        save(gate(), tmp_path / "gate")
    assert (tmp_path / "gate" / "notes.txt").is_file() and Control.from_pretrained(tmp_path / "gate").name == "again"


def test_names_that_are_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match="no control at no such folder"):
        Control.from_pretrained("no such folder")
    with pytest.raises(UserError, match="no control at nobody/nothing: no such folder, and the hub has none either"):
        Control.from_pretrained("nobody/nothing")


def test_push_to_hub_uploads_the_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    seen: dict[str, Any] = {}

    class Api:
        def __init__(self, token: str | None = None) -> None:
            seen["token"] = token

        def create_repo(self, name: str, **options: Any) -> Any:
            seen.update(options, name=name)
            return type("Url", (str,), {"repo_id": name})(f"https://hub/{name}")

        def upload_folder(self, repo_id: str, folder_path: str) -> None:
            if repo_id == "me/refused":
                raise OSError("no")
            seen["files"] = sorted(path.name for path in Path(folder_path).iterdir())

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    assert gate().push_to_hub("me/gate", private=True, token="t") == "https://hub/me/gate"
    assert seen["files"] == ["README.md", "control.json", "control.safetensors", "custom_generate"]
    assert (seen["name"], seen["private"], seen["token"]) == ("me/gate", True, "t")
    with pytest.raises(UserError, match="me/refused could not be uploaded"):
        gate().push_to_hub("me/refused")

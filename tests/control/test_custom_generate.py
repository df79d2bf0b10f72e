"""A bundle with ``custom_generate/`` in ``model.generate`` of a process that has no lit_ctg."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from lit_ctg.control import Steered
from lit_ctg.control.bundle import kinds, save
from lit_ctg.control.code import code_of, source_of
from lit_ctg.control.custom_generate import generate_under
from lit_ctg.errors import UserError
from lit_ctg.papers.graphmax.control import Graphmax
from lit_ctg.papers.idea_gate.control import IdeaGate
from lit_ctg.standalone import standalone
from tests.control.test_steered import ON, PROMPTS

FUSION = "lit_ctg.papers.semantic_fusion.model"
FRESH = """
import json, sys
sys.modules["lit_ctg"] = None  # any import of it fails
from transformers import AutoModelForCausalLM, AutoTokenizer
place, told = sys.argv[1], json.loads(sys.argv[2])
model = AutoModelForCausalLM.from_pretrained(place + "/model").eval()
tokenizer = AutoTokenizer.from_pretrained(place + "/model", padding_side="left")
tokenizer.pad_token = tokenizer.eos_token
prompts = tokenizer(told["prompts"], return_tensors="pt", padding=True, return_token_type_ids=False)
for name, settings in told["settings"].items():
    made = model.generate(**prompts, custom_generate=place + "/" + name, trust_remote_code=True, settings=settings,
                          tokenizer=tokenizer, max_new_tokens=8, pad_token_id=0, do_sample=True, seed=0)
    print(json.dumps([name, made.tolist()]), flush=True)
"""


@pytest.mark.long
def test_every_bundle_steers_without_lit_ctg(tmp_path: Path, model: Any, tokenizer: Any, carried_controls: Any) -> None:
    made = carried_controls()
    pull = made["graphmax"]  # Eq. 3 itself too: the whole solver
    made["equation"] = Graphmax(pull.graph, variant="graphmax", lam=1.0, name="equation")
    on = {**ON, "equation": {"strength": [0, 1, 40]}}
    chosen = [name for name in on if name != "grammar"]
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    settings = {name: dict(on[name]) for name in chosen}
    settings["idea_gate"]["alpha"] = [0, 1.5, 3]
    for name in chosen:
        code, left_out = code_of(made[name])
        save(made[name], tmp_path / name, code)
        assert left_out == ""
        source = (tmp_path / name / "custom_generate" / "generate.py").read_text(encoding="utf-8")
        assert "import lit_ctg" not in source and "from lit_ctg" not in source
    told = json.dumps({"prompts": PROMPTS[:3], "settings": settings})
    home = {**os.environ, "HF_HOME": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", FRESH, str(tmp_path), told], capture_output=True, text=True, cwd=tmp_path, env=home
    )
    assert done.returncode == 0, done.stderr
    found = dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))
    drawn: dict[str, Any] = {"max_new_tokens": 8, "do_sample": True, "seed": 0}
    bare = Steered(model, [], tokenizer=tokenizer).generate(list(PROMPTS[:3]), **drawn).tolist()
    for name in chosen:
        own = {f"{name}.{key}": value for key, value in settings[name].items()}
        steered = Steered(model, [made[name]], tokenizer=tokenizer)
        assert found[name] == steered.generate(list(PROMPTS[:3]), own, **drawn).tolist(), name
    assert found["idea_gate"][0] == bare[0] and found["equation"][0] == bare[0]
    assert [name for name in chosen if found[name] == bare] == []


def test_the_code_of_every_kind_fits_into_one_file() -> None:
    """No two definitions that it needs share a name."""
    for kind in kinds().values():
        assert f"generate_under({kind.__name__}, model" in source_of(kind)


def two_of_a_name(*args: Any, **options: Any) -> str:
    """What a copy of two rooms' code meets: one name, two things."""
    return standalone("lit_ctg.papers.control_code.model", ["LONGEST"], "both", also=[(FUSION, "LONGEST")])


def test_what_does_not_fit_is_one_line(
    tmp_path: Path, model: Any, carried_controls: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = carried_controls()
    with monkeypatch.context() as patch:
        patch.setattr("lit_ctg.control.code.PACKAGES", {"scipy": "scipy"})
        assert code_of(made["graphmax"]) == ({}, "its code needs entmax, scipy")
        patch.setattr("lit_ctg.control.code.standalone", two_of_a_name)
        code, left_out = code_of(made["graphmax"])
        assert code == {} and "does not fit into one file" in left_out
    for name in ("idea_gate", "graphmax"):
        save(made[name], tmp_path / name, code_of(made[name])[0])
    needed = tmp_path / "graphmax" / "custom_generate" / "requirements.txt"
    assert needed.read_text(encoding="utf-8").split() == ["entmax", "scipy"]
    ids = torch.ones(1, 2, dtype=torch.long)
    with pytest.raises(UserError, match="give control=<folder or hub name>"):
        generate_under(IdeaGate, model, input_ids=ids)
    with pytest.raises(UserError, match="give the prompts as input_ids"):
        generate_under(IdeaGate, model, control=str(tmp_path / "idea_gate"))
    with pytest.raises(UserError, match="holds a control of the kind graphmax, this code is for idea_gate"):
        generate_under(IdeaGate, model, control=str(tmp_path / "graphmax"), input_ids=ids)
    (tmp_path / "idea_gate" / "README.md").write_text("changed", encoding="utf-8")
    with pytest.raises(UserError, match=r"README.md was changed or cut off"):
        generate_under(IdeaGate, model, control=str(tmp_path / "idea_gate"), input_ids=ids)

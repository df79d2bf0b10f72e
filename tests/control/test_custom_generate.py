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
from lit_ctg.control.custom_generate import generate_under
from lit_ctg.errors import UserError
from lit_ctg.papers.idea_gate.control import IdeaGate
from lit_ctg.run.export import write_custom_generate
from tests.control.test_steered import ON, PROMPTS

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
                          tokenizer=tokenizer, max_new_tokens=6, pad_token_id=0, do_sample=False)
    print(json.dumps([name, made.tolist()]), flush=True)
"""


@pytest.mark.long
def test_every_bundle_steers_without_lit_ctg(tmp_path: Path, model: Any, tokenizer: Any, carried_controls: Any) -> None:
    chosen = [name for name in ON if name not in ("graphmax", "grammar")]
    made = carried_controls()
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    settings = {name: dict(ON[name]) for name in chosen}
    settings["idea_gate"]["alpha"] = [0, 1.5, 3]
    for name in chosen:
        made[name].save_pretrained(tmp_path / name)
        assert write_custom_generate(made[name], tmp_path / name) == ""
        source = (tmp_path / name / "custom_generate" / "generate.py").read_text(encoding="utf-8")
        assert "import lit_ctg" not in source and "from lit_ctg" not in source
    told = json.dumps({"prompts": PROMPTS[:3], "settings": settings})
    home = {**os.environ, "HF_HOME": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", FRESH, str(tmp_path), told], capture_output=True, text=True, cwd=tmp_path, env=home
    )
    assert done.returncode == 0, done.stderr
    found = dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))
    bare = Steered(model, [], tokenizer=tokenizer).generate(list(PROMPTS[:3]), max_new_tokens=6).tolist()
    for name in chosen:
        own = {f"{name}.{key}": value for key, value in settings[name].items()}
        steered = Steered(model, [made[name]], tokenizer=tokenizer)
        assert found[name] == steered.generate(list(PROMPTS[:3]), own, max_new_tokens=6).tolist(), name
    assert any(found[name] != bare for name in chosen) and found["idea_gate"][0] == bare[0]


def test_what_does_not_fit_is_one_line(tmp_path: Path, model: Any, carried_controls: Any) -> None:
    made = carried_controls()
    for name in ("idea_gate", "graphmax"):
        made[name].save_pretrained(tmp_path / name)
    assert "does not fit into one file" in write_custom_generate(made["graphmax"], tmp_path / "graphmax")
    assert not (tmp_path / "graphmax" / "custom_generate").exists()
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

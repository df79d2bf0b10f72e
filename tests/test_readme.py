"""The README: its commands and code run, its links and picture are right, and it is short."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from lit_ctg.results.record import load_records
from tests.pages import ROOT, examples, module_at, run_page

README = (ROOT / "README.md").read_text(encoding="utf-8")
CONTROLS = (ROOT / "docs" / "controls.md").read_text(encoding="utf-8")


def python_blocks(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, flags=re.S)


@pytest.mark.long
def test_every_command_runs_and_prints_what_the_page_shows(run_cli, tmp_path: Path) -> None:
    """One folder, in order: generate and export find the run that train has left."""
    assert run_page(README, run_cli, tmp_path) >= 10


def test_the_first_run_shows_two_texts() -> None:
    section = README.partition("## First run")[2].partition("\n## ")[0]
    assert len({example.output for example in examples(section) if example.output}) >= 2


def test_the_picture_is_that_of_the_first_run() -> None:
    tool = module_at(ROOT / "tools" / "picture.py")
    assert tool.picture(tool.examples(README)) == tool.OUT.read_text(encoding="utf-8"), "python tools/picture.py"


def test_the_results_are_words_for_a_first_reader() -> None:
    """No intervals, no rank correlations, no verdicts that need the rule."""
    words = re.sub(r"```.*?```", "", README, flags=re.S)
    assert not re.search(r"\[[+−-]?\d[\d.,]*,|Kendall|cannot decide", words)


def test_controls_of_the_reader_s_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word_model: Any, word_tokenizer: Any, carried_controls: Any
) -> None:
    """The block runs over bundles; its texts are those of the controls they were saved from."""
    from lit_ctg.control import Steered

    made = carried_controls()
    names = {"gate": "idea_gate", "codes": "neuron_codes"}
    for folder, name in names.items():
        made[name].save_pretrained(tmp_path / folder)
    monkeypatch.chdir(tmp_path)
    (block,) = python_blocks(README)
    found: dict[str, Any] = {"model": word_model, "tokenizer": word_tokenizer}
    exec(block, found)
    again = Steered(word_model, [made[name] for name in names.values()], tokenizer=word_tokenizer)
    settings = {"idea_gate.alpha": 0.5, "neuron_codes.news": 1}
    options = {"max_new_tokens": 20, "do_sample": True, "seed": 0, "rows": [1]}
    assert [found["texts"][1]] == again.write("a good acid", settings, **options)


def test_a_rule_in_your_own_generate() -> None:
    """With a tiny random GPT-2 for the reader's model."""
    import torch
    import transformers

    config = transformers.GPT2Config(vocab_size=50, n_positions=32, n_embd=16, n_layer=1, n_head=2, eos_token_id=49)
    torch.manual_seed(0)
    names = {
        "model": transformers.GPT2LMHeadModel(config).eval(),
        "ids": torch.randint(0, 49, (2, 4)),
        "sequences": torch.randint(0, 49, (20, 30)).tolist(),
        "vocab_size": 50,
    }
    (block,) = [block for block in python_blocks(CONTROLS) if "VariantRule" in block]
    exec(block, names)
    pulled = names["pull"](names["ids"], torch.randn(2, 50))
    assert torch.allclose(pulled.exp().sum(-1), torch.ones(2), atol=1e-6)


def test_the_rule_for_your_own_code_is_one_that_helps() -> None:
    """In every record held-out reviews are likelier under it; under graphmax as defined only where it was trained."""
    found = re.search(r'variants\(graph\)\["(\w+)"\], strength=([\d.]+)\)', CONTROLS)
    assert found is not None
    rule, own = rf"nll/\w+/{found[1]}/{float(found[2]):g}_change", r"nll/\w+/graphmax/[\d.]+_change"
    seen: list[str] = []
    for record in load_records((ROOT / "experiments/graphmax/records").glob("*_corrected_small.tar.xz")):
        for name, metric in record.metrics.items():
            if re.fullmatch(rule, name):
                assert metric["ci95"][1] < 0, (record.name, name)
                seen.append(record.name)
            if re.fullmatch(own, name) and record.name != "fine_tune":
                assert metric["ci95"][1] > 0, (record.name, name)
    assert {"review", "in_domain_pretrained"} <= set(seen)

"""The commands of the README run as they stand there (at size=smoke)."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from lit_ctg.results.record import load_records
from tests.committed import records_of

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", README, flags=re.S)
COMMANDS = [line for line in README.splitlines() if line.startswith("lit-ctg ")]


@pytest.mark.long
def test_every_command_of_the_use_section_in_order(run_cli, tmp_path: Path) -> None:
    """One folder, in order: generate and evaluate find the run that train has left."""
    commands = [line for line in COMMANDS if "<" not in line and " data " not in line]
    assert len(commands) >= 7
    for line in commands:
        words = [word.replace("size=small", "size=smoke") for word in shlex.split(line)[1:]]
        if words[0] == "train" and not any(word.startswith("size=") for word in words):
            words.append("size=smoke")
        code, out, err = run_cli(*words)
        assert code == 0, f"{line}: {err}"
        assert out.strip(), line
    assert (tmp_path / "table.tex").read_text(encoding="utf-8").count("\\toprule") > 3
    assert "<svg" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_texts_of_runs_are_texts_of_committed_records() -> None:
    kept = [
        *records_of("semantic_fusion", "main", "corrected"),
        *records_of("control_code", "transformer_scripts_l2_h512_neuron", "as_published"),
    ]
    rows = [row for record in kept if record.seed in (0, 111) for row in record.samples]
    table = README[README.index("| run | control | text |") :].split("\n\n")[0].splitlines()[2:]
    assert len(table) == 5
    for line in table:
        _, control, text = (cell.strip() for cell in line.strip("|").split("|"))
        found = [row for row in rows if row["text"].strip() == text]
        told = [control in (row.get("path"), f"{row.get('setting')}, {row.get('path')}") for row in found]
        assert any(told) or any(f"code {row.get('code')}" == control for row in found), line


@pytest.mark.long
def test_corpus_commands(run_cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIT_CTG_CACHE", str(tmp_path / "cache"))
    books = tmp_path / "books"
    books.mkdir()
    commands = [line for line in COMMANDS if " data " in line]
    assert len(commands) >= 3
    for line in commands:
        if "<folder" in line:
            continue
        code, out, err = run_cli(*shlex.split(line)[1:], "size=smoke")
        assert code == 0, f"{line}: {err}"
        assert out.strip()


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert len(links) > 5
    assert not [link for link in links if not link.startswith("http") and not (ROOT / link).exists()]


def test_python_snippets_run() -> None:
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
    blocks = [block for block in PYTHON if "Steered" not in block]
    assert len(blocks) >= 2
    for block in blocks:
        exec(block, names)
    pulled = names["pull"](names["ids"], torch.randn(2, 50))
    assert torch.allclose(pulled.exp().sum(-1), torch.ones(2), atol=1e-6)


def test_the_rule_for_your_own_code_is_one_that_helps() -> None:
    """In every record held-out reviews are likelier under it; under graphmax as defined only where it was trained."""
    found = re.search(r'variants\(graph\)\["(\w+)"\], strength=([\d.]+)\)', README)
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


def test_controls_of_all_papers_on_the_reader_s_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word_model: Any, word_tokenizer: Any, carried_controls: Any
) -> None:
    """The block runs over bundles; its texts are those of the controls they were saved from."""
    from lit_ctg.control import Steered

    names = {"gate": "idea_gate", "codes": "neuron_codes", "channel": "feature_channel", "lexicon": "lexicon",
             "graph": "graphmax", "memory": "memory", "years": "micro_models"}  # fmt: skip
    made = carried_controls()
    for folder, name in names.items():
        made[name].save_pretrained(tmp_path / folder)
    monkeypatch.chdir(tmp_path)
    (block,) = [block for block in PYTHON if "Steered" in block]
    found: dict[str, Any] = {"model": word_model, "tokenizer": word_tokenizer}
    exec(block, found)
    assert {type(control).paper for control in found["steered"].controls} == {
        "idea_gate", "control_code", "semantic_fusion", "graphmax", "nslm", "",
    }  # fmt: skip
    again = Steered(word_model, [made[name] for name in names.values()], tokenizer=word_tokenizer)
    settings = {"idea_gate.alpha": 0.5, "neuron_codes.news": 1, "feature_channel.pos": 0.2, "lexicon.to_polarity": -1}
    options = {"max_new_tokens": 20, "do_sample": True, "seed": 0, "rows": [1]}
    assert [found["texts"][1]] == again.write("a good acid", settings, **options)

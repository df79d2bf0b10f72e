"""What `lit-ctg list` and the shell's completion say is what there is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lit_ctg.config import experiments
from lit_ctg.control.bundle import kinds
from lit_ctg.results.spec import experiments_root, papers
from lit_ctg.run.listing import KINDS, SCRIPTS, candidates, description, docstring, lines, options, typed

COMMANDS = {"train": ["experiment", "regime", "data"], "table": ["paper", "size"], "list": ["what"]}


def test_every_experiment_is_listed_and_described() -> None:
    found = options("experiments")
    assert list(found) == experiments()
    assert not [name for name, told in found.items() if not told], "experiments without a first comment"
    assert all("lit-ctg" not in told for told in found.values())


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_options(kind: str) -> None:
    assert lines(kind) and all(len(line.split("\n")) == 1 for line in lines(kind))


@pytest.mark.parametrize("kind", ["data", "models", "metrics", "callbacks", "backbones", "controls"])
def test_options_tell_what_they_are(kind: str) -> None:
    silent = [name for name, told in options(kind).items() if not told]
    assert not silent, f"{kind} without a comment or docstring: {silent}"


def test_every_control_is_listed() -> None:
    """Read from the source here, from the classes there."""
    found = options("controls")
    assert set(found) == set(kinds())
    assert found["idea_gate"].endswith("(idea_gate)") and "(" not in found["token_bias"]


def test_a_description_is_a_comment_or_a_docstring(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("# @package _global_\n# Of sec. 3, Eq. 4 and\n# more. Second sentence.\na: 1\n")
    assert description(file) == "Of sec. 3, Eq. 4 and more"
    file.write_text("x:\n  _target_: lit_ctg.metric.perplexity.Perplexity\n")
    assert description(file) == docstring("lit_ctg.metric.perplexity.Perplexity") != ""
    assert docstring("lit_ctg.no.Such") == ""


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("lit-ctg", ["train", "table", "list"]),
        ("lit-ctg t", ["train", "table"]),
        ("lit-ctg train re", ["regime="]),
        ("lit-ctg train regime=", ["regime=as_published", "regime=corrected"]),
        ("lit-ctg train regime=corrected r", []),
        ("lit-ctg table paper=nsl", ["paper=nslm"]),
        ("lit-ctg train experiment=nslm/places_g", ["experiment=nslm/places_grounded"]),
        ("lit-ctg train colour=", []),
        ("lit-ctg train trainer=d", ["trainer=ddp", "trainer=default"]),
        ("lit-ctg train trainer.prec", ["trainer.precision="]),
        ("lit-ctg train experiment=idea_gate/main model.al", ["model.alpha=", "model.alpha_ramp_fraction="]),
        ("lit-ctg train experiment=nothing model.", []),
    ],
)
def test_words_are_completed(line: str, found: list[str]) -> None:
    assert candidates(typed(line), COMMANDS) == found


def test_the_scripts_ask_the_command(tmp_path: Path) -> None:
    assert all("lit-ctg complete" in script for script in SCRIPTS.values())
    checked = subprocess.run(["bash", "-n"], input=SCRIPTS["bash"], text=True, capture_output=True)
    assert checked.returncode == 0, checked.stderr


def test_completion_needs_no_torch() -> None:
    code = "import sys, lit_ctg.cli; lit_ctg.cli.main(['complete']); sys.exit('torch' in sys.modules)"
    environment = {"COMP_TYPED": "lit-ctg train experiment=", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and "experiment=nslm/numbers" in done.stdout


def test_kinds_and_papers_are_listed() -> None:
    kinds = lines()
    assert [line.split()[2] for line in kinds] == list(KINDS) and all(len(line) < 120 for line in kinds)
    assert [line.split()[0] for line in lines("papers")] == sorted(papers(experiments_root()))

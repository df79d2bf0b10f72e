"""`lit-ctg export`: finished runs of every paper become bundles; what cannot is one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lit_ctg.control import Control
from lit_ctg.errors import UserError
from lit_ctg.run.export import _wanted
from tests.controls import controls

# experiment, words, kind of the control, what its safetensors hold
RUNS = (
    ("graphmax/main", (), "graphmax", True),
    ("nslm/numbers", (), "micro_models", True),
    ("idea_gate/main", (), "idea_gate", True),
    ("semantic_fusion/main", (), "clause_channel", False),
    ("semantic_fusion/baseline", (), "grammar", False),
    ("semantic_fusion/reviews", (), "feature_channel", True),
    ("control_code/transformer", ("model.injection=neuron",), "neuron_codes", True),
)


@pytest.mark.slow
@pytest.mark.parametrize(("experiment", "words", "kind", "tensors"), RUNS, ids=lambda value: str(value))
def test_a_finished_run_of_every_paper_becomes_a_bundle(
    run_cli: Any, tmp_path: Path, experiment: str, words: tuple[str, ...], kind: str, tensors: bool
) -> None:
    chosen = [f"experiment={experiment}", "size=smoke", *words]
    code, _, err = run_cli("train", *chosen)
    assert code == 0, err
    code, out, err = run_cli("export", *chosen, "out=first")
    assert code == 0 and out.splitlines()[0] == f"exported: {kind} ({kind}) to first", err
    (run,) = (tmp_path / "outputs").glob("*/*/*/run.json")
    code, _, err = run_cli("export", str(run.parent), "out=second")
    assert code == 0, err
    names = ["README.md", "control.json", *(["control.safetensors"] if tensors else []), "run.json"]
    for folder in ("first", "second"):
        files = sorted(path.name for path in (tmp_path / folder).iterdir())
        assert files == sorted([*names, "custom_generate"])
        control = Control.from_pretrained(tmp_path / folder)
        assert control.kind == kind and control.origin is not None
        assert control.origin.record == json.loads(run.read_text(encoding="utf-8"))
        assert (control.origin.tokenizer is not None) == control.of_ids
    same = [name for name in names if name != "control.json"]
    assert all((tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes() for name in same)
    code, out, err = run_cli("generate", str(run.parent), "n=1")
    assert code == 0 and out.strip(), err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("experiment=idea_gate/main",), "give out=..., the new folder"),
        (("nowhere", "out=x"), "nowhere is not a run directory with a checkpoint"),
        (("experiment=idea_gate/main", "size=smoke", "out=x"), "no finished run of this configuration"),
    ],
)
def test_what_cannot_be_exported_is_one_line(run_cli: Any, words: tuple[str, ...], line: str) -> None:
    code, _, err = run_cli("export", *words)
    assert code == 2 and line in err and err.count("\n") == 1, err


def test_of_several_controls_kind_chooses() -> None:
    some = [controls()[name] for name in ("lexicon", "grammar")]
    assert _wanted(some[:1], None) is some[0] and _wanted(some, None) is some[0] and _wanted(some, "grammar") is some[1]
    with pytest.raises(UserError, match="kind=gramar: pass one of lexicon, grammar"):
        _wanted(some, "gramar")

"""The controls of a method as bundles: they steer as in the field, and say where they come from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lit_ctg.cli import dispatch
from lit_ctg.control import Control
from lit_ctg.errors import UserError
from lit_ctg.field.bench import Arm
from lit_ctg.field.command import compose
from lit_ctg.field.run import build_method
from tests.field.conftest import MakeBench


@pytest.mark.parametrize("method", ["idea_gate_lift", "dexperts"])
def test_a_bundle_steers_as_in_the_field(
    make_bench: MakeBench, field_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], method: str
) -> None:
    words = ["task=sentiment", f"method={method}", "size=smoke", f"output_root={field_root}"]
    assert dispatch(["field", "export", *words, f"out={tmp_path / 'controls'}"]) == 0
    told = capsys.readouterr().out
    bench, learned = make_bench(), build_method(compose(words))
    learned.fit(bench)
    for target in bench.task.targets:
        arm = learned.arm(bench, target)
        name = arm.controls[0].name
        folder = tmp_path / "controls" / name if method == "dexperts" else tmp_path / "controls" / target / name
        assert f"{target}: lit-ctg generate model={bench.base_folder} controls=[{folder}] " in told
        carried = Arm(bench.model, [Control.from_pretrained(folder)], arm.settings)
        texts = bench.write(arm, learned.strengths[-1])[0]
        assert bench.write(carried, learned.strengths[-1])[0] == texts
        assert texts != bench.write(arm, learned.strengths[0])[0], "the control does something"
    assert len(list((tmp_path / "controls").rglob("control.json"))) == (1 if method == "dexperts" else 2)


def test_the_record_goes_along_where_there_is_one(field_root: Path, tmp_path: Path) -> None:
    words = ["task=sentiment", "method=log_odds", "size=smoke", f"output_root={tmp_path}"]
    (tmp_path / "field").mkdir()
    parts = field_root / "field" / "parts"  # shared with the other tests
    parts.mkdir(parents=True, exist_ok=True)
    (tmp_path / "field" / "parts").symlink_to(parts)
    for run in (False, True):
        if run:
            assert dispatch(["field", "run", *words]) == 0
        assert dispatch(["field", "export", *words, f"out={tmp_path / 'bias'}"]) == 0
        (folder,) = (path.parent for path in (tmp_path / "bias").rglob("control.json"))
        origin = Control.from_pretrained(folder).origin
        assert origin is not None and origin.tokenizer is not None
        assert (origin.record or {}).get("name") == ("sentiment-log_odds" if run else None)
    (path,) = (tmp_path / "field" / "sentiment-log_odds").rglob("run.json")
    told = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**told, "corpus": {**told["corpus"], "text": "another"}}), encoding="utf-8")
    assert dispatch(["field", "export", *words, f"out={tmp_path / 'bias'}"]) == 0
    origin = Control.from_pretrained(folder).origin
    assert origin is not None and origin.record is None, "of other texts"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["method=bare"], "sentiment-bare steers without a control"),
        (["method=fine_tuned"], "sentiment-fine_tuned changes the model itself"),
        (["method=log_odds,fudge"], "give one task, one method and one seed"),
        (["method=all"], "give one task, one method and one seed"),
        (["method=log_odds", "out="], "out= is given twice"),
    ],
)
def test_what_cannot_be_exported_is_refused(field_root: Path, tmp_path: Path, words: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        dispatch(["field", "export", "size=smoke", f"output_root={field_root}", f"out={tmp_path / 'x'}", *words])
    assert not (tmp_path / "x").exists()

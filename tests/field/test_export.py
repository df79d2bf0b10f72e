"""The controls of a method as bundles: they steer as in the field, and say where they come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from lit_ctg.cli import dispatch
from lit_ctg.control import Control
from lit_ctg.errors import UserError
from lit_ctg.field.bench import Arm, Bench
from lit_ctg.field.methods import METHODS


@pytest.mark.parametrize("method", ["lexicon", pytest.param("dexperts", marks=pytest.mark.long)])
def test_a_bundle_steers_as_in_the_field(
    bench: Bench, field_words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], method: str
) -> None:
    assert dispatch(["field", "export", *field_words, f"method={method}", f"out={tmp_path / 'controls'}"]) == 0
    told = capsys.readouterr().out
    for target, arm in METHODS[method].arms(bench).items():
        name = arm.controls[0].name
        folder = tmp_path / "controls" / name if method == "dexperts" else tmp_path / "controls" / target / name
        assert f"{target}: lit-ctg generate model={bench.model_name} controls=[{folder}] " in told
        control = Control.from_pretrained(folder)
        assert control.origin is not None and control.origin.record is None
        carried = Arm([control], arm.settings)
        texts = bench.write(arm, 3.0, "choice")[0]
        assert bench.write(carried, 3.0, "choice")[0] == texts != bench.write(arm, 0.0, "choice")[0]
    # and is a method itself
    bench.bundle = str(tmp_path / "controls" / ("experts" if method == "dexperts" else "TARGET/lexicon"))
    again = METHODS["bundle"].arms(bench)["positive"]
    first = METHODS[method].arms(bench)["positive"]
    assert bench.write(again, 3.0, "choice")[0] == bench.write(first, 3.0, "choice")[0]


@pytest.mark.long
def test_the_record_goes_along_where_there_is_one(field_words: list[str], tmp_path: Path) -> None:
    words = [*field_words, "method=log_odds", "seed=3"]
    for run in (False, True):
        if run:
            assert dispatch(["field", "run", *words]) == 0
        assert dispatch(["field", "export", *words, f"out={tmp_path / 'bias'}"]) == 0
        (folder,) = (path.parent for path in (tmp_path / "bias").rglob("control.json"))
        origin = Control.from_pretrained(folder).origin
        assert origin is not None and origin.tokenizer is not None
        assert (origin.record or {}).get("name") == ("sentiment-log_odds" if run else None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["method=instruction"], "sentiment-instruction steers without a control"),
        (["method=log_odds,fudge"], "give one task, one method and one seed"),
        (["method=all"], "give one task, one method and one seed"),
    ],
)
def test_what_cannot_be_exported_is_refused(
    field_words: list[str], tmp_path: Path, words: list[str], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        dispatch(["field", "export", *field_words, f"out={tmp_path / 'x'}", *words])
    assert not (tmp_path / "x").exists()

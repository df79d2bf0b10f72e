"""A control of one's own texts: what is read, what is tried, what is kept and said."""

from __future__ import annotations

import csv
import json
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lit_ctg.cli import main
from lit_ctg.control import Control
from lit_ctg.data.sample_text import sample_documents
from lit_ctg.errors import UserError
from lit_ctg.field import own
from lit_ctg.field.task import Example
from lit_ctg.files import check_places
from lit_ctg.network.pretrained import PLAIN
from lit_ctg.run.play import examples_of
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
            mood, words = ("sad", "glad")[number % 2], text.split()
            words[::3] = [mood] * len(words[::3])
            writer.writerow([" ".join(words), mood, number % 3])
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
    named = [replace(each, name=f"{control.name}.{each.name}") for each in control.settings]
    (example,) = examples_of([control], named)
    assert example.prompt, "the page of play opens with what was tried"
    on = [name for name, value in example.settings.items() if value and ".to_" in name]
    assert len(on) == 1, "with one label"
    commands = [shlex.split(line.partition(": lit-ctg ")[2]) for line in said.splitlines() if ": lit-ctg " in line]
    assert [words[0] for words in commands] == ["generate", "generate", "play"], "the next commands"
    assert all(f"controls=[{folder}]" in words for words in commands)
    assert main([*commands[0], "max_new_tokens=3"]) == 0
    assert ("no effect is shown" in said) == (low <= 0)
    assert [each.name for each in tmp_path.iterdir()] == ["mine"], "no hidden folder"


def test_texts_that_fall_apart_do_not_count(
    given: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made(given, tmp_path / "all", monkeypatch)
    assert "fall apart" not in capsys.readouterr().out
    monkeypatch.setattr(own, "STRANGE", -9.0)
    (folder,) = made(given, tmp_path / "none", monkeypatch)
    assert "fall apart" in capsys.readouterr().out
    assert json.loads((folder / "run.json").read_text())["cost"] > -9


def test_each_attribute_has_its_control_and_a_judge_that_guesses_is_not_trusted(
    given: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = made(given, tmp_path / "mine", monkeypatch, label=["mood", "size"])
    judges = {folder.parent.name: json.loads((folder / "run.json").read_text())["judge"] for folder in folders}
    assert {name: judge["trusted"] for name, judge in judges.items()} == {"mood": True, "size": False}
    said = capsys.readouterr().out
    assert said.count("cannot be trusted") == 2 and "model get minilm" in said, "before the score and behind it"


def test_an_occupied_folder_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    for out in (tmp_path / "mine", tmp_path / "mine" / "notes.txt"):
        with pytest.raises(UserError, match=str(out)):
            check_places("none.csv", str(out))
    script = "import sys; from lit_ctg.cli import main; main(sys.argv[1:]); sys.exit('torch' in sys.modules)"
    words = ["control", "make", "data=none", f"out={tmp_path / 'new'}"]
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True)
    assert b"data=none" in done.stderr and done.returncode == 0, "without torch, which takes seconds"
    assert [each.name for each in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize(("error", "left"), [(UserError, False), (KeyboardInterrupt, True)])
def test_only_an_interrupted_command_leaves_what_it_trained(
    error: type[BaseException], left: bool, given: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(bench: Any, *_: Any) -> None:
        bench.parts.get("one", {}, lambda folder, checkpoint: {})
        raise error("stop")

    with monkeypatch.context() as patched:
        patched.setattr(own, "_make_one", stopped)
        with pytest.raises(error):
            made(given, tmp_path / "mine", patched)
    assert [each.name for each in tmp_path.iterdir()] == [".mine.parts"] * left


@pytest.mark.parametrize("known", [True, False])
def test_the_judge_is_the_one_that_is_right_on_folds_of_its_own_texts(
    known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """States that know the class beside words that do not, and the other way round."""
    random = np.random.default_rng(0)
    labels = ["no", "yes"] * 20
    examples = [
        Example(f"{('cat', 'dog')[random.integers(2)] if known else label} the {number}", label)
        for number, label in enumerate(labels)
    ]
    state = {each.text: [float(each.label == "yes") if known else random.normal(), 1.0] for each in examples}
    task = SimpleNamespace(targets=("no", "yes"), examples=lambda split: {"judge": examples}[split])
    monkeypatch.setattr(own, "cached", Path)
    monkeypatch.setattr(own, "_states_of", lambda labels: lambda texts: np.array([state[text] for text in texts]))
    assert own._judge(SimpleNamespace(task=task)).name == ("minilm" if known else "tfidf")


@pytest.mark.parametrize("methods", [["bare"], ["nothing"]])
def test_a_method_without_a_control_is_refused(
    methods: list[str], given: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=methods[0]):
        made(given, tmp_path / "mine", monkeypatch, methods=methods)
    assert not (tmp_path / "mine").exists()

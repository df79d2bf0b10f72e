"""The notebooks of docs/ run from first to last cell, offline, and what is committed of them was run."""

from __future__ import annotations

import ast
import importlib
import json
import shlex
import tempfile
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from lit_ctg.config import compose
from lit_ctg.run.play_page import is_cached
from tests.pages import module_at

DOCS = Path(__file__).resolve().parents[1] / "docs"
NOTEBOOKS = sorted(DOCS.rglob("*.ipynb"))
PAPERS = sorted(path.parent.name for path in (DOCS.parent / "experiments").glob("*/paper.yaml"))
REAL = "model=smollm2"
RUN = [
    pytest.param(path, id=path.stem, marks=pytest.mark.real if REAL in path.read_text("utf-8") else pytest.mark.long)
    for path in NOTEBOOKS
]


@pytest.fixture(scope="module")
def runner() -> ModuleType:
    return module_at(DOCS / "_notebook.py")


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_committed_was_run(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    cells = code_cells(json.loads(text))
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert any(cell["outputs"] for cell in cells) and len(text) < 200_000
    assert not {place for place in ("/tmp/", "/home/", "/work/", "/root/") if place in text}


def test_every_paper_has_its_notebook() -> None:
    assert [path.stem for path in NOTEBOOKS if path.parent.name == "notebooks"] == PAPERS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_it_names_is_there(path: Path) -> None:
    """Without running it: imports, commands and their settings."""
    for cell in code_cells(json.loads(path.read_text(encoding="utf-8"))):
        for node in ast.walk(ast.parse("".join(cell["source"]))):
            if isinstance(node, ast.ImportFrom):
                module = importlib.import_module(str(node.module))
                assert all(hasattr(module, alias.name) for alias in node.names)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "run":
                (words,) = node.args
                if isinstance(words, ast.Constant) and str(words.value).startswith("train "):
                    compose(shlex.split(str(words.value))[1:])


@pytest.mark.parametrize("path", RUN)
def test_it_runs(path: Path, runner: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    if REAL not in path.read_text("utf-8"):
        monkeypatch.setenv("LIT_CTG_CACHE", str(tmp_path / "cache"))
    elif not is_cached("smollm2"):
        pytest.skip("smollm2 is not cached: lit-ctg model get smollm2")
    committed = code_cells(json.loads(path.read_text(encoding="utf-8")))
    for was, now in zip(committed, code_cells(runner.executed(path)), strict=True):
        # texts and numbers may differ from processor to processor; whether a cell says something does not
        assert [output["output_type"] for output in was["outputs"]] == [
            output["output_type"] for output in now["outputs"]
        ]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_they_run_in_any_order_twice_and_leave_no_trace(
    runner: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One after the other in one process, each in a folder of its own and in at most five minutes."""
    if not is_cached("smollm2"):
        pytest.skip("smollm2 is not cached: lit-ctg model get smollm2")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path.parent))
    for path in [*NOTEBOOKS, *reversed(NOTEBOOKS)]:
        monkeypatch.chdir(tmp_path)
        began = time.process_time()
        runner.executed(path)
        assert Path.cwd() != tmp_path and not list(tmp_path.iterdir()), path
        assert time.process_time() - began < 300, path


def test_a_picture_is_kept(runner: ModuleType, tmp_path: Path) -> None:
    source = ["from lit_ctg.figure import line_chart\n", "line_chart('a picture', [])"]
    cells = [{"cell_type": "code", "source": source}]
    (tmp_path / "one.ipynb").write_text(json.dumps({"cells": cells}), encoding="utf-8")
    (cell,) = runner.executed(tmp_path / "one.ipynb")["cells"]
    data = cell["outputs"][0]["data"]
    assert data["text/plain"] == ["<Chart>"] and "a picture" in "".join(data["image/svg+xml"])


def test_a_cell_that_fails_ends_the_run(runner: ModuleType, tmp_path: Path) -> None:
    cells = [{"cell_type": "code", "source": source} for source in (["a = 1\n", "print(a)\n", "a + 1"], ["1 / 0"])]
    (tmp_path / "one.ipynb").write_text(json.dumps({"cells": cells[:1]}), encoding="utf-8")
    (cell,) = runner.executed(tmp_path / "one.ipynb")["cells"]
    assert cell["outputs"][0]["text"] == ["1\n"] and cell["outputs"][1]["data"] == {"text/plain": ["2"]}
    (tmp_path / "two.ipynb").write_text(json.dumps({"cells": cells}), encoding="utf-8")
    with pytest.raises(ZeroDivisionError):
        runner.executed(tmp_path / "two.ipynb")

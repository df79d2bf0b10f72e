"""A new paper from `lit-ctg new` passes lint and the whole-repository checks, and touches no existing file."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lit_ctg.errors import UserError
from lit_ctg.results.spec import load_manifest
from lit_ctg.run.skeleton import new

ROOT = Path(__file__).resolve().parents[2]
PAPER = "topic_prefix"


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository without records."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("lit_ctg", "conf", "experiments", "tests", "docs"):
        ignored = shutil.ignore_patterns("__pycache__", "records" if name == "experiments" else "__pycache__")
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "CHANGELOG.md"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def run(folder: Path, *words: str) -> str:
    """Run a module in a folder, which must succeed; return what it prints."""
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    return done.stdout


@pytest.mark.long
def test_a_new_paper_passes_every_check_and_touches_nothing(checkout: Path) -> None:
    before = contents(checkout)
    made = new(PAPER, root=checkout)
    after = contents(checkout)
    assert {path: after[path] for path in before} == before and set(after) - set(before) == set(made)
    code = [str(path) for path in made if path.suffix == ".py"]
    run(checkout, "ruff", "check", "--no-cache", *code)
    run(checkout, "ruff", "format", "--no-cache", "--check", *code)
    whole = ["tests/test_layers.py", "tests/run/test_listing.py", "tests/results/test_verify.py", "tests/integration"]
    run(checkout, "pytest", "-q", "-p", "no:cacheprovider", f"tests/papers/{PAPER}", *whole, "-k", PAPER)
    run(checkout, "pytest", "-q", "-p", "no:cacheprovider", "tests/test_mirror.py")
    script = "import lit_ctg.cli as c; raise SystemExit(c.main(['table', 'paper=topic_prefix', 'format=md']))"
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    table = subprocess.run(
        [sys.executable, "-c", script], cwd=checkout, env=environment, capture_output=True, text=True
    )
    assert table.returncode == 0 and "Table 1" in table.stdout, table.stderr


@pytest.mark.slow
def test_a_new_paper_passes_the_type_checker(checkout: Path) -> None:
    if not (checkout / "lit_ctg" / "papers" / PAPER).exists():
        new(PAPER, root=checkout)
    assert "no issues found" in run(checkout, "mypy", f"lit_ctg/papers/{PAPER}")


@pytest.mark.parametrize("name", ["Semantic", "2ideas", "class", "a-b", "", "../x"])
def test_names_that_are_none_are_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    with pytest.raises(UserError, match="small letters"):
        new(name, root=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["pyproject.toml"]


def test_nothing_is_written_over(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a checkout"):
        new(PAPER, root=tmp_path)
    (tmp_path / "pyproject.toml").write_text("")
    file = tmp_path / "conf" / "model" / f"{PAPER}.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    with pytest.raises(UserError, match="exists already"):
        new(PAPER, root=tmp_path)
    assert file.read_text() == "mine" and not (tmp_path / "lit_ctg").exists()


def test_a_title_may_hold_a_colon_and_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    new("foo", "Control: a study # 1", root=tmp_path)
    assert load_manifest(tmp_path / "experiments", "foo").title == "Control: a study # 1"
    for title in ('the "best"', "two\nlines", "a\\b"):
        with pytest.raises(UserError, match=r"title=.*: pass a line of text"):
            new("bar", title, root=tmp_path)
    assert not (tmp_path / "experiments" / "bar").exists()

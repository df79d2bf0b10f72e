"""The layers of docs/architecture.md: who may import whom."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "lit_ctg"
# what each shared folder may import of the others; papers may import all of them but run
ALLOWED = {
    "core": {"decoding"},
    "network": set(),
    "data": {"core", "network"},
    "decoding": set(),
    "control": {"core", "decoding", "network"},
    "metric": {"core"},
    "callback": {"core", "metric", "decoding", "data", "results"},
    "results": set(),
    "papers": {"core", "network", "data", "decoding", "control", "metric", "callback", "results"},
    "field": {"callback", "core", "control", "data", "decoding", "network", "papers", "results", "run"},
    "run": {"core", "control", "metric", "callback", "data", "decoding", "network", "results", "serve"},
    "serve": {"control", "core", "data", "decoding", "network"},
    "zoo": {"control", "core", "data", "network", "papers", "results", "run"},
}
PAPERS = sorted(path.parent.name for path in (PACKAGE / "papers").glob("*/__init__.py"))
MODULES = sorted(path for group in ALLOWED for path in (PACKAGE / group).rglob("*.py"))


def imported(path: Path, *, loading: bool = False, of: str = "lit_ctg.") -> set[str]:
    """Return the dotted names of lit_ctg modules that a file imports: anywhere, or only while it is loaded itself."""
    names = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body if loading else ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in names if name.startswith(of)}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_folders_import_only_what_they_may(path: Path) -> None:
    folder, *inside = path.relative_to(PACKAGE).parts
    for name in imported(path):
        other = name.split(".")[1]
        if folder == "papers" and other == "papers":
            assert name.split(".")[2] == inside[0].removesuffix(".py"), f"{inside[0]} imports another paper: {name}"
        elif other == "run" and path.name == "command.py":
            continue  # a command that a paper adds to ours stands above what runs it
        elif (PACKAGE / other).is_dir() and other != folder:
            assert other in ALLOWED[folder], f"{folder} may not import {name}"


def test_no_module_needs_itself_to_be_loaded() -> None:
    paths = {path: ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in PACKAGE.rglob("*.py")}
    modules = {name.removesuffix(".__init__") for name in paths.values()}
    graph = {}
    for path, name in paths.items():
        found = {one if one in modules else one.rpartition(".")[0] for one in imported(path, loading=True)}
        graph[name.removesuffix(".__init__")] = found & modules
    assert sum(map(len, graph.values())) > len(modules)
    TopologicalSorter(graph).prepare()  # its error names the circle


CONTROLS = ["lit_ctg.run.steer", *(f"lit_ctg.papers.{paper}.control" for paper in PAPERS)]


def test_texts_under_a_control_need_no_trainer() -> None:
    """Lightning and other large packages take seconds to import."""
    waiting, reached = list(CONTROLS), set[str]()
    while waiting:
        name = waiting.pop()
        if not name or name in reached:
            continue
        reached.add(name)
        waiting.append(name.rpartition(".")[0])  # the package of a module, the module of a name
        paths = [PACKAGE.parent / f"{name.replace('.', '/')}{end}" for end in (".py", "/__init__.py")]
        for path in (path for path in paths if path.is_file()):
            waiting += imported(path, loading=True)
            heavy = {each.partition(".")[0] for each in imported(path, loading=True, of="")}
            assert not heavy & {"lightning", "torchmetrics", "sklearn", "matplotlib", "gradio", "pandas"}, path
    assert "lit_ctg.control.base" in reached


@pytest.mark.long
def test_no_package_that_they_need_imports_a_trainer() -> None:
    script = f"import sys, {', '.join(CONTROLS)}; print({{'lightning', 'torchmetrics'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], cwd=PACKAGE.parent, capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr


def test_papers_are_found() -> None:
    assert PAPERS, "no folder below lit_ctg/papers"


def test_results_plans_lists_and_help_need_no_large_package() -> None:
    """They take seconds to import, the commands that only read take one."""
    modules = [f"lit_ctg.results.{path.stem}" for path in (PACKAGE / "results").glob("*.py") if path.stem != "__init__"]
    assert modules, "no results modules found"
    modules += ["lit_ctg.cli", "lit_ctg.field.report", "lit_ctg.run.reproduce", "lit_ctg.run.listing"]
    large = ("torch", "lightning", "transformers", "scipy.stats", "pandas", "sklearn")
    script = f"import sys, {', '.join(modules)}; lit_ctg.cli.commands(); print({{*{large}}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stdout + done.stderr


def test_devices_are_left_to_lightning() -> None:
    forbidden = re.compile(r'\.cuda\(|torch\.device\((?!"meta")|\.to\((self\.)?device')  # on "meta" nothing is computed
    for path in PACKAGE.rglob("*.py"):
        assert not forbidden.findall(path.read_text(encoding="utf-8")), path


@pytest.mark.long
def test_no_model_brings_code_of_its_own() -> None:
    """Left open, transformers asks on standard input whether to run a repository's code, and takes "y"."""
    calls = 0
    for path in PACKAGE.rglob("*.py"):
        # a bundle of ours (``Memory.from_pretrained``) holds no code
        ours = {name.rpartition(".")[2] for name in imported(path)}
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "from_pretrained":
                if getattr(getattr(node.func, "value", None), "id", None) in ours:
                    continue
                calls += 1
                stated = {word.arg: word.value for word in node.keywords}.get("trust_remote_code")
                assert isinstance(stated, ast.Constant) and stated.value is False, f"{path}, line {node.lineno}"
    assert calls


def test_what_lightning_calls_private_is_touched_in_one_file() -> None:
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        found = re.findall(r"trainer\.(?:\w+\.)*_\w+|(?:fit|epoch|val)_loop\._\w+", text)
        assert not found or path.name == "lightning_patches.py", (path, found)

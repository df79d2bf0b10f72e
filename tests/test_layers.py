"""The layers of DESIGN section 1: who may import whom."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "lit_ctg"
GROUPS = ("model", "backbone", "data", "decoding", "metric", "callback", "results")
# what each group may import of the other groups; inside itself everything is allowed, papers apart
ALLOWED = {
    "backbone": set(),
    "data": set(),
    "decoding": set(),
    "metric": set(),
    "model": {"backbone", "data", "decoding", "metric"},
    "callback": {"metric", "results", "model", "decoding", "data"},
    "results": set(),
}
MODULES = sorted(path for group in GROUPS for path in (PACKAGE / group).rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Return the dotted names of lit_ctg modules that a file imports, inside functions too."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in names if name.startswith("lit_ctg.")}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_groups_import_only_what_they_may(path: Path) -> None:
    group = path.relative_to(PACKAGE).parts[0]
    for name in imported(path):
        other = name.split(".")[1]
        if other in GROUPS and other != group:
            assert other in ALLOWED[group], f"{group} may not import {name}"


@pytest.mark.parametrize(
    "path", [path for path in MODULES if path.is_relative_to(PACKAGE / "model")], ids=lambda path: path.stem
)
def test_papers_never_import_each_other(path: Path) -> None:
    papers = {"semantic_fusion", "nslm", "graphmax", "idea_gate", "control_code"}
    own = path.relative_to(PACKAGE / "model").parts[0].removesuffix(".py")
    for name in imported(path):
        parts = name.split(".")
        if parts[1] == "model" and len(parts) > 2 and parts[2] in papers:
            assert parts[2] == own, f"{own} imports {name}"


def test_results_need_no_torch() -> None:
    modules = [f"lit_ctg.results.{path.stem}" for path in (PACKAGE / "results").glob("*.py") if path.stem != "__init__"]
    assert modules, "no results modules found"
    script = f"import sys, {', '.join(modules)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


def test_devices_are_left_to_lightning() -> None:
    forbidden = (".cuda(", "torch.device(", ".to(self.device", ".to(device")
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert not [word for word in forbidden if word in text], path

"""conf/, the package and the tests mirror each other: an option builds what its group or its paper holds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
GROUPS = ("model", "backbone", "data", "decoding", "metric", "callback")
OPTIONS = sorted(path for group in GROUPS for path in (ROOT / "conf" / group).rglob("*.yaml"))
# where an option of a group may come from, papers apart
FOLDERS = {"model": ("core",), "backbone": ("network",), "callback": ("callback", "core")}


def targets(node: object) -> list[str]:
    """Return every ``_target_`` below a node of YAML."""
    if isinstance(node, dict):
        own = [str(node["_target_"])] if "_target_" in node else []
        return own + [target for value in node.values() for target in targets(value)]
    if isinstance(node, list):
        return [target for value in node for target in targets(value)]
    return []


@pytest.mark.parametrize("path", OPTIONS, ids=lambda path: path.relative_to(ROOT / "conf").as_posix())
def test_option_builds_what_its_group_or_its_paper_holds(path: Path) -> None:
    group = path.relative_to(ROOT / "conf").parts[0]
    folders = (*FOLDERS.get(group, (group,)), "papers")
    for target in targets(yaml.safe_load(path.read_text(encoding="utf-8"))):
        if target.startswith("lit_ctg."):
            assert target.split(".")[1] in folders, f"{path.name} builds {target}, expected something in {folders}"


def test_every_folder_of_tests_is_one_of_the_package() -> None:
    """What is moved or joined in the package moves here too; only these two folders test the whole."""
    folders = {path.parent.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")}
    stray = [str(folder) for folder in folders if not (ROOT / "lit_ctg" / folder).is_dir()]
    assert sorted(stray) == ["golden", "integration"]


def test_every_module_has_its_test() -> None:
    package, tests = ROOT / "lit_ctg", ROOT / "tests"
    texts = {path: path.read_text(encoding="utf-8") for path in [*package.rglob("*.py"), *tests.rglob("test_*.py")]}

    def name(path: Path) -> str:
        return "lit_ctg." + path.relative_to(package).with_suffix("").as_posix().replace("/", ".")

    def tested(path: Path) -> bool:
        """A test file of its own, or a test that imports it."""
        own = tests / path.relative_to(package).parent / f"test_{path.name}"
        return own in texts or any(name(path) in text for test, text in texts.items() if test.is_relative_to(tests))

    modules = [path for path in texts if path.is_relative_to(package) and path.name != "__init__.py"]
    covered = {path for path in modules if tested(path)}
    # a table of words or a part of one thing is tested through the module that uses it
    for _ in range(3):
        used = "\n".join(texts[path] for path in covered)
        words = set(re.findall(r"\w+", used))
        covered |= {path for path in modules if name(path).rpartition(".")[0] in used and path.stem in words}
    missing = sorted(name(path) for path in modules if path not in covered)
    assert not missing, f"no test reaches {missing}"

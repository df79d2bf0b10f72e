"""The mirrors of DESIGN section 1: conf/<group>/<option>.yaml, lit_ctg/<group>/<option>.py and tests read the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
GROUPS = ("model", "backbone", "data", "decoding", "metric", "callback")
OPTIONS = sorted(path for group in GROUPS for path in (ROOT / "conf" / group).glob("*.yaml"))
# a decoding option is named after the paper whose controls it sets; those live with the paper
PAPERS = ("semantic_fusion", "nslm", "graphmax", "idea_gate", "control_code")
ELSEWHERE = {f"decoding/{paper}": f"lit_ctg.model.{paper}" for paper in PAPERS}


def targets(node: object) -> list[str]:
    """Return every ``_target_`` below a node of YAML."""
    if isinstance(node, dict):
        own = [str(node["_target_"])] if "_target_" in node else []
        return own + [target for value in node.values() for target in targets(value)]
    if isinstance(node, list):
        return [target for value in node for target in targets(value)]
    return []


@pytest.mark.parametrize("path", OPTIONS, ids=lambda path: path.relative_to(ROOT / "conf").as_posix())
def test_option_names_its_module(path: Path) -> None:
    option = path.relative_to(ROOT / "conf").with_suffix("").as_posix()
    expected = ELSEWHERE.get(option, "lit_ctg." + option.replace("/", "."))
    found = targets(yaml.safe_load(path.read_text(encoding="utf-8")))
    assert found, f"{option} has no _target_"
    assert found[0].startswith(expected), f"{option} builds {found[0]}, expected something in {expected}"


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

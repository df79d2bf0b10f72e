"""The mirrors of DESIGN section 1: conf/<group>/<option>.yaml, lit_ctg/<group>/<option>.py and tests read the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
GROUPS = ("model", "backbone", "data", "decoding", "metric", "callback")
OPTIONS = sorted(path for group in GROUPS for path in (ROOT / "conf" / group).glob("*.yaml"))
# a decoding option is named after the paper whose controls it sets; those live with the paper
ELSEWHERE = {"decoding/semantic_fusion": "lit_ctg.model.semantic_fusion"}


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
    missing = []
    for path in (ROOT / "lit_ctg").rglob("*.py"):
        relative = path.relative_to(ROOT / "lit_ctg")
        if path.name == "__init__.py":
            continue
        # a short module may be tested beside its neighbour; its folder must have tests that import it
        folder = ROOT / "tests" / relative.parent
        name = "lit_ctg." + relative.with_suffix("").as_posix().replace("/", ".")
        if (folder / f"test_{path.name}").is_file():
            continue
        users = [test for test in (ROOT / "tests").rglob("test_*.py") if name in test.read_text(encoding="utf-8")]
        if not users:
            missing.append(name)
    assert not missing, f"no test imports {missing}"

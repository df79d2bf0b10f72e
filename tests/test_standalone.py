"""One source file from definitions of a module, without our limits."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from lit_ctg.standalone import standalone

MODULE = """
from lit_ctg.limits import Count, check_value


def total(numbers: dict[str, int], bare: bool = False) -> int:
    check_value("first", next(iter(numbers.values())), Count)
    for name, number in numbers.items():
        check_value(name, number, Count)
    if not bare:
        check_value("bare", 1, Count)
    return sum(numbers.values())
"""


def test_checks_and_loops_of_checks_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "summed.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    source = standalone("summed", ["total"], "Sums.")
    assert "check_value" not in source and "limits" not in source
    names: dict[str, object] = {}
    exec(source, names)
    assert names["total"]({"a": 1, "b": 2}) == 3  # type: ignore[operator]

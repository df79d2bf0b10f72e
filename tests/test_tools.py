"""`make size` and `make prose`: what they count."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def _tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))


def test_circles_are_of_top_level_and_lazy_imports(tmp_path: Path) -> None:
    import size

    texts = {
        "p/__init__.py": "",
        "p/a.py": "from p.b import x\n",
        "p/b.py": "def f():\n    from .c import y\n",  # lazy
        "p/c.py": "from . import a\n",
        "p/d.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p import e\n",
        "p/e.py": "import p.d\nimport p.a\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    paths = sorted(tmp_path.rglob("*.py"))
    assert size.circles(size.edges(paths, tmp_path)) == [["p.a", "p.b", "p.c"]]
    assert size.circles(size.edges(paths, tmp_path, typed=True)) == [["p.a", "p.b", "p.c"], ["p.d", "p.e"]]


def test_sizes_are_printed_beside_their_limits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import size

    tracked = size.tracked
    monkeypatch.setattr(size, "tracked", lambda *patterns: tracked(*patterns)[:20])  # the whole takes five seconds
    assert size.main([]) == 0
    rows = capsys.readouterr().out.splitlines()[1:]
    assert len(rows) == 13 and all(row.split()[-1] == "over" or row[-1].isdigit() or row[-1] == "-" for row in rows)


def test_sentences_are_those_of_the_text() -> None:
    import prose

    text = """---
title: not text
---
# A heading is not a sentence here

One two three four. Five [six seven](http://x.y/z z) eight nine, cf. sec. 4.

| a table | is not a sentence |
- An item of `a - b - c` and more
  goes on here.

```
code is not a sentence at all.
```
A label only.
"""
    assert [len(sentence) for sentence in prose.sentences(text)] == [4, 8, 9]

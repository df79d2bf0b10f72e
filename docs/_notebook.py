"""Run a notebook of docs/ from first to last cell and keep what it printed: ``python docs/_notebook.py <notebook>``.

A plain executor in place of a kernel: our notebooks have Python, text and our drawings only, so nothing else is needed.
The cells run in a new, empty folder.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any


def executed(path: Path) -> dict[str, Any]:
    """Return the notebook with the outputs of its cells, run in the current folder."""
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    names: dict[str, Any] = {"__name__": "__main__"}
    number = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        number += 1
        tree = ast.parse("".join(cell["source"]), f"cell {number}")
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(tree, f"cell {number}", "exec"), names)
            value = None
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)
        outputs: list[dict[str, Any]] = []
        if printed.getvalue():
            lines = printed.getvalue().splitlines(keepends=True)
            outputs.append({"name": "stdout", "output_type": "stream", "text": lines})
        if value is not None:
            data = {"text/plain": [repr(value)]}
            if hasattr(value, "_repr_svg_"):
                data = {"image/svg+xml": [value._repr_svg_()], "text/plain": [f"<{type(value).__name__}>"]}
            outputs.append({"data": data, "execution_count": number, "metadata": {}, "output_type": "execute_result"})
        cell["execution_count"], cell["outputs"] = number, outputs
    return notebook


def main(path: Path) -> None:
    """Run a notebook in an empty folder and write it back."""
    before = Path.cwd()
    real = "model=smollm2" in path.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        if not real:  # a real model is in the cache
            os.environ["LIT_CTG_CACHE"] = "cache"  # no path of this machine is printed
        try:
            notebook = executed(before / path)
        finally:
            os.chdir(before)
    path.write_text(json.dumps(notebook, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

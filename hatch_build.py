"""What of ``experiments/`` travels in the wheel: manifests, printed numbers, tables and records, so that it prints all
tables anywhere, and the texts of the runs that a table quotes. Figures and tables.md are made of them again; pages for
reading (README.md) and the field stay in the checkout. The wheel stays small.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Experiments(BuildHookInterface):
    """Adds the files to a wheel; an editable install finds them in the checkout."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """See hatchling's ``BuildHookInterface.initialize``."""
        if version == "editable":
            return
        root = Path(self.root)
        quoted = {folder.name: _quoted(folder) for folder in (root / "experiments").iterdir() if folder.is_dir()}
        for path in sorted((root / "experiments").rglob("*")):
            place = path.relative_to(root)
            if not path.is_file() or place.parts[1] == "field" or "figures" in place.parts or path.suffix == ".md":
                continue
            if not path.name.endswith(".samples.jsonl") or quoted[place.parts[1]].fullmatch(path.parent.name):
                build_data["force_include"][str(path)] = f"lit_ctg/{place.as_posix()}"


def _quoted(paper: Path) -> re.Pattern[str]:
    """Return a pattern of the experiments named in tables that quote texts (``samples:``), ``{...}`` being anything.

    A row that names none is about ``main``.
    """
    texts = [path.read_text(encoding="utf-8") for path in paper.glob("tables/*.yaml")]
    names = [name for text in texts if "samples:" in text for name in re.findall(r"experiment: \"?([\w{}]+)", text)]
    return re.compile("|".join(["main", *(re.sub(r"\{\w+\}", r"\\w+", name) for name in names)]))

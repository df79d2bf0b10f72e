"""What of ``experiments/`` travels in the wheel: manifests, printed numbers, tables and records, so that it prints all
tables anywhere. Figures are drawn from them again; the field is read in a checkout only. The wheel stays small.
"""

from __future__ import annotations

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
        for path in sorted((root / "experiments").rglob("*")):
            place = path.relative_to(root)
            if path.is_file() and place.parts[1] != "field" and "figures" not in place.parts:
                build_data["force_include"][str(path)] = f"lit_ctg/{place.as_posix()}"

"""Controls of SmolLM2 that come with the package: bundles by name, and what ``lit-ctg control list`` says of them.

``lit_ctg/zoo/<name>/`` is a bundle. ``lit_ctg/zoo/build.py`` has the recipes that made them. No torch here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "zoo"


def bundles() -> dict[str, Path]:
    """Return the folders of the bundles that come with the package, by name."""
    return {path.parent.name: path.parent for path in sorted(FOLDER.glob("*/control.json"))}


def facts(folder: Path) -> dict[str, Any]:
    """Return what the recipe of a bundle recorded: see ``build.Made``."""
    found: dict[str, Any] = json.loads((folder / "run.json").read_text(encoding="utf-8"))["zoo"]
    return found


def lines() -> list[str]:
    """Return some lines for each bundle: what it does, its score, a text without and with it, and how to use it."""
    found = []
    for name, folder in bundles().items():
        known, size = facts(folder), sum(path.stat().st_size for path in folder.iterdir())
        found += [
            f"{name}: {known['about']} ({known['kind']} for {known['model']}, {size / 1e6:.2f} MB)",
            f"  score: {score(known['score'])}",
            *(f"  {settings}: {known['prompt']} {' '.join(text.split())}" for settings, text in known["sample"]),
            f"  {known['use']}",
            "",
        ]
    return [*found, "your own: lit-ctg control build --help; other kinds: lit-ctg list controls"]


def score(known: dict[str, Any]) -> str:
    """Return a score in words: what, the number with its interval, and of how many texts or tokens."""
    interval = known["ci95"]
    bounds = f" [{interval[0]:+.2f}, {interval[1]:+.2f}]" if interval else ""
    return f"{known['what']} {known['value']:+.2f}{bounds} ({known['n']} {known.get('unit', 'texts')})"

"""lit_ctg: five papers on controlled text generation, as published and corrected, on Lightning and Hydra."""

import importlib
from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import ``load`` when it is used: reading records needs no torch."""
    if name == "load":
        return importlib.import_module("lit_ctg.run.loading").load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""lit_ctg: five papers on controlled text generation, as published and corrected, on Lightning and Hydra."""

import importlib
from collections.abc import Callable, Sequence
from typing import Any

__version__ = "0.1.0"


def when_used(package: str, names: dict[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return a package's ``__getattr__``, which imports a name when it is used: a control needs no Lightning.

    Args:
        names: module of the package -> names from it.
    """
    home = {name: module for module, each in names.items() for name in each}

    def get(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{home[name]}"), name)

    return get


__getattr__ = when_used(__name__, {"run.loading": ["load"]})

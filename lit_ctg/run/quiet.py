"""Keeping Lightning quiet while one of our commands runs; other programs that import the package hear everything."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

# at every start they repeat what the record holds, or print advertisements
LOGGERS = ("lightning.pytorch", "lightning.fabric")
# parts of warnings that say nothing about a run of ours
WARNINGS = (
    "does not have many workers",
    "LeafSpec",
    "exists and is not empty",
    "number of training batches",
    "Experiment logs directory",
    # our metrics add up over processes themselves
    "It is recommended to use `self.log",
)


@contextmanager
def quiet() -> Iterator[None]:
    """Mute those loggers and warnings, and put everything back at the end."""
    levels = {name: logging.getLogger(name).level for name in LOGGERS}
    with warnings.catch_warnings():
        for part in WARNINGS:
            warnings.filterwarnings("ignore", f".*{part}.*")
        for name in LOGGERS:
            logging.getLogger(name).setLevel(logging.WARNING)
        try:
            yield
        finally:
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)

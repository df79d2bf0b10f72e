"""Keep Lightning quiet while one of our commands runs; programs that import the package are not affected."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

# at every start they repeat what is in the record, or advertise
LOGGERS = ("lightning.pytorch", "lightning.fabric")
# trainer.profiler=simple: its table is asked for
PROFILERS = "lightning.pytorch.profilers"
# parts of warnings that do not apply to our runs
WARNINGS = (
    "does not have many workers",
    "LeafSpec",
    "exists and is not empty",
    "number of training batches",
    "Experiment logs directory",
    # our metrics reduce over processes themselves
    "It is recommended to use `self.log",
)


@contextmanager
def quiet() -> Iterator[None]:
    """Mute those loggers and warnings, and restore everything at the end."""
    # hydra.verbose asked for more
    spoken = logging.getLogger().level == logging.DEBUG
    muted = [name for name in LOGGERS if not spoken and logging.getLogger(name).level != logging.DEBUG]
    levels = {name: logging.getLogger(name).level for name in (*muted, PROFILERS)}
    with warnings.catch_warnings():
        for part in WARNINGS:
            warnings.filterwarnings("ignore", f".*{part}.*")
        for name in muted:
            logging.getLogger(name).setLevel(logging.WARNING)
        logging.getLogger(PROFILERS).setLevel(logging.INFO)
        try:
            yield
        finally:
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)

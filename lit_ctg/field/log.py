"""W&B tables of a run of the field (`logger=wandb`): its metrics and its texts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lit_ctg.callback.wandb_tables import record_tables, starting_wandb
from lit_ctg.results.record import RunRecord


def log(record: RunRecord, settings: Mapping[str, Any], folder: Path) -> None:
    """Log a finished record as a separate W&B run.

    Args:
        folder: the run directory; an offline run is in there.

    Raises:
        UserError: W&B cannot be reached, or nobody is logged in.
    """
    import wandb

    with starting_wandb():
        run = wandb.init(
            project=settings["project"],
            group=settings["group"],
            name=settings["name"],
            dir=folder,
            mode="offline" if settings["offline"] else "online",
            tags=["field", record.name.partition("-")[0]],
            config=record.config,
        )
    try:
        run.log(record_tables(record, record.samples))
        values = {name: entry["value"] for name, entry in record.metrics.items() if math.isfinite(entry["value"])}
        run.summary.update(values)
    finally:
        run.finish()

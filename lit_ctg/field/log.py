"""W&B tables of a run of the field (`logger=wandb`): its metrics, its strengths, its texts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lit_ctg.callback.wandb_tables import record_tables, starting_wandb
from lit_ctg.results.record import RunRecord


def strength_rows(record: RunRecord) -> tuple[list[str], list[list[Any]]]:
    """Return the names of the measures that have a strength, and a row for each strength: the sweep as a table."""
    found: dict[float, dict[str, float]] = {}
    for name, entry in record.metrics.items():
        measure, at, strength = name.rpartition("@")
        if at:
            found.setdefault(float(strength), {})[measure] = entry["value"]
    measures = sorted({measure for own in found.values() for measure in own})
    return ["strength", *measures], [[s, *(own.get(m) for m in measures)] for s, own in sorted(found.items())]


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
        columns, rows = strength_rows(record)
        tables = {**record_tables(record, record.samples), "strengths": wandb.Table(columns=columns, data=rows)}
        run.log(tables)
        values = {name: entry["value"] for name, entry in record.metrics.items() if math.isfinite(entry["value"])}
        run.summary.update(values)
    finally:
        run.finish()

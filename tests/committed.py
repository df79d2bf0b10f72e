"""Committed records for tests."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

from lit_ctg.results.record import RECORDS, RunRecord, family, load_records

EXPERIMENTS = Path(__file__).resolve().parents[1] / "experiments"


def records_of(paper: str, name: str, regime: str = "corrected", size: str = "*") -> list[RunRecord]:
    """Return the committed records of one experiment and regime; ``paper`` may be ``field/held_out``."""
    packed = family(paper.partition("/")[0], name)
    archives = sorted((EXPERIMENTS / paper / RECORDS).glob(f"{packed}_{regime}_{size}.tar.xz"))
    return [copy.deepcopy(record) for record in _read(*archives) if record.name == name]


@functools.lru_cache(maxsize=2)
def _read(*archives: Path) -> list[RunRecord]:
    return load_records(archives)


def data_of(record: RunRecord) -> dict[str, Any]:
    """Return what a record's file holds."""
    return json.loads(json.dumps(dataclasses.replace(record, samples=[]).to_json()))

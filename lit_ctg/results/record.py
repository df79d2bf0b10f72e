"""The run record: what every run leaves behind as ``run.json``, and all that tables and reports read.

The file is strict JSON. A metric whose value is not finite is stored as ``"value": null`` with ``"note": "nan"``,
``"inf"`` or ``"-inf"`` and read back as that number; an interval with a bound that is not finite is stored as null,
a history value as null (read back as NaN), a number in the configuration as its name.
Epochs in ``history`` count from 1: the value after that many epochs.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lit_ctg.errors import UserError
from lit_ctg.results.files import named_floats, write_atomic, write_samples
from lit_ctg.results.provenance import HASH_IGNORED, config_hash, drop_keys, environment
from lit_ctg.results.schema import (
    FIELDS,
    REGIMES,
    SCHEMA_VERSION,
    SIZES,
    check_sample,
    read_metric,
    read_points,
    validate,
)

__all__ = [
    "HASH_IGNORED",
    "REGIMES",
    "SCHEMA_VERSION",
    "SIZES",
    "RunRecord",
    "config_hash",
    "drop_keys",
    "environment",
    "load_record",
    "load_records",
    "write_atomic",
    "write_record",
    "write_samples",
]

# a record in a run directory, or a committed one named after its regime, size and seed
_RECORD_NAME = re.compile(r"run\.json|(?P<regime>[a-z_]+)-(?P<size>[a-z]+)-seed(?P<seed>\d+)\.json")


@dataclass
class RunRecord:
    """One run.

    ``metrics`` holds ``{name: {value, unit, direction, n, ci95, version}}`` with plain Python values, ``history``
    ``{name: [[epoch, value], ...]}``, ``samples`` dicts with at least ``text``. In the file every field is required
    (null where the type allows) but ``samples`` and ``corpus``, the checksums of its data; ``source``, the file it was
    read from, is not in it. A run that is DIVERGED has in ``error`` what was no number and when; its numbers, if it
    came to any, are kept.
    """

    paper: str
    name: str
    experiment: str
    regime: str
    size: str
    seed: int
    config: dict[str, Any]
    config_hash: str
    git: dict[str, Any]
    versions: dict[str, str]
    started_at: str
    status: str = "DONE"
    error: str | None = None
    device: str | None = None
    threads: int | None = None
    parameters: int | None = None
    wall_time_s: float | None = None
    tokens_per_s: float | None = None
    peak_memory_mb: float | None = None
    metrics: dict[str, dict[str, Any]] = field(default_factory=dict)
    history: dict[str, list[list[float]]] = field(default_factory=dict)
    samples: list[dict[str, Any]] = field(default_factory=list)
    corpus: dict[str, str] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION
    source: Path | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the record as strict JSON values, in the order of the schema."""
        data: dict[str, Any] = {key: getattr(self, key) for key in FIELDS}
        data["config"] = named_floats(self.config)
        data["metrics"] = {name: _metric_to_json(entry) for name, entry in sorted(self.metrics.items())}
        data["history"] = {
            name: [[epoch, value if math.isfinite(value) else None] for epoch, value in points]
            for name, points in sorted(self.history.items())
        }
        for key in ("wall_time_s", "tokens_per_s", "peak_memory_mb"):
            if data[key] is not None and not math.isfinite(data[key]):
                data[key] = None
        if self.corpus:
            data["corpus"] = self.corpus
        if self.samples:
            data["samples"] = named_floats(self.samples)
        return data


def write_record(record: RunRecord, path: Path) -> None:
    """Write ``record`` to ``path`` whole or not at all.

    Raises:
        UserError: the record breaks its own schema, or the folder cannot be written.
    """
    data = record.to_json()
    validate(data, str(path))
    for name, entry in data["metrics"].items():
        read_metric(entry, f"metrics.{name}", str(path))
    for name, points in data["history"].items():
        read_points(points, name, str(path))
    write_atomic(path, json.dumps(data, indent=1, allow_nan=False, ensure_ascii=False) + "\n")


def load_record(path: Path) -> RunRecord:
    """Read one record and the generated texts beside it.

    Raises:
        UserError: the file is missing or damaged; names the file and the field.
    """
    where = str(path)
    try:
        data = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except FileNotFoundError:
        raise UserError(f"no run record at {where}: pass a run.json or a folder that holds some") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{where} is not a run record ({error}): delete it or run the job again") from None
    validate(data, where)
    record = RunRecord(
        **{key: data[key] for key in FIELDS if key not in ("metrics", "history")},
        metrics={name: read_metric(entry, f"metrics.{name}", where) for name, entry in data["metrics"].items()},
        history={name: read_points(points, name, where) for name, points in data["history"].items()},
        corpus=data.get("corpus", {}),
        samples=data.get("samples") or _read_samples(_samples_path(path)),
        source=path,
    )
    named = _RECORD_NAME.fullmatch(path.name)
    if named and named["seed"] is not None:
        stated = (named["regime"], named["size"], int(named["seed"]))
        if stated != (record.regime, record.size, record.seed):
            raise UserError(
                f"{where} holds regime={record.regime} size={record.size} seed={record.seed}: rename the file"
            )
    return record


def load_records(paths: Iterable[Path | str], known: dict[Path, RunRecord] | None = None) -> list[RunRecord]:
    """Read all records in files and folders (searched to any depth; a folder that does not exist holds none).

    Records in ``known`` are not read again, those that are read are put there.
    """
    known = {} if known is None else known
    files: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            files += sorted(file for file in path.rglob("*.json") if _is_record(file.relative_to(path)))
        elif path.suffix == ".json":
            files.append(path)
    wanted = list(dict.fromkeys(file.resolve() for file in files))
    known |= {file: load_record(file) for file in wanted if file not in known}
    return [known[file] for file in wanted]


def _is_record(path: Path) -> bool:
    """Say whether a file found under a folder is a training run's record, from its name and place alone."""
    named = _RECORD_NAME.fullmatch(path.name)
    if named is None or "evaluate" in path.parts[:-1]:  # `lit-ctg evaluate` may have looked at any checkpoint
        return False
    return named["regime"] is None or (named["regime"] in REGIMES and named["size"] in SIZES)


def _metric_to_json(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return one metric as strict JSON values."""
    entry = dict(entry)
    interval = entry.get("ci95")
    entry["ci95"] = list(interval) if interval and all(map(math.isfinite, interval)) else None
    if isinstance(entry.get("value"), float) and not math.isfinite(entry["value"]):
        entry |= {"value": None, "note": str(entry["value"])}
    return entry


def _samples_path(record: Path) -> Path:
    """``samples.jsonl`` in a run directory; beside a committed record, its own name with ``.samples.jsonl``."""
    return record.with_name("samples.jsonl") if record.name == "run.json" else record.with_suffix(".samples.jsonl")


def _read_samples(path: Path) -> list[dict[str, Any]]:
    """Read one JSON object a line; no file means no samples."""
    if not path.is_file():
        return []
    samples = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        if line.strip():
            try:
                sample = json.loads(line)
            except ValueError as error:
                raise UserError(f"{path}, line {number}: not JSON ({error}); delete the file") from None
            check_sample(sample, f"line {number}", str(path))
            samples.append(sample)
    return samples


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")

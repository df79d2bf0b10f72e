"""What a run record must look like: every field's type, and one clear line for the first that is damaged."""

from __future__ import annotations

import math
from typing import Any

from lit_ctg.errors import UserError

SCHEMA_VERSION = 1
REGIMES = ("as_published", "corrected")
SIZES = ("smoke", "small", "paper")
# DIVERGED is a result too: the run ended where its numbers stopped being numbers, and would again
STATUSES = ("DONE", "DIVERGED", "FAILED")
DIRECTIONS = ("lower", "higher", "none")

_TEXT, _COUNT, _NUMBER = (str,), (int,), (int, float)
_MAYBE = type(None)
# field -> accepted types, in the order of the file
FIELDS: dict[str, tuple[type, ...]] = {
    "schema_version": _COUNT,
    "status": _TEXT,
    "error": (str, _MAYBE),
    "name": _TEXT,
    "paper": _TEXT,
    "experiment": _TEXT,
    "regime": _TEXT,
    "size": _TEXT,
    "seed": _COUNT,
    "config": (dict,),
    "config_hash": _TEXT,
    "git": (dict,),
    "versions": (dict,),
    "device": (str, _MAYBE),
    "threads": (int, _MAYBE),
    "parameters": (int, _MAYBE),
    "wall_time_s": (int, float, _MAYBE),
    "tokens_per_s": (int, float, _MAYBE),
    "peak_memory_mb": (int, float, _MAYBE),
    "started_at": _TEXT,
    "metrics": (dict,),
    "history": (dict,),
}
_CHOICES = {"status": STATUSES, "regime": REGIMES, "size": SIZES}


def validate(data: Any, where: str) -> None:
    """Check types and choices of every field."""
    if not isinstance(data, dict):
        raise UserError(f"{where} is not a run record: it holds no JSON object")
    for key, types in FIELDS.items():
        if key not in data:
            raise UserError(f"{where} is not a whole run record: field '{key}' is missing; run the job again")
        _check(data[key], types, key, where)
    if data["schema_version"] > SCHEMA_VERSION:
        raise UserError(f"{where}: schema_version {data['schema_version']} is newer than this package: update lit-ctg")
    for key, choices in _CHOICES.items():
        if data[key] not in choices:
            raise UserError(f"{where}: field '{key}' is {data[key]!r}, expected one of {', '.join(choices)}")
    corpus = data.get("corpus", {})
    _check(corpus, (dict,), "corpus", where)
    for key, checksum in corpus.items():
        _check(checksum, _TEXT, f"corpus.{key}", where)
    samples = data.get("samples", [])
    _check(samples, (list,), "samples", where)
    for index, sample in enumerate(samples):
        check_sample(sample, f"samples[{index}]", where)


def _check(value: Any, types: tuple[type, ...], key: str, where: str) -> None:
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        expected = " or ".join("null" if kind is _MAYBE else kind.__name__ for kind in types)
        raise UserError(f"{where}: field '{key}' is {type(value).__name__}, expected {expected}; run the job again")


def check_sample(sample: Any, key: str, where: str) -> None:
    """Check that a sample is an object with a text."""
    _check(sample, (dict,), key, where)
    _check(sample.get("text"), _TEXT, f"{key}.text", where)


def read_metric(entry: Any, key: str, where: str) -> dict[str, Any]:
    """Check one metric and return it, its value read back from ``note`` where it was not finite."""
    _check(entry, (dict,), key, where)
    value, note = entry.get("value"), entry.get("note")
    if value is None and note in ("nan", "inf", "-inf"):
        value = float(note)
    _check(value, _NUMBER, f"{key}.value", where)
    for name, types in {"unit": _TEXT, "direction": _TEXT, "n": _COUNT, "version": _COUNT}.items():
        _check(entry.get(name), types, f"{key}.{name}", where)
    if entry["direction"] not in DIRECTIONS:
        raise UserError(f"{where}: field '{key}.direction' is {entry['direction']!r}, expected {', '.join(DIRECTIONS)}")
    interval = entry.get("ci95")
    if interval is not None:
        _check(interval, (list,), f"{key}.ci95", where)
        if len(interval) != 2:
            raise UserError(f"{where}: field '{key}.ci95' has {len(interval)} numbers, expected 2")
        for bound in interval:
            _check(bound, _NUMBER, f"{key}.ci95", where)
    kept = {name: entry[name] for name in ("unit", "direction", "n", "version")}
    folds = entry.get("folds")
    if folds is not None:
        _check(folds, (list,), f"{key}.folds", where)
        for number in folds:
            _check(number, _NUMBER, f"{key}.folds", where)
        kept["folds"] = folds
    return {"value": float(value), **kept, "ci95": interval}


def read_points(points: Any, name: str, where: str) -> list[list[float]]:
    """Check one history and return its ``[epoch, value]`` pairs, null values as NaN."""
    key = f"history.{name}"
    _check(points, (list,), key, where)
    for point in points:
        _check(point, (list,), key, where)
        if len(point) != 2:
            raise UserError(f"{where}: field '{key}' holds {point!r}, expected [epoch, value]")
        _check(point[0], _NUMBER, key, where)
        _check(point[1], (int, float, _MAYBE), key, where)
    return [[epoch, math.nan if value is None else value] for epoch, value in points]

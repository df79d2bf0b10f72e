"""Redundant numbers in NSLM's records: groups from their classes, first and later occurrences, shares, counts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from lit_ctg.results.record import RunRecord
from lit_ctg.results.verify import Recomputed, exactly, history_end, pooled, value_of

GROUPS = {
    "numbers": ("year", "day", "round", "decimal", "range", "convert", "other"),
    "places": ("city", "state", "country"),
}


def recompute(record: RunRecord) -> Iterator[Recomputed]:
    """Yield what a record's numbers must be (Tables 2, 3 and 7)."""
    yield from history_end(record)
    for model in sorted({name.split("/")[1] for name in record.metrics if name.startswith("test/")}):
        for group, classes in GROUPS.items():
            for parts in (classes, ("first", "later")):
                yield from pooled(record, f"test/{model}/{group}", [f"test/{model}/{part}" for part in parts], log=True)
    for kind in ("count", "share"):
        for split in ("train", "val", "test"):
            for classes in GROUPS.values():
                names = [f"{kind}/{split}/{one}" for one in classes]
                if {*names, f"{kind}/{split}/all"} <= set(record.metrics):
                    yield exactly(f"{kind}/{split}/all", sum(value_of(record, name) for name in names), "its classes")
    if "increment/uniform" in record.metrics and (n := re.search(r"_n(\d+)$", record.name)):
        yield exactly("increment/uniform", int(n[1]) + 1.0, "n words and <eos>")

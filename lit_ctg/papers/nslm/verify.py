"""Redundant numbers in NSLM's records: groups from their classes, first and later occurrences, shares, counts."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from lit_ctg.results.record import RunRecord
from lit_ctg.results.verify import Recomputed, exactly, history_end, pooled, value_of

GROUPS = {
    "numbers": ("year", "day", "round", "decimal", "range", "convert", "other"),
    "places": ("city", "state", "country"),
}


def nats(record: RunRecord, metric: str) -> float:
    """Return the cost of all tokens of a perplexity."""
    return record.metrics[metric]["n"] * math.log(value_of(record, metric))


def recompute(record: RunRecord) -> Iterator[Recomputed]:
    """Yield what a record's numbers must be (Tables 2, 3 and 7)."""
    yield from history_end(record)
    for model in sorted({name.split("/")[1] for name in record.metrics if name.startswith("test/")}):
        where = f"test/{model}"
        for group, classes in GROUPS.items():
            yield from pooled(record, f"{where}/{group}", [f"{where}/{part}" for part in classes], log=True)
        # first and later occurrences are of all classes: of one group, or of both (the AWD-LSTM)
        groups = [f"{where}/{group}" for group in GROUPS if f"{where}/{group}" in record.metrics]
        occasions = [f"{where}/first", f"{where}/later"]
        if len(groups) == 1:
            yield from pooled(record, groups[0], occasions, log=True)
        elif groups and {*occasions} <= set(record.metrics):
            if sum(record.metrics[part]["n"] for part in occasions) != sum(record.metrics[one]["n"] for one in groups):
                continue  # there is a class of neither group
            rest = sum(nats(record, part) for part in occasions) - nats(record, groups[1])
            yield exactly(groups[0], math.exp(rest / record.metrics[groups[0]]["n"]), "first and later less the other")
    for kind in ("count", "share"):
        for split in ("train", "val", "test"):
            where = f"{kind}/{split}"
            found = [name for name in record.metrics if name.rpartition("/")[0] == where and name != f"{where}/all"]
            if found and f"{where}/all" in record.metrics:
                yield exactly(f"{where}/all", sum(value_of(record, name) for name in found), "its classes")
    if "increment/uniform" in record.metrics and (n := re.search(r"_n(\d+)$", record.name)):
        yield exactly("increment/uniform", int(n[1]) + 1.0, "n words and <eos>")

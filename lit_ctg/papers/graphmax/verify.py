"""Redundant numbers in graphmax's records: every change relative to softmax. BLEU would need the held-out reviews."""

from __future__ import annotations

import math
from collections.abc import Iterator

from lit_ctg.results.record import RunRecord
from lit_ctg.results.verify import Recomputed, difference, ends, history_end
from lit_ctg.statistics import paired_t_interval

SUFFIX = "_change"


def recompute(record: RunRecord) -> Iterator[Recomputed]:
    yield from history_end(record)
    for name in record.metrics:
        if name.endswith(SUFFIX):
            one = name.removesuffix(SUFFIX)
            parts = one.split("/")
            places = [[*parts[:at], "softmax", *parts[at + 1 :]] for at in range(len(parts))]
            places += [[*parts[:at], "softmax"] for at in range(len(parts))]
            for base in ["/".join(place) for place in places]:
                if base in record.metrics:
                    yield from difference(record, name, one, base)
                    folds = [
                        record.metrics[each].get("folds", []) if each in record.metrics else [] for each in (one, base)
                    ]
                    if all(folds) and all(map(math.isfinite, (*folds[0], *folds[1]))):
                        yield from ends(name, paired_t_interval(*folds), f"{len(folds[0])} folds")
                    break

"""Numbers of the field's records that follow from their texts: a record keeps every text and what was measured of it.

Recounted from the texts themselves are repetition and distinct pairs, and with them the choice of a strength; the means
of the other measures (success, nats, copying) follow from the numbers beside each text.
"""

from __future__ import annotations

from collections.abc import Iterator

from lit_ctg.field.measure import JUDGES, choose, repetition, summary
from lit_ctg.field.report import check_record, human_of
from lit_ctg.results.record import RunRecord
from lit_ctg.results.verify import Recomputed, exactly, wilson_of


def recompute(record: RunRecord) -> Iterator[Recomputed]:
    check_record(record)
    for name in JUDGES:
        for length in ("", "_30"):
            yield from wilson_of(record, f"judge/{name}/accuracy{length}")
    rows = [{**row, "repetition": round(repetition(row["text"]), 4)} for row in record.samples]
    human = human_of(record)
    for name, result in summary(rows, human).items():
        yield exactly(name, result.value, f"{result.n} texts")
    if choice := [row for row in rows if row["part"] == "choice"]:
        yield exactly("chosen", float(choose(choice, human)), f"{len(choice)} texts")

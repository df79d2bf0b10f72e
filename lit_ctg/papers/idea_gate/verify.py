"""What the records of the idea gate say twice: gains, falls, means over domains, perplexities."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from lit_ctg.results.record import RunRecord
from lit_ctg.results.verify import Recomputed, difference, exactly, history_end, pooled, value_of

_TOPIC = re.compile(r"topic/(\w+)/(\w+)/(.+)")


def recompute(record: RunRecord) -> Iterator[Recomputed]:
    """Yield what a record's numbers must be. Stickiness itself is of the first 100 tokens, which texts do not mark."""
    if record.regime == "corrected":  # as published, each validation draws other batches (deviation 7)
        yield from history_end(record)
    for kind in ("gated", "ungated"):
        if {f"val/{kind}/loss", f"val/{kind}/perplexity"} <= set(record.metrics):
            loss = value_of(record, f"val/{kind}/loss")
            yield exactly(f"val/{kind}/perplexity", math.exp(loss), f"exp of val/{kind}/loss")
    topics = [found for name in record.metrics if (found := _TOPIC.fullmatch(name))]
    domains = sorted({found[2] for found in topics} - {"all"})
    for found in topics:
        arm, domain, what = found.groups()
        if arm == "gate_gain":
            yield from difference(record, found[0], f"topic/gated/{domain}/{what}", f"topic/gate_off/{domain}/{what}")
        elif what.endswith("/drift/fall"):
            spans = sorted(
                (other[3] for other in topics if other[1] == arm and other[2] == domain
                 and re.fullmatch(re.escape(what.removesuffix("fall")) + r"\d+-\d+", other[3])),
                key=lambda span: int(span.rpartition("/")[2].partition("-")[0]),
            )  # fmt: skip
            yield from difference(
                record, found[0], f"topic/{arm}/{domain}/{spans[0]}", f"topic/{arm}/{domain}/{spans[-1]}"
            )
        elif domain == "all":
            yield from pooled(record, found[0], [f"topic/{arm}/{one}/{what}" for one in domains])

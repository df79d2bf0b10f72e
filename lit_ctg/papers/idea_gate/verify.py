"""Redundant numbers in the idea gate's records: gains, falls, means over domains, perplexities."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from lit_ctg.results.record import RunRecord
from lit_ctg.results.verify import Recomputed, difference, exactly, history_end, pooled, value_of

_TOPIC = re.compile(r"(topic\w*)/(\w+)/(\w+)/(.+)")
_MASS = re.compile(r"mass/(\w+)/(\w+)/(\w+)")


def recompute(record: RunRecord) -> Iterator[Recomputed]:
    """Yield what a record's numbers must be. Stickiness needs the first 100 tokens, which texts do not mark."""
    if record.regime == "corrected":  # as published, each validation draws different batches (deviation 7)
        yield from history_end(record)
    for kind in ("gated", "ungated"):
        if {f"val/{kind}/loss", f"val/{kind}/perplexity"} <= set(record.metrics):
            loss = value_of(record, f"val/{kind}/loss")
            yield exactly(f"val/{kind}/perplexity", math.exp(loss), f"exp of val/{kind}/loss")
    topics = [found for name in record.metrics if (found := _TOPIC.fullmatch(name))]
    for found in topics:
        trial, arm, domain, what = found.groups()
        domains = sorted({other[3] for other in topics if other[1] == trial} - {"all"})
        if arm == "gate_gain":
            gated, off = (f"{trial}/{one}/{domain}/{what}" for one in ("gated", "gate_off"))
            yield from difference(record, found[0], gated, off)
        elif what.endswith("/times_random"):
            stickiness = what.removesuffix("times_random") + "stickiness"
            own, random = (value_of(record, f"{trial}/{one}/{domain}/{stickiness}") for one in (arm, "random"))
            yield exactly(found[0], own / random, "stickiness / that of random text")
        elif what.endswith("/drift/fall"):
            span = re.compile(re.escape(f"{trial}/{arm}/{domain}/{what.removesuffix('fall')}") + r"(\d+)-\d+")
            spans = sorted((int(at[1]), at[0]) for name in record.metrics if (at := span.fullmatch(name)))
            first, last = spans[0][1], spans[-1][1]
            # a text that ends before the last span has no fall but counts in the first span's mean
            if len({record.metrics[name].get("n") for name in (first, last, found[0])}) == 1:
                yield from difference(record, found[0], first, last)
        elif domain == "all":
            yield from pooled(record, found[0], [f"{trial}/{arm}/{one}/{what}" for one in domains])
    masses = [found for name in record.metrics if (found := _MASS.fullmatch(name))]
    for found in masses:
        arm, domain, kind = found.groups()
        if kind == "kept":
            yield from difference(record, found[0], f"mass/{arm}/{domain}/drifted", f"mass/{arm}/{domain}/never")
        if domain == "all":
            domains = sorted({other[2] for other in masses} - {"all"})
            yield from pooled(record, found[0], [f"mass/{arm}/{one}/{kind}" for one in domains])

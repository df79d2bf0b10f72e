"""Redundant numbers in the control codes' records: pooled sources, perplexities, what was learned, committed texts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from lit_ctg.results.record import RunRecord
from lit_ctg.results.verify import Recomputed, exactly, from_mean, history_end, pooled, rate_intervals, value_of

MODES = ("greedy", "sampled")
# a model has learned if its perplexity is below this multiple of that of word frequencies: 0.1 nats
LEARNED = 0.9
# parts by source -> their pooled metric, and whether logarithms are pooled
POOLED = {
    "code_swap/nats": ("code_swap/nats/", False),
    "test/code_swap/nats": ("test/code_swap/nats/", False),
    "val/perplexity": ("val/source_perplexity/", True),
    **{f"trial/{mode}/source_accuracy": (f"trial/{mode}/source_accuracy/", False) for mode in MODES},
}


def recompute(record: RunRecord) -> Iterator[Recomputed]:
    """Yield what a record's numbers must be (sec. 4.4)."""
    yield from history_end(record)
    yield from rate_intervals(record)
    for metric, (start, log) in POOLED.items():
        yield from pooled(record, metric, [name for name in record.metrics if name.startswith(start)], log)
    known = record.metrics
    for split in ("val", "test"):
        loss, perplexity = f"{split}/cross_entropy", f"{split}/perplexity"
        if {loss, perplexity} <= set(known):
            yield exactly(perplexity, math.exp(value_of(record, loss)), f"exp of {loss}")
    if {"trial/learned", "val/perplexity", "reference/unigram_perplexity"} <= set(known):
        times = LEARNED if known["trial/learned"]["version"] > 1 else 1.0  # earlier rule: any perplexity below it
        learned = value_of(record, "val/perplexity") < times * value_of(record, "reference/unigram_perplexity")
        yield exactly("trial/learned", float(learned), f"perplexity below {times:g} of word frequencies'")
    for mode in MODES:
        own = [s for s in record.samples if s.get("mode") == mode and s.get("source") == s.get("code")]
        texts = [sample["text"].split(" ") for sample in own]
        lengths = {len(tokens) for tokens in texts}
        if len(lengths) != 1 or "" in {token for tokens in texts for token in tokens}:
            continue
        (length,) = lengths
        for what, values, low, high in (
            ("variation", [len(set(tokens)) / length for tokens in texts], 1 / length, 1.0),
            ("degeneracy", [max(Counter(tokens).values()) for tokens in texts], 1.0, float(length)),
        ):
            if (entry := record.metrics.get(f"trial/{mode}/{what}")) is not None:
                yield from_mean(f"trial/{mode}/{what}", [float(value) for value in values], entry["n"], low, high)

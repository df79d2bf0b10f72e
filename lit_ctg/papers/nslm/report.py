"""What there is of each class in a corpus, and how a fitted density compares with what was observed (Fig. 2).

Shape letters: N occurrences, U keys, K members.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from lit_ctg.papers.nslm.class_table import ClassTable
from lit_ctg.papers.nslm.micro_model import MicroModel
from lit_ctg.papers.nslm.occurrence import Occurrences

MOST_KEYS = 2000


@dataclass(frozen=True)
class ClassCount:
    """One class in one split.

    Attributes:
        class_name, split: which.
        tokens: how many.
        share: of all tokens of the split.
        members: size of the class vocabulary (of the training split).
        first: tokens without an earlier member in their document.
    """

    class_name: str
    split: str
    tokens: int
    share: float
    members: int
    first: int


def class_counts(
    table: ClassTable, occurrences: Mapping[str, Occurrences], totals: Mapping[str, int]
) -> list[ClassCount]:
    """Count every class, and all together ("all"), in every split; ``totals`` are the tokens of the splits."""
    counts = []
    for split, found in occurrences.items():
        for number, members in enumerate(table.classes):
            own = found.of(number)
            first = int((own.evidence.previous_N < 0).sum())
            counts.append(ClassCount(members.name, split, len(own), len(own) / totals[split], len(members), first))
        first, size = int((found.evidence.previous_N < 0).sum()), int(table.any_class_V.sum())
        counts.append(ClassCount("all", split, len(found), len(found) / totals[split], size, first))
    return counts


def counts_table(counts: list[ClassCount]) -> str:
    """Return the counts as lines of text."""
    lines = [f"{'class':<12}{'split':<8}{'tokens':>10}{'share':>9}{'members':>9}{'first':>9}"]
    for c in counts:
        lines.append(f"{c.class_name:<12}{c.split:<8}{c.tokens:>10,}{c.share:>9.3%}{c.members:>9,}{c.first:>9,}")
    return "\n".join(lines)


@dataclass(frozen=True)
class Curve:
    """Probability of metric values: observed shares of occurrences and what the micro-model expects there.

    Attributes:
        edges: of the bins, one more than there are values.
        observed, fitted: share of each bin.
    """

    edges: list[float]
    observed: list[float]
    fitted: list[float]


def density_curve(model: MicroModel, occurrences: Occurrences, edges: np.ndarray) -> Curve:
    """Return how often metric values in the bins ``edges`` occur, and how often the micro-model expects them.

    Both are taken over the same occurrences (of many, an evenly spaced sample): the expectation is the mean of the
    micro-model's distributions after their previous members, binned by the metric.
    """
    keys_NJ = model.metric.keys(occurrences.evidence)
    usable_N = np.flatnonzero(~np.isnan(keys_NJ).any(1))
    if len(usable_N) > MOST_KEYS:
        usable_N = usable_N[np.linspace(0, len(usable_N) - 1, MOST_KEYS).astype(int)]
    chosen = occurrences.where(usable_N)
    keys_UJ, where_N, counts_U = np.unique(keys_NJ[usable_N], axis=0, return_inverse=True, return_counts=True)
    expected_E = np.zeros(len(edges) - 1)
    first_U = np.unique(where_N.reshape(-1), return_index=True)[1]
    for key_J, place, count in zip(keys_UJ, first_U, counts_U, strict=True):
        x_K = model.metric.values(key_J[None])[0]
        probs_K = np.exp(model.log_prob(chosen.where(np.array([place])).evidence)[0])
        expected_E += count * np.histogram(x_K, edges, weights=probs_K)[0]
    observed_N = model.metric.value_of(keys_NJ[usable_N], chosen.index_N)
    total = max(len(usable_N), 1)
    observed_E = np.histogram(observed_N, edges)[0] / total
    return Curve(np.asarray(edges, float).tolist(), observed_E.tolist(), (expected_E / total).tolist())

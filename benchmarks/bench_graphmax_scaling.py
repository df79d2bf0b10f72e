"""Cost of graphmax against vocabulary and edges: time a context, products, memory; up to N = 200,000 and 20 M edges.

    python benchmarks/bench_graphmax_scaling.py [--vocabularies 12500 50000 200000] [--edges 1.5e6 5e6 2e7]
                                                [--contexts 16] [--strength 1] [--output scaling.html]

First N grows at 1.5 M edges, then edges at N = 50,257; last the largest of both. Synthetic Zipfian graphs, one thread,
the best of several tries. With --output the same as curves. Exit code 1 when a context is not certified or more
than five products with M are needed on average.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from lit_ctg.figure import Drawing, Line, line_chart
from lit_ctg.papers.graphmax import CooccurrenceGraph, graphmax

VOCABULARY, EDGES = 50_257, 1_500_000
MEAN_PRODUCTS = 5.0


@dataclass(frozen=True)
class Point:
    """One measurement."""

    series: str
    vocabulary: int
    edges: int
    megabytes: float
    prepare_s: float
    milliseconds: float
    softmax_milliseconds: float
    products: float
    certified: float


def zipfian_graph(vocabulary: int, edges: int, rng: np.random.Generator) -> CooccurrenceGraph:
    """Return a row-normalised graph with about so many edges; heads and successors are Zipfian, as in text."""
    cumulative = np.cumsum(1.0 / (np.arange(1, vocabulary + 1) + 2.7) ** 1.07)
    cumulative /= cumulative[-1]
    found: sp.csr_array = sp.csr_array((vocabulary, vocabulary))
    draws = edges
    while found.nnz < 0.98 * edges:
        row, column = (np.searchsorted(cumulative, rng.random(draws)) for _ in range(2))
        # half of the successors are a word's own, so that rows differ and fill up slowly
        own = np.searchsorted(cumulative, ((row * 2_654_435_761 + rng.geometric(0.02, draws) * 40_503) % 2**32) / 2**32)
        column = np.where(rng.random(draws) < 0.5, own, column)
        found = found + sp.coo_array((np.ones(draws), (row, column)), shape=found.shape).tocsr()
        draws = max(edges // 2, 2 * (edges - found.nnz))
    total = np.asarray(found.sum(axis=1)).reshape(-1)
    inverse = np.divide(1.0, total, out=np.zeros(vocabulary), where=total > 0)
    return CooccurrenceGraph.from_matrix(sp.diags_array(inverse) @ found)


def contexts(graph: CooccurrenceGraph, count: int, rng: np.random.Generator) -> Tensor:
    """Return ``[count, V]`` logits of an interpolated bigram model after frequent words, with noise."""
    unigram = np.asarray(graph.matrix.sum(axis=0)).reshape(-1) + 1e-3
    unigram /= unigram.sum()
    rows = rng.choice(graph.vocab_size, count, p=unigram)
    mixed = 0.6 * graph.matrix[rows].toarray() + 0.4 * unigram
    return torch.from_numpy(np.log(mixed) + rng.normal(0, 1, mixed.shape)).float()


def measure(series: str, vocabulary: int, edges: int, count: int, strength: float, tries: int = 3) -> Point:
    """Build one graph and time graphmax on it."""
    rng = np.random.default_rng(0)
    graph = zipfian_graph(vocabulary, edges, rng)
    logits = contexts(graph, count, rng)
    began = time.perf_counter()
    operator = graph.operator(logits)
    prepare = time.perf_counter() - began
    found = graphmax(logits, graph, strength)
    taken, plain = [], []
    for _ in range(tries):
        began = time.perf_counter()
        graphmax(logits, graph, strength)
        taken.append(time.perf_counter() - began)
        began = time.perf_counter()
        logits.softmax(dim=-1)
        plain.append(time.perf_counter() - began)
    return Point(
        series,
        vocabulary,
        graph.edges,
        operator.megabytes,
        prepare,
        1e3 * min(taken) / count,
        1e3 * min(plain) / count,
        float(found.products_B.double().mean()),
        float(found.converged_B.double().mean()),
    )


def slope(points: list[Point], key: str) -> float:
    """Return the exponent b of time ~ key^b, by least squares on logarithms."""
    x = np.log([getattr(point, key) for point in points])
    y = np.log([point.milliseconds for point in points])
    return float(np.polyfit(x, y, 1)[0]) if len(points) > 1 else math.nan


def draw(points: list[Point], path: Path) -> None:
    """Write both curves as one page."""
    plots = []
    for series, title in (("vocabulary", "By vocabulary, 1.5 M edges"), ("edges", "By edges, N = 50,257")):
        some = [point for point in points if point.series == series]
        lines = [
            Line("series0", [(i, point.milliseconds) for i, point in enumerate(some)], name="graphmax"),
            Line("series1", [(i, point.softmax_milliseconds) for i, point in enumerate(some)], name="softmax"),
        ]
        steps = [f"{getattr(point, series):,}" for point in some]
        plots.append(line_chart(title, lines, x=series, y="ms a context", log=True, steps=steps))
    Drawing(tuple(plots)).save(path)


def main() -> int:
    """Run everything; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabularies", type=float, nargs="*", default=[12_500, 25_000, VOCABULARY, 100_000, 200_000])
    parser.add_argument("--edges", type=float, nargs="*", default=[5e5, 1.5e6, 5e6, 2e7])
    parser.add_argument("--contexts", type=int, default=16)
    parser.add_argument("--strength", type=float, default=1.0)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    plan = [("vocabulary", int(size), EDGES) for size in arguments.vocabularies]
    plan += [("edges", VOCABULARY, int(size)) for size in arguments.edges]
    plan += [("largest", int(max(arguments.vocabularies)), int(max(arguments.edges)))]
    points = []
    print("       N       edges     MB  prepare s  ms/context  softmax ms  products  certified")
    for series, vocabulary, edges in plan:
        point = measure(series, vocabulary, edges, arguments.contexts, arguments.strength)
        points.append(point)
        print(
            f"{point.vocabulary:8,} {point.edges:11,} {point.megabytes:6.0f} {point.prepare_s:10.2f} "
            f"{point.milliseconds:11.2f} {point.softmax_milliseconds:11.2f} {point.products:9.2f} "
            f"{point.certified:10.0%}",
            flush=True,
        )
    for series, key in (("vocabulary", "vocabulary"), ("edges", "edges")):
        some = [point for point in points if point.series == series]
        print(f"time grows as {key}^{slope(some, key):.2f}")
    if arguments.output:
        draw(points, arguments.output)
        print(f"written: {arguments.output}")
    bad = [point for point in points if point.certified < 1 or point.products > MEAN_PRODUCTS]
    for point in bad:
        print(f"MISSED: N = {point.vocabulary:,}, {point.edges:,} edges")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

"""Graphmax beside a decode step of the size of GPT-2 small and beside Algorithm 1; products, memory, growth.

    python benchmarks/bench_graphmax.py [--graph FILE saved by CooccurrenceGraph.save] [--contexts 32] [--device cuda]
                                        [--quick]

Without ``--graph`` a Zipfian bigram generator makes a corpus whose graph has N = 50,257 and about 1.5 M edges.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch import Tensor
from turns import Row, best, parser, progress, read, report

from lit_ctg.papers.graphmax import AlgorithmOne, CooccurrenceGraph, certify, graphmax

VOCABULARY, CACHE = 50_257, 128
# one decode step: share of it at batch 1 and of a batched one; how many times faster than Algorithm 1; MB; products
SINGLE, BATCHED, SPEEDUP, MEGABYTES, MEAN_PRODUCTS, MOST_PRODUCTS = 0.3, 1.0, 15.0, 60.0, 2.5, 5
ON_GPU = 0.15  # of a batched decode step
ALGORITHM_ONE = Path(__file__).resolve().parents[1] / "conf" / "model" / "graphmax" / "algorithm_one.yaml"
PUBLISHED: AlgorithmOne = instantiate(OmegaConf.load(ALGORITHM_ONE))


def zipfian_tokens(length: int, vocabulary: int, rng: np.random.Generator) -> np.ndarray:
    """Return a token stream: Zipfian words; each is followed by one of its own few successors or by any word."""
    rank = np.arange(1, vocabulary + 1)
    cumulative = np.cumsum(1.0 / (rank + 2.7) ** 1.07)
    cumulative /= cumulative[-1]
    tokens = np.searchsorted(cumulative, rng.random(length))
    # own successors: the n-th of word i is a fixed Zipfian word; small n are likelier
    choice = rng.geometric(0.15, length)
    fixed = ((tokens * 2_654_435_761 + choice * 40_503) % 2**32) / 2**32
    own = np.searchsorted(cumulative, fixed)
    # odd places follow the even place before them, so that pairs are drawn independently
    follows = rng.random(length // 2) < 0.6
    tokens[1::2][: length // 2] = np.where(follows, own[0::2][: length // 2], tokens[1::2][: length // 2])
    return tokens


def contexts(graph: CooccurrenceGraph, count: int, rng: np.random.Generator) -> Tensor:
    """Return ``[count, V]`` logits of an interpolated bigram model after tokens drawn by frequency, with noise."""
    successors = graph.matrix
    unigram = np.asarray(successors.sum(axis=0)).reshape(-1) + 1e-3
    unigram /= unigram.sum()
    rows = rng.choice(graph.vocab_size, count, p=unigram)
    mixed = 0.6 * successors[rows].toarray() + 0.4 * unigram
    return torch.from_numpy(np.log(mixed) + rng.normal(0, 1, mixed.shape)).float()


def decode_step(batch: int, vocabulary: int, device: str) -> Callable[[], object]:
    """Return one cached step of a model of the size of GPT-2 small (12 x 768; V = 50,257) with random weights."""
    from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel

    sizes = {} if vocabulary == VOCABULARY else {"n_embd": 16, "n_layer": 1, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=vocabulary, **sizes)).eval().to(device)
    cache = DynamicCache(config=model.config)
    ids = torch.randint(vocabulary, (batch, CACHE), device=device)
    with torch.no_grad():
        model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)

    def step() -> None:
        with torch.no_grad():
            model(ids[:, :1], past_key_values=cache, use_cache=True)
        cache.crop(-1)

    return step


def main(words: Sequence[str] | None = None) -> int:
    """Print the ratios; return the exit code."""
    made = parser(__doc__)
    made.add_argument("--graph")
    made.add_argument("--contexts", type=int, default=32)
    options = read(made, words)
    rng, device = np.random.default_rng(0), options.device
    vocabulary, length, count = (300, 2_000, 2) if options.quick else (VOCABULARY, 3_600_000, options.contexts)
    progress("graph")
    if options.graph:
        graph = CooccurrenceGraph.load(options.graph)
    else:
        graph = CooccurrenceGraph.from_token_ids([zipfian_tokens(length, vocabulary, rng)], vocabulary)
    logits = contexts(graph, count, rng).to(device)
    found = graphmax(logits, graph, 1.0)
    pairs = zip(found.log_probs_BV.split(8), logits.split(8), strict=True)
    gap = torch.cat([certify(probs, scores, graph, 1.0) for probs, scores in pairs])
    certified = (found.converged_B & (gap >= 0) & (gap <= 2e-6)).double().mean().item()
    products = found.products_B.double()
    # a quarter of the words, over as many edges: the corpus is as long
    other = CooccurrenceGraph.from_token_ids([zipfian_tokens(length, vocabulary // 4, rng)], vocabulary // 4)
    narrow = contexts(other, count, rng).to(device)
    ways = {
        "one context": lambda: graphmax(logits[0], graph, 1.0),
        "decode step": decode_step(1, vocabulary, device),
        "algorithm 1": lambda: graphmax(logits[0], graph, 1.0, solver=PUBLISHED),
        "contexts": lambda: graphmax(logits, graph, 1.0),
        "decode step, rows": decode_step(count, vocabulary, device),
        "contexts, a quarter of the words": lambda: graphmax(narrow, other, 1.0),
    }
    seconds = best(ways, options.rounds, device)
    one, rows = seconds["one context"], seconds["contexts"]
    growth = rows / seconds["contexts, a quarter of the words"]
    on_cpu = device == "cpu"
    return report(
        [
            Row("certified contexts", certified, 1.0),
            Row("products with M, mean", products.mean().item(), None, MEAN_PRODUCTS),
            Row("products with M, most", products.max().item(), None, MOST_PRODUCTS),
            Row("prepared graph, MB", graph.operator(logits).megabytes, None, MEGABYTES),
            Row("one context / decode step", one / seconds["decode step"], None, SINGLE if on_cpu else None),
            Row(f"{count} contexts / decode step of {count} rows", rows / seconds["decode step, rows"], None,
                BATCHED if on_cpu else ON_GPU),
            Row("Algorithm 1 / ours", seconds["algorithm 1"] / one, SPEEDUP if on_cpu else None),
            Row("all words / a quarter of the words", growth, None, 4.0),
        ],
        options,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())

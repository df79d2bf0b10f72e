"""How many times as long a token of LLAMA2-7B takes with graphmax (Table 3); random weights, which take the same time.

    python benchmarks/bench_graphmax_llama2.py [--layers 3] [--tries 5]

All 32 layers are alike, so a step is timed with one layer and with a few, and the time of a layer is multiplied. The
graph is that of a Zipfian text over LLAMA2's 32,000 tokens, the logits are those of a bigram model of it. CPU time of
one thread, float32, batch 1, 128 tokens cached; a GPU does a step faster and Algorithm 1, which is many small products,
hardly, so the paper's ratios of 12.0 to 16.6 are of another machine. Nothing is bounded: exit code 0.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from bench_graphmax import PUBLISHED, contexts, zipfian_tokens

from lit_ctg.papers.graphmax import CooccurrenceGraph, graphmax

VOCABULARY, LAYERS, CACHE = 32_000, 32, 128


def cpu_seconds(tries: int, *works: Callable[[], object]) -> list[float]:
    """Return the least CPU time of each, tried in turns; what else runs on the machine takes none of it."""
    times: list[list[float]] = [[] for _ in works]
    for _ in range(tries):
        for work, taken in zip(works, times, strict=True):
            start = time.process_time()
            work()
            taken.append(time.process_time() - start)
    return [min(taken) for taken in times]


def decode_step(layers: int) -> Callable[[], object]:
    """Return one cached step of a model of LLAMA2-7B's layers, all weights drawn at random."""
    from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

    # the defaults of this class are the shapes of LLAMA2-7B: 4,096 wide, 32 heads, 11,008 inside
    config = LlamaConfig(vocab_size=VOCABULARY, num_hidden_layers=layers)
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model = model.to_empty(device="cpu").eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.uniform_(-0.02, 0.02)
    # no weight, so it is not drawn: the frequencies of the rotary positions
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    cache = DynamicCache(config=config)
    ids = torch.randint(VOCABULARY, (1, CACHE))
    with torch.no_grad():
        model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)

    def step() -> None:
        with torch.no_grad():
            model(ids[:, :1], past_key_values=cache, use_cache=True)
        cache.crop(-1)

    return step


def main() -> int:
    """Time everything and print ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--tries", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    graph = CooccurrenceGraph.from_token_ids([zipfian_tokens(3_600_000, rng, VOCABULARY)], VOCABULARY)
    logits = contexts(graph, 1, rng)[0]
    graphmax(logits, graph, 1.0)  # compiles, and prepares the graph
    few, many, softmax, corrected, published = cpu_seconds(
        arguments.tries,
        decode_step(1),
        decode_step(arguments.layers),
        lambda: torch.softmax(logits, dim=-1),
        lambda: graphmax(logits, graph, 1.0),
        lambda: graphmax(logits, graph, 1.0, solver=PUBLISHED),
    )
    layer = (many - few) / (arguments.layers - 1)
    step = few + (LAYERS - 1) * layer + softmax
    print(f"graph: {graph.vocab_size:,} tokens, {graph.edges:,} edges")
    print(f"a step with softmax: 1; of it one layer {layer / step:.3f}, softmax {softmax / step:.5f}")
    for name, seconds in (("Algorithm 1 (as published)", published), ("certified solver (corrected)", corrected)):
        print(f"{name}: {(step - softmax + seconds) / step:.3f} times as long as with softmax")
    return 0


if __name__ == "__main__":
    sys.exit(main())

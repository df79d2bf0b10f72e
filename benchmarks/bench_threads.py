"""Threads: a training step with one thread and with a thread a core, by the model's size, as ratios in one run.

    python benchmarks/bench_threads.py [--threads 2] [--rounds 5]

Models are torch's own Transformer layers with a vocabulary of 2,000 on batches of 8 x 64 tokens, AdamW, float32. The
arms take turns. ``wall`` says how many times faster a step is with all threads (below 1: slower), ``work`` how many
times the processor time it takes: on a machine that others use too, that is what it costs. ``run/threads.py`` has its
threshold from here.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

from lit_ctg.run.jobs import cores
from lit_ctg.run.threads import MANY

ROWS, LENGTH, VOCABULARY = 8, 64, 2000
# width and layers
SHAPES = ((64, 2), (256, 4), (512, 6), (768, 8))


def training_step(dim: int, layers: int) -> tuple[int, Callable[[], None]]:
    """Return the number of trained parameters of a model and one step of its training."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(dim, max(1, dim // 64), 4 * dim, batch_first=True)
    model = nn.Sequential(
        nn.Embedding(VOCABULARY, dim),
        nn.TransformerEncoder(layer, layers, enable_nested_tensor=False),
        nn.Linear(dim, VOCABULARY),
    )
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    ids_BT = torch.randint(0, VOCABULARY, (ROWS, LENGTH))

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(ids_BT).flatten(0, 1), ids_BT.flatten()).backward()
        optimizer.step()

    return sum(weight.numel() for weight in model.parameters()), step


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=cores())
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print(f"{options.threads} threads against 1; threshold of lit_ctg/run/threads.py: {MANY / 1e6:.0f} million")
    for dim, layers in SHAPES:
        size, step = training_step(dim, layers)
        wall: dict[int, list[float]] = {1: [], options.threads: []}
        work: dict[int, list[float]] = {1: [], options.threads: []}
        for turn in range(options.rounds + 1):
            for threads in wall:
                torch.set_num_threads(threads)
                began, cpu = time.perf_counter(), time.process_time()
                step()
                if turn:  # the first one warms up
                    wall[threads].append(time.perf_counter() - began)
                    work[threads].append(time.process_time() - cpu)
        median = {name: [statistics.median(arm) for arm in arms.values()] for name, arms in (("w", wall), ("c", work))}
        faster, dearer = median["w"][0] / median["w"][1], median["c"][1] / median["c"][0]
        print(f"{size / 1e6:6.1f} million parameters: wall {faster:.2f}, work {dearer:.2f}")


if __name__ == "__main__":
    main()

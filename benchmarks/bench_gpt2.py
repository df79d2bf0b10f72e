"""Does our GPT-2 stack pay beside Hugging Face's? The same weights and batches through both, as ratios in one run.

    python benchmarks/bench_gpt2.py [--rounds 5] [--size small|paper] [--device cpu|cuda]

Measured: forward and backward of the stack (8 rows of 256 positions) with the configured dropout and without, and one
cached decode step of 60 rows at position 128. Both ways take turns; the best round counts. On a CPU time is that of
the process, on one thread, so that a busy machine disturbs little. Exit code 1 where ours is slower than theirs by more
than a tenth, or where the hidden states differ.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import torch
from transformers import DynamicCache, GPT2Config, GPT2Model

from lit_ctg.network.gpt2 import GPT2Backbone

SIZES = {"small": {"dim": 192, "layers": 4, "heads": 6}, "paper": {"dim": 384, "layers": 6, "heads": 6}}
ROWS, LENGTH, TEXTS, PLACE = 8, 256, 60, 128
LIMIT, TOLERANCE = 1.1, 1e-4


def stacks(size: str, dropout: float, attention_dropout: float, device: str) -> tuple[GPT2Backbone, GPT2Model]:
    """Return our stack and theirs, with one set of weights."""
    torch.manual_seed(0)
    ours = GPT2Backbone(**SIZES[size], context=LENGTH, dropout=dropout, attention_dropout=attention_dropout)
    theirs = GPT2Model(
        GPT2Config(vocab_size=8, bos_token_id=0, eos_token_id=0, **ours.sizes(), attn_implementation="sdpa")
    )
    theirs.load_state_dict({**ours.to_hugging_face(), "wte.weight": theirs.wte.weight.detach()})
    return ours.to(device), theirs.to(device)


def seconds(work: Callable[[], object], device: str) -> float:
    """Return how long one call takes."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    began = clock()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return clock() - began


def compare(ways: dict[str, Callable[[], object]], rounds: int, device: str) -> float:
    """Return theirs divided by ours, the best of the rounds each, after one to warm up."""
    best = dict.fromkeys(ways, float("inf"))
    for number in range(rounds + 1):
        for name, work in ways.items():
            taken = seconds(work, device)
            if number:
                best[name] = min(best[name], taken)
    return best["theirs"] / best["ours"]


def training(size: str, dropout: float, attention_dropout: float, options: argparse.Namespace) -> float:
    """Compare forward and backward."""
    ours, theirs = stacks(size, dropout, attention_dropout, options.device)
    embedded = torch.randn(ROWS, LENGTH, ours.dim, device=options.device)

    def run_ours() -> None:
        ours.zero_grad(set_to_none=True)
        ours.train()(embedded).square().sum().backward()

    def run_theirs() -> None:
        theirs.zero_grad(set_to_none=True)
        theirs.train()(inputs_embeds=embedded, use_cache=False).last_hidden_state.square().sum().backward()

    return compare({"ours": run_ours, "theirs": run_theirs}, options.rounds, options.device)


@torch.inference_mode()
def decoding(size: str, options: argparse.Namespace) -> tuple[float, float]:
    """Compare one decode step; return the ratio and the largest difference of a hidden state."""
    ours, theirs = (stack.eval() for stack in stacks(size, 0.0, 0.0, options.device))
    embedded = torch.randn(TEXTS, PLACE + 1, ours.dim, device=options.device)
    cache = None
    for place in range(PLACE):
        _, cache = ours.step(embedded[:, place], cache)
    filled = theirs(inputs_embeds=embedded[:, :PLACE], use_cache=True).past_key_values
    pairs = [(layer.keys, layer.values) for layer in filled.layers]
    found = {}

    def run_ours() -> None:
        found["ours"] = ours.step(embedded[:, PLACE], cache)[0]

    def run_theirs() -> None:
        own = DynamicCache()  # theirs is grown in place: a step begins from a fresh one over the same tensors
        for number, (keys, values) in enumerate(pairs):
            own.update(keys, values, number)
        found["theirs"] = theirs(
            inputs_embeds=embedded[:, PLACE:], past_key_values=own, use_cache=True
        ).last_hidden_state

    ratio = compare({"ours": run_ours, "theirs": run_theirs}, 4 * options.rounds, options.device)
    return ratio, float((found["ours"] - found["theirs"][:, 0]).abs().max())


def main() -> int:
    """Print the ratios; return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", choices=[*SIZES, "all"], default="all")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    failed = 0
    for size in SIZES if options.size == "all" else [options.size]:
        attention = {"small": 0.0, "paper": 0.1}[size]
        found = {
            "training, dropout as configured": training(size, 0.1, attention, options),
            "training, no dropout": training(size, 0.0, 0.0, options),
        }
        found["decode step"], change = decoding(size, options)
        for name, ratio in found.items():
            print(f"{size}, {name}: Hugging Face takes {ratio:.2f} times as long")
            failed += ratio < 1 / LIMIT
        print(f"{size}, largest difference of a hidden state: {change:.1e}")
        failed += change > TOLERANCE
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())

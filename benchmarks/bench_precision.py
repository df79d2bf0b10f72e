"""bfloat16 products against float32 ones on this processor: what `lit_ctg/run/precision.py` decides by its units.

    python benchmarks/bench_precision.py [--rounds 5] [--quick]

The shapes are those of `size=paper`: the softmax of NSLM's medium LSTM on WikiText-2 (700 positions, 650 units, 35,000
words) and the feed-forward layer of a control-code Transformer (16 x 256 positions, 200 to 512), each with both
products of its gradient; then the LSTM itself. Ratios of medians of processor time with one thread: how many times as
long bfloat16 takes as float32.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from lit_ctg.run.precision import has_bfloat16


def products(n: int, k: int, m: int, dtype: torch.dtype) -> Callable[[], None]:
    """Return the three products of a linear layer and its gradient, [n, k] to [n, m]."""
    x, weight, grad = (torch.randn(shape).to(dtype) for shape in ((n, k), (m, k), (n, m)))

    def work() -> None:
        x @ weight.T
        grad @ weight
        grad.T @ x

    return work


def recurrent(dim: int, dtype: torch.dtype) -> Callable[[], None]:
    """Return a forward and backward pass of two LSTM layers over 20 rows of 35 steps."""
    lstm, x_BTD = torch.nn.LSTM(dim, dim, 2, batch_first=True), torch.randn(20, 35, dim)

    def work() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            lstm(x_BTD)[0].float().square().mean().backward()

    return work


def seconds(work: Callable[[], None], rounds: int) -> float:
    """Return the median of processor seconds of this process, after one round that does not count."""
    found = []
    for _ in range(rounds + 1):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return statistics.median(found[1:])


def main() -> None:
    """Print a ratio for each part."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rounds, words, dim = (1, 500, 32) if options.quick else (options.rounds, 35_000, 650)
    parts = {
        f"softmax, 700 x {dim} x {words}": lambda dtype: products(700, dim, words, dtype),
        "feed-forward, 4096 x 200 x 512": lambda dtype: products(4096, 200, 512, dtype),
        f"LSTM, 2 x {dim}": lambda dtype: recurrent(dim, dtype),
    }
    print(f"units for bfloat16: {'yes' if has_bfloat16() else 'no, so bf16-mixed means float32 here'}")
    for name, make in parts.items():
        plain = seconds(make(torch.float32), rounds)
        try:
            print(
                f"{name}: bfloat16 takes {seconds(make(torch.bfloat16), rounds) / plain:.2f} times as long as float32"
            )
        except RuntimeError as error:
            print(f"{name}: fails in bfloat16 ({str(error).split('. ')[0]})")


if __name__ == "__main__":
    main()

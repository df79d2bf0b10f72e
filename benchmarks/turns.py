"""What the benchmarks share: ways that take turns, a line of progress, rows with bounds.

Every number is a ratio of two ways in one process. On a CPU they are timed by the processor time of one thread, and the
fastest round of each counts, so that other work on the machine disturbs little.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Row:
    """A ratio, and the bound that a claim sets for it."""

    what: str
    value: float
    least: float | None = None
    most: float | None = None

    def holds(self) -> bool:
        return (self.least is None or self.value >= self.least) and (self.most is None or self.value <= self.most)

    def __str__(self) -> str:
        bound = f"at least {self.least:.3g}" if self.least is not None else "-"
        bound = f"at most {self.most:.3g}" if self.most is not None else bound
        return f"| {self.what} | {self.value:.3g} | {bound} |"


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that all benchmarks have."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--rounds", type=int, default=3)
    made.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    made.add_argument("--quick", action="store_true", help="small sizes and one round, to see that it runs; no bounds")
    return made


def read(made: argparse.ArgumentParser, words: Sequence[str] | None) -> argparse.Namespace:
    """Return the options; from here on torch uses one thread."""
    options = made.parse_args(words)
    options.rounds = 1 if options.quick else options.rounds
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return options


def progress(text: str) -> None:
    """Say on standard error what is being done, on one line."""
    print(f"\r{text[:100]:100}", end="", file=sys.stderr, flush=True)


def best(ways: dict[str, Callable[[], object]], rounds: int, device: str = "cpu") -> dict[str, float]:
    """Return the seconds of the fastest round of each way; the first round warms up."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    fastest = dict.fromkeys(ways, math.inf)
    for number in range(rounds + 1):
        for name, work in ways.items():
            progress(f"round {number} of {rounds}: {name}")
            began = clock()
            work()
            if device == "cuda":
                torch.cuda.synchronize()
            if number:
                fastest[name] = min(fastest[name], clock() - began)
    return fastest


def report(rows: Sequence[Row], options: argparse.Namespace) -> int:
    """Print the rows as a table; return 1 where a bound does not hold, and 0 for a quick run."""
    progress("")
    print("", file=sys.stderr)
    print("| compared | ratio | bound |\n|---|---:|---:|")
    print(*rows, sep="\n")
    missed = [] if options.quick else [row.what for row in rows if not row.holds()]
    for what in missed:
        print(f"MISSED: {what}")
    return int(bool(missed))

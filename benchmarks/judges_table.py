"""How often the level field's judges are right on held-out human texts, as a Markdown table: a row a task and length.

    python benchmarks/judges_table.py "task=scene data.source=local data.root=<folder>" "task=folder data.root=<folder>"

Each argument holds the words of one ``lit-ctg field run``. Nothing is written except the judges, below
``outputs/field/parts``, where runs of the same words find them. A task below its limit has a row as well.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch

from lit_ctg.errors import UserError
from lit_ctg.field.bench import LENGTHS
from lit_ctg.field.command import compose
from lit_ctg.field.measure import JUDGES
from lit_ctg.field.run import build_bench


def rows(words: Sequence[str]) -> list[str]:
    """Return the rows of a task: its name and classes, the words of a text, accuracy and 95% interval of each judge."""
    cfg = compose([*words, "task.least_accuracy=0"])
    bench = build_bench(cfg)
    found = []
    for length in LENGTHS:
        proofs = [bench.proofs[judge][length] for judge in JUDGES]
        shown = [f"{own.right / own.of:.2f} [{own.interval[0]:.2f}, {own.interval[1]:.2f}]" for own in proofs
                 if own.interval is not None]  # fmt: skip
        found.append(
            f"| {cfg.task.name}: {', '.join(bench.task.targets)} | {length} | {' | '.join(shown)} | {proofs[0].of} |"
        )
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return the exit code."""
    torch.set_num_threads(1)
    print(f"| task | words | {' | '.join(JUDGES)} | texts |\n|---|---:|---|---|---:|", flush=True)
    for argument in sys.argv[1:] if arguments is None else arguments:
        try:
            print(*rows(argument.split()), sep="\n", flush=True)
        except UserError as error:
            print(f"| {argument} | {error} | | | |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

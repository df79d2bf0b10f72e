"""What a control costs inside vLLM: processor time a token under each, divided by the bare engine's, and by Steered's.

    .venv-vllm/bin/python benchmarks/bench_serve.py [--rows 1,8,32] [--tokens 32] [--rounds 3]

One engine has all controls; the ways take turns. Exit code 1 where a control on scores takes more than ``LIMIT`` times
the bare engine's time at 32 texts. `make test-vllm` makes the environment.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
LIMIT = 1.3
PROMPTS = [f"At table {number} the food was" for number in range(1, 65)]
STEERED = "Steered, bare"


def main(argv: Sequence[str] | None = None) -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rows", default="1,8,32")
    options.add_argument("--tokens", type=int, default=32)
    options.add_argument("--rounds", type=int, default=3)
    given = options.parse_args(argv)
    if importlib.util.find_spec("vllm") is None:
        print("vLLM is not installed: make test-vllm", file=sys.stderr)
        return 0
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    from vllm import SamplingParams

    from lit_ctg.network.pretrained import Loading
    from lit_ctg.run.steer import load_steered
    from tests.serve.conftest import IN_LAYERS, SERVED, bundles, setting, start

    with tempfile.TemporaryDirectory() as folder:
        words = bundles(Path(folder))
        engine = start(words, dtype="bfloat16", max_num_seqs=64)
        steered = load_steered("smollm2", [], loading=Loading(device="cpu", dtype="bfloat16"))
    names = [name for name in SERVED if name != "grammar"]  # it ends a text that it does not allow
    ways: dict[str, dict[str, float]] = {"bare": {}, **{name: setting(name) for name in names}}
    ways["all"] = {key: value for each in ways.values() for key, value in each.items()}

    def by_engine(settings: dict[str, float], rows: int) -> None:
        params = SamplingParams(
            temperature=0, max_tokens=given.tokens, ignore_eos=True, extra_args={"lit_ctg": settings}
        )
        engine.generate(PROMPTS[:rows], params, use_tqdm=False)

    def by_steered(rows: int) -> None:
        own: dict[str, Any] = {"do_sample": False, "max_new_tokens": given.tokens, "min_new_tokens": given.tokens}
        steered.generate(PROMPTS[:rows], **own)

    failed = False
    print("| way | texts | tokens a second of processor time | ratio |\n|---|---:|---:|---:|")
    for rows in map(int, given.rows.split(",")):
        runs: dict[str, Callable[[], None]] = {
            name: lambda own=own, n=rows: by_engine(own, n) for name, own in ways.items()
        }
        runs[STEERED] = lambda n=rows: by_steered(n)
        seconds = {name: float("inf") for name in runs}
        for number in range(given.rounds + 1):
            print(f"round {number} of {given.rounds}", file=sys.stderr)
            for name, run in runs.items():
                begun = time.process_time()
                run()
                if number:  # the first one warms up
                    seconds[name] = min(seconds[name], time.process_time() - begun)
        for name, taken in seconds.items():
            ratio = taken / seconds["bare"]
            print(f"| {name} | {rows} | {rows * given.tokens / taken:.0f} | {ratio:.2f} |", flush=True)
            failed |= rows == 32 and ratio > LIMIT and name not in (*IN_LAYERS, "all", STEERED)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

"""What micro-models cost at evaluation: contexts and P_MM of the class tokens against the LSTM with its exact softmax.

    python benchmarks/bench_nslm_evaluation.py [--root <WikiText-2>] [--batches 40]

Both are timed on the same batches in turns, in CPU seconds of this process, float32. Bound: 5%. Without ``--root`` the
text is the sample, whose vocabulary (and so softmax) is smaller than WikiText-2's: the ratio is then larger.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch

from lit_ctg.build import build_datamodule, build_model
from lit_ctg.config import compose
from lit_ctg.model.nslm.module import Stream

BOUND = 0.05


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return CPU seconds and what ``work`` returned."""
    began = time.process_time()
    result = work()
    return time.process_time() - began, result


def main() -> None:
    """Print the two times and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", help="folder of WikiText-2; default: the sample")
    parser.add_argument("--batches", type=int, default=40)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    words = ["experiment=nslm/numbers", "size=small", "model.character_dim=0"]
    words += ["data.source=local", f"data.root={chosen.root}"] if chosen.root else ["data.sample_size=100000"]
    cfg = compose(words)
    datamodule = build_datamodule(cfg)
    datamodule.setup("validate")
    module: Any = build_model(cfg, datamodule).eval()
    grid, _ = seconds(lambda: module.choose_micro_models(datamodule))
    stream, carry, network, micro, tokens = Stream(), None, 0.0, 0.0, 0
    batches = [batch for _, batch in zip(range(chosen.batches), datamodule.val_dataloader(), strict=False)]

    def run_network(batch: dict[str, torch.Tensor]) -> None:
        hidden_BTD, contexts = module._run(batch, stream)
        mask_BT = batch["mask_target_BT"]
        state_N = torch.from_numpy(contexts.state_BT[mask_BT.numpy()])
        module.heads.score(hidden_BTD[mask_BT], batch["target_ids_BT"][mask_BT], state_N)

    def run_micro(batch: dict[str, torch.Tensor]) -> Any:
        contexts, grown = module._contexts(batch, carry)
        found = contexts.occurrences(batch["target_ids_BT"].numpy(), batch["mask_target_BT"].numpy())
        for number, model in enumerate(module.micro_models):
            own = found.of(number)
            if len(own):
                model.log_prob_of(own.index_N, own.evidence)
        return grown

    with torch.no_grad():
        for place, batch in enumerate(batches):
            own, _ = seconds(lambda batch=batch: run_network(batch))
            added, carry = seconds(lambda batch=batch: run_micro(batch))
            # the first batches warm caches up
            if place >= 3:
                network, micro, tokens = network + own, micro + added, tokens + int(batch["mask_target_BT"].sum())
    print(f"vocabulary {len(module.vocabulary)}, {tokens} tokens; grid search over all classes: {grid:.1f} CPU seconds")
    # the network's pass reads the contexts too; all of the micro-models' time taken off it gives an upper bound
    base = network - micro
    print(f"LSTM with exact softmax: {1e6 * base / tokens:.1f} us a token; micro-models: {1e6 * micro / tokens:.2f} us")
    print(f"micro-models add {100 * micro / base:.1f}% (bound {100 * BOUND:.0f}%)")


if __name__ == "__main__":
    main()

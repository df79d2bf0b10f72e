"""NSLM: the fast training step beside the plain one, and what micro-models cost in evaluation.

    python benchmarks/bench_nslm.py [--root <WikiText-2>] [--parts step,share,recorded] [--device cuda] [--quick]

- ``step``: a training step of the medium LSTM (2 x 650), ``model.fast=auto`` beside ``off``, with the same batches and
  dropout; also with bfloat16 products where the processor has units for them.
- ``share``: what the micro-models of numbers add to the LSTM's evaluation with its exact softmax (``size=small``).
- ``recorded`` (needs CUDA): a step on the device, kernel by kernel and as one recorded graph.

Bounds are for WikiText-2. The sample, which is read without ``--root``, has fewer words, and so a cheaper softmax.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from turns import Row, best, parser, progress, read, report

from lit_ctg.config import compose
from lit_ctg.papers.nslm.model import Stream
from lit_ctg.papers.nslm.recorded import RECORDERS
from lit_ctg.run.build import build_datamodule, build_model
from lit_ctg.run.precision import has_bfloat16

SHARE, SPEED_UP = 0.05, 2.0


def built(options: argparse.Namespace, size: str, *words: str) -> tuple[Any, Any, Any]:
    """Return configuration, data module and untrained module of the experiment on numbers."""
    text = ["data.source=local", f"data.root={options.root}"] if options.root else ["data.sample_size=100000"]
    text = ["data.sample_size=6000"] if options.quick else text
    size = "smoke" if options.quick else size
    cfg = compose(["experiment=nslm/numbers", f"size={size}", *text, *words])
    datamodule = build_datamodule(cfg)
    datamodule.setup("fit")
    return cfg, datamodule, build_model(cfg, datamodule)


def training(cfg: Any, module: Any, batches: Any, device: str, half: bool) -> Callable[[], float]:
    """Return a training step on the next batch."""
    module = module.to(device).train()
    optimizer, stream = module.configure_optimizers()["optimizer"], itertools.cycle(batches)

    def work() -> float:
        batch = module.transfer_batch_to_device(next(stream), module.device, 0)
        torch.manual_seed(0)
        with torch.autocast(device, torch.bfloat16, enabled=half):
            loss = module.losses(batch)["loss"]
        loss.backward()
        module.configure_gradient_clipping(optimizer, cfg.trainer.gradient_clip_val)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return work


def step(options: argparse.Namespace) -> list[Row]:
    """Return how many times as long the plain step takes, and how its first loss differs."""
    forms = {"plain": ("off", False), "fast": ("auto", False)}
    if has_bfloat16():
        forms["fast, bfloat16"] = ("auto", True)
    ways = {}
    for name, (fast, half) in forms.items():
        cfg, datamodule, module = built(options, "paper", "model.character_dim=0", f"+model.fast={fast}")
        batches = list(itertools.islice(datamodule.train_dataloader(), 4))
        ways[name] = training(cfg, module, batches, "cpu", half)
    losses = {name: way() for name, way in ways.items()}
    seconds = best(ways, options.rounds)
    fast, half = (1.0, SPEED_UP) if options.root else (None, None)
    rows = [Row("training step, float32: plain / fast", seconds["plain"] / seconds["fast"], least=fast)]
    if has_bfloat16():
        ratio = seconds["plain"] / seconds["fast, bfloat16"]
        rows.append(Row("training step: plain in float32 / fast in bfloat16", ratio, least=half))
    gap = abs(losses["fast"] / losses["plain"] - 1)
    return [*rows, Row("training step: relative difference of the losses", gap, most=1e-5)]


def share(options: argparse.Namespace) -> list[Row]:
    """Return what the micro-models add to the network's evaluation, as a share."""
    _, datamodule, module = built(options, "small", "model.character_dim=0")
    module.eval()
    progress("fit of the micro-models")
    module.choose_micro_models(datamodule)
    batches = list(itertools.islice(datamodule.val_dataloader(), 2 if options.quick else 20))

    @torch.no_grad()
    def network() -> None:
        stream = Stream()
        for batch in batches:
            hidden_BTD, contexts = module._run(batch, stream)
            mask_BT = batch["mask_target_BT"]
            state_N = torch.from_numpy(contexts.state_BT[mask_BT.numpy()])
            module.heads.score(hidden_BTD[mask_BT], batch["target_ids_BT"][mask_BT], state_N)

    @torch.no_grad()
    def micro() -> None:
        stream = Stream()
        for batch in batches:
            contexts = module.contexts(batch, stream)
            found = contexts.occurrences(batch["target_ids_BT"].numpy(), batch["mask_target_BT"].numpy())
            for number, model in enumerate(module.micro_models):
                here = found.of(number)
                if len(here):
                    model.log_prob_of(here.index_N, here.evidence)

    seconds = best({"network": network, "micro-models": micro}, options.rounds)
    # the network's pass reads the contexts too: all of the micro-models' time is taken off
    ratio = seconds["micro-models"] / (seconds["network"] - seconds["micro-models"])
    what = f"evaluation, vocabulary {len(module.vocabulary):,}: micro-models / LSTM with exact softmax"
    return [Row(what, ratio, most=SHARE if options.root else None)]


def recorded(options: argparse.Namespace) -> list[Row]:
    """Return how many times as long a step kernel by kernel takes as one recorded graph."""
    if not torch.cuda.is_available():
        raise SystemExit("recorded: needs a CUDA device, and there is none")
    recorders, ways = dict(RECORDERS), {}
    for name in ("kernel by kernel", "recorded"):
        cfg, datamodule, module = built(options, "paper")
        work = training(cfg, module, datamodule.train_dataloader(), "cuda", half=True)

        def turn(name: str = name, work: Callable[[], float] = work) -> None:
            RECORDERS.clear()
            RECORDERS.update(recorders if name == "recorded" else {})
            for _ in range(20):
                work()

        ways[name] = turn
    seconds = best(ways, options.rounds, "cuda")
    RECORDERS.update(recorders)
    return [
        Row(
            "training step on the device: kernel by kernel / recorded",
            seconds["kernel by kernel"] / seconds["recorded"],
        )
    ]


def main(words: Sequence[str] | None = None) -> int:
    """Print the ratios of ``--parts``; return the exit code."""
    made = parser(__doc__)
    made.add_argument("--root", help="folder of WikiText-2; default: the sample")
    made.add_argument("--parts", default="step,share")
    options = read(made, words)
    parts = {"step": step, "share": share, "recorded": recorded}
    return report([row for name in options.parts.split(",") for row in parts[name](options)], options)


if __name__ == "__main__":
    sys.exit(main())

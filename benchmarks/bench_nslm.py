"""NSLM: a training step of the medium LSTM, the grid search of WikiText-2, the cost of micro-models in evaluation.

    python benchmarks/bench_nslm.py [--root local/wikitext2] [--parts step,grid,recorded] [--threads 2] [--batches 40]

- ``step``: one step at ``size=paper`` (2 x 650, full softmax over both vocabularies), as it was (``model.fast=off``,
  float32) and as it is (``fast=auto``, bfloat16 products), in turns on the same batches with the same dropout. At least
  2 times faster; the costs of the first step agree within 1%, those of ``fast`` alone within 1e-5. Without units for
  bfloat16 a step has float32 products (``lit_ctg/run/precision.py``) and no bound.
- ``grid``: the grids of numbers and places together under 120 s on two cores; micro-models (what stands before the
  class tokens, their log-probabilities) at most 5% of the LSTM's evaluation with its exact softmax. That is measured at
  ``size=small`` (200 units) in float32 on one thread, both parts in turns on the same batches: a larger LSTM makes the
  share smaller.
- ``recorded`` (needs CUDA): a step at ``size=paper`` on the device, kernel by kernel and as one recorded graph, in
  turns of 20 steps. Seconds of the clock, since the processor does not wait for the device.

Otherwise CPU seconds of this process. Without ``--root`` the text is the sample, which shows that it runs: its
vocabulary, and so the softmax, is smaller than WikiText-2's.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from lit_ctg.config import compose
from lit_ctg.papers.nslm.evaluation import class_counts
from lit_ctg.papers.nslm.model import Stream
from lit_ctg.papers.nslm.recorded import RECORDERS
from lit_ctg.run.build import build_datamodule, build_model
from lit_ctg.run.precision import has_bfloat16

GRID_SECONDS, SHARE, SPEED_UP = 120, 0.05, 2.0
WARM_UP = 3  # batches that are not counted
TURN = 20  # steps of one form before the other's turn


def prepare(experiment: str, options: argparse.Namespace) -> tuple[Any, Any]:
    """Return the data module and the untrained module of an experiment."""
    words = [f"experiment=nslm/{experiment}", "size=small", "model.character_dim=0", f"regime={options.regime}"]
    cfg = compose([*words, *source(options)])
    datamodule = build_datamodule(cfg)
    datamodule.setup("validate")
    return datamodule, build_model(cfg, datamodule).eval()


def source(options: argparse.Namespace) -> list[str]:
    """Return the overrides that name the text."""
    return ["data.source=local", f"data.root={options.root}"] if options.root else ["data.sample_size=100000"]


def grid(module: Any, datamodule: Any) -> float:
    """Print the classes and the grid; return the seconds that it takes to find them and to fit and try every pair."""
    began = time.perf_counter()
    selection = module.choose_micro_models(datamodule)
    seconds = time.perf_counter() - began
    found = {split: module.occurrences(datamodule, split) for split in ("train", "val")}
    totals = {split: len(datamodule.prepare().ids(split)) for split in found}
    print(f"{'class':<12}{'split':<8}{'tokens':>10}{'share':>9}{'members':>9}{'first':>9}")
    for c in class_counts(module.table, found, totals):
        print(f"{c.class_name:<12}{c.split:<8}{c.tokens:>10,}{c.share:>9.3%}{c.members:>9,}{c.first:>9,}")
    print(selection.table())
    print(f"grid of {len(selection.trials)} cells: {seconds:.1f} s")
    return seconds


def evaluation(module: Any, datamodule: Any, count: int) -> None:
    """Print CPU seconds of the network and of the micro-models over the same validation batches."""
    network_stream, micro_stream = Stream(), Stream()

    def run_network(batch: dict[str, torch.Tensor]) -> None:
        hidden_BTD, contexts = module._run(batch, network_stream)
        mask_BT = batch["mask_target_BT"]
        state_N = torch.from_numpy(contexts.state_BT[mask_BT.numpy()])
        module.heads.score(hidden_BTD[mask_BT], batch["target_ids_BT"][mask_BT], state_N)

    def run_micro(batch: dict[str, torch.Tensor]) -> None:
        contexts = module.contexts(batch, micro_stream)
        found = contexts.occurrences(batch["target_ids_BT"].numpy(), batch["mask_target_BT"].numpy())
        for number, model in enumerate(module.micro_models):
            own = found.of(number)
            if len(own):
                model.log_prob_of(own.index_N, own.evidence)

    network, micro, tokens = 0.0, 0.0, 0
    with torch.no_grad():
        for place, (_, batch) in enumerate(zip(range(count), datamodule.val_dataloader(), strict=False)):
            own, added = cpu_seconds(run_network, batch), cpu_seconds(run_micro, batch)
            if place >= WARM_UP:
                network, micro, tokens = network + own, micro + added, tokens + int(batch["mask_target_BT"].sum())
    # the network's pass reads the contexts too; all of the micro-models' time taken off it gives an upper bound
    base = network - micro
    print(
        f"vocabulary {len(module.vocabulary)}, {tokens} tokens; LSTM with exact softmax {1e6 * base / tokens:.1f} us a"
    )
    print(f"token, micro-models {1e6 * micro / tokens:.2f} us: {micro / base:.1%} more (bound {SHARE:.0%})")


def cpu_seconds(work: Callable[[Any], None], batch: Any) -> float:
    """Return the CPU seconds of this process that some work takes."""
    began = time.process_time()
    work(batch)
    return time.process_time() - began


def medium(options: argparse.Namespace) -> None:
    """Print the seconds of a step before and after, and how the costs of the first step agree."""
    words = ["experiment=nslm/numbers", "size=paper", "model.character_dim=0", *source(options)]
    cfg = compose(words)
    datamodule = build_datamodule(cfg)
    datamodule.setup("fit")
    forms = {"before": ("off", False), "fast alone": ("auto", False), "now": ("auto", True)}
    if not has_bfloat16():
        del forms["fast alone"]
        forms["now"] = ("auto", False)
    modules = {
        name: build_model(compose([*words, f"+model.fast={fast}"]), datamodule) for name, (fast, _) in forms.items()
    }
    parameters = sum(parameter.numel() for parameter in modules["now"].parameters())
    print(f"medium LSTM, vocabulary {len(datamodule.vocabulary)}, {parameters / 1e6:.1f} M parameters")
    optimizers = {name: module.configure_optimizers()["optimizer"] for name, module in modules.items()}
    seconds: dict[str, list[float]] = {name: [] for name in forms}
    for place, (_, batch) in enumerate(
        zip(range(WARM_UP + options.steps), datamodule.train_dataloader(), strict=False)
    ):
        for name, (_, half) in forms.items():
            torch.manual_seed(place)
            began = time.process_time()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
                loss = modules[name].train().losses(batch)["loss"]
            loss.backward()
            modules[name].configure_gradient_clipping(optimizers[name], cfg.trainer.gradient_clip_val)
            optimizers[name].step()
            optimizers[name].zero_grad()
            if place >= WARM_UP:
                seconds[name].append(time.process_time() - began)
            if place == 0:
                print(f"cost of the first step, {name}: {float(loss.detach()):.6f}")
    median = {name: statistics.median(found) for name, found in seconds.items()}
    for name, found in median.items():
        print(f"{name}: {found:.3f} s a step, {median['before'] / found:.2f} times as fast")
    print(f"now against before: {f'bound {SPEED_UP}' if has_bfloat16() else 'no units for bfloat16 here, so no bound'}")


def recorded(options: argparse.Namespace) -> None:
    """Print the milliseconds of a training step on a CUDA device, kernel by kernel and as one recorded graph."""
    if not torch.cuda.is_available():
        print("recorded: needs a CUDA device, and there is none")
        return
    cfg = compose(["experiment=nslm/numbers", "size=paper", *source(options)])
    datamodule = build_datamodule(cfg)
    datamodule.setup("fit")
    recorders = dict(RECORDERS)
    modules = {name: build_model(cfg, datamodule).cuda().train() for name in ("kernel by kernel", "recorded")}
    streams = {name: iter(datamodule.train_dataloader()) for name in modules}
    optimizers = {name: module.configure_optimizers()["optimizer"] for name, module in modules.items()}

    def steps(name: str) -> float:
        RECORDERS.clear()
        if name == "recorded":
            RECORDERS.update(recorders)
        module, optimizer = modules[name], optimizers[name]
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(TURN):
            batch = module.transfer_batch_to_device(next(streams[name]), module.device, 0)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = module.losses(batch)["loss"]
            loss.backward()
            module.configure_gradient_clipping(optimizer, cfg.trainer.gradient_clip_val)
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.synchronize()
        return 1000 * (time.perf_counter() - began) / TURN

    found: dict[str, list[float]] = {name: [] for name in modules}
    for turn in range(1 + options.steps):
        for name in modules:
            milliseconds = steps(name)
            if turn:
                found[name].append(milliseconds)
    RECORDERS.update(recorders)
    median = {name: statistics.median(values) for name, values in found.items()}
    for name, value in median.items():
        print(f"{name}: {value:.2f} ms a step, {median['kernel by kernel'] / value:.2f} times as fast")


def main() -> None:
    """Measure what ``--parts`` names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", help="folder of WikiText-2; default: the sample")
    parser.add_argument("--threads", type=int, default=2, help="of the grid search")
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--regime", default="corrected", help="corrected also tries densities times the unigram")
    parser.add_argument("--parts", default="step,grid")
    parser.add_argument(
        "--steps", type=int, default=7, help="of the medium LSTM that are counted; of `recorded`: turns"
    )
    options = parser.parse_args()
    parts = options.parts.split(",")
    if "step" in parts:
        torch.set_num_threads(1)
        medium(options)
    if "recorded" in parts:
        recorded(options)
    if "grid" not in parts:
        return
    total = 0.0
    for experiment in ("numbers", "places"):
        print(f"{experiment}:")
        datamodule, module = prepare(experiment, options)
        torch.set_num_threads(options.threads)
        total += grid(module, datamodule)
        torch.set_num_threads(1)
        evaluation(module, datamodule, options.batches)
    print(f"both grids: {total:.1f} s (bound {GRID_SECONDS} s)")


if __name__ == "__main__":
    main()

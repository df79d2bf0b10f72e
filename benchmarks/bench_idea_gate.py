"""Idea gate: training step and generation, fused, plain and straight, as ratios in one run.

    python benchmarks/bench_idea_gate.py [--batch 8] [--rounds 3] [--precision 32|bf16] [--device cpu|cuda]

The model of sec. 4.2 (6 layers, 384, vocabulary 50,257, windows of 20 in 256 positions). Each way runs in a process of
its own, in turns, so that peak memory is its own and a busy machine disturbs all alike; the best round counts. Absolute
times are this machine's and this moment's business. Exit code 1 when an aim (AIMS) is missed; they are those of batch 8
and of 60 texts of 100 tokens. ``--only training`` or ``--only generation`` runs one half.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from types import SimpleNamespace

import torch

from lit_ctg.config import compose
from lit_ctg.network.gpt2 import GPT2Backbone
from lit_ctg.papers.idea_gate import IdeaGateModule
from lit_ctg.papers.idea_gate.decode import IdeaGateDecoding

SIZE, LENGTH = 50257, 256
# the fused form, model.py's plain one, the paper's dense target written out, a GPT-2 without idea head, and both forms
# of our gate: lift, stopword-neutral
WAYS = ("fused", "plain", "straight", "gpt2", "fused_lift", "plain_lift")
LIFT = {"lift": True, "neutral_stopwords": True}
STOPWORDS = 34  # the authors' 17 strings, alone and after a space
# device -> name -> (least, most): times as fast, share of the peak memory, time over a GPT-2
AIMS = {
    "cpu": {"step": (1.4, None), "worth": (1.1, None), "memory": (None, 0.4), "generation": (20.0, None)},
    "cuda": {"step": (2.5, None), "overhead": (None, 0.35), "generation": (20.0, None)},
}


class Numbers:
    """Stands in for a tokenizer: speed depends on the number of tokens, not on their text."""

    unknown_id, bos_id = None, 0

    def __len__(self) -> int:
        return SIZE

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, ids) -> str:
        return " ".join(map(str, ids))


def model(gated: bool, fast: str = "always", lift: bool = False) -> IdeaGateModule:
    """Return the paper's model, the one with our gate, or the plain GPT-2 of the same backbone."""
    cfg = compose(["experiment=idea_gate/main", "size=paper"])
    settings = {name: cfg.model[name] for name in cfg.model if name != "_target_"} | {"gated": gated, "fast": fast}
    settings |= LIFT if lift else {}
    torch.manual_seed(0)
    backbone = GPT2Backbone(**{name: cfg.backbone[name] for name in cfg.backbone if name != "_target_"})
    module = IdeaGateModule(vocabulary=Numbers(), backbone=backbone, **settings)
    if lift:
        # setup counts both in the training text, and there is none: what the head says before training, any stopwords
        module.base_V.copy_(torch.nn.functional.logsigmoid(module.idea_head.outer.bias.detach()))
        module.stopword_mask_V[:STOPWORDS] = True
    return module


def memory_mb(device: str) -> float:
    """Return the peak so far: of the accelerator, or of the process."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def training(way: str, options: argparse.Namespace) -> dict[str, float]:
    """Time forward and backward of one batch, after one to warm up."""
    from straight_idea_gate import losses

    form, lift = way.removesuffix("_lift"), way.endswith("_lift")
    module = model(way != "gpt2", "never" if form == "plain" else "always", lift).to(options.device).train()
    ids = torch.randint(SIZE, (options.batch, LENGTH + 1), generator=torch.Generator().manual_seed(1))
    ids = ids.to(options.device)
    mask = torch.ones_like(ids[:, 1:], dtype=torch.bool)
    batch = {"input_ids_BT": ids[:, :-1], "target_ids_BT": ids[:, 1:], "mask_input_BT": mask, "mask_target_BT": mask}
    start_mb, seconds, loss = memory_mb(options.device), [], torch.zeros(())
    for _ in range(2):
        module.zero_grad(set_to_none=True)
        torch.manual_seed(2)  # the same dropout both ways
        # on a CPU of the process: a busy machine disturbs it little
        clock = time.process_time if options.device == "cpu" else time.perf_counter
        began = clock()
        with torch.autocast(options.device, torch.bfloat16, enabled=options.precision == "bf16"):
            loss = losses(module, batch) if way == "straight" else module.losses(batch)["loss"]
        loss.backward()
        if options.device == "cuda":
            torch.cuda.synchronize()
        seconds.append(clock() - began)
    return {"seconds": seconds[-1], "peak_mb": memory_mb(options.device), "start_mb": start_mb, "loss": loss.item()}


def generation(options: argparse.Namespace) -> float:
    """Return how many times faster one batch with a cache is than one text at a time without."""
    from straight_idea_gate import generate_one

    module = model(True).to(options.device).eval()
    decoding = IdeaGateDecoding(temperature=0.6, repetition_penalty=1.2, max_new_tokens=options.new_tokens)
    generator = decoding.generator(module, SimpleNamespace(vocabulary=Numbers()))
    prompt = "17 4 256 31 9"
    generator.generate(2, prompt, seed=0, max_new_tokens=3)
    began = time.perf_counter()
    generator.generate(options.samples, prompt, seed=0)
    fast = time.perf_counter() - began
    began = time.perf_counter()
    for _ in range(options.straight_samples):
        generate_one(module, generator.vocabulary.encode(prompt), options.new_tokens, 0.6, 1.2)
    slow = (time.perf_counter() - began) / options.straight_samples * options.samples
    return slow / fast


def rounds(options: argparse.Namespace, words: list[str]) -> dict[str, dict[str, float]]:
    """Run the ways in turns; return of each the fastest round and its peak."""
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for _ in range(options.rounds):
        for way in WAYS:
            command = [sys.executable, __file__, "--way", way, *words]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            found[way].append(json.loads(output.splitlines()[-1]))
    return {way: min(entries, key=lambda entry: entry["seconds"]) for way, entries in found.items()}


def training_ratios(options: argparse.Namespace, words: list[str]) -> dict[str, float]:
    """Compare training steps; print and return the ratios that have aims."""
    best = rounds(options, words)
    fused, plain, straight, gpt2, fused_lift, plain_lift = (best[way] for way in WAYS)
    found = {
        "step": straight["seconds"] / fused["seconds"],
        "worth": plain["seconds"] / fused["seconds"],
        "memory": fused["peak_mb"] / straight["peak_mb"],
        "lift": plain_lift["seconds"] / fused_lift["seconds"],
        "overhead": fused["seconds"] / gpt2["seconds"] - 1,
    }
    own = (fused["peak_mb"] - fused["start_mb"]) / (plain["peak_mb"] - plain["start_mb"])
    print(f"training step, {options.batch} x {LENGTH}, V {SIZE}, {options.device}, precision {options.precision}")
    print(f"  loss: fused {fused['loss']:.4f}, plain {plain['loss']:.4f}, straight {straight['loss']:.4f}")
    print(f"  straight / fused: {found['step']:.2f} times the time; plain / fused: {found['worth']:.2f}")
    print(f"  peak memory, fused / straight: {found['memory']:.0%}; of what a step adds, fused / plain: {own:.0%}")
    dearer = fused_lift["seconds"] / fused["seconds"]
    print(f"  our gate's loss: fused {fused_lift['loss']:.4f}, plain {plain_lift['loss']:.4f}")
    print(f"  our gate, plain / fused: {found['lift']:.2f} times the time; fused, ours / the paper's: {dearer:.2f}")
    print(f"  gate overhead over a GPT-2 of the same stack: {found['overhead']:.0%}")
    return found


def judge(found: dict[str, float], device: str) -> int:
    """Print each aim and whether it was met; return the exit code."""
    missed = 0
    for name, (least, most) in AIMS[device].items():
        if name in found:
            met = found[name] >= least if least is not None else found[name] <= most
            missed += not met
            bound = f"at least {least:g}" if least is not None else f"at most {most:g}"
            print(f"{'met' if met else 'MISSED'}: {name} {found[name]:.2f}, aim {bound}")
    return int(missed > 0)


def main() -> int:
    """Run all comparisons, or one way of one (in a process of its own); return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--precision", default="32", choices=["32", "bf16"])
    parser.add_argument("--device", choices=sorted(AIMS), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--samples", type=int, default=60)
    parser.add_argument("--straight-samples", type=int, default=2)
    parser.add_argument("--new-tokens", type=int, default=100)
    parser.add_argument("--only", choices=["training", "generation"])
    parser.add_argument("--way", choices=WAYS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.way:
        print(json.dumps(training(options.way, options)))
        return 0
    found = {} if options.only == "generation" else training_ratios(options, sys.argv[1:])
    if options.only != "training":
        found["generation"] = generation(options)
        print(f"generation of {options.samples} x {options.new_tokens} tokens (singly: {options.straight_samples})")
        print(f"  one at a time without cache / one batch with cache: {found['generation']:.0f} times")
    return judge(found, options.device)


if __name__ == "__main__":
    sys.exit(main())

"""Idea gate: the fused training step beside the plain one and the paper's written out, and generation with a cache.

    python benchmarks/bench_idea_gate.py [--batch 4] [--precision bf16] [--device cuda] [--quick]

The model of sec. 4.2 (6 layers, 384, vocabulary 50,257, windows of 20 in 256 positions). Each form of the step runs in
another process, so that peak memory can be compared. Ours is the fused form of `fast/fused.py`.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from turns import Row, best, parser, progress, read, report

from lit_ctg.config import compose
from lit_ctg.network.gpt2 import GPT2Backbone
from lit_ctg.papers.idea_gate import IdeaGateModule
from lit_ctg.papers.idea_gate.decode import IdeaGateDecoding

WAYS = ("fused", "plain", "straight", "gpt2")  # gpt2: the same stack without idea head
# of each device the claims: least and most
CPU = {"plain": (1.1, None), "straight": (1.25, None), "memory": (None, 0.6), "generation": (10.0, None)}
CUDA = {"straight": (2.5, None), "gpt2": (None, 1.35), "generation": (20.0, None)}


class Numbers:
    """Stands in for a tokenizer: speed depends on the number of tokens, not on their text."""

    unknown_id, bos_id = None, 0

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(map(str, ids))


def model(options: argparse.Namespace, gated: bool = True, fast: str = "always") -> IdeaGateModule:
    """Return the paper's model, or the plain GPT-2 of the same backbone."""
    cfg = compose(["experiment=idea_gate/main", f"size={'smoke' if options.quick else 'paper'}"])
    settings = {name: cfg.model[name] for name in cfg.model if name != "_target_"} | {"gated": gated, "fast": fast}
    torch.manual_seed(0)
    backbone = GPT2Backbone(**{name: cfg.backbone[name] for name in cfg.backbone if name != "_target_"})
    module = IdeaGateModule(vocabulary=Numbers(500 if options.quick else 50_257), backbone=backbone, **settings)
    return module.to(options.device)


def straight_loss(module: Any, batch: dict[str, Tensor]) -> Tensor:
    """Return the training loss (Eq. 7) the straight way: a dense multi-hot target, the scores of all positions."""
    hidden_BTD = module.backbone(module.embedding(batch["input_ids_BT"]))
    token_BTV, idea_BTV = hidden_BTD @ module.embedding.weight.T, module.idea_head(hidden_BTD)
    target_BT, hot_BTV, ideas = batch["target_ids_BT"], torch.zeros_like(idea_BTV), module.ideas
    for t in range(target_BT.shape[1]):
        first = t + ideas.window_start - 1
        hot_BTV[:, t].scatter_(1, target_BT[:, first : first + ideas.window], 1.0)
    weight = torch.tensor(ideas.positive_weight, device=idea_BTV.device)
    bce_BTV = F.binary_cross_entropy_with_logits(idea_BTV, hot_BTV, reduction="none", pos_weight=weight)
    idea = (bce_BTV * ~module.stopword_mask_V).sum(-1).mean()
    gate_BTV = torch.clamp(module.alpha * torch.log(torch.sigmoid(idea_BTV) + module.form.epsilon), min=module.beta)
    token = F.cross_entropy((token_BTV + gate_BTV).flatten(0, 1), target_BT.flatten())
    return token + ideas.idea_weight * idea


@torch.no_grad()
def straight_text(module: Any, ids: list[int], new_tokens: int, temperature: float, penalty: float) -> list[int]:
    """Continue one prompt; the whole prefix is computed anew for every token, the heads on all its positions."""
    ids = list(ids)
    for _ in range(new_tokens):
        hidden_BTD = module.backbone(module.embedding(torch.tensor([ids], device=module.device)))
        log_p = torch.log(torch.sigmoid(module.idea_head(hidden_BTD)) + module.form.epsilon)
        gate_BTV = torch.clamp(module.alpha * log_p, min=module.beta)
        scores_V = (hidden_BTD @ module.embedding.weight.T + gate_BTV)[0, -1]
        seen = torch.tensor(sorted(set(ids)), device=module.device)
        scores_V[seen] = torch.where(scores_V[seen] > 0, scores_V[seen] / penalty, scores_V[seen] * penalty)
        ids.append(int(torch.multinomial((scores_V / temperature).softmax(-1), 1)))
    return ids


def training(way: str, options: argparse.Namespace) -> dict[str, float]:
    """Return seconds, peak memory and loss of a training step."""
    module = model(options, way != "gpt2", "never" if way == "plain" else "always").train()
    length = module.backbone.context if options.quick else 256
    ids = torch.randint(len(module.vocabulary), (options.batch, length + 1), generator=torch.Generator().manual_seed(1))
    ids = ids.to(options.device)
    mask = torch.ones_like(ids[:, 1:], dtype=torch.bool)
    batch = {"input_ids_BT": ids[:, :-1], "target_ids_BT": ids[:, 1:], "mask_input_BT": mask, "mask_target_BT": mask}
    loss = torch.zeros(())

    def step() -> None:
        nonlocal loss
        module.zero_grad(set_to_none=True)
        torch.manual_seed(2)  # the same dropout in all forms
        with torch.autocast(options.device, torch.bfloat16, enabled=options.precision == "bf16"):
            loss = straight_loss(module, batch) if way == "straight" else module.losses(batch)["loss"]
        loss.backward()

    seconds = best({way: step}, options.rounds, options.device)[way]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if options.device == "cuda":
        peak = torch.cuda.max_memory_allocated() / 2**20
    return {"seconds": seconds, "peak_mb": peak, "loss": loss.item()}


def generation(options: argparse.Namespace) -> float:
    """Return how many times as long as a batch with a cache texts take one at a time without."""
    samples, new_tokens = (2, 3) if options.quick else (60, 40)
    module = model(options).eval()
    decoding = IdeaGateDecoding(temperature=0.6, repetition_penalty=1.2, max_new_tokens=new_tokens)
    generator, prompt = decoding.generator(module, SimpleNamespace(vocabulary=module.vocabulary)), "17 4 256 31 9"
    ids = module.vocabulary.encode(prompt)
    ways: dict[str, Callable[[], object]] = {
        "one batch": lambda: generator.generate(samples, prompt, seed=0),
        "one text": lambda: straight_text(module, ids, new_tokens, 0.6, 1.2),
    }
    seconds = best(ways, 1, options.device)
    return samples * seconds["one text"] / seconds["one batch"]


def main(words: Sequence[str] | None = None) -> int:
    """Print the ratios, or time one form of the step; return the exit code."""
    made = parser(__doc__)
    made.set_defaults(rounds=1)  # of seconds each
    made.add_argument("--batch", type=int, help="default: 4 on a CPU, 8 on a device")
    made.add_argument("--precision", default="32", choices=["32", "bf16"])
    made.add_argument("--way", choices=WAYS, help="time one form of the step")
    words = sys.argv[1:] if words is None else words
    options = read(made, words)
    options.batch = options.batch or (4 if options.device == "cpu" else 8)
    if options.way:
        print(json.dumps(training(options.way, options)))
        return 0
    found = {}
    for way in WAYS:
        progress(f"training step, {way}")
        if options.quick:  # a process takes seconds to start
            found[way] = training(way, options)
            continue
        command = [sys.executable, __file__, *words, "--way", way]
        output = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ).stdout
        found[way] = json.loads(output.splitlines()[-1])
    fused = found["fused"]
    values = {
        "plain": ("training step: plain form / fused form", found["plain"]["seconds"] / fused["seconds"]),
        "straight": ("training step: as the paper writes it / fused", found["straight"]["seconds"] / fused["seconds"]),
        "gpt2": ("training step: fused / the same GPT-2 without gate", fused["seconds"] / found["gpt2"]["seconds"]),
        "memory": ("peak memory: fused / as the paper writes it", fused["peak_mb"] / found["straight"]["peak_mb"]),
        "generation": ("generation: 60 texts one at a time / in a batch with a cache", generation(options)),
    }
    bounds = CPU if options.device == "cpu" else CUDA
    rows = [Row(what, value, *bounds.get(name, (None, None))) for name, (what, value) in values.items()]
    gap = max(abs(found[way]["loss"] / fused["loss"] - 1) for way in ("plain", "straight"))
    return report([*rows, Row("training step: largest relative difference of the losses", gap, most=1e-3)], options)


if __name__ == "__main__":
    sys.exit(main())

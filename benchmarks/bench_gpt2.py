"""Our GPT-2 stack beside Hugging Face's: the same weights and batches through both.

    python benchmarks/bench_gpt2.py [--rounds 5] [--device cuda] [--quick]

Compared are forward and backward of the stack (8 rows of 256 positions), and one cached decode step of 60 rows at
position 128. Exit code 1 where ours is slower by more than a tenth, or where the hidden states differ.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from transformers import DynamicCache, GPT2Config, GPT2Model
from turns import Row, best, parser, read, report

from lit_ctg.network.gpt2 import GPT2Backbone

SIZES = {"small": {"dim": 192, "layers": 4, "heads": 6}, "paper": {"dim": 384, "layers": 6, "heads": 6}}
LEAST, TOLERANCE = 1 / 1.1, 1e-4


def stacks(sizes: dict[str, int], length: int, dropout: float, device: str) -> tuple[GPT2Backbone, GPT2Model]:
    """Return our stack and theirs, with one set of weights."""
    ours = GPT2Backbone(**sizes, context=length, dropout=dropout, attention_dropout=0.0)
    theirs = GPT2Model(
        GPT2Config(vocab_size=8, bos_token_id=0, eos_token_id=0, **ours.sizes(), attn_implementation="sdpa")
    )
    theirs.load_state_dict({**ours.to_hugging_face(), "wte.weight": theirs.wte.weight.detach()})
    return ours.to(device), theirs.to(device)


def training(sizes: dict[str, int], rows: int, length: int, dropout: float, rounds: int, device: str) -> float:
    """Return theirs divided by ours, forward and backward."""
    ours, theirs = stacks(sizes, length, dropout, device)
    embedded = torch.randn(rows, length, ours.dim, device=device)

    def step(stack: torch.nn.Module) -> None:
        stack.zero_grad(set_to_none=True)
        stack.train()
        hidden = stack(embedded) if stack is ours else stack(inputs_embeds=embedded, use_cache=False).last_hidden_state
        hidden.square().sum().backward()

    seconds = best({"ours": lambda: step(ours), "theirs": lambda: step(theirs)}, rounds, device)
    return seconds["theirs"] / seconds["ours"]


@torch.inference_mode()
def decoding(sizes: dict[str, int], texts: int, place: int, rounds: int, device: str) -> tuple[float, float]:
    """Return theirs divided by ours for one decode step, and the largest difference of a hidden state."""
    ours, theirs = (stack.eval() for stack in stacks(sizes, place + 1, 0.0, device))
    embedded = torch.randn(texts, place + 1, ours.dim, device=device)
    cache = None
    for number in range(place):
        _, cache = ours.step(embedded[:, number], cache)
    filled = theirs(inputs_embeds=embedded[:, :place], use_cache=True).past_key_values
    pairs = [(layer.keys, layer.values) for layer in filled.layers]
    hidden = {}

    def run_ours() -> None:
        hidden["ours"] = ours.step(embedded[:, place], cache)[0]

    def run_theirs() -> None:
        grown = DynamicCache()  # theirs grows in place: each step begins with a new one over the same tensors
        for number, (keys, values) in enumerate(pairs):
            grown.update(keys, values, number)
        last = theirs(inputs_embeds=embedded[:, place:], past_key_values=grown, use_cache=True).last_hidden_state
        hidden["theirs"] = last[:, 0]

    seconds = best({"ours": run_ours, "theirs": run_theirs}, 2 * rounds, device)
    return seconds["theirs"] / seconds["ours"], float((hidden["ours"] - hidden["theirs"]).abs().max())


def main(words: Sequence[str] | None = None) -> int:
    """Print the ratios; return the exit code."""
    options = read(parser(__doc__), words)
    sizes = {"quick": {"dim": 8, "layers": 1, "heads": 2}} if options.quick else SIZES
    rows, length, texts, place = (1, 8, 2, 4) if options.quick else (8, 256, 60, 128)
    found = []
    for name, shape in sizes.items():
        for dropout in (0.1, 0.0):
            ratio = training(shape, rows, length, dropout, options.rounds, options.device)
            found.append(Row(f"{name}, training step, dropout {dropout:g}: Hugging Face / ours", ratio, least=LEAST))
        ratio, change = decoding(shape, texts, place, options.rounds, options.device)
        found.append(Row(f"{name}, decode step: Hugging Face / ours", ratio, least=LEAST))
        found.append(Row(f"{name}, largest difference of a hidden state", change, most=TOLERANCE))
    return report(found, options)


if __name__ == "__main__":
    sys.exit(main())

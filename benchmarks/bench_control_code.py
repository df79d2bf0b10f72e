"""Control codes: what a code costs a training step, and what the fast form saves.

    python benchmarks/bench_control_code.py [--rounds 3] [--device cuda] [--quick]

Batches of 16 x 256 through 8 layers of hidden width 512, vocabulary 10,000 (sec. 4). Both arms are compared with the
network without codes, the neuron arm also with its plain form on [x; c] (``fast=false``), and a GRU arm with a loop
over GRUCell.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from turns import Row, best, parser, read, report

from lit_ctg.data.tokenizer import WordTokenizer
from lit_ctg.papers.control_code import CodeGRUBackbone, CodeTransformerBackbone, ControlCodeModule

DIM, CODES = 200, 2


def model(injection: str, vocabulary: int, layers: int, width: int, fast: bool = True) -> ControlCodeModule:
    """Return a model of the published kind."""
    tokenizer = WordTokenizer(eol=None)
    tokenizer.train([" ".join(f"w{number}" for number in range(vocabulary - 1))])
    return ControlCodeModule(
        vocabulary=tokenizer,
        backbone=partial(CodeTransformerBackbone, dim=DIM, layers=layers, heads=2, feedforward_dim=width, dropout=0.2,
                         identical_layers=True),
        corpus="benchmark", codes=CODES, injection=injection, injection_layers=None, match_parameters=False,
        position="sinusoidal", code_start="normal", scale_words=True, init_range=0.1, embedding_dropout=0.2,
        optimizer="sgd", optimizers={"sgd": {"learning_rate": 5.0, "gamma": 0.95}}, seed=0, fast=fast,
    )  # fmt: skip


def batch_of(vocabulary: int, rows: int, length: int, device: str) -> dict[str, Tensor]:
    """Return a batch of random tokens."""
    ids = torch.randint(1, vocabulary, (rows, length + 1))
    mask = torch.ones(rows, length, dtype=torch.bool)
    batch = {"input_ids_BT": ids[:, :-1], "target_ids_BT": ids[:, 1:], "mask_input_BT": mask, "mask_target_BT": mask}
    batch["control_code_B"] = torch.arange(rows) % CODES
    return {name: values.to(device) for name, values in batch.items()}


def step(module: ControlCodeModule, batch: dict[str, Tensor]) -> Callable[[], None]:
    """Return a training step: loss, gradients, clipping, update."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    module.train()

    def work() -> None:
        optimizer.zero_grad()
        module.losses(batch)["loss"].backward()
        nn.utils.clip_grad_norm_(module.parameters(), 0.5)
        optimizer.step()

    return work


def gru(dim: int, rows: int, length: int, rounds: int, device: str) -> float:
    """Return how many times as long as our three GRU layers with code a loop over GRUCell takes."""
    layers = CodeGRUBackbone(dim=dim, layers=3, dropout=0.0, code_dim=dim, code_layers=(1, 2, 3)).to(device)
    cells = nn.ModuleList([nn.GRUCell(2 * dim, dim) for _ in range(3)]).to(device)
    x_BTD, code_BC = torch.randn(rows, length, dim, device=device), torch.randn(rows, dim, device=device)

    def loop() -> None:
        states, last = [torch.zeros_like(code_BC)] * 3, []
        for x_BD in x_BTD.unbind(1):
            for number, cell in enumerate(cells):
                states[number] = x_BD = cell(torch.cat((x_BD, code_BC), dim=1), states[number])
            last.append(x_BD)
        torch.stack(last, dim=1).square().mean().backward()

    seconds = best({"ours": lambda: layers(x_BTD, code_BC).square().mean().backward(), "loop": loop}, rounds, device)
    return seconds["loop"] / seconds["ours"]


def main(words: Sequence[str] | None = None) -> int:
    """Print the ratios; return the exit code."""
    options = read(parser(__doc__), words)
    rows, length, vocabulary, layers, width, dim = (
        (2, 8, 50, 1, 16, 8) if options.quick else (16, 256, 10_000, 8, 512, 256)
    )
    batch = batch_of(vocabulary, rows, length, options.device)
    ways = {name: model(name, vocabulary, layers, width) for name in ("none", "neuron", "prompt")}
    ways["plain"] = model("neuron", vocabulary, layers, width, fast=False)
    seconds = best(
        {name: step(module.to(options.device), batch) for name, module in ways.items()}, options.rounds, options.device
    )
    return report(
        [
            Row("training step, codes at neurons: plain form / fast form", seconds["plain"] / seconds["neuron"], 1.0),
            Row("training step, codes at neurons / no codes", seconds["neuron"] / seconds["none"]),
            Row("training step, codes in prompt / no codes", seconds["prompt"] / seconds["none"]),
            Row("GRU layers with codes: loop over GRUCell / ours",
                gru(dim, rows, length, options.rounds, options.device), 1.0),
        ],
        options,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())

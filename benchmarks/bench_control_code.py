"""Control codes: what the code costs a training step, and the layers against torch's own, as ratios in one run.

    python benchmarks/bench_control_code.py [--rounds 7] [--threads 1] [--layers 8] [--vocabulary 10000] [--quick]

Compared on batches of 16 x 256 (sec. 4): the neuron arm and its plain form on [x; c] (``fast=false``) with the same
network without codes (both arms of one width), a step at size=paper with what it was before, the GRU arm with a loop
over GRUCell, the layers with torch.nn.TransformerEncoder. The arms take turns, and the ratio is that of the medians of
processor time, so that other work on the machine counts less. Prints also steps and models an hour, and from them what
the 160 models of sec. 4.3 would take on this machine.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lit_ctg.data.tokenizer import WordTokenizer
from lit_ctg.network.packing import Packing
from lit_ctg.papers.control_code import CodeGRUBackbone, CodeTransformerBackbone, ControlCodeModule
from lit_ctg.papers.control_code.model import CodeTransformerLayer
from lit_ctg.run.precision import has_bfloat16

ROWS, LENGTH, DIM, CODES = 16, 256, 200, 2
OPTIMIZERS = {"sgd": {"learning_rate": 5.0, "gamma": 0.95}}
# tokens of a training split of each corpus (docs/data.md); epochs, shapes and arms of sec. 4.3
TOKENS = {"books2": 111_000, "books3": 271_000, "books6": 773_000, "reviews": 1_170_000, "scripts": 114_000}
EPOCHS, SHAPES, ARMS = 50, 16, 2
# relative, of a first step in bfloat16 against float32; both draw other dropout
LOSS_TOLERANCE = 0.02


def medians(steps: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Return the median seconds of processor time of each step; they take turns."""
    clock = time.perf_counter if torch.cuda.is_available() else time.process_time
    spent: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds + 1):
        for name, step in steps.items():
            began = clock()
            step()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if number:  # the first round warms up
                spent[name].append(clock() - began)
    return {name: statistics.median(seconds) for name, seconds in spent.items()}


def module_of(injection: str, vocabulary: int, fast: bool = True, **sizes: Any) -> ControlCodeModule:
    """Return a model of the published sizes."""
    tokenizer = WordTokenizer(eol=None)
    tokenizer.train([" ".join(f"w{number}" for number in range(vocabulary - 1))])
    shape = {"dim": DIM, "layers": 2, "heads": 2, "feedforward_dim": 128, "dropout": 0.2, "identical_layers": True}
    return ControlCodeModule(
        vocabulary=tokenizer,
        backbone=partial(CodeTransformerBackbone, **{**shape, **sizes}),
        corpus="benchmark",
        codes=CODES,
        injection=injection,
        injection_layers=None,
        match_parameters=False,
        position="sinusoidal",
        code_start="normal",
        scale_words=True,
        init_range=0.1,
        embedding_dropout=0.2,
        optimizer="sgd",
        optimizers=OPTIMIZERS,
        seed=0,
        fast=fast,
    )


def batch_of(vocabulary: int) -> dict[str, Tensor]:
    """Return a batch of random tokens."""
    ids = torch.randint(1, vocabulary, (ROWS, LENGTH + 1))
    mask = torch.ones(ROWS, LENGTH, dtype=torch.bool)
    return {
        "input_ids_BT": ids[:, :-1],
        "target_ids_BT": ids[:, 1:],
        "mask_input_BT": mask,
        "mask_target_BT": mask,
        "control_code_B": torch.arange(ROWS) % CODES,
    }


class RowLoss(torch.autograd.Function):
    """The loss as it was before ``fast.cross_entropy``: sequence by sequence, scores as [T, V], biases apart."""

    @staticmethod
    def forward(ctx: Any, hidden_BTD: Tensor, weight_VD: Tensor, bias_BV: Tensor, target_BT: Tensor) -> Tensor:
        device = hidden_BTD.device.type
        product = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight_VD.dtype
        share = 1.0 / target_BT.numel()
        with torch.autocast(device, enabled=False):
            hidden, weight, bias = (part.to(product) for part in (hidden_BTD, weight_VD, bias_BV))
            loss = torch.zeros((), device=hidden.device)
            grad_hidden, grad_bias = torch.empty_like(hidden_BTD), torch.empty_like(bias, dtype=torch.float32)
            grad_weight = torch.zeros_like(weight_VD)
            for row, target_T in enumerate(target_BT):
                states_TD = hidden[row]
                mass_TV = torch.addmm(bias[row], states_TD, weight.T)
                largest_T1 = mass_TV.amax(1, keepdim=True)
                own_T = mass_TV.gather(1, target_T.unsqueeze(1)).sub_(largest_T1).squeeze(1).float()
                mass_TV.sub_(largest_T1).exp_()
                sum_T = mass_TV.sum(1, dtype=torch.float32)
                loss += ((sum_T.log() - own_T) * share).sum()
                ratio_T1 = (share / sum_T).unsqueeze(1)
                grad_hidden[row] = (mass_TV @ weight).float() * ratio_T1 - weight[target_T].float() * share
                grad_weight += mass_TV.T @ (states_TD * ratio_T1).to(product)
                grad_weight.index_add_(0, target_T, -(states_TD * share).float())
                grad_bias[row] = (mass_TV.T @ ratio_T1.to(product)).squeeze(1)
                grad_bias[row].index_add_(0, target_T, torch.full_like(sum_T, -share))
        ctx.save_for_backward(grad_hidden, grad_weight, grad_bias)
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of hidden states, weight and biases."""
        return *(grad * value for value in ctx.saved_tensors), None


def torch_attention(layer: CodeTransformerLayer, x_ND: Tensor, packing: Packing, forbidden: Any, p: float) -> Tensor:
    """The attention of mixed precision as it was before: torch's own, which draws its dropout element by element."""
    own = layer.self_attn
    projected = F.linear(x_ND, own.in_proj_weight, own.in_proj_bias).unflatten(0, packing.shape)
    query, key, value = projected.unflatten(2, (3, own.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
    context = F.scaled_dot_product_attention(query, key, value, dropout_p=p, is_causal=True)
    return own.out_proj(context.transpose(1, 2).flatten(2).flatten(0, 1))


def as_before(module: ControlCodeModule, mixed: bool) -> Callable[[dict[str, Tensor]], Tensor]:
    """Return the loss of a neuron arm as it was computed before (size=paper: float32)."""
    if mixed:
        for layer in module.backbone.layers:
            layer._attend_all = partial(torch_attention, layer)

    def loss(batch: dict[str, Tensor]) -> Tensor:
        state = module.start(ROWS, module.weights(batch))
        hidden_BTD = module.hidden(batch["input_ids_BT"], state)
        own, of_code = module.output.weight.split([DIM, module.output.code_dim], dim=1)
        return RowLoss.apply(hidden_BTD, own, F.linear(state.code_BC, of_code, module.output.bias).float(),
                             batch["target_ids_BT"])  # fmt: skip

    return loss


def training_step(
    module: ControlCodeModule,
    batch: dict[str, Tensor],
    loss: Callable[..., Tensor] | None = None,
    mixed: bool = False,
) -> Callable[[], float]:
    """Return a training step: loss, gradients, clipping, update; ``mixed`` is bfloat16 by autocast."""
    chosen = torch.optim.SGD(module.parameters(), lr=0.01)
    module.train()

    def step() -> float:
        chosen.zero_grad()
        with torch.autocast(batch["input_ids_BT"].device.type, torch.bfloat16, enabled=mixed):
            value = module.losses(batch)["loss"] if loss is None else loss(batch)
        value.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 0.5)
        chosen.step()
        return float(value.detach())

    return step


def code_cost(layers: int, width: int, vocabulary: int, rounds: int) -> dict[str, float]:
    """Compare the arms of one width; return seconds of a step."""
    batch = batch_of(vocabulary)
    make = partial(module_of, vocabulary=vocabulary, layers=layers, feedforward_dim=width)
    steps = {name: training_step(make(name), batch) for name in ("none", "neuron", "prompt")}
    steps["concatenated"] = training_step(make("neuron", fast=False), batch)
    seconds = medians(steps, rounds)
    print(f"training step, {layers} layers, hidden {width}, vocabulary {vocabulary}: seconds, and times no codes")
    for name, value in seconds.items():
        print(f"  {name:13s}{value:8.3f}  {value / seconds['none']:.3f}")
    return seconds


def step_before_and_now(layers: int, width: int, vocabulary: int, rounds: int) -> float:
    """Compare a step of the neuron arm at size=paper with what it was; return the seconds of one now.

    Without units for bfloat16 both have float32 products (``lit_ctg/run/precision.py``).
    """
    batch = batch_of(vocabulary)
    make = partial(module_of, "neuron", vocabulary=vocabulary, layers=layers, feedforward_dim=width)
    old, old_mixed, now = make(), make(), make()
    mixed = batch["input_ids_BT"].device.type != "cpu" or has_bfloat16()
    latest = f"now ({'bfloat16' if mixed else 'float32'})"
    steps = {"before (float32)": training_step(old, batch, as_before(old, mixed=False))}
    if mixed:
        steps["before, in bfloat16"] = training_step(old_mixed, batch, as_before(old_mixed, mixed=True), mixed=True)
    steps[latest] = training_step(now, batch, mixed=mixed)
    losses = {}
    for name, step in steps.items():
        torch.manual_seed(0)
        losses[name] = step()
    seconds = medians(steps, rounds)
    print(f"step of the neuron arm at size=paper, {layers} layers, hidden {width}, vocabulary {vocabulary}:")
    print("seconds, times as long as now, and loss of the first step")
    for name, value in seconds.items():
        print(f"  {name:20s}{value:8.3f}  {value / seconds[latest]:.2f}  {losses[name]:.4f}")
    first, last = losses["before (float32)"], losses[latest]
    if abs(last / first - 1.0) > LOSS_TOLERANCE:
        raise SystemExit(f"the losses differ by more than {LOSS_TOLERANCE:.1%}: {first} and {last}")
    return seconds[latest]


def gru_loop(dim: int, rounds: int) -> None:
    """Compare three GRU layers with code with a loop over GRUCell, forward and backward."""
    layers = CodeGRUBackbone(dim=dim, layers=3, dropout=0.0, code_dim=dim, code_layers=(1, 2, 3))
    cells = nn.ModuleList([nn.GRUCell(2 * dim, dim) for _ in range(3)])
    x_BTD, code_BC = torch.randn(ROWS, LENGTH, dim), torch.randn(ROWS, dim)

    def ours() -> None:
        layers(x_BTD, code_BC).square().mean().backward()

    def loop() -> None:
        states, last = [torch.zeros(ROWS, dim)] * 3, []
        for x_BD in x_BTD.unbind(1):
            for number, cell in enumerate(cells):
                states[number] = x_BD = cell(torch.cat((x_BD, code_BC), dim=1), states[number])
            last.append(x_BD)
        torch.stack(last, dim=1).square().mean().backward()

    large = torch.randn(1024, 1024)
    seconds = medians({"ours": ours, "loop": loop, "product": lambda: large @ large}, rounds)
    # multiplications of three layers, [x; c] and the state to three gates each, forward and twice that backward
    work = 2 * 3 * 3 * ROWS * LENGTH * (2 * dim + dim) * 3 * dim
    bound = seconds["loop"] / (work / (2 * 1024**3 / seconds["product"]))
    print(
        f"GRU neuron arm, hidden {dim}: a GRUCell loop takes {seconds['loop'] / seconds['ours']:.1f} times as long; "
        f"at the speed of one large matrix product it would take {bound:.1f} times as long"
    )


def encoder(layers: int, width: int, rounds: int) -> None:
    """Compare the layers without code with torch's encoder of the same weights, forward and backward."""
    sizes = {"dim": DIM, "heads": 2, "feedforward_dim": width, "dropout": 0.2, "identical_layers": True}
    ours = CodeTransformerBackbone(layers=layers, **sizes)
    coded = CodeTransformerBackbone(layers=layers, code_dim=DIM, code_layers=range(1, layers + 1), **sizes)
    layer = nn.TransformerEncoderLayer(DIM, 2, width, 0.2, batch_first=True)
    theirs = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    theirs.load_state_dict(ours.state_dict())
    x_BTD, code_BC = torch.randn(ROWS, LENGTH, DIM), torch.randn(ROWS, DIM)
    mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
    seconds = medians(
        {
            "torch": lambda: theirs(x_BTD, mask, is_causal=True).square().mean().backward(),
            "ours": lambda: ours(x_BTD, None).square().mean().backward(),
            "with code": lambda: coded(x_BTD, code_BC).square().mean().backward(),
        },
        rounds,
    )
    print(f"{layers} layers without embedding and output, hidden {width}: torch's encoder takes")
    for name in ("ours", "with code"):
        print(f"  {seconds['torch'] / seconds[name]:.2f} times as long as {name}")


def projection(seconds: float, layers: int, vocabulary: int) -> None:
    """Say how long the 160 models of sec. 4.3 take if every step of the grid cost this one."""
    steps = {name: -(-count // (ROWS * LENGTH)) * EPOCHS for name, count in TOKENS.items()}
    hours = sum(steps.values()) * SHAPES * ARMS * seconds / 3600
    print(
        f"grid: {1 / seconds:.2f} steps/s of {layers} layers and vocabulary {vocabulary}; one Scripts model takes "
        f"{steps['scripts'] * seconds / 3600:.2f} h, all 160 models ({sum(steps.values()) * SHAPES * ARMS} steps) "
        f"{hours:.0f} h one after the other"
    )


def main() -> None:
    """Run all comparisons."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--vocabulary", type=int, default=10_000)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    torch.set_default_device("cuda" if torch.cuda.is_available() else "cpu")
    if options.quick:
        options.rounds, options.layers, options.width, options.vocabulary = 1, 1, 32, 500
    encoder(options.layers, options.width, options.rounds)
    for dim in (64,) if options.quick else (256, 512):
        gru_loop(dim, options.rounds)
    code_cost(options.layers, options.width, options.vocabulary, options.rounds)
    seconds = step_before_and_now(options.layers, options.width, options.vocabulary, options.rounds)
    projection(seconds, options.layers, options.vocabulary)


if __name__ == "__main__":
    main()

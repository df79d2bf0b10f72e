"""The stack against torch's own encoder: outputs, gradients, initial values; cache against the full pass."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import nn

from lit_ctg.network.packing import Packing
from lit_ctg.network.transformer import SinusoidalPosition, TransformerBackbone

DIM, LAYERS, HEADS, WIDE = 16, 3, 4, 24


def backbone(causal: bool = False, norm: str = "post", activation: str = "relu", dropout: float = 0.0, **more):
    return TransformerBackbone(
        dim=DIM,
        layers=LAYERS,
        heads=HEADS,
        feedforward_dim=WIDE,
        dropout=dropout,
        norm_position=norm,
        causal=causal,
        activation=activation,
        **more,
    )


def torch_encoder(norm: str = "post", activation: str = "relu") -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(
        DIM, HEADS, WIDE, 0.0, activation=activation, batch_first=True, norm_first=norm == "pre"
    )
    final = nn.LayerNorm(DIM) if norm == "pre" else None
    encoder = nn.TransformerEncoder(layer, LAYERS, norm=final, enable_nested_tensor=False)
    for parameter in encoder.parameters():  # biases and norms too, lest an error hides behind zeros and ones
        nn.init.normal_(parameter, std=0.4)
    return encoder


def mask_of(lengths: list[int]) -> torch.Tensor:
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


BATCHES = {
    "two lengths": [5, 9, 9, 5, 9],
    "no padding": [6, 6, 6],
    "an empty sentence": [4, 0, 7, 4],
    "many lengths": [1, 2, 3, 4, 5, 6, 7],
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("lengths", BATCHES.values(), ids=BATCHES.keys())
@pytest.mark.parametrize(
    ("causal", "norm", "activation"),
    [*itertools.product([False, True], ["post", "pre"], ["relu"]), (True, "post", "gelu")],
)
def test_outputs_and_gradients_equal_those_of_torchs_encoder(causal, norm, activation, lengths, training):
    torch.manual_seed(0)
    reference = torch_encoder(norm, activation).double()
    ours = backbone(causal, norm, activation).double()
    ours.load_state_dict(reference.state_dict())
    reference.train(training)
    ours.train(training)
    valid = mask_of(lengths)
    kept = [row for row, length in enumerate(lengths) if length]  # torch gives NaN for an empty sentence
    hidden = torch.randn(*valid.shape, DIM, dtype=torch.float64)
    theirs_in, ours_in = hidden[kept].clone().requires_grad_(), hidden.clone().requires_grad_()
    mask = nn.Transformer.generate_square_subsequent_mask(valid.shape[1], dtype=torch.float64) if causal else None
    padding = torch.zeros(valid[kept].shape, dtype=torch.float64).masked_fill(~valid[kept], -torch.inf)
    expected = reference(theirs_in, mask=mask, src_key_padding_mask=padding, is_causal=causal)
    got = ours(ours_in, valid)
    assert torch.allclose(got[valid], expected[valid[kept]], atol=1e-10)
    assert not got[~valid].any()

    weight = torch.randn_like(hidden)
    (expected * weight[kept])[valid[kept]].sum().backward()
    (got * weight)[valid].sum().backward()
    assert torch.allclose(ours_in.grad[kept][valid[kept]], theirs_in.grad[valid[kept]], atol=1e-9)
    theirs = dict(reference.named_parameters())
    assert set(theirs) == {name for name, _ in ours.named_parameters()}
    for name, parameter in ours.named_parameters():
        assert torch.allclose(parameter.grad, theirs[name].grad, atol=1e-8), name


def test_padding_that_is_not_at_the_end_is_masked():
    torch.manual_seed(1)
    reference = torch_encoder().double().eval()
    ours = backbone().double()
    ours.load_state_dict(reference.state_dict())
    valid = mask_of([3, 6, 5]).flip(1)
    hidden = torch.randn(3, 6, DIM, dtype=torch.float64)
    expected = reference(hidden, src_key_padding_mask=~valid)
    assert torch.allclose(ours(hidden, valid)[valid], expected[valid], atol=1e-10)


def test_left_padding_in_a_causal_stack_gives_finite_gradients():
    torch.manual_seed(1)
    ours = backbone(causal=True)
    valid = mask_of([2, 5]).flip(1)
    out = ours(torch.randn(2, 5, DIM), valid)
    out[valid].square().sum().backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in ours.parameters())


@pytest.mark.parametrize("identical", [True, False])
def test_initial_values_are_torchs(identical):
    torch.manual_seed(3)
    layer = nn.TransformerEncoderLayer(DIM, HEADS, WIDE, 0.0, batch_first=True)
    copies = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
    torch.manual_seed(3)
    ours = backbone(identical_layers=identical)
    theirs = copies.state_dict()
    same = [torch.equal(value, theirs[name]) for name, value in ours.state_dict().items()]
    assert all(torch.equal(v, theirs[n]) for n, v in ours.state_dict().items() if n.startswith("layers.0."))
    assert all(same) == identical


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_cached_steps_equal_the_full_pass(norm, activation):
    torch.manual_seed(4)
    ours = backbone(True, norm, activation).double().eval()
    ours.load_state_dict(torch_encoder(norm).state_dict())
    hidden = torch.randn(5, 7, DIM, dtype=torch.float64)
    cache, columns = None, []
    for column in hidden.unbind(1):
        newest, cache = ours.step(column, cache)
        columns.append(newest)
    assert torch.allclose(torch.stack(columns, 1), ours(hidden), atol=1e-10)


def test_a_cache_is_not_changed_by_the_step_that_takes_it():
    ours = backbone(causal=True).eval()
    _, cache = ours.step(torch.randn(2, DIM), None)
    before = [(key.clone(), value.clone()) for key, value in cache]
    first, _ = ours.step(torch.ones(2, DIM), cache)
    second, _ = ours.step(torch.ones(2, DIM), cache)
    assert torch.equal(first, second)
    assert all(torch.equal(a, b) for old, new in zip(before, cache, strict=True) for a, b in zip(old, new, strict=True))


def test_a_stack_that_sees_the_future_has_no_cache():
    with pytest.raises(ValueError, match="not causal"):
        backbone(causal=False).step(torch.randn(2, DIM), None)


def test_a_causal_stack_does_not_see_the_future_and_the_other_does():
    torch.manual_seed(5)
    hidden = torch.randn(2, 6, DIM)
    changed = hidden.clone()
    changed[:, 4:] += 1.0
    for causal in (True, False):
        ours = backbone(causal)
        same = torch.allclose(ours(hidden)[:, :4], ours(changed)[:, :4], atol=1e-6)
        assert same == causal


def test_dropout_acts_in_training_only_and_keeps_the_expectation():
    torch.manual_seed(6)
    linear = backbone(dropout=0.3)
    hidden = torch.randn(4, 6, DIM)
    valid = mask_of([6, 6, 3, 3])
    linear.eval()
    assert torch.equal(linear(hidden, valid), linear(hidden, valid))
    linear.train()
    assert not torch.allclose(linear(hidden, valid), linear(hidden, valid))
    torch.manual_seed(7)
    first = linear(hidden, valid)
    torch.manual_seed(7)
    assert torch.equal(first, linear(hidden, valid))


def test_attention_gradient_with_dropout_matches_finite_differences():
    torch.manual_seed(8)
    ours = backbone(True, dropout=0.4).double().train()
    packing = Packing.of(mask_of([2, 4]))

    def run(hidden):
        torch.manual_seed(9)  # the same masks each time
        return ours.forward_packed(hidden, packing)

    assert torch.autograd.gradcheck(run, torch.randn(6, DIM, dtype=torch.float64, requires_grad=True), fast_mode=True)
    parameter = ours.layers[0].self_attn.in_proj_weight
    hidden = torch.randn(6, DIM, dtype=torch.float64)
    (gradient,) = torch.autograd.grad(run(hidden).square().sum(), parameter)
    direction = torch.randn_like(parameter)
    with torch.no_grad():
        high = run_with(parameter, direction, 1e-5, run, hidden)
        low = run_with(parameter, direction, -1e-5, run, hidden)
    assert float((gradient * direction).sum()) == pytest.approx((high - low) / 2e-5, rel=1e-5)


def run_with(parameter, direction, amount, run, hidden) -> float:
    parameter.add_(amount * direction)
    value = float(run(hidden).square().sum())
    parameter.sub_(amount * direction)
    return value


def test_sinusoids_restated():
    module = SinusoidalPosition(8, max_length=50)
    table = module(torch.arange(50))
    for position, column in itertools.product([0, 1, 7, 49], range(8)):
        angle = position / 10000 ** (2 * (column // 2) / 8)
        expected = math.sin(angle) if column % 2 == 0 else math.cos(angle)
        assert float(table[position, column]) == pytest.approx(expected, abs=1e-6)
    with pytest.raises(ValueError, match="odd"):
        SinusoidalPosition(3)
    with pytest.raises(IndexError):
        module(torch.tensor([50]))
    assert not module.state_dict()


def test_sizes_that_do_not_fit():
    with pytest.raises(ValueError, match="multiple"):
        TransformerBackbone(
            causal=True, dim=16, layers=1, heads=3, feedforward_dim=8, dropout=0.1, norm_position="post"
        )


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_mixed_precision_trains_and_stays_near_full_precision(norm):
    torch.manual_seed(10)
    ours = backbone(True, norm, dropout=0.1).train()
    hidden, valid = torch.randn(5, 9, DIM), mask_of(BATCHES["two lengths"])

    def gradient(mixed: bool) -> torch.Tensor:
        torch.manual_seed(11)
        ours.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed):
            out = ours(hidden, valid)
        out.float().square().sum().backward()
        return ours.layers[0].self_attn.in_proj_weight.grad.clone()

    full, mixed = gradient(False), gradient(True)
    assert float((full - mixed).norm() / full.norm()) < 0.1
    assert not torch.equal(full, mixed)


@pytest.mark.gpu
def test_the_same_on_an_accelerator():
    torch.manual_seed(0)
    ours = backbone(True)
    hidden, valid = torch.randn(5, 9, DIM), mask_of(BATCHES["two lengths"])
    on_cpu = ours(hidden, valid)
    device = torch.accelerator.current_accelerator()
    on_device = ours.to(device)(hidden.to(device), valid.to(device))
    assert torch.allclose(on_cpu, on_device.cpu(), atol=1e-5)

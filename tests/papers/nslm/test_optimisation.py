"""The rate by epoch, and clipping with sparse gradients."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lit_ctg.papers.nslm.optimisation import clip_apart, clip_by_norm, sgd_with_decay


def test_the_rate_is_constant_and_then_falls() -> None:
    weight = nn.Parameter(torch.zeros(1))
    made = sgd_with_decay([weight], learning_rate=1.0, rate_decay=1 / 1.2, constant_epochs=6)
    rates = []
    for _ in range(9):
        rates.append(made["optimizer"].param_groups[0]["lr"])
        made["optimizer"].step()
        made["lr_scheduler"].step()
    assert rates == pytest.approx([1.0] * 6 + [1.2**-1, 1.2**-2, 1.2**-3])


def gradients(sparse: bool) -> list[nn.Parameter]:
    torch.manual_seed(0)
    embedding, linear = nn.Embedding(6, 3, sparse=sparse), nn.Linear(3, 2)
    linear(embedding(torch.tensor([1, 4, 1]))).square().sum().backward()
    return [*embedding.parameters(), *linear.parameters()]


@pytest.mark.parametrize("largest", [0.1, 1e6])
def test_equals_torch_on_dense_gradients(largest: float) -> None:
    ours, theirs = gradients(sparse=True), gradients(sparse=False)
    clip_by_norm(ours, largest)
    nn.utils.clip_grad_norm_(theirs, largest)
    for a, b in zip(ours, theirs, strict=True):
        assert a.grad is not None and b.grad is not None
        torch.testing.assert_close(a.grad.to_dense() if a.grad.is_sparse else a.grad, b.grad, rtol=1e-4, atol=1e-6)


def test_parts_are_clipped_apart() -> None:
    whole = nn.ModuleDict({name: nn.Linear(2, 1, bias=False) for name in ("rest", "wild", "calm")})
    for name, size in (("rest", 30.0), ("wild", 4000.0), ("calm", 0.3)):
        whole[name].weight.grad = torch.tensor([[0.6, 0.8]]) * size
    clip_apart(whole, [whole["wild"], whole["calm"]], 5.0)
    norms = {name: float(part.weight.grad.norm()) for name, part in whole.items()}
    assert norms == pytest.approx({"rest": 5.0, "wild": 5.0, "calm": 0.3}, rel=1e-5)


def test_nothing_to_clip() -> None:
    parameter = nn.Parameter(torch.zeros(1))
    clip_by_norm([parameter], 1.0)
    assert parameter.grad is None

"""Windows and the idea loss against the dense multi-hot target."""

from __future__ import annotations

import pytest
import torch

from lit_ctg.papers.idea_gate.window import distinct, future_window, idea_loss


@pytest.mark.parametrize("start", [1, 2])
@pytest.mark.parametrize("size", [1, 3, 9])
def test_window_holds_the_tokens_to_come(size, start):
    text = torch.arange(100, 107).repeat(2, 1)  # x_0 .. x_6; targets are x_1 .. x_6
    window = future_window(text[:, 1:], size=size, start=start)
    for t in range(6):
        expected = [100 + t + start + k if t + start + k <= 6 else -1 for k in range(size)]
        assert window[1, t].tolist() == expected


def test_masked_targets_are_in_no_window():
    target = torch.tensor([[1, 2, 3, 4]])
    window = future_window(target, torch.tensor([[True, True, False, False]]), size=3, start=1)
    assert window[0, 0].tolist() == [1, 2, -1]


def test_distinct_drops_repetitions_and_stopwords():
    stop = torch.zeros(10, dtype=torch.bool)
    stop[4] = True
    kept = distinct(torch.tensor([[5, 4, 5, -1, 0, 4, 5]]), stop)
    assert sorted(kept[0].tolist()) == [-1, -1, -1, -1, -1, 0, 5]


def dense(logits: torch.Tensor, window: torch.Tensor, weight: float, stop: torch.Tensor | None) -> torch.Tensor:
    """Sec. 3.3 as written: a multi-hot target, weighted binary cross-entropy, stopwords zeroed."""
    hot = torch.zeros_like(logits)
    for place in torch.cartesian_prod(*map(torch.arange, window.shape)):
        token = window[tuple(place)]
        if token >= 0:
            hot[(*place[:-1], token)] = 1.0
    p = torch.sigmoid(logits)
    loss = -(weight * hot * p.log() + (1 - hot) * (1 - p).log())
    if stop is not None:
        loss = loss * ~stop
    return loss.sum(-1).mean()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_idea_loss_equals_the_dense_form(masked, dtype):
    torch.manual_seed(2)
    logits = (torch.randn(2, 5, 30, dtype=dtype) * 3).requires_grad_()
    window = torch.randint(-1, 30, (2, 5, 12))
    window[0, 0] = 7  # one token, twelve times
    window[0, 1] = -1
    stop = (torch.arange(30) % 6 == 0) if masked else None
    exact = logits.detach().double().requires_grad_()
    expected = dense(exact, window, 5.0, stop)
    got = idea_loss(logits, window, positive_weight=5.0, stopword_mask=stop)
    assert got.item() == pytest.approx(expected.item(), rel=1e-6)
    (gradient,) = torch.autograd.grad(got, logits)
    (wanted,) = torch.autograd.grad(expected, exact)
    assert torch.allclose(gradient.double(), wanted, rtol=2e-6, atol=1e-8)


def test_duplicates_count_once():
    logits = torch.randn(1, 1, 9)
    once = idea_loss(logits, torch.tensor([[[3, -1, -1]]]), positive_weight=5.0)
    thrice = idea_loss(logits, torch.tensor([[[3, 3, 3]]]), positive_weight=5.0)
    assert torch.equal(once, thrice)

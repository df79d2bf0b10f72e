"""Eq. 5-8 against float64 loops."""

from __future__ import annotations

import math

import pytest
import torch

from lit_ctg.papers.semantic_fusion.losses import auxiliary_loss, token_loss, uniformizer_loss

POSITIVE, NEGATIVE = (2, 5, 7), (1, 3, 4, 8)


def softmax(row: list[float]) -> list[float]:
    top = max(row)
    weights = [math.exp(x - top) for x in row]
    return [w / sum(weights) for w in weights]


@pytest.fixture
def logits() -> torch.Tensor:
    torch.manual_seed(0)
    return 3 * torch.randn(40, 10, dtype=torch.float64)


@pytest.mark.parametrize("smoothing", [0.0, 0.02, 0.3])
def test_token_loss_is_equation_6(logits, smoothing):
    targets = torch.randint(0, 10, (40,))
    total = 0.0
    for row, target in zip(logits.tolist(), targets.tolist(), strict=True):
        p = softmax(row)
        wanted = [(1 - smoothing) * (v == target) + smoothing / 10 for v in range(10)]
        total -= sum(w * math.log(q) for w, q in zip(wanted, p, strict=True))
    assert float(token_loss(logits, targets, label_smoothing=smoothing)) == pytest.approx(total / 40, rel=1e-12)


def test_auxiliary_loss_is_equation_7(logits):
    features = torch.rand(40, 10, dtype=torch.float64)
    total = 0.0
    for row, wanted in zip(logits.tolist(), features.tolist(), strict=True):
        for z, y in zip(row, wanted, strict=True):
            p = 1 / (1 + math.exp(-z))
            total -= y * math.log(p) + (1 - y) * math.log(1 - p)
    assert float(auxiliary_loss(logits, features)) == pytest.approx(total / 400, rel=1e-9)


def slow_uniformizer(logits: list[list[float]], targets: list[int]) -> float:
    """Mean over positions of each class, then over the classes that occur."""
    means = []
    for words in (POSITIVE, NEGATIVE):
        divergences = []
        for row, target in zip(logits, targets, strict=True):
            if target in words:
                p = softmax([row[word] for word in words])
                divergences.append(sum(q * math.log(q * len(words)) for q in p))
        if divergences:
            means.append(sum(divergences) / len(divergences))
    return sum(means) / len(means) if means else 0.0


CLASSES = (torch.tensor(POSITIVE), torch.tensor(NEGATIVE))


@pytest.mark.parametrize(
    "allowed", [range(10), (0, 2, 5, 7, 9), (1, 6), (0, 6, 9)], ids=["both", "one class", "other class", "none"]
)
def test_uniformizer_is_equation_8(logits, allowed):
    torch.manual_seed(1)
    targets = torch.tensor(list(allowed))[torch.randint(0, len(allowed), (40,))]
    expected = slow_uniformizer(logits.tolist(), targets.tolist())
    assert float(uniformizer_loss(logits, targets, CLASSES)) == pytest.approx(expected, rel=1e-12, abs=1e-15)


def test_uniformizer_weighs_classes_not_positions():
    """One negative position counts as much as three positive ones."""
    logits = torch.zeros(4, 10, dtype=torch.float64)
    logits[3, 1] = 4.0
    targets = torch.tensor([2, 5, 7, 3])
    alone = uniformizer_loss(logits[3:], targets[3:], CLASSES)
    assert float(uniformizer_loss(logits, targets, CLASSES)) == pytest.approx(float(alone) / 2)


def test_uniformizer_is_zero_at_uniform_and_moves_only_the_class():
    logits = torch.zeros(2, 10, dtype=torch.float64)
    targets = torch.tensor([2, 1])
    assert float(uniformizer_loss(logits, targets, CLASSES)) == pytest.approx(0.0, abs=1e-15)
    free = torch.randn(2, 10, dtype=torch.float64, requires_grad=True)
    uniformizer_loss(free, targets, CLASSES).backward()
    assert set(free.grad[0].nonzero().flatten().tolist()) == set(POSITIVE)
    assert set(free.grad[1].nonzero().flatten().tolist()) == set(NEGATIVE)


def test_auxiliary_loss_teaches_the_prediction_not_the_target():
    predicted, target = torch.randn(3, 4, requires_grad=True), torch.rand(3, 4, requires_grad=True)
    auxiliary_loss(predicted, target).backward()
    assert predicted.grad.abs().sum() > 0
    assert target.grad is None

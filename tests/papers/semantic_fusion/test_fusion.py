"""Eq. 2-4 against float64 loops."""

from __future__ import annotations

import math

import pytest
import torch

from lit_ctg.papers.semantic_fusion.fusion import GatedFusion, auxiliary_head, fuse

DIM, FEATURES = 6, 22


def slow(module: GatedFusion, e: list[float], s: list[float]) -> list[float]:
    """h0 = e + u + g * u with u = W_s s, g = sigmoid(W_g [e ; s]), one coordinate at a time."""

    def affine(layer: torch.nn.Linear, x: list[float]) -> list[float]:
        rows = zip(layer.weight.tolist(), layer.bias.tolist(), strict=True)
        return [sum(w * v for w, v in zip(weights, x, strict=True)) + bias for weights, bias in rows]

    u = affine(module.project, s)
    if module.gate is None:
        return [a + b for a, b in zip(e, u, strict=True)]
    g = [1 / (1 + math.exp(-x)) for x in affine(module.gate, e + s)]
    return [a + b + c * b for a, b, c in zip(e, u, g, strict=True)]


@pytest.mark.parametrize("gate", [True, False])
def test_equals_the_equations(gate):
    torch.manual_seed(0)
    module = GatedFusion(DIM, FEATURES, gate).double()
    e, s = torch.randn(7, DIM, dtype=torch.float64), torch.rand(7, FEATURES, dtype=torch.float64)
    expected = [slow(module, row.tolist(), values.tolist()) for row, values in zip(e, s, strict=True)]
    assert torch.allclose(module(e, s), torch.tensor(expected, dtype=torch.float64), atol=1e-12)


def test_an_open_gate_doubles_the_features_and_a_closed_one_leaves_them():
    e, u = torch.randn(3, DIM), torch.randn(3, DIM)
    assert torch.allclose(fuse(e, u, torch.ones(3, DIM)), e + 2 * u)
    assert torch.allclose(fuse(e, u, torch.zeros(3, DIM)), e + u)
    assert torch.allclose(fuse(e, u, None), e + u)


@pytest.mark.parametrize(("features", "width"), [(22, 64), (40, 80)])
def test_auxiliary_head_has_the_papers_width(features, width):
    head = auxiliary_head(DIM, features)
    assert [tuple(p.shape) for p in head.parameters()] == [(width, DIM), (width,), (features, width), (features,)]
    assert isinstance(head[1], torch.nn.ReLU)

"""The recurrent arm against sec. 3.2 restated cell by cell; steps equal the whole."""

from __future__ import annotations

import pytest
import torch

from lit_ctg.papers.control_code.code_gru import CodeGRUBackbone


def stack(coded, code_dim=5) -> CodeGRUBackbone:
    torch.manual_seed(0)
    return CodeGRUBackbone(dim=6, layers=3, dropout=0.5, code_dim=code_dim, code_layers=coded).double().eval()


def cell(layer: torch.nn.GRU, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    """A gated recurrent unit, Cho et al. (2014) as torch has it."""
    from_x = (layer.weight_ih_l0 @ x + layer.bias_ih_l0).chunk(3)
    from_h = (layer.weight_hh_l0 @ h + layer.bias_hh_l0).chunk(3)
    reset, update = torch.sigmoid(from_x[0] + from_h[0]), torch.sigmoid(from_x[1] + from_h[1])
    return (1 - update) * torch.tanh(from_x[2] + reset * from_h[2]) + update * h


@pytest.mark.parametrize("coded", [{1, 2, 3}, {1}, set()], ids=["neuron", "prompt", "none"])
def test_it_is_the_equation(coded):
    backbone = stack(coded)
    x_BTD, code_BC = torch.randn(2, 4, 6).double(), torch.randn(2, 5).double()
    hidden_BTD = backbone(x_BTD, backbone.terms(code_BC))
    for row in range(2):
        states = [torch.zeros(6).double() for _ in range(3)]
        for place in range(4):
            below = x_BTD[row, place]
            for number in range(3):
                given = torch.cat((below, code_BC[row])) if number + 1 in coded else below
                below = states[number] = cell(backbone.layers[number], given, states[number])
            assert torch.allclose(hidden_BTD[row, place], below, atol=1e-12)


def test_steps_are_the_columns_of_forward():
    backbone = stack({1, 2, 3})
    x_BTD, terms, cache = torch.randn(2, 4, 6).double(), backbone.terms(torch.randn(2, 5).double()), None
    for column, expected_BD in enumerate(backbone(x_BTD, terms).unbind(1)):
        hidden_BD, cache = backbone.step(x_BTD[:, column], terms, cache)
        assert torch.allclose(hidden_BD, expected_BD, atol=1e-12)


def test_dropout_is_between_layers_in_training_only():
    backbone = stack(set())
    x_BTD = torch.randn(2, 4, 6).double()
    quiet = backbone(x_BTD, backbone.terms(None))
    assert torch.equal(quiet, backbone(x_BTD, backbone.terms(None)))
    assert not torch.allclose(quiet, backbone.train()(x_BTD, backbone.terms(None)))

"""x W_x + c W_c equals [x; c] W, and both forms load."""

from __future__ import annotations

import torch

from lit_ctg.papers.control_code.code_linear import CodeLinear, concatenated


def layer(code_dim: int = 3) -> CodeLinear:
    torch.manual_seed(0)
    return CodeLinear(4, 5, code_dim).double()


def test_it_is_the_layer_on_the_concatenation():
    linear, x_BTD, code_BC = layer(), torch.randn(2, 6, 4).double(), torch.randn(2, 3).double()
    weight_OX = concatenated(linear.state_dict())["weight"]
    assert weight_OX.shape == (5, 7)
    for row in range(2):
        for place in range(6):
            expected = weight_OX @ torch.cat((x_BTD[row, place], code_BC[row])) + linear.bias
            assert torch.allclose(linear(x_BTD, linear.term(code_BC))[row, place], expected, atol=1e-12)
    flat_NO = linear(x_BTD.flatten(0, 1), linear.term(code_BC))
    assert torch.equal(flat_NO.view(2, 6, 5), linear(x_BTD, linear.term(code_BC)))
    assert torch.allclose(linear(x_BTD[:, 0], linear.term(code_BC)), linear(x_BTD, linear.term(code_BC))[:, 0])


def test_gradients_are_those_of_the_concatenation():
    linear, x_BTD, code_BC = layer(), torch.randn(2, 6, 4).double(), torch.randn(2, 3).double().requires_grad_()
    weight = concatenated(linear.state_dict())["weight"].clone().requires_grad_()
    linear(x_BTD, linear.term(code_BC)).square().sum().backward()
    mine, code_BC.grad = code_BC.grad, None
    whole = torch.cat((x_BTD, code_BC.unsqueeze(1).expand(-1, 6, -1)), dim=2)
    (whole @ weight.T + linear.bias.detach()).square().sum().backward()
    assert torch.allclose(torch.cat((linear.weight.grad, linear.code_weight.grad), dim=1), weight.grad, atol=1e-10)
    assert torch.allclose(mine, code_BC.grad, atol=1e-10)


def test_both_forms_load():
    linear, other = layer(), CodeLinear(4, 5, 3).double()
    assert not torch.equal(other.weight, linear.weight)
    state = concatenated(linear.state_dict())
    other.load_state_dict(state)
    assert set(state) == {"weight", "bias"}
    assert state["weight"].shape == (5, 7)
    assert all(torch.equal(value, linear.state_dict()[name]) for name, value in other.state_dict().items())
    again = CodeLinear(4, 5, 3).double()
    again.load_state_dict(linear.state_dict())
    assert torch.equal(again.code_weight, linear.code_weight)


def test_without_code_it_is_a_linear_layer():
    linear = layer(code_dim=0)
    assert set(linear.state_dict()) == {"weight", "bias"}
    assert linear.term(None) is None
    x = torch.randn(2, 6, 4).double()
    assert torch.equal(linear(x, None), torch.nn.functional.linear(x, linear.weight, linear.bias))


def test_it_starts_as_the_layer_on_the_concatenation_does():
    torch.manual_seed(0)
    linear = CodeLinear(100, 300, 44)
    assert 0.98 / 12 < float(linear.weight.detach().abs().max()) <= 1 / 12
    assert 0.98 / 12 < float(linear.code_weight.detach().abs().max()) <= 1 / 12

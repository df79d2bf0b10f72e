"""Rates of the three optimisers, epoch by epoch and step by step."""

from __future__ import annotations

import pytest
import torch

from lit_ctg.errors import UserError
from lit_ctg.papers.control_code.optimisation import check_optimizer, optimizer

SETTINGS = {
    "sgd": {"learning_rate": 5.0, "gamma": 0.95},
    "adam": {"learning_rate": 1e-3},
    "adamw": {"learning_rate": 1e-3, "weight_decay": 0.01, "warmup_fraction": 0.1},
}


def made(name):
    layer = torch.nn.Linear(2, 3)
    return layer, optimizer(name, layer.parameters(), SETTINGS[name], total_steps=100)


def test_sgd_falls_by_a_factor_every_epoch():
    layer, configured = made("sgd")
    assert configured["lr_scheduler"]["interval"] == "epoch"
    before = layer.weight.detach().clone()
    layer(torch.ones(1, 2)).sum().backward()
    gradient = layer.weight.grad
    configured["optimizer"].step()
    assert torch.allclose(layer.weight.detach(), before - 5.0 * gradient)
    for _ in range(3):
        configured["lr_scheduler"]["scheduler"].step()
    assert configured["optimizer"].param_groups[0]["lr"] == pytest.approx(5.0 * 0.95**3)


def test_adam_has_a_constant_rate():
    configured = made("adam")[1]
    assert set(configured) == {"optimizer"}
    assert type(configured["optimizer"]) is torch.optim.Adam
    assert configured["optimizer"].param_groups[0]["lr"] == 1e-3


def test_adamw_warms_up_and_can_be_clipped():
    configured = made("adamw")[1]
    rate = configured["optimizer"].param_groups[0]["lr"]
    assert rate == pytest.approx(1e-4)  # first of ten steps of warm-up
    assert configured["lr_scheduler"]["interval"] == "step"
    assert [group["weight_decay"] for group in configured["optimizer"].param_groups] == [0.01, 0.0]
    assert not configured["optimizer"]._step_supports_amp_scaling


def test_unknown_optimizer():
    with pytest.raises(UserError, match="use one of sgd, adam, adamw; did you mean 'adam'"):
        check_optimizer("adamv", SETTINGS)
    with pytest.raises(UserError, match="use one of sgd"):
        check_optimizer("adam", {"sgd": SETTINGS["sgd"]})

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lit_ctg.errors import UserError
from lit_ctg.papers.semantic_fusion.semantic_mse import SemanticMSE, SemanticMSEConstant


@pytest.mark.parametrize("mask", ["target", "input"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_mse_against_the_loop(mask, dtype, make_batch):
    output, batch = make_batch(dtype=dtype)
    metric = SemanticMSE(mask=mask)
    metric.update_from(output, batch)
    errors = []
    for b, t in batch[f"mask_{mask}_BT"].nonzero().tolist():
        for guess, true in zip(output.extras["aux_BTF"][b, t], output.extras["aux_target_BTF"][b, t], strict=True):
            errors.append((float(guess) - float(true)) ** 2)
    result = metric.result()
    assert result.value == pytest.approx(math.fsum(errors) / len(errors), rel=1e-12)
    assert result.n == len(errors) // 4  # positions


def test_padding_is_never_read(make_batch):
    output, batch = make_batch()
    clean, spoiled = SemanticMSE(), SemanticMSE()
    clean.update_from(output, batch)
    padding = ~batch["mask_input_BT"]
    assert padding.any()
    output.extras["aux_BTF"][padding] = float("nan")
    spoiled.update_from(output, batch)
    assert spoiled.result() == clean.result()


def test_constant_is_the_mean_of_the_features_variances(make_batch):
    output, batch = make_batch(sentences=10)
    metric = SemanticMSEConstant(num_features=4)
    metric.update_from(output, batch)
    counted = output.extras["aux_target_BTF"].double().numpy()[batch["mask_input_BT"].numpy()]
    assert metric.result().value == pytest.approx(np.var(counted, axis=0).mean(), rel=1e-12)
    assert metric.result().n == len(counted)


def test_no_constant_guess_beats_it_and_the_mean_guess_meets_it(make_batch):
    output, batch = make_batch(sentences=10)
    constant = SemanticMSEConstant(num_features=4)
    constant.update_from(output, batch)
    target = output.extras["aux_target_BTF"].double()
    mean = target[batch["mask_input_BT"]].mean(0)

    def mse(guess):
        metric = SemanticMSE()
        metric.update(guess.expand_as(target), target, batch["mask_input_BT"])
        return metric.result().value

    assert mse(mean) == pytest.approx(constant.result().value, rel=1e-12)
    assert mse(mean + 0.01) > constant.result().value


def test_constant_features_have_error_zero_not_less():
    # for about half of these the two float64 sums leave something like -1e-17
    for hundredths in range(1, 100):
        metric = SemanticMSEConstant(num_features=1)
        metric.update(torch.full((50, 7, 1), hundredths / 100), torch.ones(50, 7, dtype=torch.bool))
        assert 0 <= metric.result().value < 1e-15


def test_a_model_without_auxiliary_head_is_one_clear_line(make_batch):
    output, batch = make_batch()
    output.extras = {}
    with pytest.raises(UserError, match="metric SemanticMSE: the model gives no 'aux_BTF'"):
        SemanticMSE().update_from(output, batch)
    with pytest.raises(UserError, match="metric SemanticMSEConstant: the model gives no 'aux_target_BTF'"):
        SemanticMSEConstant(num_features=4).update_from(output, batch)


def test_wrong_sizes_are_refused(make_batch):
    output, batch = make_batch()
    with pytest.raises(UserError, match="num_features is 22, but the auxiliary target has 4"):
        SemanticMSEConstant(num_features=22).update_from(output, batch)
    with pytest.raises(ValueError, match="do not fit"):
        SemanticMSE().update(torch.zeros(2, 3, 4), torch.zeros(2, 3, 5), torch.ones(2, 3, dtype=torch.bool))

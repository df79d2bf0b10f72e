from __future__ import annotations

import math

import pytest
import torch

from lit_ctg.core.divergence import Diverged, check_loss, check_metrics, check_weights


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_is_told_with_its_step(value: float) -> None:
    with pytest.raises(Diverged, match=rf"training loss is {value} at step 7: lower the model's learning_rate"):
        check_loss(torch.tensor(value), 7)
    check_loss(torch.tensor(3.4e38), 7)
    with pytest.raises(Diverged, match="training loss"):
        check_loss(torch.tensor([1.0, value]), 7)  # one of several is enough


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_weight_that_is_no_number_is_told_by_name(value: float) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    check_weights(module, 4)
    with torch.no_grad():
        module[1].weight[0, 1] = value
        module[1].bias[0] = value
    with pytest.raises(Diverged, match=r"weights 1\.weight and 1 more are not finite at step 4"):
        check_weights(module, 4)
    # a table that is given, such as a mask of -inf, is not what training led to
    module.requires_grad_(False)
    check_weights(module, 4)
    check_weights(torch.nn.ReLU(), 4)


def test_a_metric_that_is_no_number_is_told_unless_there_was_nothing_to_measure() -> None:
    metrics = {"val/perplexity": {"value": 3.0, "n": 9}, "val/precision": {"value": math.nan, "n": 0}}
    check_metrics(metrics, 5)
    for value in (math.nan, math.inf):
        metrics["val/perplexity"]["value"] = value
        with pytest.raises(Diverged, match=rf"val/perplexity is {value} at the end of training, step 5"):
            check_metrics(metrics, 5)

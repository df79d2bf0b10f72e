from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from lit_ctg.errors import UserError
from lit_ctg.papers.semantic_fusion.focus_ce import FocusCE

TOKENS = {"good": 1, "slightly": 4, "!": 7}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [3.0, 1e4])
def test_against_the_loop(dtype, scale, make_batch, counted_nlls):
    output, batch = make_batch(sentences=15, dtype=dtype, scale=scale)
    metric = FocusCE(tokens=list(TOKENS), token_ids=list(TOKENS.values()))
    metric.update_from(output, batch)
    pairs = counted_nlls(output, batch, "target")
    for token, result in metric.result().items():
        own = [value for target, value in pairs if target == TOKENS[token]]
        assert result.n == len(own) > 0
        assert result.value == pytest.approx(math.fsum(own) / len(own), rel=1e-12)
        assert float(metric.compute()[token]) == result.value
    assert list(metric.result()) == list(TOKENS)


def test_a_token_that_is_never_a_target_is_nan(make_batch):
    output, batch = make_batch(vocabulary=13)
    output.scores_BTV = torch.cat([output.scores_BTV, output.scores_BTV[..., :1]], dim=-1)  # id 13 never occurs
    metric = FocusCE(tokens=["good", "never"], token_ids=[1, 13])
    metric.update_from(output, batch)
    result = metric.result()
    assert math.isnan(result["never"].value) and result["never"].n == 0 and result["never"].ci95 is None
    assert math.isfinite(result["good"].value)


def test_an_infinite_token_does_not_spoil_the_others():
    scores = torch.zeros(1, 2, 3)
    scores[0, 0, 1] = float("-inf")
    metric = FocusCE(tokens=["a", "b"], token_ids=[1, 2])
    metric.update(scores, torch.tensor([[1, 2]]), torch.ones(1, 2, dtype=torch.bool))
    assert metric.result()["a"].value == math.inf
    assert metric.result()["b"].value == pytest.approx(math.log(3), rel=1e-12)


def test_masked_targets_do_not_count():
    metric = FocusCE(tokens=["a"], token_ids=[1])
    metric.update(torch.zeros(1, 3, 3), torch.ones(1, 3, dtype=torch.long), torch.tensor([[True, False, True]]))
    assert metric.result()["a"].n == 2


def test_bind_looks_the_tokens_up():
    vocabulary = SimpleNamespace(tokens=("x", "!", "good"), id=lambda token: {"!": 1, "good": 2}[token])
    metric = FocusCE(tokens=["good", "!"]).bind(SimpleNamespace(vocabulary=vocabulary))
    assert metric.token_ids == (2, 1)
    with pytest.raises(UserError, match="'goood' is not in the vocabulary; did you mean 'good'"):
        FocusCE(tokens=["goood"]).bind(SimpleNamespace(vocabulary=vocabulary))


def test_bad_arguments(make_batch):
    with pytest.raises(UserError, match="different tokens"):
        FocusCE(tokens=["a", "a"])
    with pytest.raises(UserError, match="different tokens"):
        FocusCE(tokens=[])
    with pytest.raises(UserError, match="2 tokens but 1 token_ids"):
        FocusCE(tokens=["a", "b"], token_ids=[1])
    with pytest.raises(UserError, match="token ids unknown"):
        FocusCE(tokens=["a"]).update_from(*make_batch())


def test_interval_rests_on_the_sentences_that_have_the_token(make_batch):
    output, batch = make_batch(sentences=40)
    has_it = (batch["target_ids_BT"] == 4).any(1)
    assert 2 < int(has_it.sum()) < 35
    everywhere, only_there = (FocusCE(tokens=["slightly"], token_ids=[4]) for _ in range(2))
    everywhere.update_from(output, batch)
    only_there.update(*(x[has_it] for x in (output.scores_BTV, batch["target_ids_BT"], batch["mask_target_BT"])))
    assert everywhere.result()["slightly"].ci95 == pytest.approx(only_there.result()["slightly"].ci95, rel=1e-9)

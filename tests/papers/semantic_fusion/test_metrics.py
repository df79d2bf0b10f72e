"""The paper's metrics against slow restatements."""

from __future__ import annotations

import math
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

from lit_ctg.core.model import LMOutput
from lit_ctg.errors import UserError
from lit_ctg.metric.perplexity import Perplexity
from lit_ctg.papers.semantic_fusion.metrics import (
    CLASSES,
    AfterHeldOutPerplexity,
    FocusCE,
    OodHitRate,
    PolarityConfusion,
    SeenOnlyPerplexity,
    SemanticMSE,
    SemanticMSEConstant,
)

HELD_OUT = (2, 5, 11)


@pytest.mark.parametrize("mask", ["target", "input"])
def test_against_the_formula_of_appendix_b(mask, make_batch, counted_nlls):
    output, batch = make_batch(sentences=15)
    metric = SeenOnlyPerplexity(held_out_ids=HELD_OUT, mask=mask)
    metric.update_from(output, batch)
    kept = [value for target, value in counted_nlls(output, batch, mask) if target not in HELD_OUT]
    everything = counted_nlls(output, batch, mask)
    assert 0 < len(kept) < len(everything)
    result = metric.result()
    assert result.value == pytest.approx(math.exp(math.fsum(kept) / len(kept)), rel=1e-12)
    assert result.n == len(kept)


def test_the_filter_looks_at_targets_alone(make_batch):
    # note (iii): the filter looks at targets alone, so the position after a held-out word counts
    output, batch = make_batch()
    metric = SeenOnlyPerplexity(held_out_ids=HELD_OUT)
    metric.update_from(output, batch)
    held = torch.isin(batch["target_ids_BT"], torch.tensor(HELD_OUT)) & batch["mask_target_BT"]
    assert metric.result().n == int(batch["mask_target_BT"].sum() - held.sum())
    plain, seen = Perplexity(), SeenOnlyPerplexity(held_out_ids=[])
    for metric in (plain, seen):
        metric.update_from(*make_batch())
    assert seen.result() == plain.result()


UNSEEN = (2, 5)


def test_only_positions_after_a_held_out_word_count(make_batch):
    output, batch = make_batch(sentences=12)
    metric = AfterHeldOutPerplexity(held_out_ids=UNSEEN)
    metric.update_from(output, batch)
    nats = []
    for row, ids in enumerate(batch["input_ids_BT"].tolist()):
        for t, target in enumerate(batch["target_ids_BT"][row].tolist()):
            if batch["mask_target_BT"][row, t] and target not in UNSEEN and set(ids[: t + 1]) & set(UNSEEN):
                nats.append(-float(output.scores_BTV[row, t].double().log_softmax(-1)[target]))
    assert 0 < len(nats) < int(batch["mask_target_BT"].sum())
    result = metric.result()
    assert result.n == len(nats)
    assert result.value == pytest.approx(math.exp(math.fsum(nats) / len(nats)), rel=1e-12)


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


def test_focus_tokens_are_counted_apart(make_batch):
    output, batch = make_batch(vocabulary=13)
    output.scores_BTV = torch.cat([output.scores_BTV, output.scores_BTV[..., :1]], dim=-1)  # id 13 never occurs
    metric = FocusCE(tokens=["good", "never"], token_ids=[1, 13])
    metric.update_from(output, batch)
    result = metric.result()
    assert math.isnan(result["never"].value) and result["never"].n == 0 and result["never"].ci95 is None
    assert math.isfinite(result["good"].value)
    scores = torch.zeros(1, 2, 3)
    scores[0, 0, 1] = float("-inf")
    metric = FocusCE(tokens=["a", "b"], token_ids=[1, 2])
    metric.update(scores, torch.tensor([[1, 2]]), torch.ones(1, 2, dtype=torch.bool))
    assert metric.result()["a"].value == math.inf
    assert metric.result()["b"].value == pytest.approx(math.log(3), rel=1e-12)
    vocabulary = SimpleNamespace(id=lambda token: {"!": 1, "good": 2}[token])
    assert FocusCE(tokens=["good", "!"]).bind(SimpleNamespace(vocabulary=vocabulary)).token_ids == (2, 1)
    with pytest.raises(ValueError, match="shorter"):
        FocusCE(tokens=["a", "b"], token_ids=[1])


@pytest.mark.parametrize("mask", ["target", "input"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_mse_against_the_loop(mask, dtype, make_batch):
    output, batch = make_batch(dtype=dtype)
    metric = SemanticMSE(mask=mask)
    metric.update_from(output, batch)
    errors = []
    for b, t in batch[f"mask_{mask}_BT"].nonzero().tolist():
        for guess, true in zip(output.aux_BTF[b, t], output.aux_target_BTF[b, t], strict=True):
            errors.append((float(guess) - float(true)) ** 2)
    result = metric.result()
    assert result.value == pytest.approx(math.fsum(errors) / len(errors), rel=1e-12)
    assert result.n == len(errors) // 4  # positions


def test_constant_is_the_mean_of_the_features_variances(make_batch):
    output, batch = make_batch(sentences=10)
    metric = SemanticMSEConstant(num_features=4)
    metric.update_from(output, batch)
    counted = output.aux_target_BTF.double().numpy()[batch["mask_input_BT"].numpy()]
    assert metric.result().value == pytest.approx(np.var(counted, axis=0).mean(), rel=1e-12)
    assert metric.result().n == len(counted)
    # for about half of these the two float64 sums leave something like -1e-17
    for hundredths in range(1, 100):
        metric = SemanticMSEConstant(num_features=1)
        metric.update(torch.full((50, 7, 1), hundredths / 100), torch.ones(50, 7, dtype=torch.bool))
        assert 0 <= metric.result().value < 1e-15
    output, batch = make_batch()
    with pytest.raises(UserError, match="num_features is 22, but the auxiliary target has 4"):
        SemanticMSEConstant(num_features=22).update_from(output, batch)
    with pytest.raises(ValueError, match="do not fit"):
        SemanticMSE().update(torch.zeros(2, 3, 4), torch.zeros(2, 3, 5), torch.ones(2, 3, dtype=torch.bool))
    output, batch = make_batch()
    output = LMOutput(output.scores_BTV, output.hidden_BTD)
    with pytest.raises(UserError, match="metric SemanticMSE: the model has no auxiliary head"):
        SemanticMSE().update_from(output, batch)
    with pytest.raises(UserError, match="metric SemanticMSEConstant: the model has no auxiliary head"):
        SemanticMSEConstant(num_features=4).update_from(output, batch)


def test_rows_are_intended_and_columns_realized():
    metric = PolarityConfusion()
    metric.update([0, 0, 1], [1, 1, 2])
    assert metric.compute().tolist() == [[0, 2, 0], [0, 0, 1], [0, 0, 0]]
    assert metric.result()["positive/negative"].value == 2
    gen = torch.Generator().manual_seed(0)
    intended, realized = torch.randint(0, 3, (2, 300), generator=gen)
    metric = PolarityConfusion()
    metric.update(intended[:120], realized[:120])
    metric.update(intended[120:].tolist(), realized[120:].tolist())
    expected = Counter(zip(intended.tolist(), realized.tolist(), strict=True))
    result = metric.result()
    for i, row in enumerate(CLASSES):
        for j, column in enumerate(CLASSES):
            entry = result[f"{row}/{column}"]
            assert entry.value == expected[i, j] == float(metric.compute()[i, j])
            assert entry.n == int((intended == i).sum())


def test_against_a_count():
    gen = torch.Generator().manual_seed(0)
    ids = torch.randint(-1, 10, (200,), generator=gen)
    metric = OodHitRate(held_out_ids=[2, 3, 7])
    metric.update(ids[:150])
    metric.update(ids[150:].tolist())
    hits = sum(1 for i in ids.tolist() if i in {2, 3, 7})
    interval = binomtest(hits, 200).proportion_ci(method="wilson")
    result = metric.result()
    assert result.value == hits / 200 and result.n == 200 and 0 < hits < 200
    assert result.ci95 == pytest.approx((interval.low, interval.high), rel=1e-12)


@pytest.mark.parametrize("metric", [SeenOnlyPerplexity, AfterHeldOutPerplexity, OodHitRate])
def test_held_out_ids_are_those_of_the_data_module_unless_given(metric):
    data = SimpleNamespace(held_out_ids=(3, 4))
    assert metric().bind(data).held_out_ids == (3, 4) and metric(held_out_ids=[9]).bind(data).held_out_ids == (9,)
    with pytest.raises(UserError, match="SimpleNamespace holds no tokens out"):
        metric().bind(SimpleNamespace())
    assert math.isnan(next(iter(metric(held_out_ids=[]).named().values())).value)

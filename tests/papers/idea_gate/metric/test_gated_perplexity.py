"""Cost with the gate and without it, against a slow loop."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from lit_ctg.metric.perplexity import Perplexity
from lit_ctg.papers.idea_gate.gated_perplexity import GatedPerplexity, cost


@pytest.fixture
def gated_batch(make_batch):
    """(output, batch) whose scores are token logits plus a gate."""

    def make(seed=0, with_gate=True):
        output, batch = make_batch(seed)
        token_BTV = output.scores_BTV
        gate_BTV = -torch.rand(token_BTV.shape, generator=torch.Generator().manual_seed(seed)) * 2
        if not with_gate:
            return SimpleNamespace(scores_BTV=token_BTV, extras={"token_logits": token_BTV, "idea_logits": None}), batch
        extras = {"token_logits": token_BTV, "idea_logits": torch.zeros_like(token_BTV)}
        return SimpleNamespace(scores_BTV=token_BTV + gate_BTV, extras=extras), batch

    return make


@pytest.mark.parametrize("scores", ["gated", "ungated"])
def test_equals_a_loop_over_positions(gated_batch, counted_nlls, scores) -> None:
    metric = GatedPerplexity(scores=scores)
    pairs = []
    for seed in range(3):
        output, batch = gated_batch(seed)
        metric.update_from(output, batch)
        raw = output.scores_BTV if scores == "gated" else output.extras["token_logits"]
        pairs += counted_nlls(SimpleNamespace(scores_BTV=raw), batch, "target")
    mean = math.fsum(nll for _, nll in pairs) / len(pairs)
    result = metric.result()
    assert result["loss"].value == pytest.approx(mean, rel=1e-12) and result["loss"].n == len(pairs)
    assert result["perplexity"].value == pytest.approx(math.exp(mean), rel=1e-12)
    low, high = result["loss"].ci95
    assert low < mean < high and result["perplexity"].ci95[0] == pytest.approx(math.exp(low))


def test_without_a_gate_both_are_the_ordinary_perplexity(gated_batch) -> None:
    ordinary = Perplexity()
    metrics = [GatedPerplexity(scores="gated"), GatedPerplexity(scores="ungated")]
    for metric in (ordinary, *metrics):
        metric.update_from(*gated_batch(1, with_gate=False))
    values = {metric.result()["perplexity"].value for metric in metrics}
    assert values == {ordinary.result().value}


def test_the_gate_is_left_out_only_where_asked(gated_batch) -> None:
    gated, ungated = GatedPerplexity(scores="gated"), GatedPerplexity(scores="ungated")
    output, batch = gated_batch(2)
    gated.update_from(output, batch)
    ungated.update_from(output, batch)
    assert gated.result()["loss"].value != ungated.result()["loss"].value


def test_a_batch_is_scored_once(gated_batch) -> None:
    output, batch = gated_batch(0)
    first = cost(output, batch, "gated")
    assert cost(output, batch, "gated") is first
    assert cost(output, batch, "ungated") is not first

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from lit_ctg.errors import UserError
from lit_ctg.metric.perplexity import Perplexity
from lit_ctg.papers.control_code.source_perplexity import SourcePerplexity

SOURCES = ("alice", "iliad", "unread")


def coded(make_batch, seed=0):
    output, batch = make_batch(seed=seed)
    return output, {**batch, "control_code_B": torch.arange(10) % 2}


def test_each_source_has_the_perplexity_of_its_own_rows(make_batch, nll):
    metric = SourcePerplexity().bind(SimpleNamespace(sources=SOURCES))
    costs: dict[int, list[float]] = {0: [], 1: []}
    for seed in (0, 1):
        output, batch = coded(make_batch, seed)
        metric.update_from(output, batch)
        for b, t in batch["mask_target_BT"].nonzero().tolist():
            cost = nll(output.scores_BTV[b, t], int(batch["target_ids_BT"][b, t]))
            costs[int(batch["control_code_B"][b])].append(cost)
    result = metric.result()
    for number, source in enumerate(SOURCES[:2]):
        expected = math.exp(math.fsum(costs[number]) / len(costs[number]))
        assert result[source].value == pytest.approx(expected, rel=1e-9) and result[source].n == len(costs[number])
        assert result[source].ci95[0] < expected < result[source].ci95[1]
    assert math.isnan(result["unread"].value) and result["unread"].n == 0


def test_one_source_alone_is_the_ordinary_perplexity(make_batch):
    output, batch = make_batch()
    metric, plain = SourcePerplexity(sources=["all"]), Perplexity()
    metric.update_from(output, {**batch, "control_code_B": torch.zeros(10, dtype=torch.long)})
    plain.update_from(output, batch)
    assert metric.result()["all"].value == pytest.approx(plain.result().value, rel=1e-12)
    assert metric.result()["all"].ci95 == pytest.approx(plain.result().ci95)


def test_an_impossible_token_of_one_source_leaves_the_other_alone(make_batch):
    output, batch = coded(make_batch)
    output.scores_BTV[0, 0, batch["target_ids_BT"][0, 0]] = -math.inf
    metric = SourcePerplexity(sources=SOURCES)
    metric.update_from(output, batch)
    result = metric.result()
    assert math.isinf(result["alice"].value) and math.isfinite(result["iliad"].value)


def test_bad_input(make_batch):
    output, batch = coded(make_batch)
    with pytest.raises(UserError, match="known are"):
        SourcePerplexity(sources=["one"]).update_from(output, batch)
    with pytest.raises(UserError, match="by_source=true"):
        SourcePerplexity(sources=SOURCES).update_from(*make_batch())

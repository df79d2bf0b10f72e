"""Perplexity by groups against the plain definition."""

from __future__ import annotations

import math

import pytest
import torch

from lit_ctg.papers.nslm.class_perplexity import ClassPerplexity


def make() -> tuple[ClassPerplexity, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    log_prob = -4 * torch.rand(1300, generator=generator, dtype=torch.float64)
    member = torch.stack((torch.arange(1300) % 3 == 0, torch.ones(1300).bool(), torch.zeros(1300).bool()), 1)
    return ClassPerplexity(groups=["third", "global", "none"]), log_prob, member


def test_equals_the_definition_in_any_number_of_updates() -> None:
    metric, log_prob, member = make()
    metric.update(log_prob[:700], member[:700])
    metric.update(log_prob[700:], member[700:])
    results = metric.result()
    for column, name in enumerate(("third", "global")):
        chosen = log_prob[member[:, column]].tolist()
        assert results[name].value == pytest.approx(math.exp(-sum(chosen) / len(chosen)), rel=1e-12)
        assert results[name].n == len(chosen)
        assert results[name].ci95[0] < results[name].value < results[name].ci95[1]
    assert math.isnan(results["none"].value) and results["none"].n == 0


def test_a_token_of_no_group_may_be_impossible() -> None:
    metric, log_prob, member = make()
    log_prob[1] = -torch.inf
    metric.update(log_prob, member[:, [0, 0, 2]])
    assert math.isfinite(metric.result()["third"].value)


def test_reads_an_output() -> None:
    metric, log_prob, member = make()

    class Output:
        log_prob_N, member_NG = log_prob, member

    metric.update_from(Output(), {})
    assert metric.compute().shape == (3,)

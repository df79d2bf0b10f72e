from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lit_ctg.papers.control_code.code_swap_gap import CodeSwapGap
from lit_ctg.statistics import ratio_interval

SOURCES = ("a", "b")


def draw(rows=40, seed=0):
    rng = np.random.default_rng(seed)
    count = rng.integers(3, 9, rows).astype(float)
    right = count * rng.uniform(2, 4, rows)
    wrong = right + count * rng.uniform(0, 1, rows)
    return wrong, right, count, rng.integers(0, 2, rows)


def filled(wrong, right, count, source) -> CodeSwapGap:
    metric = CodeSwapGap(sources=SOURCES)
    for half in (slice(0, 11), slice(11, None)):  # in two batches
        metric.update(*(torch.tensor(column[half]) for column in (wrong, right, count, source)))
    return metric


def test_gap_in_nats_is_a_paired_ratio_with_its_interval():
    wrong, right, count, source = draw()
    result = filled(wrong, right, count, source).result()
    for name, chosen in (("nats", source >= 0), ("nats/a", source == 0), ("nats/b", source == 1)):
        difference, tokens = (wrong - right)[chosen], count[chosen]
        assert result[name].value == pytest.approx(difference.sum() / tokens.sum())
        expected = ratio_interval(
            total=difference.sum(),
            count=tokens.sum(),
            total_sq=(difference**2).sum(),
            cross=(difference * tokens).sum(),
            count_sq=(tokens**2).sum(),
            rows=len(tokens),
        )
        assert result[name].ci95 == pytest.approx(expected) and result[name].n == tokens.sum()


def test_gap_in_perplexity_and_its_interval_against_resampled_rows():
    wrong, right, count, source = draw(400)
    metric = filled(wrong, right, count, source)
    value = math.exp(wrong.sum() / count.sum()) - math.exp(right.sum() / count.sum())
    result = metric.result()["perplexity"]
    assert result.value == pytest.approx(value) and result.unit == "perplexity"
    assert metric.perplexity() == pytest.approx(math.exp(right.sum() / count.sum()))
    rng = np.random.default_rng(1)
    drawn = rng.integers(0, 400, (3000, 400))
    means = [column[drawn].sum(1) / count[drawn].sum(1) for column in (wrong, right)]
    low, high = np.quantile(np.exp(means[0]) - np.exp(means[1]), [0.025, 0.975])
    assert result.ci95[0] == pytest.approx(low, rel=0.1) and result.ci95[1] == pytest.approx(high, rel=0.1)


def test_a_model_that_ignores_its_code_has_a_gap_of_exactly_0():
    wrong, _, count, source = draw()
    result = filled(wrong, wrong, count, source).result()
    assert all(entry.value == 0 and entry.ci95 == (0, 0) for entry in result.values())


def test_nothing_measured_is_nan_and_a_source_of_one_row_has_no_interval():
    assert math.isnan(CodeSwapGap(sources=SOURCES).result()["nats"].value)
    metric = CodeSwapGap(sources=SOURCES)
    metric.update(torch.tensor([3.0]), torch.tensor([2.0]), torch.tensor([2]), torch.tensor([1]))
    result = metric.result()
    assert result["nats/b"].value == 0.5 and result["nats/b"].ci95 is None and math.isnan(result["nats/a"].value)

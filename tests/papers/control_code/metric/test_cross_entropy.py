from __future__ import annotations

import math

import pytest

from lit_ctg.metric.perplexity import Perplexity
from lit_ctg.papers.control_code.cross_entropy import CrossEntropy


def test_it_is_the_mean_cost_in_nats_and_the_log_of_the_perplexity(make_batch, counted_nlls):
    output, batch = make_batch()
    loss, perplexity = CrossEntropy(mask="target"), Perplexity(mask="target")
    for metric in (loss, perplexity):
        metric.update_from(output, batch)
    costs = [cost for _, cost in counted_nlls(output, batch, "target")]
    result = loss.result()
    assert result.value == pytest.approx(math.fsum(costs) / len(costs), rel=1e-9)
    assert result.value == pytest.approx(math.log(perplexity.result().value), rel=1e-9)
    assert result.ci95 == pytest.approx([math.log(bound) for bound in perplexity.result().ci95], rel=1e-9)
    assert (result.unit, result.direction, result.n) == ("nats", "lower", len(costs))

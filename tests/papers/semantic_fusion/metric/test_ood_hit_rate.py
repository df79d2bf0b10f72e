from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from scipy.stats import binomtest

from lit_ctg.errors import UserError
from lit_ctg.papers.semantic_fusion.ood_hit_rate import OodHitRate


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


def test_a_generation_without_adjective_is_a_trial_without_hit():
    metric = OodHitRate(held_out_ids=[2])
    metric.update([-1, 2])
    assert metric.result().value == 0.5


def test_no_trial_is_nan():
    assert math.isnan(OodHitRate(held_out_ids=[1]).result().value)


def test_bind_takes_the_ids_of_the_data_module():
    data = SimpleNamespace(held_out_ids=(3, 4))
    assert OodHitRate().bind(data).held_out_ids == (3, 4)
    assert OodHitRate(held_out_ids=[9]).bind(data).held_out_ids == (9,)
    with pytest.raises(UserError, match="held_out_ids unknown"):
        OodHitRate().update([1])

"""The bootstrap over prompts and samples, against exact distributions and a plain loop."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lit_ctg.papers.idea_gate.distinct_n import DistinctN
from lit_ctg.papers.idea_gate.sample_mean import grouped_bootstrap


def loop(values, groups, resamples, seed):
    """The same resampling one draw at a time."""
    rng = np.random.default_rng(seed)
    by_group = {}
    for value, group in zip(values, groups, strict=True):
        by_group.setdefault(group, []).append(value)
    names = list(by_group)
    means = []
    for _ in range(resamples):
        drawn = []
        for group in rng.choice(len(names), len(names)):
            members = by_group[names[group]]
            drawn += [members[i] for i in rng.integers(0, len(members), len(members))]
        means.append(np.mean(drawn))
    return np.quantile(means, [0.025, 0.975])


def test_agrees_with_a_plain_loop_for_unequal_groups() -> None:
    rng = np.random.default_rng(3)
    groups = [0] * 4 + [1] * 9 + [7] * 6
    values = [float(group) + rng.normal() for group in groups]
    assert grouped_bootstrap(values, groups, resamples=20_000) == pytest.approx(loop(values, groups, 6000, 1), abs=0.15)


def test_one_group_is_the_plain_bootstrap() -> None:
    values = [0.0, 1.0] * 50
    low, high = grouped_bootstrap(values, [0] * 100)
    # the mean of 100 fair coins has a standard deviation of 0.05
    assert low == pytest.approx(0.4, abs=0.015) and high == pytest.approx(0.6, abs=0.015)


def test_groups_that_differ_widen_the_interval() -> None:
    values = [0.0] * 20 + [1.0] * 20
    low, high = grouped_bootstrap(values, [0] * 20 + [1] * 20)
    assert (low, high) == (0.0, 1.0)  # both groups the same is drawn half of the time
    within = grouped_bootstrap(values, [0] * 40)
    assert within[1] - within[0] < 0.4


def test_needs_two_values_and_leaves_out_missing_ones() -> None:
    assert grouped_bootstrap([1.0], [0]) is None
    assert grouped_bootstrap([1.0, math.nan], [0, 1]) is None
    assert grouped_bootstrap([2.0, 2.0, math.nan], [0, 1, 1]) == (2.0, 2.0)
    assert grouped_bootstrap([1.0, 2.0, 5.0], [0, 0, 1]) == grouped_bootstrap([1.0, 2.0, 5.0], [0, 0, 1])


def test_means_merge_and_reset() -> None:
    one, other = DistinctN(order=1), DistinctN(order=1)
    one.update([["a", "a"]], 0)
    other.update([["a", "b"], ["c", "d"]], 1)
    one.merge_state(other)
    result = one.result()
    assert (result.value, result.n) == (pytest.approx((0.5 + 1 + 1) / 3), 3)
    one.reset()
    assert math.isnan(one.result().value) and one.result().n == 0

from __future__ import annotations

import pytest

from lit_ctg.metric.degeneracy import Degeneracy
from lit_ctg.statistics import t_interval


def test_count_of_the_commonest_token_averaged_over_generations():
    metric = Degeneracy()
    metric.update([list("aabbb"), list("abc"), [], list("zzzzzz")])
    result = metric.result()
    assert result.value == pytest.approx((3 + 1 + 6) / 3) and result.n == 3
    assert result.ci95 == pytest.approx(t_interval([3.0, 1.0, 6.0]))
    assert (result.unit, result.direction) == ("count", "lower")

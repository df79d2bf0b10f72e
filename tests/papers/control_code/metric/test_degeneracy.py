from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from lit_ctg.papers.control_code.degeneracy import Degeneracy
from lit_ctg.statistics import t_interval


def test_count_of_the_commonest_token_averaged_over_generations():
    metric = Degeneracy()
    metric.update([list("aabbb"), list("abc"), [], list("zzzzzz")])
    result = metric.result()
    assert result.value == pytest.approx((3 + 1 + 6) / 3) and result.n == 3
    assert result.ci95 == pytest.approx(t_interval([3.0, 1.0, 6.0]))
    assert (result.unit, result.direction) == ("count", "lower")


def expected_of_draws(length: int, tokens: int = 10) -> tuple[float, float]:
    """Expected degeneracy and variation of ``length`` uniform draws from ``tokens`` tokens, exactly.

    P(no token more than m times) = length! / tokens^length times the coefficient of x^length in
    (sum over i <= m of x^i / i!)^tokens.
    """

    def at_most(m: int) -> Fraction:
        one = [Fraction(1, math.factorial(i)) for i in range(m + 1)]
        power = [Fraction(1)]
        for _ in range(tokens):
            longer = [Fraction(0)] * min(length + 1, len(power) + m)
            for i, a in enumerate(power):
                for j, b in enumerate(one[: length + 1 - i]):
                    longer[i + j] += a * b
            power = longer
        return power[length] * math.factorial(length) / tokens**length if len(power) > length else Fraction(0)

    degeneracy = sum(1 - at_most(m) for m in range(length))
    return float(degeneracy), tokens * (1 - (1 - 1 / tokens) ** length) / length


def test_the_printed_default_models_say_ten_tokens_at_random():
    """Table 3 prints 4.08 to 4.10 at every epoch, sec. 5.2 a variation around .5: 18 draws from a fixed top ten."""
    degeneracy, variation = expected_of_draws(18)
    assert 4.08 <= degeneracy <= 4.10 and variation == pytest.approx(0.47, abs=0.005)
    assert expected_of_draws(17)[0] < 4.0 and expected_of_draws(19)[0] > 4.2  # no other length does
    rng = np.random.default_rng(0)
    metric = Degeneracy()
    metric.update(rng.integers(0, 10, (20000, 18)).tolist())
    assert metric.result().value == pytest.approx(degeneracy, abs=0.02)

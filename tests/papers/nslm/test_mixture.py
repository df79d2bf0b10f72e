"""Mixtures in log space and the tuned weight."""

from __future__ import annotations

import numpy as np
import pytest

from lit_ctg.papers.nslm.mixture import mix, tune, with_cache

RNG = np.random.default_rng(0)


def test_mix_is_the_logarithm_of_the_mixture() -> None:
    a, b = np.log(RNG.dirichlet(np.ones(6), 20)), np.log(RNG.dirichlet(np.ones(6), 20))
    for weight in (0.0, 0.3, 1.0):
        expected = (1 - weight) * np.exp(a) + weight * np.exp(b)
        np.testing.assert_allclose(np.exp(mix(a, b, weight)), expected, rtol=1e-12)
        np.testing.assert_allclose(np.exp(mix(a, b, weight)).sum(1), 1.0, rtol=1e-12)


def test_the_ends_are_exact_even_where_the_other_says_never() -> None:
    a, b = np.array([-1.0, -2.0]), np.array([-np.inf, -3.0])
    np.testing.assert_array_equal(mix(a, b, 0.0), a)
    np.testing.assert_array_equal(mix(a, b, 1.0), b)
    np.testing.assert_allclose(mix(a, b, 0.5)[0], -1.0 + np.log(0.5))


def test_tune_finds_the_weight_that_made_the_text() -> None:
    a, b = np.array([0.9, 0.05, 0.05]), np.array([0.1, 0.1, 0.8])
    words = RNG.choice(3, size=200_000, p=0.65 * a + 0.35 * b)
    assert tune(np.log(a)[words], np.log(b)[words]) == pytest.approx(0.35, abs=0.01)


def test_tune_may_choose_one_model_alone() -> None:
    better, worse = np.full(50, -1.0), np.full(50, -2.0)
    assert tune(better, worse) == 0.0
    assert tune(worse, better) == 1.0


def test_an_empty_cache_gets_no_weight() -> None:
    model, cache = np.log([0.5, 0.5, 0.5]), np.array([np.nan, np.log(0.1), -np.inf])
    np.testing.assert_allclose(np.exp(with_cache(model, cache, 0.25)), [0.5, 0.4, 0.375])

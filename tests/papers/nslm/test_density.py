"""Densities against slow restatements and known answers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import softmax

from lit_ctg.errors import UserError
from lit_ctg.papers.nslm.density import (
    DENSITIES,
    LEAST_VARIANCE,
    Binary,
    Gaussian,
    GaussianMixtureDensity,
    Multinomial,
    Training,
    Unigram,
    mixture_weights,
)

ZERO = np.zeros(4)


def training(x: list[float], kind: str = "scalar", x_UK: list[list[float]] | None = None) -> Training:
    x_N = np.array(x, float)
    rows = np.array([x]) if x_UK is None else np.array(x_UK, float)
    one = np.zeros(len(x), dtype=int)
    return Training(x_N, kind, rows, one, np.arange(len(x)), np.ones(len(x)), np.zeros(rows.shape[1]))


def test_unigram_is_proportional() -> None:
    weights = np.exp(Unigram(0.5).fit(training([1])).log_weight(np.array([[0.0, 1, 3, 0]]), ZERO))
    assert weights[0].tolist() == pytest.approx([0.5, 1.5, 3.5, 0.5])


def test_multinomial_shares_a_value_among_its_members_and_smooths() -> None:
    density = Multinomial(0.25).fit(training([1, 1, 1, 2, -5]))
    weights = np.exp(density.log_weight(np.array([[1.0, 1, 2, 9], [9, 9, 2, 1]]), ZERO))
    assert weights[0].tolist() == pytest.approx([1.75, 1.75, 1.25, 0.25])
    assert weights[1].tolist() == pytest.approx([0.25, 0.25, 1.25, 3.25])
    base_K = np.log([2.0, 1, 0.5, 0.5])
    assert np.exp(density.log_weight(np.array([[9.0, 9, 9, 9]]), base_K))[0].tolist() == pytest.approx(
        [0.5, 0.25, 0.125, 0.125]
    )


def test_gaussian_against_its_formula() -> None:
    x = [1.0, 2, 4, 9]
    density = Gaussian().fit(training(x))
    mean, variance = sum(x) / 4, sum((v - 4) ** 2 for v in x) / 4
    expected = [math.exp(-((v - mean) ** 2) / (2 * variance)) for v in (0, 3, 4, 7)]
    assert np.exp(density.log_weight(np.array([[0.0, 3, 4, 7]]), ZERO))[0].tolist() == pytest.approx(expected)
    assert Gaussian().fit(training([3, 3])).variance == LEAST_VARIANCE


def test_gaussian_of_squared_distances_has_mean_zero() -> None:
    density = Gaussian().fit(training([-2.0, -6], "distance"))
    assert (density.mean, density.variance) == (0.0, 2.0)
    assert density.log_weight(np.array([[-4.0, 0, 0, 0]]), ZERO)[0, 0] == pytest.approx(-1)


@pytest.mark.parametrize("kind", ["scalar", "distance"])
def test_mixture_is_a_sum_of_components_normalised_one_by_one(kind: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(0, 3, 200) if kind == "scalar" else -rng.exponential(30, 200)
    density = GaussianMixtureDensity(3).fit(training(x.tolist(), kind))
    rows = np.array([x[:4]])
    found = np.exp(density.log_weight(rows, ZERO))[0]
    expected = np.zeros(4)
    for weight, mean, variance in zip(density.weight_G, density.mean_G, density.variance_G, strict=True):
        square = -rows[0] if kind == "distance" else (rows[0] - mean) ** 2
        expected += weight * softmax(-square / (2 * variance))
    assert found.tolist() == pytest.approx(expected.tolist())
    assert found.sum() == pytest.approx(1)


def test_mixture_weights_are_at_the_maximum_of_the_exact_likelihood() -> None:
    rng = np.random.default_rng(1)
    probs_NG, count_N = rng.uniform(0.01, 1, (50, 2)), rng.integers(1, 5, 50).astype(float)
    weight_G = mixture_weights(np.log(probs_NG), count_N)

    def likelihood(first: float) -> float:
        return float(count_N @ np.log(probs_NG @ np.array([first, 1 - first])))

    grid = np.linspace(0, 1, 1001)
    assert weight_G[0] == pytest.approx(grid[np.argmax([likelihood(first) for first in grid])], abs=5e-3)


def test_mixture_finds_a_peak_that_one_gaussian_cannot() -> None:
    x_K = np.arange(-50.0, 51)
    values = [0.0] * 90 + list(range(-50, 50, 10))
    chosen = np.array([int(value) + 50 for value in values])
    fitted = Training(np.array(values), "scalar", x_K[None], np.zeros(100, int), chosen, np.ones(100), np.zeros(101))
    costs = {}
    for density in (Gaussian(), GaussianMixtureDensity(2)):
        probs_K = softmax(density.fit(fitted).log_weight(x_K[None], np.zeros(101))[0])
        costs[density.name] = -np.log(probs_K[chosen]).mean()
    assert costs["mixture"] < costs["gaussian"] - 1


def test_binary_shares_both_sides() -> None:
    density = Binary().fit(training([1, 1, 1, 0]))
    assert density.correct == pytest.approx(4 / 6)
    weights = np.exp(density.log_weight(np.array([[1.0, 1, 0, 0], [0, 0, 0, 0]]), ZERO))
    assert weights[0].tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 6, 1 / 6])
    assert np.ptp(weights[1]) == pytest.approx(0)
    with pytest.raises(UserError, match="0 and 1"):
        Binary().fit(training([2]))


def test_parameters_are_plain() -> None:
    for density_type in DENSITIES.values():
        kind = "flag" if density_type is Binary else "scalar"
        parameters = density_type().fit(training([0, 1, 1, 0], kind)).parameters()
        assert all(isinstance(value, int | float | bool | list) for value in parameters.values())

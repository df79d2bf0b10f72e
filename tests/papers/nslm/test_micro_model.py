"""Micro-models: normalised, equal one by one, falling back as stated."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from lit_ctg.errors import UserError
from lit_ctg.papers.nslm import micro_model
from lit_ctg.papers.nslm.class_table import ClassMembers
from lit_ctg.papers.nslm.density import DENSITIES, Gaussian, Multinomial, Unigram
from lit_ctg.papers.nslm.metric_function import METRICS, Difference, Frequency, Value
from lit_ctg.papers.nslm.micro_model import BASES, Blend, MicroModel
from lit_ctg.papers.nslm.occurrence import Evidence, Occurrences

YEARS = ClassMembers(
    "year", np.arange(40), tuple(map(str, range(1960, 2000))), np.arange(1960.0, 2000)[:, None], (), ()
)
RNG = np.random.default_rng(0)
PLACES = ClassMembers(
    "city", np.arange(40), YEARS.tokens, np.stack([RNG.uniform(-90, 90, 40), RNG.uniform(-180, 180, 40)], 1), (), ()
)
PAIRS = [
    (metric, density, base)
    for metric, density, base in itertools.product(METRICS, DENSITIES, BASES)
    if METRICS[metric].kind in DENSITIES[density].kinds
]


def occurrences(count: int = 300, seed: int = 1) -> Occurrences:
    """Years that step by -1, 0, 1 or 2 from the one before; some are first; some are conversions from feet."""
    rng = np.random.default_rng(seed)
    previous_N = rng.integers(-1, 36, count)
    index_N = np.clip(previous_N + rng.choice([-1, 0, 1, 1, 2], count), 0, 39)
    source_N = np.where(rng.random(count) < 0.5, rng.integers(6430, 6560, count), np.nan)
    evidence = Evidence(previous_N, source_N.astype(float), np.where(np.isnan(source_N), -1, 5))
    return Occurrences(np.arange(count), np.zeros(count, int), index_N, evidence)


def fitted(metric: str, density: str, base: str = "uniform") -> MicroModel:
    members = PLACES if METRICS[metric].attributes == 2 else YEARS
    return MicroModel(METRICS[metric](), DENSITIES[density](), base=base).fit(occurrences(), members)


@pytest.mark.parametrize(("metric", "density", "base"), PAIRS)
def test_sums_to_one_everywhere_and_single_equals_batch(metric: str, density: str, base: str) -> None:
    model, tried = fitted(metric, density, base), occurrences(50, seed=2)
    log_probs_NK = model.log_prob(tried.evidence)
    assert log_probs_NK.shape == (50, 40) and log_probs_NK.dtype == np.float64
    assert np.abs(np.exp(log_probs_NK).sum(1) - 1).max() < 1e-9
    single_N = model.log_prob_of(tried.index_N, tried.evidence)
    assert np.allclose(single_N, log_probs_NK[np.arange(50), tried.index_N], atol=1e-12)
    for place in (0, 17, 49):
        assert np.allclose(model.log_prob(tried.where(np.array([place])).evidence)[0], log_probs_NK[place], atol=1e-12)


def test_difference_gaussian_against_the_equation() -> None:
    model, train = fitted("difference", "gaussian"), occurrences()
    later = train.where(train.evidence.previous_N >= 0)
    steps = later.index_N - later.evidence.previous_N
    mean, variance = steps.mean(), steps.var()
    weights = [math.exp(-((k - 10 - mean) ** 2) / (2 * variance)) for k in range(40)]
    found = np.exp(model.log_prob(Evidence.of_previous([10]))[0])
    assert found.tolist() == pytest.approx([weight / sum(weights) for weight in weights], abs=1e-12)


def test_deviation_4_a_unigram_base_multiplies_the_density() -> None:
    model, train = fitted("difference", "gaussian", "unigram"), occurrences()
    counts = np.bincount(train.index_N, minlength=40) + model.fallback_smoothing
    bare = fitted("difference", "gaussian")
    assert (bare.density.mean, bare.density.variance) == (model.density.mean, model.density.variance)
    for previous in (0, 10, 35):
        evidence = Evidence.of_previous([previous])
        weights = np.exp(bare.log_prob(evidence)[0]) * counts
        assert np.exp(model.log_prob(evidence)[0]).tolist() == pytest.approx((weights / weights.sum()).tolist())


def test_deviation_4_a_multinomial_is_smoothed_towards_the_unigram() -> None:
    model, train = fitted("difference", "multinomial", "unigram"), occurrences()
    counts = np.bincount(train.index_N, minlength=40) + model.fallback_smoothing
    steps = (train.index_N - train.evidence.previous_N)[train.evidence.previous_N >= 0]
    seen = [int((steps == k - 10).sum()) for k in range(40)]
    weights = np.array(seen) + model.density.smoothing * 40 * counts / counts.sum()
    found = np.exp(model.log_prob(Evidence.of_previous([10]))[0])
    assert found.tolist() == pytest.approx((weights / weights.sum()).tolist())


def test_first_occurrences_and_unseen_members_fall_back_to_the_smoothed_unigram() -> None:
    model, train = fitted("difference", "multinomial"), occurrences()
    counts = [int((train.index_N == k).sum()) for k in range(40)]
    total = sum(counts) + 40 * model.fallback_smoothing
    found = np.exp(model.log_prob(Evidence.of_previous([-1]))[0])
    assert found.tolist() == pytest.approx([(count + model.fallback_smoothing) / total for count in counts])
    assert 0 in counts and (found > 0).all()


def test_only_first_occurrences_leave_the_unigram_everywhere() -> None:
    train = occurrences()
    first = Occurrences(train.position_N, train.class_N, train.index_N, Evidence.of_previous(np.full(300, -1)))
    model = MicroModel(Difference(), Gaussian()).fit(first, YEARS)
    rows = model.log_prob(Evidence.of_previous([-1, 5]))
    assert np.array_equal(rows[0], rows[1])


def test_kept_rows_are_bounded_and_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tried = fitted("difference", "mixture"), occurrences(60, seed=3)
    free = model.log_prob(tried.evidence)
    model.forget()
    monkeypatch.setattr(micro_model, "MEMO_BYTES", 3 * 40 * 8)
    monkeypatch.setattr(micro_model, "BLOCK", 80)
    assert np.array_equal(model.log_prob(tried.evidence), free)
    assert len(model._memo) <= 3
    assert np.allclose(model.log_prob_of(tried.index_N, tried.evidence), free[np.arange(60), tried.index_N])


def test_blend_is_the_weighted_sum() -> None:
    models, evidence = [fitted("difference", "gaussian"), fitted("frequency", "unigram")], Evidence.of_previous([3, -1])
    blend = Blend(models, np.array([0.25, 0.75]))
    expected = 0.25 * np.exp(models[0].log_prob(evidence)) + 0.75 * np.exp(models[1].log_prob(evidence))
    assert np.allclose(np.exp(blend.log_prob(evidence)), expected)
    assert np.allclose(np.exp(blend.log_prob_of(np.array([4, 5]), evidence)), expected[[0, 1], [4, 5]])
    assert len(Blend(models, np.array([0.0, 1.0])).models) == 1
    assert blend.describe()["blend"][0]["share"] == 0.25


def test_bad_input_is_named() -> None:
    with pytest.raises(UserError, match="base 'x'"):
        MicroModel(Value(), Gaussian(), base="x")
    with pytest.raises(UserError, match="'year' does not occur"):
        MicroModel(Frequency(), Unigram()).fit(occurrences(0), YEARS)
    with pytest.raises(UserError, match="'difference' needs 1 numbers"):
        MicroModel(Difference(), Multinomial()).fit(occurrences(), PLACES)

"""Metric functions against one-by-one restatements."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from scipy.special import softmax

from lit_ctg.errors import UserError
from lit_ctg.papers.nslm import micro_model
from lit_ctg.papers.nslm.classes import ClassMembers, UnitTable
from lit_ctg.papers.nslm.micro_model import (
    BASES,
    DENSITIES,
    LEAST_VARIANCE,
    METRICS,
    Binary,
    Blend,
    Convert,
    Difference,
    Euclidean,
    Frequency,
    Gaussian,
    GaussianMixtureDensity,
    GreatCircle,
    MicroModel,
    Multinomial,
    Repeat,
    Training,
    Unigram,
    last_digit,
    mixture_weights,
)
from lit_ctg.papers.nslm.occurrences import Evidence, Occurrences


def members(tokens: list[str], attributes: list[tuple[float, ...]]) -> ClassMembers:
    return ClassMembers("x", np.arange(len(tokens)), tuple(tokens), np.array(attributes, float), (), ())


NUMBERS = members(["1990", "1991", "1,990", "2.5"], [(1990,), (1991,), (1990,), (2.5,)])
PLACES = members(["Paris", "Rome", "Suva", "Apia"], [(48.9, 2.3), (41.9, 12.5), (-18.1, 178.4), (-13.8, -171.8)])


@pytest.mark.parametrize("name", ["difference", "value", "frequency", "euclidean", "great_circle"])
def test_values_and_single_values_agree(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(micro_model, "BLOCK", 4)  # one key at a time
    class_members = PLACES if METRICS[name].attributes == 2 else NUMBERS
    metric = METRICS[name]().fit(class_members, np.array([0, 0, 1]))
    keys_NJ = metric.keys(Evidence.of_previous([0, 1, 2, 3, 2]))
    index_N = np.array([1, 1, 0, 2, 3])
    assert np.allclose(metric.values(keys_NJ)[np.arange(5), index_N], metric.value_of(keys_NJ, index_N))


def test_difference_value_frequency() -> None:
    evidence = Evidence.of_previous([0, -1])
    found = {name: METRICS[name]().fit(NUMBERS, np.array([0, 0, 1])) for name in ("difference", "value", "frequency")}
    keys_NJ = found["difference"].keys(evidence)
    assert np.isnan(keys_NJ[1]).all()
    assert found["difference"].values(keys_NJ[:1]).tolist() == [[0, 1, 0, -1987.5]]
    assert found["value"].values(np.zeros((1, 1))).tolist() == [[1990, 1991, 1990, 2.5]]
    assert found["frequency"].values(np.zeros((1, 1))).tolist() == [[2, 1, 0, 0]]


def test_equal_differences_of_decimals_are_equal() -> None:
    metric = Difference().fit(members(["a", "b", "c", "d"], [(0.1,), (0.2,), (0.3,), (0.4,)]), np.array([0]))
    values_UK = metric.values(np.arange(4.0)[:, None])
    assert np.unique(values_UK).tolist() == pytest.approx([-0.3, -0.2, -0.1, 0, 0.1, 0.2, 0.3])
    single_N = metric.value_of(np.repeat(np.arange(4.0), 4)[:, None], np.tile(np.arange(4), 4))
    assert np.array_equal(single_N, values_UK.ravel())


def test_euclidean_is_negative_squared_degrees_and_wraps() -> None:
    metric = Euclidean().fit(PLACES, np.array([0]))
    row = metric.values(np.array([[0.0]]))[0]
    assert row[1] == pytest.approx(-((48.9 - 41.9) ** 2 + (2.3 - 12.5) ** 2))
    # Suva and Apia lie 9.8 degrees of longitude apart, across the date line
    assert metric.values(np.array([[2.0]]))[0, 3] == pytest.approx(-((18.1 - 13.8) ** 2 + 9.8**2))


def test_great_circle_against_the_cosine_rule() -> None:
    metric = GreatCircle().fit(PLACES, np.array([0]))
    for start, end in ((0, 1), (2, 3), (0, 3)):
        (a, b), (c, d) = np.radians(PLACES.attributes_KD[[start, end]])
        angle = math.degrees(math.acos(math.sin(a) * math.sin(c) + math.cos(a) * math.cos(c) * math.cos(b - d)))
        assert metric.values(np.array([[float(start)]]))[0, end] == pytest.approx(-(angle**2), rel=1e-9)


@pytest.mark.parametrize(("token", "step"), [("24", 1), ("1,200", 100), ("1.25", 0.01), ("2.0", 0.1), ("0", 1)])
def test_last_digit(token: str, step: float) -> None:
    assert last_digit(token) == pytest.approx(step)


def test_convert_accepts_rounded_amounts_in_other_units_only() -> None:
    tokens = ["24", "23.6", "23", "60", "600", "0.60", "2.0", "100", "20"]
    metric = Convert().fit(members(tokens, [(float(token),) for token in tokens]), np.array([0]))
    cm = [unit.name for unit in UnitTable().units].index("cm")
    evidence = Evidence(np.array([-1, -1]), np.array([60.0, np.nan]), np.array([cm, -1]))
    keys_NJ = metric.keys(evidence)
    assert np.isnan(keys_NJ[1]).any()
    correct = dict(zip(tokens, metric.values(keys_NJ[:1])[0].tolist(), strict=True))
    # 60 cm: 23.6 in, 600 mm, 0.6 m, 1.97 ft; not 60 itself; "20" is 23.6 to a whole ten, but off by more than 5%
    assert correct == {"24": 1, "23.6": 1, "23": 0, "60": 0, "600": 1, "0.60": 1, "2.0": 1, "100": 0, "20": 0}


ZERO = np.zeros(4)


def training(x: list[float], kind: str = "scalar", x_UK: list[list[float]] | None = None) -> Training:
    x_N = np.array(x, float)
    rows = np.array([x]) if x_UK is None else np.array(x_UK, float)
    one = np.zeros(len(x), dtype=int)
    return Training(x_N, kind, rows, one, np.arange(len(x)), np.ones(len(x)), np.zeros(rows.shape[1]))


def test_multinomial_shares_a_value_among_its_members_and_smooths() -> None:
    weights = np.exp(Unigram(0.5).fit(training([1])).log_weight(np.array([[0.0, 1, 3, 0]]), ZERO))
    assert weights[0].tolist() == pytest.approx([0.5, 1.5, 3.5, 0.5])
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
    assert density.parameters() == {"mean": 4.0, "deviation": pytest.approx(math.sqrt(9.5)), "planar": False}
    # of squared distances the mean is zero
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


def test_components_of_distances_are_a_ladder_and_others_are_found_again() -> None:
    """No more components than values, none narrower than half a unit to each side; the same at every fit."""
    far = GaussianMixtureDensity(3).fit(training([-2.0, -50.0, 0.0], "distance"))
    assert far.variance_G.tolist() == pytest.approx(np.geomspace(LEAST_VARIANCE, 50, 3)) and not far.mean_G.any()
    near = GaussianMixtureDensity(2).fit(training([-0.01, -0.02], "distance"))
    assert near.variance_G.tolist() == pytest.approx([LEAST_VARIANCE] * 2)
    assert len(GaussianMixtureDensity(3).fit(training([3.0, 3.0, 3.0])).mean_G) == 1
    two = GaussianMixtureDensity(2).fit(training([0.0] * 50 + [100.0] * 50))
    assert sorted(two.mean_G) == pytest.approx([0, 100]) and two.variance_G == pytest.approx([LEAST_VARIANCE] * 2)
    values, found = np.random.default_rng(3).normal(0, 3, 200).tolist(), []
    for seed in (1, 2):
        micro_model._gaussians.cache_clear()
        np.random.seed(seed)
        found.append(GaussianMixtureDensity(4).fit(training(values)).mean_G)
    assert np.array_equal(*found)


def test_mixture_weights_are_at_the_maximum_of_the_exact_likelihood() -> None:
    rng = np.random.default_rng(1)
    probs_NG, count_N = rng.uniform(0.01, 1, (50, 2)), rng.integers(1, 5, 50).astype(float)
    weight_G = mixture_weights(np.log(probs_NG), count_N)

    def likelihood(first: float) -> float:
        return float(count_N @ np.log(probs_NG @ np.array([first, 1 - first])))

    grid = np.linspace(0, 1, 1001)
    assert weight_G[0] == pytest.approx(grid[np.argmax([likelihood(first) for first in grid])], abs=5e-3)


def test_a_pair_that_occurs_often_counts_often() -> None:
    x_K, once = np.array([0.0, 1.0, 10.0, 30.0]), np.ones(2, dtype=int)
    x_N = np.array([0.0] * 9 + [30.0])
    together = Training(x_N, "scalar", x_K[None], 0 * once, np.array([0, 3]), np.array([9, 1]), ZERO)
    chosen = np.array([0] * 9 + [3])
    apart = Training(x_N, "scalar", x_K[None], np.zeros(10, int), chosen, np.ones(10), ZERO)
    weights = [GaussianMixtureDensity(2).fit(training).weight_G for training in (together, apart)]
    assert weights[0] == pytest.approx(weights[1]) and np.ptp(weights[0]) > 0.5


def test_binary_shares_both_sides() -> None:
    density = Binary().fit(training([1, 1, 1, 0]))
    assert density.correct == pytest.approx(4 / 6)
    weights = np.exp(density.log_weight(np.array([[1.0, 1, 0, 0], [0, 0, 0, 0]]), ZERO))
    assert weights[0].tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 6, 1 / 6])
    assert np.ptp(weights[1]) == pytest.approx(0)
    # sides of unequal size, over a base whose sum on the correct side is below 1
    base_K = np.log([0.2, 0.6, 1.2, 2.0])
    weights = np.exp(density.log_weight(np.array([[1.0, 1, 0, 0], [1, 0, 0, 0]]), base_K))
    assert weights[0].tolist() == pytest.approx([1 / 6, 3 / 6, 1 / 8, 5 / 24])
    assert weights[1].tolist() == pytest.approx([2 / 3, 0.6 / 3.8 / 3, 1.2 / 3.8 / 3, 2 / 3.8 / 3])
    with pytest.raises(ValueError, match="0 and 1"):
        Binary().fit(training([2]))


YEARS = ClassMembers(
    "year", np.arange(40), tuple(map(str, range(1960, 2000))), np.arange(1960.0, 2000)[:, None], (), ()
)
RNG = np.random.default_rng(0)
MICRO_MODEL_PLACES = ClassMembers(
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
    members = MICRO_MODEL_PLACES if METRICS[metric].attributes == 2 else YEARS
    return MicroModel(METRICS[metric](), DENSITIES[density](), base=base).fit(occurrences(), members)


@pytest.mark.parametrize(("metric", "density", "base"), PAIRS)
def test_sums_to_one_everywhere_and_single_equals_batch(metric: str, density: str, base: str) -> None:
    model, tried = fitted(metric, density, base), occurrences(50, seed=2)
    names = {"class": model.members.name, "metric": metric, "density": density, "base": base, "fallback_smoothing": 0.1}
    assert model.describe() == names | model.density.parameters()
    assert all(isinstance(value, int | float | bool | list) for value in model.density.parameters().values())
    log_probs_NK = model.log_prob(tried.evidence)
    assert log_probs_NK.shape == (50, 40) and log_probs_NK.dtype == np.float64
    assert np.abs(np.exp(log_probs_NK).sum(1) - 1).max() < 1e-9
    single_N = model.log_prob_of(tried.index_N, tried.evidence)
    assert np.allclose(single_N, log_probs_NK[np.arange(50), tried.index_N], atol=1e-12)
    for place in (0, 17, 49):
        assert np.allclose(model.log_prob(tried.where(np.array([place])).evidence)[0], log_probs_NK[place], atol=1e-12)


@pytest.mark.parametrize(
    ("metric", "density", "base"),
    [("difference", "gaussian", "uniform"), ("frequency", "unigram", "uniform"), ("euclidean", "mixture", "unigram")],
)
def test_same_as_previous_before_a_micro_model(metric: str, density: str, base: str) -> None:
    inner, tried, train = fitted(metric, density, base), occurrences(50, seed=2), occurrences()
    model = Repeat(inner).fit(train)
    seen_N = train.evidence.previous_N >= 0
    hits = (train.evidence.previous_N[seen_N] == train.index_N[seen_N]).sum()
    assert model.repeat == (hits + 1) / (seen_N.sum() + 2)
    log_probs_NK, plain_NK = model.log_prob(tried.evidence), np.exp(inner.log_prob(tried.evidence))
    assert np.abs(np.exp(log_probs_NK).sum(1) - 1).max() < 1e-9
    for row, previous in enumerate(tried.evidence.previous_N):
        if previous < 0:
            expected = plain_NK[row]
        else:
            expected = plain_NK[row] / (1 - plain_NK[row, previous]) * (1 - model.repeat)
            expected[previous] = model.repeat
        assert np.allclose(np.exp(log_probs_NK[row]), expected, atol=1e-12)
    single_N = model.log_prob_of(tried.index_N, tried.evidence)
    assert np.allclose(single_N, log_probs_NK[np.arange(50), tried.index_N], atol=1e-9)
    # the inner model's kept rows are left alone
    assert np.array_equal(np.exp(inner.log_prob(tried.evidence)), plain_NK)
    found = model.describe()
    assert (
        found["metric"] == ("repeat" if metric == "frequency" else f"repeat+{metric}")
        and found["repeat"] == model.repeat
    )


def test_same_as_previous_of_one_member_or_a_sure_model_is_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = ClassMembers("city", np.arange(1), ("a",), np.zeros((1, 1)), (), ())
    one = Occurrences(np.arange(2), np.zeros(2, int), np.zeros(2, int), Evidence.of_previous([-1, 0]))
    model = Repeat(MicroModel(Frequency(), Unigram()).fit(one, alone)).fit(one)
    assert model.log_prob(one.evidence).tolist() == [[0.0], [0.0]] and model.log_prob_of(
        one.index_N, one.evidence
    ).tolist() == [0.0, 0.0]
    sure = Repeat(fitted("frequency", "unigram")).fit(occurrences())
    certain_1K = np.where(np.arange(40) == 3, 0.0, -1e9)[None]
    monkeypatch.setattr(sure.inner, "_compute", lambda keys_UJ: certain_1K.repeat(len(keys_UJ), 0))
    sure.inner.forget()
    found = sure.log_prob(Evidence.of_previous([3]))
    assert np.isfinite(found).all() and found[0, 3] == math.log(sure.repeat)


def test_a_density_is_fitted_to_whole_rows_of_a_sample_of_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(micro_model, "FIT_CELLS", 5 * 40)
    model, train = fitted("difference", "gaussian"), occurrences()
    later = train.where(train.evidence.previous_N >= 0)
    keys_NJ = model.metric.keys(later.evidence)
    found = model._training(model.metric.value_of(keys_NJ, later.index_N), keys_NJ, later.index_N)
    assert found.x_UK.shape == (5, 40) and len(found.x_N) == len(later)
    previous_U = -found.x_UK[:, 0]  # the first member's value minus that of the member before
    pairs = zip(later.evidence.previous_N.tolist(), later.index_N.tolist(), strict=True)
    counts = Counter(pair for pair in pairs if pair[0] in previous_U)
    rows = zip(previous_U[found.row_M].astype(int).tolist(), found.index_M.tolist(), strict=True)
    assert dict(zip(rows, found.count_M.tolist(), strict=True)) == counts


def test_deviation_4_a_unigram_base_multiplies_the_density() -> None:
    model, train = fitted("difference", "gaussian", "unigram"), occurrences()
    later = train.where(train.evidence.previous_N >= 0)
    steps = later.index_N - later.evidence.previous_N
    alone = [math.exp(-((k - 10 - steps.mean()) ** 2) / (2 * steps.var())) for k in range(40)]
    found = np.exp(fitted("difference", "gaussian").log_prob(Evidence.of_previous([10]))[0])
    assert found.tolist() == pytest.approx([weight / sum(alone) for weight in alone], abs=1e-12)
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
    # only first occurrences leave the unigram everywhere
    first = Occurrences(train.position_N, train.class_N, train.index_N, Evidence.of_previous(np.full(300, -1)))
    model = MicroModel(Difference(), Gaussian()).fit(first, YEARS)
    rows = model.log_prob(Evidence.of_previous([-1, 5]))
    assert np.array_equal(rows[0], rows[1]) and "mean" not in model.describe()


def test_kept_rows_are_bounded_and_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tried = fitted("difference", "mixture"), occurrences(60, seed=3)
    free = model.log_prob(tried.evidence)
    model.forget()
    monkeypatch.setattr(micro_model, "MEMO_BYTES", 3 * 40 * 8)
    monkeypatch.setattr(micro_model, "BLOCK", 80)
    assert np.array_equal(model.log_prob(tried.evidence), free)
    assert len(model._memo) <= 3
    assert np.allclose(model.log_prob_of(tried.index_N, tried.evidence), free[np.arange(60), tried.index_N])
    # a model that is fitted again forgets its rows
    again = model.fit(occurrences(200, 9), YEARS).log_prob(tried.evidence)
    fresh = MicroModel(Difference(), DENSITIES["mixture"]()).fit(occurrences(200, 9), YEARS)
    assert np.array_equal(again, fresh.log_prob(tried.evidence)) and not np.allclose(again, free)


def test_blend_is_the_weighted_sum() -> None:
    models, evidence = [fitted("difference", "gaussian"), fitted("frequency", "unigram")], Evidence.of_previous([3, -1])
    blend = Blend(models, np.array([0.25, 0.75]))
    expected = 0.25 * np.exp(models[0].log_prob(evidence)) + 0.75 * np.exp(models[1].log_prob(evidence))
    assert np.allclose(np.exp(blend.log_prob(evidence)), expected)
    assert np.allclose(np.exp(blend.log_prob_of(np.array([4, 5]), evidence)), expected[[0, 1], [4, 5]])
    # dropped below a thousandth, kept from there on
    for weight, kept in ((0.0, 1), (0.0009, 1), (0.001, 2), (0.005, 2)):
        assert len(Blend(models, np.array([weight, 1 - weight])).models) == kept
    # a dropped model leaves its weight to the others
    alone = Blend(models, np.array([0.0009, 0.9991]))
    assert np.allclose(alone.log_prob(evidence), models[1].log_prob(evidence))
    assert blend.describe()["blend"][0]["share"] == 0.25


def test_bad_input_is_named() -> None:
    with pytest.raises(UserError, match="'year' has 0 occurrences"):
        MicroModel(Frequency(), Unigram()).fit(occurrences(0), YEARS)
    with pytest.raises(UserError, match="'difference' needs 1"):
        MicroModel(Difference(), Multinomial()).fit(occurrences(), MICRO_MODEL_PLACES)
    words = ClassMembers("year", np.arange(40), YEARS.tokens, np.array([[math.nan], *[[1.0]] * 39]), (), ())
    with pytest.raises(UserError, match="'difference' needs 1 for every member"):
        MicroModel(Difference(), Multinomial()).fit(occurrences(), words)
    MicroModel(Frequency(), Unigram()).fit(occurrences(), words)

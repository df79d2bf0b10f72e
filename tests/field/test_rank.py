"""Areas, bootstrap, tests and ranks, on texts whose numbers are known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog

from lit_ctg.config import plain
from lit_ctg.errors import UserError
from lit_ctg.field.command import compose
from lit_ctg.field.rank import (
    COST,
    Sweep,
    area,
    areas,
    bench_key,
    best_point,
    curve,
    describe,
    mean_ranks,
    mixed_area,
    over_tasks,
    ranking,
    sweeps,
)
from lit_ctg.results.record import RunRecord

BARE = (4.0, 0.5)


def test_the_area_is_that_of_steps_counted_by_hand() -> None:
    cost, success = np.array([4.1, 4.4, 4.9]), np.array([0.7, 0.6, 1.0])
    # 0.1 nats at 0.5, then 0.7 to the end: 0.6 is worse, 1.0 beyond the cost
    assert area(cost, success, BARE, 0.5) == pytest.approx((0.1 * 0.5 + 0.4 * 0.7) / 0.5)
    fine = [max([0.5, *(s for c, s in zip(cost - 4.0, success, strict=True) if c <= x)])
            for x in (np.arange(100_000) + 0.5) * 0.5 / 100_000]  # fmt: skip
    assert area(cost, success, BARE, 0.5) == pytest.approx(np.mean(fine), abs=1e-4)


def test_what_is_cheaper_than_the_bare_model_costs_nothing_and_nothing_falls_below_it() -> None:
    assert area(np.array([3.0]), np.array([0.9]), BARE) == pytest.approx(0.9)
    assert area(np.array([4.0]), np.array([0.1]), BARE) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("cost", "success", "expected"),
    [
        # two lines: from the bare model up to 0.9 at 0.2, on to 1.0 at 0.5; 0.55 at 0.1 and 0.8 at 0.4 lie below
        ((4.1, 4.2, 4.4, 4.5), (0.55, 0.9, 0.8, 1.0), 0.5 + (0.2 * 0.2 + 0.3 * 0.45) / 0.5),
        # a strength beyond the cost counts in mixtures: half of its gain at half of its cost
        ((5.0,), (0.9,), 0.5 + 0.1),
        # the best strength is cheaper than the bare model, or than what is allowed: paid more for, it stays
        ((3.9, 4.2), (0.8, 0.7), 0.8),
        ((4.25,), (0.7,), 0.5 + 0.2 * 0.75),
        ((4.2, 4.3), (0.4, 0.1), 0.5),
    ],
)
def test_mixtures_of_strengths_lie_on_the_lines_between_them(cost, success, expected: float) -> None:
    assert mixed_area(np.array(cost), np.array(success), BARE, 0.5) == pytest.approx(expected)


def test_mixtures_are_the_best_that_drawing_by_lot_can_reach() -> None:
    """Against linear programming: the shares of strengths that cost at most so much, for the most success."""
    generator = np.random.default_rng(5)
    for _ in range(20):
        cost, success = generator.uniform(3.9, 4.9, 6), generator.uniform(0.3, 1.0, 6)
        above, gain = np.append(np.maximum(cost - 4.0, 0), 0), np.append(success, 0.5)
        grid = (np.arange(200) + 0.5) * 0.5 / 200
        best = [-linprog(-gain, A_ub=[above], b_ub=[most], A_eq=[[1] * 7], b_eq=[1]).fun for most in grid]
        mixed = mixed_area(cost, success, BARE, 0.5)
        assert mixed == pytest.approx(np.mean(best), abs=1e-3)
        assert mixed >= area(cost, success, BARE, 0.5) - 1e-12


def sweep(method: str, success: float, cost: float = 0.0, prompts: int = 30, seed: int = 0) -> Sweep:
    generator = np.random.default_rng([seed, len(method)])
    shape = (1, 1, prompts, 2, 3)
    hits = (generator.random(shape) < success).astype(float)
    tokens = np.full(shape, 10.0)
    return Sweep(method, (1.0,), hits, (4.0 + cost) * tokens, tokens, ())


def test_ranks_tell_sure_from_unsure() -> None:
    found = {"bare": sweep("bare", 0.5), "good": sweep("good", 0.95), "same": sweep("same", 0.93, seed=1)}
    ranked = ranking(found, resamples=300)
    names = [each.method for each in ranked.standings]
    assert names[2] == "bare" and set(names[:2]) == {"good", "same"}
    best = ranked.standings[0]
    assert best.ranks[0] == 1 and best.ranks[1] >= 1.5, "two alike share the first places"
    assert ranked.standings[2].ranks == (3, 3)
    for (a, b), p in ranked.p_values.items():
        assert (p < 0.05) == ("bare" in (a, b))
        # no resampling has the other sign: the least p-value that so many can show, for three pairs
        assert p == pytest.approx(3 * 2 / 301) if "bare" in (a, b) else p > 0.05


def test_many_methods_can_still_differ() -> None:
    """With too few resamplings the least p-value, adjusted for all pairs, is large however sure a difference is."""
    others = {f"x{place}": sweep(f"x{place}", 0.5, prompts=4, seed=place) for place in range(3)}
    ranked = ranking({"bare": sweep("bare", 0.02, prompts=4), "good": sweep("good", 0.99, prompts=4), **others})
    assert ranked.p_values["good", "bare"] <= 0.011


def test_what_costs_too_much_gains_nothing() -> None:
    found = {"bare": sweep("bare", 0.5), "dear": sweep("dear", 1.0, cost=COST + 0.1)}
    assert best_point(found, "dear")[0] == 0
    (first, second) = ranking(found, resamples=50).standings
    assert first.area == second.area == pytest.approx(found["bare"].success_ZSPCK.mean())


def test_the_best_point_is_the_cheapest_of_the_best_that_are_affordable() -> None:
    tokens = np.full((1, 5, 2, 1, 1), 10.0)
    success, cost = (np.array(row)[None, :, None, None, None] for row in
                     ((0.6, 0.9, 0.9, 0.9, 1.0), (0.1, 0.5, 0.3, 0.4, 0.625)))  # fmt: skip
    strengths = (1.0, 2.0, 3.0, 4.0, 5.0)
    many = Sweep("many", strengths, success + 0 * tokens, (4.0 + cost) * tokens, tokens, ())
    weak = Sweep("weak", strengths, 0.4 * success + 0 * tokens, (4.0 + cost) * tokens, tokens, ())
    bare = Sweep("bare", (0.0,), np.full((1, 1, 2, 1, 1), 0.5), 4.0 * tokens[:, :1], tokens[:, :1], ())
    found = {"bare": bare, "many": many, "weak": weak}
    assert best_point(found, "many", 0.625) == pytest.approx((5.0, 1.0, 0.625)), "what costs as much is affordable"
    assert best_point(found, "many", 0.5) == pytest.approx((3.0, 0.9, 0.3))
    assert best_point(found, "weak") == best_point(found, "bare") == (0.0, 0.5, 0.0)


@pytest.mark.parametrize(("second", "varies"), [((0.0, 1.0), False), ((1.0, 0.0), True)])
def test_the_classes_of_a_prompt_have_the_same_copies(second: tuple[float, float], varies: bool) -> None:
    """Of the first class the first text succeeds. Where the second class's other one does, any draw gives half, as
    it must for the bare model, whose text is the same for both."""
    hits = np.zeros((1, 1, 3, 2, 2))
    hits[..., 0, :], hits[..., 1, :] = (1.0, 0.0), second
    found = {"bare": Sweep("bare", (0.0,), hits, hits, np.ones_like(hits), ())}
    own, drawn = areas(found, most=COST, resamples=30, generator=np.random.default_rng(0))
    assert own.tolist() == [0.5] and (len(set(drawn[:, 0].tolist())) > 2) == varies


def test_a_curve_has_the_mean_over_all_texts_of_each_strength() -> None:
    success = np.random.default_rng(0).random((2, 3, 4, 2, 5))
    two = Sweep("two", (1.0, 2.0, 3.0), success, 30 * success, np.full(success.shape, 10.0), ())
    cost_S, success_S = curve(two)
    assert success_S == pytest.approx(success.mean(axis=(0, 2, 3, 4)))
    assert cost_S == pytest.approx(3 * success_S)


def test_the_bootstrap_is_that_of_texts_drawn_one_by_one() -> None:
    """The same prompts for all methods, copies within a prompt, seeds of each method by itself."""
    random = np.random.default_rng(0)

    def made(method: str, strengths: int) -> Sweep:
        shape = (3, strengths, 4, 2, 5)
        tokens = random.integers(1, 9, shape).astype(float)
        nats = tokens * random.uniform(3.8, 4.6, (1, strengths, 1, 1, 1)) + random.random(shape)
        return Sweep(method, tuple(map(float, range(strengths))), random.random(shape), nats, tokens, ())

    found = {"good": made("good", 4), "bare": made("bare", 1), "fair": made("fair", 3)}
    own, drawn = areas(found, most=0.5, resamples=7, generator=np.random.default_rng(9))
    generator = np.random.default_rng(9)

    def slow(name: str, prompts: list[int], samples: np.ndarray) -> list[tuple[float, float]]:
        one, seeds = found[name], generator.integers(0, 3, size=3)
        at = [
            (z, p, c, k) for z in seeds for number, p in enumerate(prompts) for c in range(2) for k in samples[number]
        ]
        points = []
        for s in range(len(one.strengths)):
            nats, tokens, hits = (
                sum(part[z, s, p, c, k] for z, p, c, k in at)
                for part in (one.nats_ZSPCK, one.tokens_ZSPCK, one.success_ZSPCK)
            )
            points.append((nats / tokens, hits / len(at)))
        return points

    for row in drawn:
        prompts, samples = generator.integers(0, 4, size=4).tolist(), generator.integers(0, 5, size=(4, 5))
        (bare,) = slow("bare", prompts, samples)
        good, fair = (slow(name, prompts, samples) for name in ("good", "fair"))
        expected = [float(area(*map(np.array, zip(*points, strict=True)), bare)) for points in (good, fair)]
        assert row == pytest.approx([expected[0], bare[1], expected[1]], rel=1e-12)
    whole = [float(area(*curve(found[name]), tuple(part[0] for part in curve(found["bare"])))) for name in found]
    assert own == pytest.approx([whole[0], found["bare"].success_ZSPCK.mean(), whole[2]])


def test_areas_are_those_of_each_row() -> None:
    random = np.random.default_rng(1)
    cost, success, bare = (
        random.uniform(3.5, 5, (6, 4)),
        random.random((6, 4)),
        (random.uniform(3.6, 4, 6), random.random(6)),
    )
    rows = [area(cost[r], success[r], (bare[0][r], bare[1][r])) for r in range(6)]
    assert area(cost, success, bare) == pytest.approx(rows)


def test_over_tasks_ranks_are_averaged_among_the_methods_that_all_have() -> None:
    one = {"bare": sweep("bare", 0.3), "good": sweep("good", 0.95), "fair": sweep("fair", 0.6, seed=1)}
    two = {"fair": sweep("fair", 0.95, seed=3), "good": sweep("good", 0.6, seed=2), "bare": sweep("bare", 0.3, seed=4)}
    extra = {**two, "best": sweep("best", 1.0)}
    found = {place.method: place for place in over_tasks({"one": one, "two": extra}, resamples=100)}
    assert set(found) == {"bare", "good", "fair"}, "best is of one task only"
    assert mean_ranks({"one": one, "two": extra}, area) == {name: place.rank for name, place in found.items()}
    assert mean_ranks({"one": one, "two": two}, lambda cost, success, bare: -success[0] - 1)["bare"] == 1
    assert found["bare"].rank == 3 and found["bare"].ranks == (3, 3) and found["bare"].interval == (3, 3)
    assert found["good"].ranks == (1, 2) and found["fair"].ranks == (2, 1) and found["good"].rank == 1.5
    assert found["good"].interval == (1.5, 1.5), "sure of being first in one task and second in the other"
    assert [place.method for place in over_tasks({"one": one, "two": two}, resamples=20)] == ["fair", "good", "bare"]
    # two tasks in which nothing is sure leave a wide interval
    same = {name: sweep(name, 0.5, prompts=6, seed=seed) for seed, name in enumerate(("bare", "a1", "b22"))}
    low, high = over_tasks({"one": same, "two": same}, resamples=100)[1].interval
    assert high - low > 0.4
    assert over_tasks({"one": one}) == ()
    assert over_tasks({"one": one, "two": {"bare": two["bare"], "best": sweep("best", 1.0)}}) == (), "bare alone"
    with pytest.raises(UserError, match="needs the bare model"):
        over_tasks({"one": one, "two": {"good": one["good"]}})


def test_a_ranking_needs_the_bare_model() -> None:
    with pytest.raises(UserError, match="needs the bare model"):
        ranking({"good": sweep("good", 0.9)})


def record(rows: list[dict[str, object]], name: str = "sentiment-bare", seed: int = 0, **pairs: float) -> RunRecord:
    """Return a record; ``pairs`` are the shares of distinct word pairs at strengths, as ``at_2=0.3``, else 0.5."""
    shares = {f"at_{row['strength']:g}": 0.5 for row in rows} | pairs
    metrics = {name.replace("at_", "distinct_2@"): {"value": value} for name, value in shares.items()}
    return RunRecord(paper="field", name=name, experiment="", regime="corrected", size="small", seed=seed, config={},
                     config_hash="", git={}, versions={}, started_at="", samples=rows, metrics=metrics)  # fmt: skip


def row(**changed: object) -> dict[str, object]:
    return {"text": "x", "strength": 1.0, "place": 0, "copy": 0, "target": "a", "bag": 1, "neural": 0, "nats": 8.0,
            "tokens": 2} | changed  # fmt: skip


def test_records_become_numbers_and_seeds_a_dimension() -> None:
    rows = [row(target=target, place=place) for target in "ab" for place in (0, 1)]
    human = row(kind="human", strength=0.0)
    found = sweeps([record([*rows, human]), record(rows, seed=1)], ["bag", "neural"])["bare"]
    assert found.success_ZSPCK.shape == (2, 1, 2, 2, 1)
    assert found.success_ZSPCK.mean() == 0.5
    assert curve(found)[0].tolist() == [4.0]
    # by seed, in whatever order the records came; texts without a token cost nothing
    later = [row(target=target, place=place, bag=0, nats=0.0, tokens=0) for target in "ab" for place in (0, 1)]
    found = sweeps([record(later, seed=1), record(rows, seed=0)], ["bag", "neural"])["bare"]
    assert [each.seed for each in found.records] == [0, 1] and found.success_ZSPCK.mean((1, 2, 3, 4)).tolist() == [
        0.5,
        0,
    ]
    assert curve(sweeps([record(later)], ["bag"])["bare"])[0].tolist() == [0.0]
    stronger = [row(target=target, place=place, strength=2.0) for target in "ab" for place in (0, 1)]
    with pytest.raises(UserError, match="bare: its seeds have different strengths"):
        sweeps([record(rows), record(stronger, seed=1)], ["bag"])
    with pytest.raises(UserError, match="3 texts of 4"):
        sweeps([record(rows[:3])], ["bag"])
    other = record([row()], "sentiment-x")
    with pytest.raises(UserError, match="different prompts"):
        sweeps([record(rows), other], ["bag"])


def test_strengths_whose_texts_repeat_themselves_do_not_count() -> None:
    rows = [row(strength=strength, bag=strength > 1) for strength in (1.0, 2.0, 3.0)]
    bare = record([row(bag=0)], at_1=0.8)

    def found(*shares: float) -> Sweep:
        pairs = {f"at_{place}": share for place, share in enumerate(shares, start=1)}
        own = [
            record(rows, "sentiment-x", seed, **pairs | {"at_2": shares[1] + (0.1 if seed else -0.1)})
            for seed in (0, 1)
        ]
        return sweeps([bare, *own], ["bag"])["x"]

    # half of the bare model's share, on average over seeds, is enough
    whole = found(0.8, 0.4, 0.4)
    assert whole.strengths == (1, 2, 3) and whole.repeating == ()
    some = found(0.8, 0.39, 0.4)
    assert some.strengths == (1, 3) and some.repeating == (2,)
    assert some.success_ZSPCK.shape == some.nats_ZSPCK.shape == some.tokens_ZSPCK.shape == (2, 2, 1, 1, 1)
    assert some.success_ZSPCK[:, :, 0, 0, 0].tolist() == [[0, 1]] * 2
    none = ranking({"bare": sweeps([bare], ["bag"])["bare"], "x": found(0, 0.1, 0)}, resamples=9)
    assert [(each.area, each.point) for each in none.standings] == [(0.0, (0.0, 0.0, 0.0))] * 2, "level with bare"


def test_records_of_one_bench_differ_in_method_name_and_seed_alone() -> None:
    one, other = record([row()]), record([row()])
    one.config.update({"method": "bare", "name": "a", "seed": 0, "judges": {"steps": 3}})
    other.config.update({"method": "gedi", "name": "b", "seed": 1, "judges": {"steps": 3}})
    assert bench_key(one) == bench_key(other)
    other.config["judges"] = {"steps": 4}
    assert bench_key(one) != bench_key(other)
    for each, words in ((one, ["method=bare", "seed=0"]), (other, ["method=gedi", "name=sentiment-b", "seed=1"])):
        each.config = plain(compose(["task=sentiment", *words]))
    assert bench_key(one) == bench_key(other)
    other.config["data"]["sample_size"] += 1
    assert bench_key(one) != bench_key(other)
    assert other.config["data"]["seed"] == 1, "the record is not changed"
    one.metrics["distinct_2@0.5"] = {"value": 0.25}
    assert describe(one, 0.5, "distinct_2") == 0.25 and describe(one, 9.0, "distinct_2") is None

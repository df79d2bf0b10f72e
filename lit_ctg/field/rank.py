"""Curves, areas, pairwise tests and ranks of the methods of one task, from the texts of their records (no torch).

Every method wrote from the same prompts with the same random numbers, so methods are compared within prompts: the
bootstrap draws prompts, the samples of each prompt and class, and training seeds, the same prompts for all methods.

Shape letters: Z seeds, S strengths, P prompts, C classes, K samples, X texts of a seed and strength (P * C * K), R
resamplings, M methods.
"""

from __future__ import annotations

import copy
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from annotated_types import MinLen
from scipy.stats import rankdata

from lit_ctg.errors import UserError, refuse, within
from lit_ctg.limits import Count, check_value
from lit_ctg.results.record import HASH_IGNORED, RunRecord, config_hash
from lit_ctg.statistics import Interval, holm

# what a control may cost: nats per token above the bare model's, under the independent model; exp(0.5) is 1.65 times
# its perplexity
COST = 0.5
# texts of a strength with less than this share of the bare model's distinct word pairs do not count: a word said again
# and again is a success of its class, and likely
VARIETY = 0.5
RESAMPLES = 1000
# resamplings for each pair of methods: with them the least p-value, adjusted for all pairs, is 0.01
PER_PAIR = 200
AT_ONCE = 1000  # resamplings, so that they take little memory
BARE, HUMAN = "bare", "human"
MEASURES = ("perplexity", "distinct_2", "repetition", "overlap", "attribute_words")
HELD_OUT = "held_out_words"  # of a text: whether it has a held-out word of its class


@dataclass(frozen=True)
class Sweep:
    """The measures of one method's texts.

    Attributes:
        method: its name.
        strengths: S.
        success_ZSPCK: mean over the deciding judges, 0 to 1.
        nats_ZSPCK, tokens_ZSPCK: under the independent language model.
        records: one for each seed.
        repeating: strengths that are not among these, because their texts have too few distinct word pairs
            (``VARIETY``).
    """

    method: str
    strengths: tuple[float, ...]
    success_ZSPCK: np.ndarray
    nats_ZSPCK: np.ndarray
    tokens_ZSPCK: np.ndarray
    records: tuple[RunRecord, ...]
    repeating: tuple[float, ...] = ()


def method_of(record: RunRecord) -> str:
    """Return the method of a record named ``<task>-<method>``."""
    return record.name.partition("-")[2]


def task_of(record: RunRecord) -> str:
    """Return the task of a record named ``<task>-<method>``."""
    return record.name.partition("-")[0]


def judges_of(record: RunRecord) -> list[str]:
    """Return the names of the judges that a record has proofs of."""
    return [name.split("/")[1] for name in record.metrics if name.startswith("judge/") and name.endswith("/accuracy")]


# what reports read of a record's configuration
_READ: dict[str, Any] = {
    **dict.fromkeys(("task", "method", "data", "judges", "decode", "base"), Mapping),
    **dict.fromkeys(("decode.prompts", "decode.samples", "decode.new_tokens"), Count),
    **dict.fromkeys(("base.layers", "base.dim", "base.vocabulary", "base.steps"), Count),
    **{"judges.least_accuracy": float, "data.source": str, "task.column": str},
    "method.strengths": Annotated[Sequence[float], MinLen(1)],
}
_TEXT = {**dict.fromkeys(("strength", "place", "copy", "nats", "tokens"), float), "prompt": str, "target": str}
_TYPES: dict[Any, Any] = {float: (int, float), str: str}


def check_record(record: RunRecord) -> RunRecord:
    """Return a record of the field if it has all that reports read.

    Raises:
        UserError: it was damaged or not made by ``lit-ctg field run``; names the file and the field.
    """

    def check(what: str, value: Any, hint: Any) -> None:
        with within(record.source, "no run of the field writes this: delete the file"):
            check_value(what, value, hint, composed=False)

    if not re.fullmatch(r"\w+-[\w.+-]+", record.name):
        check("name", None, Annotated[str, "<task>-<method>"])
    for key, hint in _READ.items():
        value: Any = record.config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        check(f"config.{key}", value, hint)
    judges = judges_of(record)
    measures = [*(f"success/{judge}" for judge in judges), *MEASURES]
    needed = [f"judge/{judge}/balanced_accuracy" for judge in judges]
    needed += [f"{name}@{strength:g}" for name in measures for strength in record.config["method"]["strengths"]]
    for name in (*needed, "cost/seconds_ratio", "cost/training_seconds", "cost/parameters"):
        check(f"metrics.{name}", record.metrics.get(name), Mapping)
    for number, row in enumerate(record.samples, start=1):
        human = ("repetition", "overlap", "attribute_words") if row.get("kind") == HUMAN else ()
        for key, hint in {**_TEXT, **dict.fromkeys((*judges, *human), float)}.items():
            if not isinstance(row.get(key), _TYPES[hint]):
                check(f"text {number}, {key}", row.get(key), hint)
    return record


def deciding_judges(record: RunRecord) -> tuple[list[str], list[str]]:
    """Return the judges that are accurate enough on held-out human texts to decide, and the others."""
    least = float(record.config["judges"]["least_accuracy"])
    found = {
        name.split("/")[1]: entry["value"]
        for name, entry in record.metrics.items()
        if name.startswith("judge/") and name.endswith("/balanced_accuracy")
    }
    return [name for name, value in found.items() if value >= least], [n for n, v in found.items() if not v >= least]


def sweeps(records: Sequence[RunRecord], judges: Sequence[str]) -> dict[str, Sweep]:
    """Return the measures of each method's texts, by name; a longer sweep replaces a shorter one (``longest``).

    Args:
        records: of one task, size and bench.

    Raises:
        UserError: records of one method whose prompts, classes or strengths differ from each other's or from the bare
        model's, whose settings differ, or of which two are of one seed.
    """
    by_method: dict[str, list[RunRecord]] = {}
    for record in sorted(longest(records), key=lambda each: each.seed):
        by_method.setdefault(method_of(record), []).append(record)
    made: dict[str, Sweep] = {}
    for method, own in by_method.items():
        settings = [config_hash({"method": record.config.get("method")}) for record in own]
        for (one, first), (other, second) in itertools.pairwise(zip(own, settings, strict=True)):
            remedy = "or name the other one: name=<task>-<label>"
            refuse({
                f"{method}: two runs of seed {one.seed}, {one.source} and {other.source}: give records= with one of "
                f"them, {remedy}": one.seed == other.seed,
                f"{method}: seeds {one.seed} and {other.seed} were run with other settings of the method: run them "
                f"with one configuration, {remedy}": first != second,
            })  # fmt: skip
        tables = [_table(record, judges) for record in own]
        if len({(strengths, shape) for strengths, shape, _ in tables}) > 1:
            raise UserError(f"{method}: its seeds have different strengths or prompts: run them with one configuration")
        success, nats, tokens = (np.stack([each[2][part] for each in tables]) for part in range(3))
        made[method] = Sweep(method, tables[0][0], success, nats, tokens, tuple(own))
    shapes = {sweep.success_ZSPCK.shape[2:] for sweep in made.values()}
    if len(shapes) > 1:
        raise UserError("the methods wrote from different prompts: run them all with one configuration")
    if BARE not in made:
        return made
    least = VARIETY * _variety(made[BARE].records, made[BARE].strengths[0])
    return {method: _without_repeating(sweep, least) for method, sweep in made.items()}


def sweep_key(config: Mapping[str, Any], corpus: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Return what runs share whose texts of one strength are the same: all settings but the strengths, texts, models.

    Args:
        config: of a run, as plain values.
        corpus: its texts and models, as in its record.
    """
    # of a combination the parts' own strengths are not used
    swept = ["method", *(f"method.parts.{part}" for part in config["method"].get("parts", {}))]
    return config_hash(config, [*HASH_IGNORED, *(f"{each}.strengths" for each in swept)]), dict(corpus)


def longest(records: Sequence[RunRecord]) -> list[RunRecord]:
    """Return the records without those of shorter sweeps, whose texts a longer one of the same seed has, too."""
    return [record for record in records if not any(_is_part(record, other) for other in records)]


def _is_part(record: RunRecord, other: RunRecord) -> bool:
    """Return whether another record is of the same run with more strengths."""
    if record is other or (record.name, record.seed) != (other.name, other.seed):
        return False
    shorter, longer = (set(each.config["method"]["strengths"]) for each in (record, other))
    return shorter < longer and sweep_key(record.config, record.corpus) == sweep_key(other.config, other.corpus)


def _variety(records: Sequence[RunRecord], strength: float) -> float:
    """Return the distinct word pairs of a strength's texts, as a share, over the records."""
    return float(np.mean([record.metrics[f"distinct_2@{strength:g}"]["value"] for record in records]))


def _without_repeating(sweep: Sweep, least: float) -> Sweep:
    """Return the sweep without the strengths whose texts vary less than ``least``."""
    kept = [place for place, value in enumerate(sweep.strengths) if _variety(sweep.records, value) >= least]
    return Sweep(
        sweep.method,
        tuple(sweep.strengths[place] for place in kept),
        sweep.success_ZSPCK[:, kept],
        sweep.nats_ZSPCK[:, kept],
        sweep.tokens_ZSPCK[:, kept],
        sweep.records,
        tuple(value for place, value in enumerate(sweep.strengths) if place not in kept),
    )


def _table(record: RunRecord, judges: Sequence[str]) -> tuple[tuple[float, ...], tuple[int, ...], list[np.ndarray]]:
    rows = [row for row in record.samples if row.get("kind") != HUMAN]
    places = [tuple(sorted({row[key] for row in rows})) for key in ("strength", "place", "target", "copy")]
    index = [{value: number for number, value in enumerate(values)} for values in places]
    shape = tuple(map(len, places))
    if not rows or len(rows) != math.prod(shape):
        raise UserError(f"{record.source}: {len(rows)} texts of {math.prod(shape)} are beside the record: run it again")
    tables = [np.zeros(shape) for _ in range(3)]
    for row in rows:
        at = tuple(found[row[key]] for found, key in zip(index, ("strength", "place", "target", "copy"), strict=True))
        tables[0][at] = sum(row[judge] for judge in judges) / len(judges)
        tables[1][at], tables[2][at] = row["nats"], row["tokens"]
    return tuple(map(float, places[0])), shape[1:], tables


def curve(sweep: Sweep) -> tuple[np.ndarray, np.ndarray]:
    """Return (nats per token [S], success [S]) of the strengths, over all texts."""
    seeds, _, *texts = sweep.success_ZSPCK.shape
    cost_RS, success_RS = resampled(sweep, np.ones((1, math.prod(texts))), np.ones((1, seeds)))
    return cost_RS[0], success_RS[0]


def resampled(sweep: Sweep, times_RX: np.ndarray, seeds_RZ: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (nats per token [R, S], success [R, S]) where each text and seed was drawn so many times."""
    seeds, strengths, *texts = sweep.success_ZSPCK.shape

    def total(part_ZSPCK: np.ndarray) -> np.ndarray:
        sums = times_RX @ part_ZSPCK.reshape(seeds * strengths, math.prod(texts)).T
        return np.einsum("rzs,rz->rs", sums.reshape(len(sums), seeds, strengths), seeds_RZ)

    success, nats, tokens = map(total, (sweep.success_ZSPCK, sweep.nats_ZSPCK, sweep.tokens_ZSPCK))
    return nats / np.maximum(tokens, 1), success / (seeds * math.prod(texts))


def area(cost: Any, success: Any, bare: tuple[Any, Any], most: float = COST) -> np.ndarray:
    """Return the mean over c from 0 to ``most`` of the best success among strengths that cost at most c.

    The bare model is a strength of every method, at cost 0. Costs below the bare model's count as 0. This integrates a
    step function: between two strengths the weaker one counts.

    Args:
        cost: nats per token, [..., S].
        success: from 0 to 1, [..., S].
        bare: nats per token and success of the bare model, [...] each.
        most: nats per token above the bare model's.
    """
    bare_cost, bare_success = (np.asarray(value, dtype=float)[..., None] for value in bare)
    at = np.clip(cost - bare_cost, 0, most)
    order = np.argsort(at, axis=-1)
    starts = np.concatenate([np.zeros_like(bare_cost), np.take_along_axis(at, order, -1)], -1)
    reached = np.concatenate([bare_success, np.take_along_axis(np.asarray(success), order, -1)], -1)
    widths = np.diff(starts, axis=-1, append=most)
    # gains over the bare model, so that a method without any is level with it to the last bit
    gains = np.maximum.accumulate(reached, -1) - bare_success
    return bare_success[..., 0] + (gains * widths).sum(-1) / most


def mixed_area(cost: Any, success: Any, bare: tuple[float, float], most: float = COST) -> float:
    """Return the area where each text's strength may be drawn by lot: between two strengths their mixtures count.

    A mixture has the mean success and the mean cost of its strengths (of texts that are equally long), so the best one
    for each cost is on the least concave curve above the strengths. A coarse sweep is not worse for being coarse.

    Args:
        cost, success, bare, most: see ``area``; of one method, [S] each.
    """
    above_N = np.append(np.maximum(np.asarray(cost) - bare[0], 0), 0.0)
    gain_N = np.append(np.maximum(np.asarray(success) - bare[1], 0), 0.0)
    # the best strength may also be paid more for than it costs
    above_N, gain_N = np.append(above_N, max(most, above_N.max())), np.append(gain_N, gain_N.max())
    # the curve bends at strengths only; there it is the best line between any two of them
    bends_X = np.unique(np.minimum(above_N, most))
    left_NN1, right_1N1 = above_N[:, None, None], above_N[None, :, None]
    share = (bends_X - left_NN1) / np.where(right_1N1 > left_NN1, right_1N1 - left_NN1, 1)
    line_NNX = gain_N[:, None, None] * (1 - share) + gain_N[None, :, None] * share
    best_X = np.where((left_NN1 <= bends_X) & (bends_X <= right_1N1), line_NNX, 0).max((0, 1))
    return float(bare[1] + np.trapezoid(best_X, bends_X) / most)


def drawn_texts(generator: np.random.Generator, prompts: int, classes: int, samples: int) -> np.ndarray:
    """Return how often each text [X] is in one resampling: prompts are drawn, and copies of each.

    The copies of a prompt are the same for all of its classes, which share their random numbers: under the bare model
    they are one text.
    """
    prompt_P11 = generator.integers(0, prompts, size=(prompts, 1, 1))
    sample_P1K = generator.integers(0, samples, size=(prompts, 1, samples))
    text_PCK = (prompt_P11 * classes + np.arange(classes)[:, None]) * samples + sample_P1K
    return np.bincount(text_PCK.ravel(), minlength=prompts * classes * samples)


def above_bare(
    found: Mapping[str, Sweep], method: str, *, resamples: int = RESAMPLES, seed: int = 0
) -> list[tuple[float, Interval]]:
    """Return a method's success minus the bare model's at each strength, with 95% bootstrap intervals.

    Texts are drawn as for the ranking, the same for both, and training seeds of each.
    """
    sweep, bare, generator = found[method], found[BARE], np.random.default_rng(seed)
    shape = tuple(map(int, bare.success_ZSPCK.shape[2:]))
    times_RX = np.stack([np.ones(math.prod(shape)), *(drawn_texts(generator, *shape) for _ in range(resamples))])

    def success(own: Sweep) -> np.ndarray:
        seeds = len(own.success_ZSPCK)
        chosen_RZ = generator.multinomial(seeds, [1 / seeds] * seeds, size=resamples)
        return resampled(own, times_RX, np.concatenate([np.ones((1, seeds)), chosen_RZ]))[1]

    difference_RS = success(sweep) - success(bare)[:, :1]
    return [(float(own[0]), _interval(own[1:])) for own in difference_RS.T]


@dataclass(frozen=True)
class Standing:
    """The standing of a method on a task.

    Attributes:
        method: its name.
        area, interval: under its curve, with the 95% bootstrap interval.
        rank, ranks: its rank by the area, and the 95% interval of its rank over resamplings.
        point: the strength of the best success within ``COST`` (0: the bare model's), its success and its cost above
        the bare model's, nats per token.
    """

    method: str
    area: float
    interval: Interval
    rank: float
    ranks: Interval
    point: tuple[float, float, float]


@dataclass(frozen=True)
class Ranking:
    """The methods of a task, best first, and Holm-adjusted p-values of their differences, by pair in that order.

    ``seeds`` is the number of training seeds, the most that a method has.
    """

    standings: tuple[Standing, ...]
    p_values: dict[tuple[str, str], float]
    prompts: int
    seeds: int


def areas(
    found: Mapping[str, Sweep], *, most: float, resamples: int, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return the areas of methods [M], of all texts and of every resampling [R, M]."""
    if BARE not in found:
        raise UserError("the ranking needs the bare model: lit-ctg field run task=... method=bare")

    prompts, classes, samples = map(int, found[BARE].success_ZSPCK.shape[2:])
    seeds = {name: len(found[name].success_ZSPCK) for name in [BARE, *(name for name in found if name != BARE)]}

    def of(times_RX: np.ndarray, seeds_RZ: Mapping[str, np.ndarray]) -> np.ndarray:
        cost, success = resampled(found[BARE], times_RX, seeds_RZ[BARE])
        bare = cost[:, 0], success[:, 0]
        own = (
            bare[1] if name == BARE else area(*resampled(sweep, times_RX, seeds_RZ[name]), bare, most)
            for name, sweep in found.items()
        )
        return np.stack(list(own), 1)

    drawn = []
    for start in range(0, resamples, AT_ONCE):
        count = min(AT_ONCE, resamples - start)
        times_RX = np.zeros((count, prompts * classes * samples))
        seeds_RZ = {name: np.ones((count, number)) for name, number in seeds.items()}
        for r in range(count):
            times_RX[r] = drawn_texts(generator, prompts, classes, samples)
            for name, number in seeds.items():
                if number > 1:
                    chosen = generator.integers(0, number, size=number)
                    seeds_RZ[name][r] = np.bincount(chosen, minlength=number)
        drawn.append(of(times_RX, seeds_RZ))
    whole = of(
        np.ones((1, prompts * classes * samples)), {name: np.ones((1, number)) for name, number in seeds.items()}
    )
    return whole[0], np.concatenate(drawn)


def ranking(found: Mapping[str, Sweep], *, most: float = COST, resamples: int | None = None, seed: int = 0) -> Ranking:
    """Rank methods by the area under their curves.

    A pair's p-value is twice the share of resamplings in which the difference has the other sign (or is 0), at least
    2 / (resamples + 1), adjusted for all pairs.

    Args:
        found: the methods; the bare model must be among them.
        resamples: of the bootstrap; None: ``PER_PAIR`` for every pair, at least ``RESAMPLES``.
    """
    names = list(found)
    if resamples is None:
        resamples = max(RESAMPLES, PER_PAIR * math.comb(len(names), 2))
    own, drawn = areas(found, most=most, resamples=resamples, generator=np.random.default_rng(seed))
    ranks_RM = rankdata(-drawn, axis=1)
    own_rank = rankdata(-own)
    order = sorted(range(len(names)), key=lambda place: (own_rank[place], names[place]))
    standings = tuple(
        Standing(
            names[m],
            float(own[m]),
            _interval(drawn[:, m]),
            float(own_rank[m]),
            _interval(ranks_RM[:, m]),
            best_point(found, names[m], most),
        )
        for m in order
    )
    pairs = [(a, b) for place, a in enumerate(order) for b in order[place + 1 :]]
    raw = []
    for a, b in pairs:
        difference = drawn[:, a] - drawn[:, b]
        least = min(int((difference <= 0).sum()), int((difference >= 0).sum()))
        raw.append(min(1.0, 2 * (least + 1) / (resamples + 1)))
    adjusted = holm(raw)
    p_values = {(names[a], names[b]): p for (a, b), p in zip(pairs, adjusted, strict=True)}
    prompts, seeds = int(found[BARE].success_ZSPCK.shape[2]), max(len(sweep.success_ZSPCK) for sweep in found.values())
    return Ranking(standings, p_values, prompts, seeds)


@dataclass(frozen=True)
class Place:
    """A method over several tasks: its mean rank with the 95% bootstrap interval, and its rank on each task."""

    method: str
    rank: float
    interval: Interval
    ranks: tuple[float, ...]


def over_tasks(
    tasks: Mapping[str, Mapping[str, Sweep]], *, most: float = COST, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[Place, ...]:
    """Return the methods that all tasks have by their mean rank among these, best first; none of fewer than two tasks
    or methods.

    The bootstrap draws prompts, texts and seeds of every task by itself; the tasks are the ones given, so the interval
    says nothing of other tasks.
    """
    if len(tasks) < 2:
        return ()
    names = of_all_tasks(tasks)
    if names == [BARE]:
        return ()
    own_TM, drawn_TRM = [], []
    for number, found in enumerate(tasks.values()):
        shared, generator = {name: found[name] for name in names}, np.random.default_rng([seed, number])
        own_M, drawn_RM = areas(shared, most=most, resamples=resamples, generator=generator)
        own_TM.append(rankdata(-own_M))
        drawn_TRM.append(rankdata(-drawn_RM, axis=1))
    mean_M, drawn_RM = np.mean(own_TM, axis=0), np.mean(drawn_TRM, axis=0)
    places = [
        Place(name, float(mean_M[m]), _interval(drawn_RM[:, m]), tuple(float(own[m]) for own in own_TM))
        for m, name in enumerate(names)
    ]
    return tuple(sorted(places, key=lambda place: (place.rank, place.method)))


def of_all_tasks(tasks: Mapping[str, Mapping[str, Sweep]]) -> list[str]:
    """Return the methods that every task has."""
    return [name for name in next(iter(tasks.values())) if all(name in found for found in tasks.values())]


def mean_ranks(
    tasks: Mapping[str, Mapping[str, Sweep]], measure: Callable[[np.ndarray, np.ndarray, tuple[float, float]], Any]
) -> dict[str, float]:
    """Return the mean rank over tasks of the methods that all have, by another measure than ``over_tasks``.

    Args:
        measure: of a method's costs and successes [S] and the bare model's, as ``area``; more is better.
    """
    names, ranks_TM = of_all_tasks(tasks), []
    for found in tasks.values():
        cost_S, success_S = curve(found[BARE])  # its strengths are all the same
        bare = float(cost_S[0]), float(success_S[0])
        own = [bare[1] if name == BARE else float(measure(*curve(found[name]), bare)) for name in names]
        ranks_TM.append(rankdata(-np.array(own)))
    return dict(zip(names, np.mean(ranks_TM, axis=0).tolist(), strict=True))


def best_point(found: Mapping[str, Sweep], method: str, most: float = COST) -> tuple[float, float, float]:
    """Return (strength, success, cost above bare) of the best strength within ``most``; see ``Standing``."""
    bare_cost, bare_success = curve(found[BARE])
    points = [(float(bare_success[0]), 0.0, 0.0)]
    if method != BARE:
        costs, successes = curve(found[method])
        points += [
            (float(success), -float(cost - bare_cost[0]), strength)
            for cost, success, strength in zip(costs, successes, found[method].strengths, strict=True)
            if cost - bare_cost[0] <= most
        ]
    success, minus_cost, strength = max(points)
    return strength, success, -minus_cost + 0.0


def _interval(values: np.ndarray) -> Interval:
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)


def bench_key(record: RunRecord) -> str:
    """Return what records must share to be compared: all of their configuration but method, name and seed.

    ``data.seed`` follows the seed; it orders batches, which the field does not read. It counts as 0, so that rankings
    under other judges, which name their bench, are found for records of any seed.
    """
    config = copy.deepcopy(record.config)
    if "seed" in config.get("data", {}):
        config["data"]["seed"] = 0
    return config_hash(config, without=[*HASH_IGNORED, "method", "name", "seed"])


def describe(record: RunRecord, strength: float, name: str) -> Any:
    """Return a measure of a record at one strength, or None."""
    entry = record.metrics.get(f"{name}@{strength:g}")
    return None if entry is None else entry["value"]

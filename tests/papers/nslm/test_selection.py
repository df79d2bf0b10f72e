"""The grid search finds what the data were made with."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from lit_ctg.papers.nslm.classes import ClassTable, PatternRecogniser, class_table
from lit_ctg.papers.nslm.occurrences import Evidence, Occurrences
from lit_ctg.papers.nslm.selection import PRINTED, REFERENCES, class_perplexity, select
from lit_ctg.results.spec import load_spec

GRID = {"metrics": ["difference", "value", "frequency"], "densities": ["multinomial", "gaussian", "unigram"]}


@pytest.fixture
def table() -> ClassTable:
    year = PatternRecogniser(name="year", pattern=r"19\d\d", **GRID)
    small = PatternRecogniser(name="small", pattern=r"\d", **GRID)
    return class_table([str(number) for number in [*range(1900, 2000), *range(10)]], [year, small])


def made(count: int, seed: int) -> Occurrences:
    """Years walk by a step of Gaussian width 4, small numbers ignore the member before."""
    rng = np.random.default_rng(seed)
    class_N = rng.integers(0, 2, count)
    previous_N = np.where(class_N == 0, rng.integers(20, 80, count), rng.integers(0, 10, count))
    step_N = np.rint(rng.normal(0, 4, count)).astype(int)
    index_N = np.where(class_N == 0, previous_N + step_N, rng.choice(10, count, p=np.arange(10) / 45))
    return Occurrences(np.arange(count), class_N, index_N, Evidence.of_previous(previous_N))


def test_every_pair_is_tried_and_the_right_one_chosen(table: ClassTable) -> None:
    selection = select(table, made(1500, 0), made(800, 1))
    labels = {trial.label for trial in selection.best("year")}
    pairs = {f"{metric}/{density}" for metric in GRID["metrics"] for density in ("multinomial", "gaussian")}
    assert labels == pairs | {"frequency/unigram"}
    assert selection.best("year")[0].label == "difference/gaussian"
    assert selection.models["small"].metric.kind in ("count", "scalar")
    # the entropy of a Gaussian of width 4 is that of 4 sqrt(2 pi e) equal choices
    assert selection.best("year")[0].perplexity == pytest.approx(4 * math.sqrt(2 * math.pi * math.e), rel=0.1)


def test_table_and_record_entries_hold_the_whole_grid(table: ClassTable) -> None:
    selection = select(table, made(300, 0), made(200, 1))
    results = selection.results()
    assert len([name for name in results if name.startswith("grid/")]) == 14
    assert len(selection.best("year")) + len(selection.best("small")) == 14
    assert results["grid/year/difference/gaussian"]["n"] == len(made(200, 1).of(0))
    assert selection.table().count("*") == 2
    best = selection.best("year")[0]
    assert f"*{best.label}" in selection.table() and f"{best.perplexity:.2f}" in selection.table()
    # of the pair in use its parameters
    used = selection.models["year"]
    entries = {name: entry["value"] for name, entry in results.items() if name.startswith("micro_model/year/")}
    where = "micro_model/year/difference/gaussian"
    assert entries == {
        f"{where}/share": 1.0,
        f"{where}/mean": used.density.mean,
        f"{where}/deviation": used.density.variance**0.5,
        f"{where}/planar": 0.0,
        f"{where}/fallback_smoothing": used.fallback_smoothing,
    }


def test_the_record_and_the_table_have_the_blend(table: ClassTable) -> None:
    validation = made(200, 1)
    selection = select(table, made(300, 0), validation, bases=("uniform", "unigram"), blend=True)
    results, blend = selection.results(), selection.models["year"]
    expected = class_perplexity(blend, validation.of(0))
    assert results["grid/year/blend"]["value"] == pytest.approx(expected, rel=1e-12)
    assert expected <= selection.best("year")[0].perplexity * 1.001
    shares = {n: entry["value"] for n, entry in results.items() if n.startswith("micro_model/year/") and "share" in n}
    assert sorted(shares.values()) == pytest.approx(sorted(blend.weight_P))
    assert any("/unigram/share" in name for name in shares)
    lines = [line for line in selection.table(most=2).splitlines() if line.startswith("year")]
    assert len(lines) == 3 and "*blend" in lines[0] and f"{expected:.2f}" in lines[0]
    assert "*" not in "".join(lines[1:])


def test_several_parameters_of_a_density_are_numbered(table: ClassTable) -> None:
    year = PatternRecogniser(name="year", pattern=r"19\d\d", metrics=["difference"], densities=["mixture"])
    alone = class_table([str(number) for number in range(1900, 2000)], [year])
    train, validation = (found.where(found.class_N == 0) for found in (made(400, 0), made(300, 1)))
    results = select(alone, train, validation).results()
    values = [results[f"micro_model/year/difference/mixture/weight/{place}"]["value"] for place in range(2)]
    assert 0 < sum(values) <= 1 + 1e-9


def test_a_class_without_validation_text_keeps_its_unigram(table: ClassTable) -> None:
    train, validation = made(300, 0), made(200, 1)
    selection = select(
        table, train, validation.where(validation.class_N == 0), bases=("uniform", "unigram"), blend=True
    )
    assert selection.models["small"].metric.name == "frequency"
    assert selection.models["small"] is next(t.model for t in selection.trials if t.class_name == "small")
    assert selection.best("small")[0].model is selection.models["small"]
    assert math.isnan(class_perplexity(selection.models["small"], validation.where(np.zeros(200, bool))))


def test_same_as_previous_is_tried_and_wins_where_members_are_repeated(table: ClassTable) -> None:
    def often_the_same(count: int, seed: int) -> Occurrences:
        found, same_N = made(count, seed), np.random.default_rng(seed).random(count) < 0.7
        index_N = np.where(same_N, found.evidence.previous_N, found.index_N)
        return Occurrences(found.position_N, found.class_N, index_N, found.evidence)

    train, validation = often_the_same(1500, 0), often_the_same(800, 1)
    plain, selection = select(table, train, validation), select(table, train, validation, repeat=True)
    labels = {trial.label for trial in plain.best("year")}
    assert {trial.label for trial in selection.best("year")} - labels == {
        "repeat/unigram", *(f"repeat+{label}" for label in labels if label != "frequency/unigram")
    }  # fmt: skip
    # members that do not repeat are near in years and anything in small numbers
    assert selection.best("year")[0].metric == "repeat+difference"
    assert selection.best("small")[0].metric.startswith("repeat")
    assert selection.best("year")[0].perplexity < plain.best("year")[0].perplexity
    # candidates without it have not moved
    for trial in plain.best("year"):
        (same,) = [t for t in selection.best("year") if t.label == trial.label]
        assert same.perplexity == trial.perplexity


def test_references_are_the_simple_micro_models(table: ClassTable) -> None:
    validation = made(800, 1)
    selection = select(table, made(1500, 0), validation, bases=("uniform", "unigram"), blend=True)
    assert tuple(selection.references) == REFERENCES
    best = {trial.label: trial for trial in selection.best("year")}
    found = {name: class_perplexity(models["year"], validation.of(0)) for name, models in selection.references.items()}
    assert found["unigram"] == best["frequency/unigram"].perplexity
    assert found["gaussian"] == best["difference/gaussian"].perplexity
    uniform = [t for t in best.values() if t.base == "uniform" and t.metric != "frequency"]
    assert found["metric"] == min(trial.perplexity for trial in uniform)
    assert selection.references["repeat"]["year"].describe()["metric"] == "repeat"


def test_the_printed_pair_of_a_class_is_a_reference_wherever_the_grid_has_it() -> None:
    grid = {**GRID, "densities": [*GRID["densities"], "mixture"]}
    year = PatternRecogniser(name="year", pattern=r"19\d\d", **grid)
    small = PatternRecogniser(name="small", pattern=r"\d", **grid)
    names = [str(number) for number in [*range(1900, 2000), *range(10)]]
    validation = made(800, 1)
    selection = select(class_table(names, [year, small]), made(1500, 0), validation, bases=("uniform", "unigram"))
    (best,) = (trial for trial in selection.best("year") if trial.label == "difference/mixture")
    printed = selection.references["printed"]
    assert class_perplexity(printed["year"], validation.of(0)) == best.perplexity
    assert printed["small"] is selection.references["unigram"]["small"], "no class of the paper"


def test_the_printed_pairs_are_those_of_the_tables() -> None:
    path = Path(__file__).resolve().parents[3] / "experiments/nslm/tables/table_choice.yaml"
    rows = [row.terms[0][1]["as_published"].split("/") for row in load_spec(path, "nslm").rows]
    assert {name: (metric, density) for _, name, metric, density in rows} == PRINTED

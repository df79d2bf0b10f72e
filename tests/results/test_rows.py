from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from lit_ctg.errors import UserError
from lit_ctg.numbers import format_value
from lit_ctg.results.record import RunRecord
from lit_ctg.results.render import n_words
from lit_ctg.results.rows import build_row
from lit_ctg.results.spec import Printed, load_spec
from lit_ctg.results.table import RecordPool, Row

NUMBERS = {
    ("1", "a", "x"): Printed(2.0, "2.0"),
    ("1", "b", "x"): Printed(4.0, "4.0"),
    ("1", "c", "x"): Printed(None, ""),
}
NARROW = "metric: m, printed: {row: a, column: x}, margin: {relative: 0.05, why: w}"
# Student's t for four degrees of freedom, from a table
T4 = 2.776445


def pool_of(make_record, values: dict[str, list[float]], metric: str = "m", n: int = 200) -> RecordPool:
    """Return corrected records: experiment -> one value a seed (1, 2, ...)."""
    records: list[RunRecord] = []
    for name, column in values.items():
        for seed, value in enumerate(column, start=1):
            record = make_record(name, "corrected", seed)
            entry = {"value": value, "unit": "u", "direction": "lower", "n": n, "ci95": None, "version": 1}
            record.metrics = {metric: entry}
            records.append(record)
    return RecordPool(records, "semantic_fusion", "paper")


def row_of(tmp_path: Path, text: str, pool: RecordPool, head: str = "") -> Row:
    """Build the one row of a table; ``head`` may state checks."""
    path = tmp_path / "table_1.yaml"
    path.write_text(f"title: T\ntable: 1\n{head}rows:\n  - {{label: A, regimes: [corrected], {text}}}\n")
    table = load_spec(path, "semantic_fusion")
    return build_row(table, table.rows[0], NUMBERS, pool)


def test_a_level_has_the_interval_of_one_more_run(make_record, tmp_path) -> None:
    pool = pool_of(make_record, {"main": [1.9, 2.1, 2.2, 2.4, 2.4]})
    row = row_of(tmp_path, NARROW, pool)
    cell = row.cells["corrected"]
    half = T4 * math.sqrt(0.045 * (1 + 1 / 5))
    assert cell.mean == pytest.approx(2.2)
    assert cell.interval == pytest.approx((2.2 - half, 2.2 + half), abs=1e-5), "where one more run would lie"
    assert cell.verdict.label == "undecided"
    assert row.cells["as_published"] is None
    wide = row_of(tmp_path, "metric: m, printed: {row: a, column: x}, margin: {relative: 0.5, why: w}", pool)
    assert wide.cells["corrected"].verdict.label == "reproduced"


def test_a_row_may_be_about_some_seeds_only(make_record, tmp_path) -> None:
    pool = pool_of(make_record, {"main": [1.0, 2.0, 3.0, 4.0, 5.0]})
    first = min(record.seed for record in pool.records())
    text = f"{NUMBER}, regimes: {{corrected: [{first}]}}"
    cell = row_of(tmp_path, text, pool).cells["corrected"]
    assert (list(cell.values), cell.interval) == ([first], None)
    missing = row_of(tmp_path, text.replace(f"[{first}]", "[99]"), pool).cells["corrected"]
    assert missing.hole == "not run: seed 99"


def test_intervals_stay_where_the_quantity_can_be(make_record, tmp_path) -> None:
    """Values and units as recorded; a claim's interval must be free to lie on both sides of 0."""
    pool = pool_of(make_record, {"main": [784.0, 3784.0], "sure": [0.97, 1.0, 0.9], "gap": [0.2, 0.3, 0.1]})
    units = {"main": ("perplexity", "lower"), "sure": ("rate", "higher"), "gap": ("rate", "higher")}
    for record in pool.records():
        record.metrics["m"]["unit"], record.metrics["m"]["direction"] = units[record.name]
    low, high = row_of(tmp_path, "metric: m", pool).cells["corrected"].interval
    assert 1 <= low < 2284 < high and low * high > 0
    low, high = row_of(tmp_path, "metric: m, experiment: sure", pool).cells["corrected"].interval
    assert 0 < low < 0.95 and high == 1.0
    text = "metric: m, combine: percent_change, terms: [{experiment: gap}, {experiment: sure}]"
    low, high = row_of(tmp_path, text, pool).cells["corrected"].interval
    assert -100 < low < high < 0, "nothing loses more than everything"
    bounded = row_of(tmp_path, "metric: m, bounds: {limits: [0, 4000]}", pool).cells["corrected"].interval
    assert bounded == (0.0, 4000.0)
    text = "metric: m, combine: difference, terms: [{experiment: gap}, {experiment: sure}]"
    low, high = row_of(tmp_path, text, pool).cells["corrected"].interval
    assert -1 <= low < high < 0
    plain = row_of(tmp_path, f"{text}, claim: less", pool).cells["corrected"].interval
    assert plain == pytest.approx((low, high)), "no cut was needed, so none was made"


def test_differences_are_paired_by_seed(make_record, tmp_path) -> None:
    # the pairs differ by 1, 1.1, 0.9, 1: seeds spread far wider than that
    pool = pool_of(make_record, {"main": [1.0, 12.1, 20.9, 31.0], "baseline": [0.0, 11.0, 20.0, 30.0, 99.0]})
    text = "metric: m, combine: difference, terms: [{}, {experiment: baseline}]"
    cell = row_of(tmp_path, text, pool).cells["corrected"]
    assert list(cell.values.values()) == pytest.approx([1.0, 1.1, 0.9, 1.0])
    assert cell.interval[0] > 0.8
    assert cell.finding == "higher"
    assert cell.note == "unpaired seeds left out: 5"


def test_printed_numbers_are_combined_like_the_terms(make_record, tmp_path) -> None:
    pool = pool_of(make_record, {"main": [1.0, 1.1, 0.9], "baseline": [3.0, 3.2, 2.9]})
    text = (
        "metric: m, combine: difference, terms: [{}, {experiment: baseline}], claim: less, digits: 1,"
        "printed: [{row: a, column: x}, {row: b, column: x}], margin: {relative: 0.05, why: w}"
    )
    row = row_of(tmp_path, text, pool)
    assert (row.printed.value, row.printed.text) == (-2.0, "−2.0")
    assert row.cells["corrected"].verdict.label == "supported"
    with pytest.raises(UserError, match=r"claim greater, but .2\.0 is printed"):
        row_of(tmp_path, text.replace("less", "greater"), pool)
    with pytest.raises(UserError, match=r"claim less, but .2\.0 is printed"):
        row_of(tmp_path, text.replace("[{row: a, column: x}, {row: b", "[{row: b, column: x}, {row: a"), pool)
    with pytest.raises(UserError, match="a list of printed numbers needs 'combine' and every number"):
        row_of(tmp_path, text.replace("row: b", "row: c"), pool)


@pytest.mark.parametrize(
    ("combine", "expected"),
    [("ratio", 0.25), ("percent_change", -75.0), ("sum", 5.0), ("mean", 2.5), ("difference", -3.0)],
)
def test_combinations(make_record, tmp_path, combine, expected) -> None:
    pool = pool_of(make_record, {"main": [1.0], "baseline": [4.0]})
    text = f"metric: m, combine: {combine}, terms: [{{}}, {{experiment: baseline}}]"
    assert row_of(tmp_path, text, pool).cells["corrected"].mean == expected


def test_a_ratio_to_nothing_is_no_number_and_decides_no_claim(make_record, tmp_path) -> None:
    pool = pool_of(make_record, {"main": [1.0, 2.0, 3.0], "baseline": [4.0, 0.0, 1.0]})
    text = "metric: m, combine: {}, terms: [{{}}, {{experiment: baseline}}]{}"
    for combine in ("ratio", "percent_change"):
        cell = row_of(tmp_path, text.format(combine, ""), pool).cells["corrected"]
        assert math.isnan(cell.values[2]) and cell.interval is None
    cell = row_of(tmp_path, text.format("percent_change", ", claim: less"), pool).cells["corrected"]
    assert (cell.verdict.label, cell.verdict.reason) == ("undecided", "ours is nan")


def test_a_printed_rate_is_held_against_what_as_many_trials_would_show(make_record, tmp_path) -> None:
    """The same rates of ours: over fewer printed trials the interval is wider; one seed has one that does not count."""
    pool = pool_of(make_record, {"main": [0.5, 0.52, 0.48]}, n=2000)
    text = "metric: m, bounds: {{limits: [0, 1]}}, interval: {{wilson: {}}}"
    few, many = (row_of(tmp_path, text.format(n), pool).cells["corrected"].interval for n in (20, 2000))
    # of 20 trials at one half 95% of counts lie from 6 to 14; the spread of the seeds is far smaller
    assert few == pytest.approx((0.3, 0.7), abs=0.051)
    assert few[0] < many[0] < 0.48 and 0.52 < many[1] < few[1]
    one = row_of(tmp_path, f"{text.format(20)}, regimes: {{corrected: [1]}}", pool).cells["corrected"]
    assert one.interval == pytest.approx((0.3, 0.7), abs=0.051)
    numbers = f"{text.format(2000)}, printed: {{row: a, column: x}}, margin: {{absolute: 9, why: w}}"
    for seeds, label in (([1, 2, 3], "reproduced"), ([1, 2], "undecided")):
        cell = row_of(tmp_path, f"{numbers}, regimes: {{corrected: {seeds}}}", pool).cells["corrected"]
        assert (len(cell.values), cell.verdict.label) == (len(seeds), label)
    assert cell.verdict.reason == "fewer than 3 seeds"


def test_two_folds_show_an_interval_that_does_not_count(make_record, tmp_path) -> None:
    text = "combine: difference, terms: [{metric: m}, {metric: o}], claim: greater, interval: folds"
    two = fold_pool(make_record, {"m": [[5.0, 5.1]], "o": [[1.0, 1.1001]]})
    cell = row_of(tmp_path, text, two).cells["corrected"]
    assert cell.interval[0] > 0 and (cell.folds, cell.verdict.label) == (2, "undecided")
    three = fold_pool(make_record, {"m": [[5.0, 5.1, 5.2]], "o": [[1.0, 1.1001, 1.2]]})
    assert row_of(tmp_path, text, three).cells["corrected"].verdict.label == "supported"
    broken = fold_pool(make_record, {"m": [[5.0, math.nan, 5.2]], "o": [[1.0, 1.1, 1.2]]})
    for record in broken.seen:
        record.metrics["m"]["value"] = 5.0
    assert row_of(tmp_path, text, broken).cells["corrected"].interval is None


def test_wilson_pools_the_trials(make_record, tmp_path) -> None:
    pool = pool_of(make_record, {"main": [0.5, 0.7]}, n=200)
    cell = row_of(tmp_path, "metric: m, interval: wilson", pool).cells["corrected"]
    # 240 of 400, by Wilson's formula with z = 1.96
    assert (cell.mean, cell.trials) == (0.6, 400)
    assert cell.interval == pytest.approx((0.5513, 0.6469), abs=2e-4)
    pool = pool_of(make_record, {"main": [0.4, 0.5, 0.6]}, n=200)
    cell = row_of(tmp_path, "metric: m, interval: wilson", pool).cells["corrected"]
    # Student's over the seeds, 0.5 +- 4.303 x 0.0577, is wider than Wilson's over 600 texts
    assert (cell.mean, cell.trials) == (0.5, 600)
    assert cell.interval == pytest.approx((0.2516, 0.7484), abs=2e-4)


@pytest.mark.parametrize(("runs", "label"), [(38, "undecided"), (39, "reproduced")])
def test_runs_of_several_kinds_have_their_range(make_record, tmp_path, runs, label) -> None:
    """Three equal runs on a plateau do not show that a fourth cannot leave it."""
    pool = pool_of(make_record, {"main": [1.99, 2.01] + [2.0] * (runs - 2)})
    number = "printed: {row: a, column: x}, margin: {relative: 0.05, why: w}"
    cell = row_of(tmp_path, f"metric: m, interval: range, {number}", pool).cells["corrected"]
    assert cell.verdict.label == label
    assert cell.interval == (None if runs < 39 else (1.99, 2.01))
    assert ("of 39 runs that a range needs" in cell.verdict.reason) == (runs < 39)


def test_wilson_wants_rates(make_record, tmp_path) -> None:
    with pytest.raises(UserError, match="is not a rate"):
        row_of(tmp_path, "metric: m, interval: wilson", pool_of(make_record, {"main": [4.9]}))
    cell = row_of(tmp_path, "metric: m, interval: wilson", pool_of(make_record, {"main": [0.5, math.nan]}))
    assert cell.cells["corrected"].interval is None


def test_impossible_needs_no_run_but_the_hole_stays(make_record, tmp_path) -> None:
    text = f"{NARROW}, bounds: {{floor: {{number: 2.672, metric: f}}}}"
    cell = row_of(tmp_path, text, RecordPool([], "semantic_fusion", "paper")).cells["corrected"]
    assert cell.verdict.label == "impossible"
    assert cell.hole.startswith("not run: main")


def test_the_recorded_floor_goes_before_the_stated_one(make_record, tmp_path) -> None:
    pool = pool_of(make_record, {"main": [1.9]})
    for runs in pool.runs.values():
        runs[1].metrics["f"] = {**runs[1].metrics["m"], "value": 1.95}
    text = f"{NARROW}, bounds: {{floor: {{number: 2.672, metric: f}}}}"
    cell = row_of(tmp_path, text, pool).cells["corrected"]
    assert cell.bounds["floor"] == 1.95
    assert cell.verdict.label == "undecided", "2.0 is above the recorded floor"
    broken = pool_of(make_record, {"main": [1.9]})
    broken.seen[0].metrics["f"] = {**broken.seen[0].metrics["m"], "value": math.nan}
    assert row_of(tmp_path, text, broken).cells["corrected"].bounds["floor"] == 2.672, "a broken one is none"
    at = pool_of(make_record, {"main": [2.672]})
    assert row_of(tmp_path, text, at).cells["corrected"].finding == "", "at the floor is not below it"
    assert "below the floor 1.95" in cell.finding, "ours is not: something leaks"


def test_values_that_are_not_finite_are_shown_and_never_reproduced(make_record, tmp_path) -> None:
    pool = pool_of(make_record, {"main": [2.0, math.nan, 2.0]})
    cell = row_of(tmp_path, NARROW, pool).cells["corrected"]
    assert (cell.interval, cell.verdict.label) == (None, "not reproduced")
    assert math.isnan(cell.mean)
    one = pool_of(make_record, {"main": [math.inf]})
    cell = row_of(tmp_path, NARROW, one).cells["corrected"]
    assert (cell.verdict.label, cell.verdict.reason) == ("undecided", "fewer than 3 seeds")


def test_a_printed_difference_without_a_claim_is_held_against_one_more_run(make_record, tmp_path) -> None:
    """Its 30 values spread by 2 around -4: one run may well give the printed -2, though the mean is far from it."""
    pool = pool_of(make_record, {"main": [-4.0, -2.0, -6.0] * 10, "baseline": [0.0] * 30})
    text = (
        "metric: m, combine: difference, terms: [{}, {experiment: baseline}],"
        "printed: [{row: a, column: x}, {row: b, column: x}], margin: {absolute: 0.5, why: w}"
    )
    cell = row_of(tmp_path, text, pool).cells["corrected"]
    assert cell.verdict.label == "undecided" and cell.interval[0] < -7 and cell.interval[1] > -1
    claimed = row_of(tmp_path, f"{text}, claim: less", pool).cells["corrected"]
    assert claimed.interval[1] < -3, "of a claim the interval is that of the mean"


def test_goals(make_record, tmp_path) -> None:
    pool = pool_of(make_record, {"main": [1.3]})
    goals = {"at_most: 1.25": "missed", "at_least: 0.3": "met", "at_most: 1.3": "met", "at_least: 1.3": "met"}
    for goal, met in goals.items():
        cell = row_of(tmp_path, f"metric: m, goal: {{{goal}}}", pool).cells["corrected"]
        assert cell.finding == f"goal {goal.replace('_', ' ').replace(':', '')}: {met}"


def test_unknown_printed_number_is_an_error(make_record, tmp_path) -> None:
    with pytest.raises(UserError, match="printed=1/a/xx"):
        row_of(tmp_path, NARROW.replace("column: x", "column: xx"), pool_of(make_record, {}))


def test_not_reported_has_no_verdict(make_record, tmp_path) -> None:
    pool = pool_of(make_record, {"main": [1.0]})
    row = row_of(tmp_path, NARROW.replace("row: a", "row: c"), pool)
    assert row.cells["corrected"].verdict is None


def test_texts_are_picked_and_counted(make_record, tmp_path) -> None:
    pool = RecordPool([make_record("main", "corrected", seed) for seed in (1, 2)], "semantic_fusion", "paper")
    text = "samples: {where: {path: hard, setting: positive, prompt: ''}, show: 1, expect: 'wonderful!$'}"
    cell = row_of(tmp_path, text, pool).cells["corrected"]
    assert cell.texts == ("Carol finishes the model, extremely wonderful!",)
    assert cell.finding == "2 of 4 as asked"
    # shown are those of the lowest seed that has any, each once
    pool.seen[0].samples, text = [], "samples: {where: {path: hard}, show: 9, expect: 'x'}"
    pool.seen[1].samples = [{"text": word, "path": "hard"} for word in ("xa", "b", "xa", "c")]
    cell = row_of(tmp_path, text, pool).cells["corrected"]
    assert (cell.texts, cell.finding, list(cell.values)) == (("xa", "b", "c"), "2 of 4 as asked", [2])
    pool.seen[0].samples = [{"text": "d", "path": "hard"}]
    cell = row_of(tmp_path, text, pool).cells["corrected"]
    assert (cell.texts, cell.finding, list(cell.values)) == (("d",), "2 of 5 as asked", [1, 2])
    missing = row_of(tmp_path, "samples: {where: {path: nowhere}}", pool).cells["corrected"]
    assert missing.hole == "not recorded: samples with path='nowhere'"


def test_format_value() -> None:
    assert format_value(1234.5678, 2) == "1,234.57"
    assert format_value(-1e-17, 3, signed=True) == "0.000", "rounding, no number"
    assert format_value(-0.0004, 3, signed=True) == "−4.0e−4"
    assert format_value(3e-7, 5) == "3.0e−7" and format_value(3e-7, 5, exponent=False) == "0.00000"
    assert format_value(0.02, 3, exponent=True) == "2.0e−2" and format_value(0.0, 3, exponent=True) == "0.000"
    assert format_value(3.02e19, 1) == "3.0e19"
    assert format_value(-0.5, 1, signed=True) == "−0.5"
    assert format_value(0.5, 1, signed=True) == "+0.5"
    assert format_value(math.inf, 1) == "inf"
    assert format_value(None, 1) == ""


def test_a_sentence_without_a_size_is_judged_by_its_side(make_record, tmp_path) -> None:
    text = "metric: m, combine: difference, terms: [{}, {experiment: baseline}], claim: less"
    below = pool_of(make_record, {"main": [1.0, 2.1, 2.9], "baseline": [2.0, 3.0, 4.0]})
    row = row_of(tmp_path, text, below)
    assert row.judged and row.printed is None
    assert row.cells["corrected"].verdict.label == "supported" and row.cells["corrected"].finding == ""
    spanning = pool_of(make_record, {"main": [1.0, 5.0, 2.0], "baseline": [2.0, 3.0, 4.0]})
    assert row_of(tmp_path, text, spanning).cells["corrected"].verdict.label == "undecided"
    two = pool_of(make_record, {"main": [1.0, 2.1], "baseline": [2.0, 3.0]})
    assert row_of(tmp_path, text, two).cells["corrected"].verdict.label == "undecided"
    other = text.replace("less", "greater")
    assert row_of(tmp_path, other, below).cells["corrected"].verdict.label == "contradicted"


def test_a_number_that_was_not_run_is_told_unless_there_is_a_run_or_a_bound(make_record, tmp_path) -> None:
    text = f"{NARROW}, not_run: no weights"
    assert row_of(tmp_path, text, pool_of(make_record, {})).cells["corrected"].hole == "not run: no weights"
    ran = row_of(tmp_path, text, pool_of(make_record, {"main": [2.0, 2.0, 2.0]})).cells["corrected"]
    assert ran.hole is None and ran.verdict.label == "reproduced"
    bound = "printed: {row: a, column: x}, bounds: {ceiling: 1.5}, not_run: nobody was asked"
    cell = row_of(tmp_path, bound, pool_of(make_record, {"main": [1.0]})).cells["corrected"]
    assert (cell.hole, cell.verdict.label) == ("not run: nobody was asked", "impossible")


def fold_pool(make_record, folds: dict[str, list[list[float]]], unit: str = "u") -> RecordPool:
    """Return corrected records of "main": metric -> the values over folds of each seed."""
    records = []
    for seed in range(len(next(iter(folds.values())))):
        record = make_record("main", "corrected", seed)
        record.metrics = {
            name: {"value": sum(runs[seed]) / len(runs[seed]), "unit": unit, "direction": "lower", "n": 5,
                   "ci95": None, "version": 1, "folds": runs[seed]}
            for name, runs in folds.items()
        }  # fmt: skip
        records.append(record)
    return RecordPool(records, "semantic_fusion", "paper")


def test_one_run_has_the_interval_over_its_folds(make_record, tmp_path) -> None:
    one, other = [1.0, 2.0, 3.0, 4.0, 5.0], [0.5, 1.6, 2.4, 3.6, 4.4]
    pool = fold_pool(make_record, {"m": [one], "o": [other]})
    cell = row_of(tmp_path, "metric: m, interval: folds", pool).cells["corrected"]
    half = T4 * math.sqrt(2.5 / 5)
    assert cell.interval == pytest.approx((3.0 - half, 3.0 + half), abs=1e-5)
    assert (len(cell.values), cell.folds, n_words(cell)) == (1, 5, "1 run, 5 folds")
    difference = "combine: difference, terms: [{metric: m}, {metric: o}], claim: greater"
    folded = row_of(tmp_path, f"{difference}, interval: folds", pool).cells["corrected"]
    half = T4 * math.sqrt(0.01 / 5)  # 0.5, 0.4, 0.6, 0.4, 0.6
    assert folded.interval == pytest.approx((0.5 - half, 0.5 + half), abs=1e-5)
    assert folded.verdict.label == "supported"
    assert row_of(tmp_path, difference, pool).cells["corrected"].verdict.label == "undecided"


def test_a_claim_on_a_metric_that_is_a_difference_is_about_its_mean(make_record, tmp_path) -> None:
    """Not about where one more run would fall, and not cut off at 0, which a difference may cross."""
    pool = fold_pool(make_record, {"m": [[0.02], [0.03], [0.04]], "o": [[-0.02], [0.03], [0.04]]}, unit="share")
    cell = row_of(tmp_path, "metric: m, claim: greater", pool).cells["corrected"]
    half = 4.302653 * math.sqrt(1e-4 / 3)
    assert cell.interval == pytest.approx((0.03 - half, 0.03 + half)) and cell.verdict.label == "supported"
    wide = row_of(tmp_path, "metric: o, claim: greater", pool).cells["corrected"]
    assert wide.interval[0] < 0 and wide.verdict.label == "undecided"


def test_over_seeds_folds_do_not_count(make_record, tmp_path) -> None:
    pool = fold_pool(make_record, {"m": [[1.0, 3.0], [2.0, 4.0], [4.0, 4.0]]})
    cell = row_of(tmp_path, "metric: m, interval: folds", pool).cells["corrected"]
    assert cell.interval == row_of(tmp_path, "metric: m", pool).cells["corrected"].interval
    uneven = fold_pool(make_record, {"m": [[1.0, 3.0]], "o": [[1.0, 2.0, 3.0]]})
    text = "combine: difference, terms: [{metric: m}, {metric: o}], interval: folds"
    assert row_of(tmp_path, text, uneven).cells["corrected"].interval is None


# --- which runs may speak -------------------------------------------------------------------------------------------


NUMBER = "metric: m, printed: {row: a, column: x}, margin: {relative: 0.5, why: w}"
CLAIM = "metric: m, combine: difference, terms: [{}, {experiment: baseline}], claim: less"


def of_size(pool: RecordPool, size: str) -> RecordPool:
    for record in pool.seen:
        record.size = size
    return RecordPool(pool.seen, "semantic_fusion", size)


def test_a_number_is_judged_at_the_papers_size_only_a_claim_at_any(make_record, tmp_path) -> None:
    values = {"main": [2.0, 2.01, 1.99], "baseline": [3.0, 3.01, 2.98]}
    for size, number, claim in (("paper", "reproduced", "supported"), ("small", "other size", "supported"),
                                ("smoke", "other size", "other size")):  # fmt: skip
        pool = of_size(pool_of(make_record, values), size)
        assert row_of(tmp_path, NUMBER, pool).cells["corrected"].verdict.label == number
        assert row_of(tmp_path, CLAIM, pool).cells["corrected"].verdict.label == claim
    small = of_size(pool_of(make_record, values), "small")
    text = f"{NUMBER}, other: 'any size: a property of the corpus'"
    assert row_of(tmp_path, text, small).cells["corrected"].verdict.label == "reproduced"


def test_what_is_not_comparable_is_told_and_not_row_of(make_record, tmp_path) -> None:
    pool = pool_of(make_record, {"main": [2.0, 2.01, 1.99]})
    for record in pool.seen:
        record.metrics["m"]["unit"] = "ratio"
    cell = row_of(tmp_path, f'{NUMBER}, other: "other metric: deviation 3"', pool).cells["corrected"]
    assert (cell.verdict.label, cell.verdict.reason) == ("other metric", "deviation 3")
    assert cell.spread is not None and cell.spread_printed is None, "no spread with a number of something else"


def check(limit: str, experiment: str = "") -> str:
    return f"checks: {{good: {{says: it beats a guess, metric: m{experiment}, {limit}}}}}\n"


def test_checks_come_first_and_are_told_with_their_numbers(make_record, tmp_path) -> None:
    pool = pool_of(make_record, {"main": [2.0, 2.01, 1.99], "baseline": [3.0, 3.01, 2.98]})
    text = f"{CLAIM}, checks: [good]"
    assert row_of(tmp_path, text, pool, check("below: 3.5")).cells["corrected"].verdict.label == "supported"
    failed = row_of(tmp_path, text, pool, check("below: 2.5")).cells["corrected"].verdict
    assert failed.label == "cannot decide"
    assert re.fullmatch(r"not shown that it beats a guess: 2\.997 \[2\.9\d+, 3\.0\d+\] against 2\.500", failed.reason)
    only = row_of(tmp_path, text, pool, check("below: 2.5", ", experiment: main")).cells["corrected"].verdict
    assert only.label == "supported", "asked of one experiment alone"
    absent = row_of(tmp_path, text, pool, check("below: {metric: guess}")).cells["corrected"].verdict
    assert (absent.label, absent.reason) == ("cannot decide", "not shown that it beats a guess: not measured")
    times = row_of(tmp_path, text, pool, check("at_least: 1.0, times: 2.5")).cells["corrected"].verdict
    assert times.reason.startswith("not shown that it beats a guess: 2.000 [") and "against 2.500" in times.reason
    lost = pool_of(make_record, {"main": [2.0, 2.01, math.inf], "baseline": [3.0, 3.01, 2.98]})
    endless = row_of(tmp_path, text, lost, check("at_least: 1.0", ", experiment: main")).cells["corrected"].verdict
    assert endless.label == "cannot decide", "infinite is no number above a limit"
    exact = pool_of(make_record, {"main": [2.0] * 3, "baseline": [3.0, 3.01, 2.98]})
    for limit, label in (("at_most", "supported"), ("at_least", "supported"), ("below", "cannot decide"),
                         ("above", "cannot decide")):  # fmt: skip
        held = row_of(tmp_path, text, exact, check(f"{limit}: 2.0", ", experiment: main")).cells["corrected"].verdict
        assert held.label == label, limit


@pytest.mark.parametrize(
    ("seeds", "limit", "label"),
    [
        ([2.0, 2.1, 1.9], "below: 2.4", "supported"),
        ([2.0, 2.1, 1.9], "below: 2.1", "undecided"),  # the mean is below, its interval ends at 2.26
        ([2.0, 2.1, 1.9], "below: 1.9", "undecided"),  # the mean is above, its interval begins at 1.77
        ([2.0, 2.1, 1.9], "below: 1.6", "cannot decide"),
        ([2.0], "below: 2.4", "supported"),  # one run has the interval of its own metric, 1.7 to 2.3
        ([2.0], "below: 2.2", "undecided"),
        ([2.0], "above: 1.8", "undecided"),
        ([2.0], "above: 2.4", "cannot decide"),
    ],
)
def test_a_check_holds_with_its_whole_interval(
    seeds: list[float], limit: str, label: str, make_record, tmp_path
) -> None:
    pool = pool_of(make_record, {"checked": seeds, "main": [2.0, 2.01, 1.99], "baseline": [3.0, 3.01, 2.98]})
    for record in pool.seen:
        record.metrics["m"]["ci95"] = [record.metrics["m"]["value"] - 0.3, record.metrics["m"]["value"] + 0.3]
    cell = row_of(tmp_path, f"{CLAIM}, checks: [good]", pool, check(limit, ", experiment: checked")).cells["corrected"]
    assert cell.verdict.label == label and (label == "supported" or "[" in cell.verdict.reason)


def test_a_check_of_the_mechanism_stops_no_verdict(make_record, tmp_path) -> None:
    pool = pool_of(make_record, {"main": [2.0, 2.01, 1.99], "baseline": [3.0, 3.01, 2.98]})
    for limit, noted in (("below: 2.5", True), ("below: 3.5", False)):
        cell = row_of(tmp_path, f"{CLAIM}, mechanism: [good]", pool, check(limit)).cells["corrected"]
        assert cell.verdict.label == "supported"
        assert ("mechanism not shown that it beats a guess: 2.997" in cell.note) is noted


def test_values_by_two_definitions_of_a_metric_are_not_compared(make_record, tmp_path) -> None:
    pool = pool_of(make_record, {"main": [2.0, 2.01, 1.99], "baseline": [3.0, 3.01, 2.98], "third": [3.0, 3.0, 3.1]})
    assert row_of(tmp_path, CLAIM, pool).cells["corrected"].verdict.label == "supported"
    for record in pool.runs["main", "corrected"].values():
        record.metrics["m"]["version"] = 2
        record.metrics["rest"] = {**record.metrics["m"], "n": 100}
    cell = row_of(tmp_path, CLAIM, pool).cells["corrected"]
    assert cell.hole == "an older definition of m of baseline (version 1, elsewhere 2): run it again"
    assert (cell.values, cell.verdict.label) == ({}, "not run")
    terms = 'terms: [{experiment: "{arm}"}, {experiment: baseline}]'
    over = f"metric: m, combine: difference, claim: less, {terms}, over: {{arm: [main, third]}}"
    assert row_of(tmp_path, over, pool).cells["corrected"].hole == cell.hole
    assert row_of(tmp_path, over.replace("main, ", ""), pool).cells["corrected"].hole is None
    with pytest.raises(UserError, match=r"row 1.*over"):
        row_of(tmp_path, over.replace("{arm: [main, third]}", "[main, third]"), pool)
    # a check against another run of the same metric; two metrics have definitions of their own
    text = "metric: m, experiment: third, printed: {row: a, column: x}, margin: {relative: 2.0, why: w}, checks: [good]"
    against = row_of(tmp_path, text, pool, check("at_least: {metric: m, experiment: main}")).cells["corrected"].verdict
    assert (against.label, against.reason[-12:]) == ("cannot decide", "not measured")
    other = check("at_least: {metric: rest, experiment: main}")
    assert row_of(tmp_path, text, pool, other).cells["corrected"].verdict.label == "reproduced"


def test_a_metric_at_its_floor_tells_nothing(make_record, tmp_path) -> None:
    text = f"{CLAIM}, too_small: {{below: 0.02, why: one n-gram}}"
    low = pool_of(make_record, {"main": [0.0, 0.001, 0.0], "baseline": [0.01, 0.012, 0.011]})
    assert row_of(tmp_path, text, low).cells["corrected"].verdict.label == "too small to tell"
    high = pool_of(make_record, {"main": [0.0, 0.001, 0.0], "baseline": [0.3, 0.31, 0.32]})
    assert row_of(tmp_path, text, high).cells["corrected"].verdict.label == "supported", "one side is not at the floor"


def test_what_the_untrained_model_gets_too_is_told(make_record, tmp_path) -> None:
    pool = pool_of(make_record, {"main": [2.0, 2.01, 1.99]})
    for runs in pool.runs.values():
        for record in runs.values():
            record.metrics["guess"] = {**record.metrics["m"], "value": 2.0}
            record.metrics["bad"] = {**record.metrics["m"], "value": 9.0}
    told = {name: row_of(tmp_path, f"{NUMBER}, untrained: {name}", pool).cells["corrected"].verdict.label
            for name in ("guess", "bad", "absent")}  # fmt: skip
    assert told == {"guess": "met by an untrained model", "bad": "reproduced", "absent": "reproduced"}


def test_a_yes_or_no_of_three_seeds_is_undecided(make_record, tmp_path) -> None:
    """+1, +1, +1 has no spread, so Student's interval has no width; the exact test gives p = 0.25."""
    for n, label in ((3, "undecided"), (6, "supported")):
        pool = pool_of(make_record, {"main": [1.0] * n, "baseline": [0.0] * n})
        for record in pool.seen:
            record.metrics["m"]["unit"] = "truth value"
        cell = row_of(tmp_path, CLAIM.replace("less", "greater"), pool).cells["corrected"]
        assert cell.verdict.label == label
    assert cell.interval == (1.0, 1.0)


@pytest.mark.parametrize(("value", "n", "interval"), [(1.0, 3, None), (0.0, 5, None), (1.0, 6, (1.0, 1.0))])
def test_three_times_yes_is_no_interval_of_a_level_either(make_record, tmp_path, value, n, interval) -> None:
    pool = pool_of(make_record, {"main": [value] * n})
    for record in pool.seen:
        record.metrics["m"]["unit"] = "truth value"
    cell = row_of(tmp_path, "metric: m", pool).cells["corrected"]
    assert cell.interval == interval and cell.mean == value


def test_repeatability_stands_beside_a_printed_number(make_record, tmp_path) -> None:
    pool = pool_of(make_record, {"main": [2.0, 2.1, 1.9]})
    for record in pool.seen:
        record.metrics["m"]["unit"] = "ratio"
    cell = row_of(tmp_path, NUMBER, pool).cells["corrected"]
    c4 = math.sqrt(2 / 2) * math.gamma(1.5) / math.gamma(1.0)
    assert cell.spread == pytest.approx((1 + 1 / 12) * 100 * (0.1 / c4) / 2.0)
    assert 0 < cell.spread_printed < cell.spread, "the printed 2.0 lies in the middle"
    assert row_of(tmp_path, "metric: m", pool).cells["corrected"].spread is None
    rates = pool_of(make_record, {"main": [0.2, 0.3, 0.1], "baseline": [0.5, 0.5, 0.6]})
    for record in rates.seen:
        record.metrics["m"]["unit"] = "rate"
    change = (
        "combine: {}, terms: [{{}}, {{experiment: baseline}}], printed: [{{row: a, column: x}}, {{row: b, column: x}}]"
    )
    spreads = {combine: row_of(tmp_path, f"metric: m, margin: {{absolute: 9, why: w}}, {change.format(combine)}", rates)
               .cells["corrected"].spread for combine in ("mean", "difference")}  # fmt: skip
    assert spreads["mean"] is not None and spreads["difference"] is None, "a difference has no scale to vary on"
    assert row_of(tmp_path, f"{NUMBER}, interval: none", rates).cells["corrected"].spread is None, "nor one number"


def test_one_of_several_runs_may_meet_a_check(make_record, tmp_path) -> None:
    """Some: one arm that has learned is enough to compare them; neither decides nothing."""
    pool = pool_of(make_record, {"main": [2.0, 2.01, 1.99], "baseline": [3.0, 3.01, 2.98]})
    text = f"{CLAIM}, some: [good]"
    assert row_of(tmp_path, text, pool, check("below: 2.5")).cells["corrected"].verdict.label == "supported"
    neither = row_of(tmp_path, text, pool, check("below: 1.5")).cells["corrected"].verdict
    assert neither.label == "cannot decide" and "2.000" in neither.reason and "against 1.500" in neither.reason


def test_the_printed_size_of_a_difference_counts_where_it_is_comparable(make_record, tmp_path) -> None:
    """Printed 4 - 2 = 2 higher, ours 0.2 or so and undecided by its sign: contradicted at the paper's size alone."""
    pool = pool_of(make_record, {"main": [2.2, 2.5, 1.9], "baseline": [2.0, 2.0, 2.0]})
    text = (
        "metric: m, combine: difference, terms: [{}, {experiment: baseline}], claim: greater, "
        "printed: [{row: b, column: x}, {row: a, column: x}]"
    )
    assert row_of(tmp_path, text, pool).cells["corrected"].verdict.label == "contradicted"
    other = row_of(tmp_path, f"{text}, other: 'sign only: another mask'", pool).cells["corrected"].verdict
    assert other.label == "undecided"
    sized = text.replace("claim: greater", "claim: {greater: 1.5}") + ", other: 'sign only: another mask'"
    stated = row_of(tmp_path, sized, pool).cells["corrected"].verdict
    assert stated.label == "contradicted", "the smallest that would matter is of our own metric"
    small = of_size(pool, "small")
    assert row_of(tmp_path, text, small).cells["corrected"].verdict.label == "undecided"


def test_what_is_left_of_a_whole_without_its_part(make_record, tmp_path) -> None:
    """Of 10 positions at ln 4 on average, 4 cost ln 2: the other 6 cost (10 ln 4 - 4 ln 2) / 6 = 8/3 ln 2."""
    pool = pool_of(make_record, {"main": [4.0, 4.0, 4.0]})
    for record in pool.seen:
        record.metrics["m"] |= {"unit": "perplexity", "n": 10}
        record.metrics["part"] = {**record.metrics["m"], "value": 2.0, "n": 4}
        record.metrics["all"] = {**record.metrics["m"]}
    cell = row_of(tmp_path, "metric: 'rest(m, part)'", pool).cells["corrected"]
    assert cell.mean == pytest.approx(2 ** (8 / 3))
    assert row_of(tmp_path, "metric: 'rest(m, all)'", pool).cells["corrected"].hole.startswith("nothing is left")
    assert row_of(tmp_path, "metric: 'rest(m, no)'", pool).cells["corrected"].hole == "not recorded: no (main)"


def test_seeds_that_change_nothing_are_one_value(make_record, tmp_path) -> None:
    """Three equal differences have an interval without width, which would call any sign sure."""
    pool = pool_of(make_record, {"main": [2.0, 2.0, 2.0], "baseline": [2.001, 2.001, 2.001]})
    cell = row_of(tmp_path, CLAIM, pool).cells["corrected"]
    assert (cell.interval, cell.verdict.label) == (None, "undecided")
    assert cell.verdict.reason == "the seed changes nothing: one value, not several"
    exact = row_of(tmp_path, f"{CLAIM}, interval: none", pool).cells["corrected"]
    assert (exact.interval, exact.verdict.label) == (None, "supported"), "a number without spread, stated as one"


def test_what_fell_in_the_last_epoch(make_record, tmp_path) -> None:
    pool = pool_of(make_record, {"main": [4.0, 4.0]})
    for record, points in zip(pool.seen, ([[1, 5.0], [2, 4.0], [3, 3.5]], [[1, 5.0], [2, 4.75]]), strict=True):
        record.history = {"m": points}
    assert list(row_of(tmp_path, "metric: fall(m)", pool).cells["corrected"].values.values()) == [0.5, 0.25]
    pool.seen[0].history = pool.seen[1].history = {"m": [[1, 5.0]]}
    assert row_of(tmp_path, "metric: fall(m)", pool).cells["corrected"].hole == "not recorded: m of two epochs (main)"


def test_whether_one_quantity_is_so_many_times_below_another(make_record, tmp_path) -> None:
    pool = pool_of(make_record, {"main": [89.0, 90.0, 91.0]})
    for record in pool.seen:
        record.metrics["r"] = {**record.metrics["m"], "value": 100.0}
    cell = row_of(tmp_path, 'metric: "below(m, r, 0.9)"', pool).cells["corrected"]
    assert list(cell.values.values()) == [1.0, 0.0, 0.0]
    cell = row_of(tmp_path, 'metric: "below(m, none, 0.9)"', pool).cells["corrected"]
    assert cell.hole == "not recorded: none (main)"

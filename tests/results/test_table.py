from __future__ import annotations

import math
from pathlib import Path

import pytest

from lit_ctg.results.gather import results_for
from lit_ctg.results.table import RecordPool, Results, family_hash

PPL = "val/perplexity"


def test_values_are_read_by_seed(make_record) -> None:
    records = [make_record("main", "corrected", seed) for seed in (3, 1, 2)]
    read = RecordPool(records, "semantic_fusion", "paper").read("main", "corrected", PPL)
    assert list(read.values) == [1, 2, 3]
    assert read.values[3] == records[0].metrics[PPL]["value"]
    assert read.trials[3] == 17760
    assert read.hole is None


def test_history_and_record_fields(make_record) -> None:
    record = make_record("main", "corrected", 1)
    pool = RecordPool([record], "semantic_fusion", "paper")
    assert pool.read("main", "corrected", "val/perplexity_input_mask", 2).values == {
        1: record.history["val/perplexity_input_mask"][1][1]
    }
    assert pool.read("main", "corrected", "run/parameters").values == {1: 545000.0}
    assert "at epoch 9" in (pool.read("main", "corrected", "val/perplexity_input_mask", 9).hole or "")


def test_holes_say_what_to_run(make_record) -> None:
    failed = make_record("main", "corrected", 1)
    failed.status, failed.error = "FAILED", "loss is NaN"
    pool = RecordPool([failed, make_record("main", "corrected", 2, size="smoke")], "semantic_fusion", "paper")
    assert pool.read("main", "corrected", PPL).hole == ("not run: main; failed: loss is NaN")
    assert pool.read("baseline", "as_published", PPL).hole == ("not run: baseline")
    pool = RecordPool([make_record("main", "corrected", 1)], "semantic_fusion", "paper")
    assert pool.read("main", "corrected", "val/nothing").hole == ("not recorded: val/nothing (main)")


def test_a_metric_that_some_seeds_lack_is_told(make_record) -> None:
    records = [make_record("main", "corrected", seed) for seed in (1, 2)]
    del records[0].metrics[PPL]
    read = RecordPool(records, "semantic_fusion", "paper").read("main", "corrected", PPL)
    assert (list(read.values), read.note) == ([2], f"seeds without {PPL}: 1")


def test_one_seed_counts_once_the_later_run_wins(make_record) -> None:
    old, new = make_record("main", "corrected", 1), make_record("main", "corrected", 1)
    old.started_at, new.started_at = "2026-01-01T00:00:00+00:00", "2026-02-01T00:00:00+00:00"
    new.metrics[PPL]["value"] = 1.5
    for order in ([old, new], [new, old]):
        pool = RecordPool(order, "semantic_fusion", "paper")
        assert pool.read("main", "corrected", PPL).values == {1: 1.5}
        assert len(pool.records()) == 1


def test_another_configuration_is_left_out_and_named(make_record) -> None:
    records = [make_record("main", "corrected", seed) for seed in (1, 2, 3)]
    records[2].config["model"] = {"lr": 1.0}
    pool = RecordPool(records, "semantic_fusion", "paper")
    assert list(pool.read("main", "corrected", PPL).values) == [1, 2]
    assert pool.notes == ["left out, another configuration (model.lr=1.0): semantic_fusion/main corrected seed 3"]


def test_committed_records_stand_against_more_fresh_ones(make_record, tmp_path: Path) -> None:
    committed = make_record("main", "corrected", 1)
    committed.source = tmp_path / "results" / "main" / "corrected-paper-seed1.json"
    fresh = [make_record("main", "corrected", seed) for seed in (2, 3, 4)]
    for record in fresh[:2]:
        record.config["model"] = {"lr": 1.0}
    pool = RecordPool([*fresh, committed], "semantic_fusion", "paper", tmp_path / "results")
    assert list(pool.read("main", "corrected", PPL).values) == [1, 4]
    assert len(pool.notes) == 2


def test_records_of_an_older_definition_are_not_mixed_in(make_record) -> None:
    records = [make_record("main", "corrected", seed) for seed in (1, 2)]
    records[1].metrics[PPL]["version"] = 2
    read = RecordPool(records, "semantic_fusion", "paper").read("main", "corrected", PPL)
    assert list(read.values) == [2]
    assert read.note == f"seeds without {PPL}: 1"


def test_family_ignores_every_seed_but_nothing_else(make_record) -> None:
    one, two = make_record("main", "corrected", 1), make_record("main", "corrected", 2)
    one.config["data"], two.config["data"] = {"seed": 1, "n": 5}, {"seed": 2, "n": 5}
    one.config["logger"] = {"csv": 1}
    assert family_hash(one) == family_hash(two)
    two.config["data"]["n"] = 6
    assert family_hash(one) != family_hash(two)


def test_nan_stays_nan(make_record) -> None:
    record = make_record("main", "corrected", 1)
    record.metrics[PPL]["value"] = math.nan
    pool = RecordPool([record], "semantic_fusion", "paper")
    assert math.isnan(pool.read("main", "corrected", PPL).values[1])


@pytest.fixture
def results(write_records) -> Results:
    return results_for("semantic_fusion", record_dirs=[write_records()])


def test_margins_are_lettered_when_there_are_several(results: Results) -> None:
    table = next(table for table in results.tables if table.spec.name == "table_1")
    assert [table.mark(row) for row in table.rows[:5]] == ["a", "a", "a", "a", ""], "a claim of a side has no margin"
    assert table.notes[0].startswith("Margin: (a) 2% of the number (half of the gain that the paper reports, 4.3%);")
    single = next(table for table in results.tables if table.spec.name == "table_4")
    assert single.mark(single.rows[0]) == ""


def test_each_printed_number_counts_once(results: Results) -> None:
    """Tables 1, 2 and 3 all print the hard control of the same 200 trials; Figure 1 ends where Table 1 stands."""
    labels = [(row.spec.section, row.spec.label) for row in results.counted(claims=False)]
    assert not [pair for pair in labels if pair[0] == "Hard control" or "epoch 6" in pair[1]]
    assert len([pair for pair in labels if pair[0] == "Trained model"]) == 4
    assert len(labels) == len(set(labels)) == 37
    assert sum(results.verdicts("as_published", claims=False).values()) == 37
    assert all(row.spec.claim for row in results.counted(claims=True))

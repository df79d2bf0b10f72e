from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest

from lit_ctg.results.gather import results_for
from lit_ctg.results.table import COUNTS, Cell, RecordPool, Results, Row, Table, family_hash
from lit_ctg.results.verdict import REPRODUCED, SUPPORTED, Verdict

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


def test_seeds_that_diverged_beside_others_are_told(make_record) -> None:
    """The mean over those that did not is a favourable choice; a seed that was run again is none of them."""
    records = [make_record("main", "corrected", seed) for seed in (1, 2, 3, 3, 4)]
    for record in (records[1], records[2]):
        record.status, record.error = "DIVERGED", "loss is nan"
    records[4].status, records[4].error = "FAILED", "killed"
    pool = RecordPool(records, "semantic_fusion", "paper")
    assert list(pool.read("main", "corrected", PPL).values) == [1, 3]
    assert pool.notes == ["diverged, so not among the values: semantic_fusion/main corrected seed 2"]


def test_seeds_with_other_products_are_told(make_record) -> None:
    """A machine without units for bfloat16 multiplies in float32 (``run/precision.py``): told where seeds differ."""
    records = [make_record("main", "corrected", seed) for seed in (1, 2, 3)]
    for record in records:
        record.config = record.config | {"trainer": {"precision": "bf16-mixed"}}
    for record in records[1:]:
        record.precision = "32-true"
    pool = RecordPool(records, "semantic_fusion", "paper")
    assert list(pool.read("main", "corrected", PPL).values) == [1, 2, 3]
    assert pool.notes == ["float32 products, bfloat16 in the other seeds: semantic_fusion/main corrected seeds 2, 3"]
    assert not RecordPool(records[1:], "semantic_fusion", "paper").notes


def test_one_seed_counts_once_the_later_run_wins(make_record) -> None:
    old, new = make_record("main", "corrected", 1), make_record("main", "corrected", 1)
    old.started_at, new.started_at = "2026-01-01T00:00:00+00:00", "2026-02-01T00:00:00+00:00"
    new.metrics[PPL]["value"] = 1.5
    for order in ([old, new], [new, old]):
        pool = RecordPool(order, "semantic_fusion", "paper")
        assert pool.read("main", "corrected", PPL).values == {1: 1.5}
        assert len(pool.records()) == 1


def test_another_configuration_is_left_out_and_named(make_record, tmp_path) -> None:
    records = [make_record("main", "corrected", seed) for seed in (1, 2, 3)]
    records[2].config["model"] = {"lr": 1.0}
    pool = RecordPool(records, "semantic_fusion", "paper")
    assert list(pool.read("main", "corrected", PPL).values) == [1, 2]
    note = "left out, another configuration (model.lr=1.0): semantic_fusion/main corrected seed 3"
    assert pool.notes == [note]
    records[2].source = tmp_path / "run.json"
    records[2].source.touch()
    assert RecordPool(records, "semantic_fusion", "paper").notes == [f"{note}; records={tmp_path} shows it"]


def test_an_option_that_did_not_exist_is_one_that_is_off(make_record) -> None:
    records = [make_record("main", "corrected", seed) for seed in (1, 2, 3)]
    records[0].config["model"] = {"lr": 1.0}
    records[1].config["model"] = {"lr": 1.0, "start_from": None}
    records[2].config["model"] = {"lr": 1.0, "start_from": "other.ckpt"}
    pool = RecordPool(records, "semantic_fusion", "paper")
    assert list(pool.read("main", "corrected", PPL).values) == [1, 2]
    assert len(pool.notes) == 1 and "(model.start_from=other.ckpt)" in pool.notes[0]


def test_which_training_seed_a_run_has_of_its_own_does_not_matter_but_that_it_has_one_does(make_record) -> None:
    records = [make_record("main", "corrected", seed) for seed in (1, 2, 3, 4)]
    for record in records[:2]:
        record.config["training_seed"] = 100 + record.seed
        record.config["data"] = {"order_seed": 100 + record.seed}
    records[2].config["training_seed"] = None
    records[2].config["data"] = {"order_seed": None}
    records[3].config["training_seed"], records[3].config["data"] = 104, {}
    pool = RecordPool(records[:3], "semantic_fusion", "paper")
    assert list(pool.read("main", "corrected", PPL).values) == [1, 2]
    assert pool.notes == [
        "left out, another configuration (data.order_seed=None, training_seed=None): "
        "semantic_fusion/main corrected seed 3"
    ]
    pool = RecordPool([*records[:2], records[3]], "semantic_fusion", "paper")
    assert list(pool.read("main", "corrected", PPL).values) == [1, 2] and "order_seed=None" in pool.notes[0]


def test_training_seeds_that_hide_runs_or_are_shared_are_told(make_record) -> None:
    records = [make_record("main", "corrected", 1) for _ in range(3)]
    for number, record in enumerate(records):
        record.config["training_seed"], record.started_at = number, f"2026-01-0{number + 1}T00:00:00+00:00"
    pool = RecordPool(records, "semantic_fusion", "paper")
    assert list(pool.read("main", "corrected", PPL).values) == [1]
    assert [note.partition(" of a seed")[0] for note in pool.notes] == [
        "left out, another training_seed (0)",
        "left out, another training_seed (1)",
    ]
    records = [make_record("main", "corrected", seed) for seed in (1, 2, 3)]
    for record, own in zip(records, (7, 7, 8), strict=True):
        record.config["training_seed"] = own
    (note,) = RecordPool(records, "semantic_fusion", "paper").notes
    assert note.startswith("one training_seed for several seeds") and note.endswith(
        "semantic_fusion/main corrected seeds 1, 2"
    )


def test_committed_records_stand_against_more_fresh_ones(make_record, tmp_path: Path) -> None:
    committed = make_record("main", "corrected", 1)
    committed.source = tmp_path / "records" / "main" / "corrected-paper-seed1.json"
    fresh = [make_record("main", "corrected", seed) for seed in (2, 3, 4)]
    for record in fresh[:2]:
        record.config["model"] = {"lr": 1.0}
    pool = RecordPool([*fresh, committed], "semantic_fusion", "paper", tmp_path / "records")
    assert list(pool.read("main", "corrected", PPL).values) == [1, 4]
    assert len(pool.notes) == 2


def test_committed_records_of_several_configurations_are_told(make_record, tmp_path: Path) -> None:
    """They count together, as a table reads a committed record whatever it says; but nobody would see that."""
    records = [make_record("main", "corrected", seed) for seed in (1, 2, 3)]
    for record in records:
        record.source = tmp_path / "records" / "main" / f"corrected-paper-seed{record.seed}.json"
    records[2].config["model"] = {"lr": 1.0}
    pool = RecordPool(records, "semantic_fusion", "paper", tmp_path / "records")
    assert list(pool.read("main", "corrected", PPL).values) == [1, 2, 3]
    assert pool.notes == [
        "committed, so counted with the others, but of another configuration (model.lr=1.0): "
        "semantic_fusion/main corrected seed 3"
    ]


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
    assert family_hash(one.config) == family_hash(two.config)
    two.config["data"]["n"] = 6
    assert family_hash(one.config) != family_hash(two.config)


@pytest.fixture
def results(write_records) -> Results:
    return results_for("semantic_fusion", record_dirs=[write_records()])


def test_each_printed_number_counts_once(results: Results) -> None:
    """Tables 1, 2 and 3 all print the hard control of the same 200 trials; Figure 1 ends where Table 1 stands."""
    labels = [(row.spec.section, row.spec.label) for row in results.counted(claims=False)]
    assert not [pair for pair in labels if pair[0] == "Hard control" or "epoch 6" in pair[1]]
    assert len([pair for pair in labels if pair[0] == "Trained model"]) == 4
    assert len(labels) == len(set(labels)) == 37
    points = [row for row in results.counted(claims=False) if row.spec.epoch is not None]
    verdicts = {(row.spec.series, row.cells["as_published"].verdict.label) for row in points}
    counted = sum(results.verdicts("as_published", claims=False).values())
    assert len(points) == 10 and counted == 27 + len(verdicts), "a curve counts once for each of its verdicts"
    assert all(row.spec.claim for row in results.counted(claims=True))


def row_of(label: str, *, value: float | None = None, claim: str | None = None, **spec) -> Row:
    """A row of a made-up table; ``value`` is the printed number."""
    told = {"printed": {"row": label, "column": "c"}, "repeats": False, "samples": None, "combine": None, "terms": (),
            "metric": label, "epoch": None, "seeds": None} | spec  # fmt: skip
    printed = None if claim else SimpleNamespace(value=value)
    cell = Cell(verdict=Verdict(SUPPORTED if claim else REPRODUCED))
    return Row(SimpleNamespace(label=label, claim=claim, **told), printed, {"corrected": cell, "as_published": None})


def test_each_number_and_claim_is_counted_once_and_texts_and_repetitions_never() -> None:
    rows = (
        row_of("a", value=1.0), row_of("a", value=1.0), row_of("b", value=2.0), row_of("text", value=None),
        row_of("again", value=3.0, repeats=True), row_of("sample", value=4.0, samples={}),
        row_of("x", claim="less"), row_of("x", claim="less"), row_of("x", claim="greater"),
    )  # fmt: skip
    one, other = (SimpleNamespace(name=f"table_{number}", table=number) for number in ("1", "2"))
    tables = (Table(one, "small", rows), Table(other, "small", rows[:1]))
    results = Results("p", "small", tables, RecordPool([], "p", "small"))
    assert results.counted(claims=False) == [rows[0], rows[2], tables[1].rows[0]], "another table's is another number"
    assert results.counted(claims=True) == [rows[6], rows[8]]
    assert results.verdicts("corrected") == {REPRODUCED: 3, SUPPORTED: 2}
    assert results.verdicts("corrected", claims=True) == {SUPPORTED: 2} and not results.verdicts("as_published")
    elsewhere = dataclasses.replace(results, hidden=frozenset(["table_1"]))
    assert elsewhere.verdicts("corrected") == {REPRODUCED: 1}, "a table counts at the size at which it is shown"


def test_a_run_that_was_cut_off_counts_as_none_and_counts_are_no_runs(make_record) -> None:
    records = [make_record("main", "corrected", 1), make_record(f"{COUNTS}/text", "corrected", 1)]
    records[0].status = "RUNNING"
    pool = RecordPool(records, "semantic_fusion", "paper")
    assert pool.read("main", "corrected", PPL).hole is not None
    assert pool.trained() == [] and len(pool.records()) == 1
    records[0].status = "DONE"
    told = RecordPool([*records, make_record("main", "corrected", 2)], "semantic_fusion", "paper").describe()
    assert told.startswith("2 runs, size paper, seeds 1, 2") and told.endswith(", 1 counts of its text")


def test_the_rest_is_of_seeds_that_have_the_whole_and_the_part(make_record) -> None:
    records = [make_record("main", "corrected", seed) for seed in (1, 2)]
    records[0].metrics["whole"] = {"value": 4.0, "n": 10, "unit": "nats", "direction": "lower", "version": 1}
    records[0].metrics["part"] = {"value": 1.0, "n": 4, "unit": "nats", "direction": "lower", "version": 1}
    records[1].metrics["whole"] = dict(records[0].metrics["whole"])
    read = RecordPool(records, "semantic_fusion", "paper").read("main", "corrected", "rest(whole, part)")
    assert read.values == {1: pytest.approx((10 * 4.0 - 4 * 1.0) / 6)} and read.trials == {1: 6}


def test_of_two_families_of_one_size_the_latest_counts_and_committed_records_outvote_others(
    make_record, tmp_path
) -> None:
    old, new, third = (make_record("main", "corrected", seed) for seed in (1, 2, 3))
    for record, rate, started in ((old, 1e-4, "2026-01-01"), (new, 2e-4, "2026-01-03"), (third, 1e-4, "2026-01-02")):
        record.config["model"], record.started_at = {"lr": rate}, started
    assert list(RecordPool([new, old], "semantic_fusion", "paper").runs["main", "corrected"]) == [2]
    assert set(RecordPool([new, old, third], "semantic_fusion", "paper").runs["main", "corrected"]) == {1, 3}
    new.source = tmp_path / "records" / "run.json"
    pool = RecordPool([new, old, third], "semantic_fusion", "paper", committed=tmp_path / "records")
    assert list(pool.runs["main", "corrected"]) == [2]

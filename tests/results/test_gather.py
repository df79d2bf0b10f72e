from __future__ import annotations

import math
import shutil
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lit_ctg.errors import UserError
from lit_ctg.results.gather import gather, results_for, sizes_run, twins
from lit_ctg.results.publish import table_command
from lit_ctg.results.record import load_records, write_record
from lit_ctg.results.render import flat, n_words
from lit_ctg.results.report import main as report
from lit_ctg.results.table import RecordPool, Results, Row
from lit_ctg.results.verdict import Verdict
from lit_ctg.statistics import summarize

PAPER = "semantic_fusion"
ROOT = Path(__file__).resolve().parents[2] / "experiments"


def find(results: Results, table: str, label: str, section: str = "") -> Row:
    """Return one row by its label."""
    for one in results.tables:
        if one.spec.name == table:
            return next(r for r in one.rows if r.spec.label == label and section in r.spec.section)
    raise AssertionError(f"no table {table}")


@pytest.fixture
def results(write_records) -> Results:
    return results_for(PAPER, record_dirs=[write_records()])


def test_no_records_at_all_is_a_table_of_holes(tmp_path: Path) -> None:
    results = results_for(PAPER, record_dirs=[tmp_path])
    cells = [c for t in results.tables for r in t.rows for c in r.cells.values() if c is not None]
    assert all(cell.hole for cell in cells)
    assert results.verdicts("corrected")["impossible"] > 0
    assert set(results.verdicts("as_published")) == {"not run"}


def test_every_cell_with_a_printed_number_has_a_verdict(results: Results) -> None:
    for table in results.tables:
        for row in table.rows:
            if row.printed is not None and row.printed.value is not None:
                assert all(cell is None or cell.verdict is not None for cell in row.cells.values()), row.spec.label


def test_every_size_that_was_run_has_its_tables_except_smoke(make_record, bare_root, tmp_path, monkeypatch) -> None:
    root = bare_root
    for size, status in (("smoke", "DONE"), ("small", "DONE"), ("paper", "FAILED")):
        record = make_record("main", "corrected", 7, size)
        record.status, record.error = status, None if status == "DONE" else "why"
        write_record(record, tmp_path / "runs" / size / "run.json")
    folder = [tmp_path / "runs"]
    assert [one.size for one in gather(PAPER, records=folder, root=root)[0]] == ["small"]
    assert [one.size for one in gather(PAPER, "all", records=folder, root=root)[0]] == ["small"]
    write_record(make_record("main", "corrected", 8, "paper"), tmp_path / "runs" / "more" / "run.json")
    assert [one.size for one in gather(PAPER, "all", records=folder, root=root)[0]] == ["paper", "small"]
    assert [one.size for one in gather(PAPER, "smoke", records=folder, root=root)[0]] == ["smoke"]
    # a table is shown where it has runs, at the largest size if it has none, and unless asked at one size only
    write_record(make_record("baseline", "corrected", 8, "small"), tmp_path / "runs" / "base" / "run.json")
    paper, small = gather(PAPER, "all", records=folder, root=root)[0]
    ran = [{t.spec.name for t in one.tables if one.pool.has_run_of(t.spec)} for one in (paper, small)]
    names = [{t.spec.name for t in one.shown} for one in (paper, small)]
    every = {t.spec.name for t in paper.tables}
    assert names == [every - (ran[1] - ran[0]), ran[1]] and "table_1" in ran[0] & ran[1]
    shown = [t.spec.name for one in gather(PAPER, records=folder, root=root)[0] for t in one.shown]
    assert sorted(shown) == sorted(every)
    (tmp_path / "runs" / "base" / "run.json").unlink()
    # one's own runs count beside the committed ones, and alone at a size of which none are committed
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").rename(tmp_path / "outputs")
    assert results_for(PAPER, root).origin.startswith("your own runs in outputs")
    assert results_for(PAPER, root, size="small").pool.records()[0].size == "small"
    for path in (tmp_path / "outputs").glob("*/run.json"):
        if path.parent.name == "small":
            path.unlink()
    assert results_for(PAPER, root, size="small").origin.startswith("the committed records (your own runs")


def test_ones_own_runs_do_not_hide_the_committed_ones(make_record, bare_root, tmp_path, monkeypatch) -> None:
    root = bare_root
    monkeypatch.chdir(tmp_path)
    write_record(make_record("main", "corrected", 7, "smoke"), tmp_path / "outputs" / "smoke" / "run.json")
    alone = results_for(PAPER, root)
    assert alone.size == "smoke" and alone.origin.startswith("your own runs in outputs (none ")
    committed = root / PAPER / "records" / "main" / "corrected-paper-seed8.json"
    write_record(make_record("main", "corrected", 8, "paper"), committed)
    both = results_for(PAPER, root)
    assert (both.size, [record.seed for record in both.pool.records()]) == ("paper", [8])
    assert both.origin == "the committed records (your own runs in outputs: size=smoke)"
    asked = results_for(PAPER, root, size="smoke")
    assert [record.seed for record in asked.pool.records()] == [7] and asked.origin.startswith("your own runs")
    # neither do counts of a text, of whatever size
    counts = make_record("counts_main", "corrected", 7, "paper")
    write_record(counts, tmp_path / "outputs" / "counts" / "run.json")
    assert results_for(PAPER, root).origin == both.origin and sizes_run([counts], PAPER) == []
    # a run of the same size counts beside them, and one of another size hides nothing
    write_record(make_record("main", "corrected", 9, "small"), tmp_path / "outputs" / "small" / "run.json")
    write_record(make_record("main", "corrected", 9, "paper"), tmp_path / "outputs" / "paper" / "run.json")
    found = results_for(PAPER, root)
    assert (found.size, [record.seed for record in found.pool.trained()]) == ("paper", [8, 9])


def test_a_run_is_held_against_the_committed_one_of_its_seed(make_record, tmp_path: Path) -> None:
    committed = tmp_path / "experiments" / PAPER / "records"
    for seed in (1, 2, 3):
        write_record(make_record("main", "corrected", seed), committed / "main" / f"corrected-paper-seed{seed}.json")
    own = [make_record("main", "corrected", seed) for seed in (1, 2, 9)]

    def told() -> list[str]:
        return twins(RecordPool(own, PAPER, "paper"), committed, None)

    count = 2 * len(own[0].metrics)
    start = "2 of 3 runs have a committed one of the same seed beside them: "
    assert told() == [f"{start}all {count} numbers are the same."]
    own[0].metrics["val/perplexity"]["value"] *= 1.25
    own[1].metrics["floor/perplexity"]["value"] *= 0.5
    own[1].metrics["val/semantic_mse"]["value"] *= 1 + 1e-7
    assert told() == [f"{start}2 of {count} numbers differ, most of all floor/perplexity (50%)."]
    assert twins(RecordPool(own[2:], PAPER, "paper"), committed, None) == []
    assert twins(RecordPool(load_records([committed]), PAPER, "paper"), committed, None) == [], "not with themselves"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"paper": "semantic_fushion"}, "did you mean 'semantic_fusion'"),
        ({"paper": PAPER, "records": [__file__]}, "no records at .*test_gather.py"),
        ({"paper": PAPER, "records": ["nowhere/at/all"]}, "no records at nowhere/at/all"),
    ],
)
def test_bad_input_is_one_line(words: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        table_command(**words, console=Console(file=StringIO()))


@pytest.mark.parametrize(
    "name",
    [
        "run.json",
        "samples.jsonl",
        "corrected-small-seed0.samples.jsonl",
        "main_corrected_small.tar.xz",
        "paper.yaml",
    ],
)
@pytest.mark.parametrize("command", [table_command, report])
def test_what_the_tables_are_made_from_is_not_written_over(tmp_path: Path, command: Any, name: str) -> None:
    (tmp_path / name).write_text("kept")
    with pytest.raises(UserError, match=f"{name} is a run's record or a paper's manifest"):
        command(paper=PAPER, records=[tmp_path / "none"], out=tmp_path / name, console=Console(file=StringIO()))
    assert (tmp_path / name).read_text() == "kept"


# --- a number, a claim: counted once, of runs that may speak --------------------------------------------------------


def test_a_smoke_run_gets_no_verdict(make_record) -> None:
    records = [make_record(name, "as_published", seed, "smoke") for name in ("main", "baseline") for seed in range(5)]
    found = results_for(PAPER, record_dirs=[], size="smoke", extra=records)
    for claims in (False, True):
        labels = set(found.verdicts("as_published", claims))
        assert labels <= {"other size", "not run", "impossible"}, labels


def test_made_up_text_and_text_of_ones_own_is_other_data(make_record) -> None:
    for source, folder, label in (
        ("sample", None, "other data"),
        ("local", "mine", "other data"),
        ("local", "wikitext2", "other size"),
    ):
        records = [make_record("numbers", "corrected", seed, "small") for seed in range(3)]
        for record in records:
            record.paper = "nslm"
            record.config["data"] = {"source": source, "root": folder and f"local/{folder}"}
            entry = {"value": 400.0 + record.seed, "unit": "perplexity", "direction": "lower", "n": 9, "ci95": None}
            record.metrics = {"test/nnlm/year": entry | {"version": 1}}
        found = results_for("nslm", record_dirs=[], size="small", extra=records)
        row = find(found, "table_2", "NNLM, year")
        assert row.cells["corrected"].verdict.label == label, (source, folder)
        assert ("made-up sample text" in found.notes[0]) == (source == "sample")


def test_a_corpus_that_no_number_has_read_decides_nothing(make_record) -> None:
    record = make_record("main", "corrected", 0, "paper")
    record.config |= {"data": {"source": "local", "root": "x/real"}, "model": {"scene": {"source": "sample"}}}
    for unread, said in ((None, "made-up sample text"), ({"main": "model.scene"}, None)):
        pool = RecordPool([record], "semantic_fusion", "paper", data=["real"], unread=unread)
        assert pool.other_data("main", "corrected") == said
        assert ("made-up sample text" in pool.describe()) == (said is not None)


def test_runs_that_differ_in_what_no_number_has_read_are_one_sample(make_record) -> None:
    records = [make_record("main", "corrected", seed, "paper") for seed in range(2)]
    for record, source in zip(records, ("sample", "local"), strict=True):
        record.config["model"] = {"scene": {"corpus": {"source": source, "root": None}}}
    for unread, seeds in ((None, {1}), ({"other": "model.scene"}, {1}), ({"main": "model.scene"}, {0, 1})):
        pool = RecordPool(records, "semantic_fusion", "paper", unread=unread)
        assert set(pool.runs["main", "corrected"]) == seeds
        assert any("another configuration" in note for note in pool.notes) == (len(seeds) == 1)


def test_a_broken_paper_is_left_out_with_one_line(bare_root, write_records) -> None:
    root = bare_root
    for name, files in {"no_tables": {"paper.yaml": "title: x"}, "no_manifest": {"numbers.csv": "paper"},
                        "bad_yaml": {"paper.yaml": "title: [", "numbers.csv": "a"}}.items():  # fmt: skip
        (root / name).mkdir()
        for file, text in files.items():
            (root / name / file).write_text(text)
    found, left_out = gather("all", root=root, records=[write_records()])
    assert [result.paper for result in found] == [PAPER]
    assert len(left_out) == 3 and all("left out: " in line and "\n" not in line for line in left_out)
    with pytest.raises(UserError, match=r"no_tables/numbers\.csv"):
        gather("no_tables", root=root)
    shutil.rmtree(root / PAPER)
    with pytest.raises(UserError, match="bad_yaml"):
        gather("all", root=root)


def pooled_rows(
    make_record,
    tmp_path: Path,
    gains: dict[str, tuple[float, ...]],
    over: str = "{size: [xs, s, m, l]}",
    size: str = "{size}",
    claim: str = "less",
    old: float = 9.0,
    unit: str = "nats",
    **row: str,
) -> Results:
    """Return a paper of two arms: by cell, how much lower the new one's loss is for each seed."""
    folder = tmp_path / "experiments" / "mine"
    (folder / "tables").mkdir(parents=True, exist_ok=True)
    (folder / "paper.yaml").write_text("title: mine\n")
    (folder / "numbers.csv").write_text("paper,table,row,column,value,unit,note\n")
    terms = f"[{{experiment: '{size}_new'}}, {{experiment: '{size}_old'}}]"
    more = "".join(f", {key}: {value}" for key, value in row.items())
    (folder / "tables" / "table_mine.yaml").write_text(
        "title: mine\ndefaults: {metric: val/loss, unit: nats, regimes: [corrected]}\n"
        "checks: {learned: {says: below 8, metric: val/loss, below: 8}}\nrows:\n"
        f"  - {{label: pooled, combine: difference, claim: {claim}, over: {over}, terms: {terms}"
        f"{more}}}\n"
        "  - {label: deeper, combine: interaction, over: {size: [s]}, terms: "
        "[{experiment: m_new}, {experiment: m_old}, {experiment: '{size}_new'}, {experiment: '{size}_old'}]}\n"
    )
    records = []
    for cell, by_seed in gains.items():
        for seed, gain in enumerate(by_seed):
            for name, value in ((f"{cell}_new", old + gain), (f"{cell}_old", old)):
                record = make_record(name, "corrected", seed, "small")
                record.paper, record.config["data"] = "mine", {}
                record.metrics = {"val/loss": {"value": value, "unit": unit, "direction": "lower", "n": 9,
                                               "ci95": None, "version": 1}}  # fmt: skip
                records.append(record)
    return results_for("mine", record_dirs=[], size="small", root=tmp_path / "experiments", extra=records)


GAINS = {"xs": (-1.0, -1.2, -1.1), "s": (-1.0, -2.0, -3.0), "m": (-2.0, -4.0, -6.0)}


def test_a_row_on_average_has_one_value_a_cell(make_record, tmp_path: Path) -> None:
    """Three of four cells run, three seeds each: three values, not nine, whose seeds are no draws of cells."""
    found = pooled_rows(make_record, tmp_path, GAINS)
    pooled = find(found, "table_mine", "pooled").cells["corrected"]
    means = [-1.1, -2.0, -4.0]
    assert list(pooled.values.values()) == pytest.approx(means)
    assert (pooled.cells, n_words(pooled)) == (3, "3 cells")
    assert pooled.note == "over 3 of 4 cells (9 pairs of runs)"
    assert pooled.interval == pytest.approx(summarize(means).ci95)
    assert pooled.verdict.label == "undecided", "nine pairs as if they were draws of cells would support it"
    every = [gain for by_seed in GAINS.values() for gain in by_seed]
    assert summarize(every).ci95[1] < 0 < pooled.interval[1]
    deeper = find(found, "table_mine", "deeper").cells["corrected"]
    assert list(deeper.values.values()) == [-2.0]
    two = pooled_rows(make_record, tmp_path, {"s": (-1.0, -1.0, -1.0), "m": (-1.0, -1.0, -1.0)})
    verdict = find(two, "table_mine", "pooled").cells["corrected"].verdict
    assert (verdict.label, verdict.reason) == ("undecided", "fewer than 3 cells")


def test_sizes_that_are_alike_are_one_cell(make_record, tmp_path: Path) -> None:
    """Four widths and depths that were run are two values, one a depth; a width that fails a check is left out."""
    gains = {"ss": (-1.0,), "sl": (-2.0,), "ls": (-4.0,), "ll": (-5.0,)}
    over = "{depth: [s, m, l], width: [s, l]}, alike: [width]"
    found = pooled_rows(make_record, tmp_path, gains, over=over, size="{depth}{width}")
    pooled = find(found, "table_mine", "pooled").cells["corrected"]
    assert (list(pooled.values.values()), n_words(pooled)) == ([-1.5, -4.5], "2 cells")
    assert pooled.note == "over 2 of 3 cells (4 pairs of runs)"
    gains["ls"] = (-0.5,)
    some = pooled_rows(make_record, tmp_path, gains, over=over, size="{depth}{width}", some="[learned]")
    pooled = find(some, "table_mine", "pooled").cells["corrected"]
    assert list(pooled.values.values()) == [-2.0, -5.0]
    assert pooled.note == "over 2 of 3 cells (2 pairs of runs); 2 combinations left out, check learned does not hold"
    only = pooled_rows(make_record, tmp_path, {"ss": (-0.5,)}, over=over, size="{depth}{width}", some="[learned]")
    row = find(only, "table_mine", "pooled")
    told = "cannot decide: 1 combination left out, check learned does not hold"
    assert row.cells["corrected"].hole == told
    # the reason once, not as the verdict and again as the hole
    mine = next(table for table in only.tables if table.spec.name == "table_mine")
    assert [line[-1] for line in flat(mine)[1] if line[0] == row.spec.label] == [told]


def test_never_is_about_every_pair_not_about_the_mean(make_record, tmp_path: Path) -> None:
    """One pair of nine is lower: its cell's mean, and that of all cells, are above 0."""
    gains = {"xs": (1.0, 1.0, 1.0), "s": (2.0, -0.1, 2.0), "m": (0.0, 0.0, 0.0), "a": (1.0,), "b": (1.0,), "c": (1.0,)}

    def verdict(gains: dict[str, tuple[float, ...]], **row: Any) -> Verdict:
        over = "{size: [xs, s, m, a, b, c]}"
        found = pooled_rows(make_record, tmp_path, gains, over=over, claim="never_less", **row)
        told = find(found, "table_mine", "pooled").cells["corrected"].verdict
        assert told is not None
        return told

    assert (verdict(gains).label, verdict(gains).reason) == ("contradicted", "in 1 of 12 pairs")
    gains["s"] = (2.0, 0.0, 2.0)
    held = verdict(gains)
    assert held.label == "supported" and held.reason.startswith("in none of 12 pairs of 6 cells; up to 39% of cells")
    few = verdict({"xs": (1.0,) * 9, "s": (1.0,) * 9})
    assert (few.label, few.reason) == ("undecided", "in none of 18 pairs, but they are of fewer than 6 cells")
    assert verdict({**gains, "xs": (math.nan,) * 6}).reason == "not finite"
    assert verdict(gains, checks="[learned]").label == "cannot decide"
    # of yes or no, pairs whose second is a no cannot be lower
    yes, better = (dict.fromkeys(("xs", "s", "m", "a", "b", "c"), (gain,)) for gain in (0.0, 1.0))
    assert verdict(yes, unit="truth value", old=1.0).label == "supported"
    assert verdict(better, unit="truth value", old=0.0).reason.startswith("in none of 0 pairs")


def test_cells_that_fail_a_check_are_left_out_and_told(make_record, tmp_path: Path) -> None:
    """The old arm never has a loss below 8, the new one in three of four cells."""
    gains = {**GAINS, "l": (-0.5, -0.4, -0.6)}
    some = pooled_rows(make_record, tmp_path, gains, some="[learned]")
    pooled = find(some, "table_mine", "pooled").cells["corrected"]
    assert list(pooled.values.values()) == pytest.approx([-1.1, -2.0, -4.0])
    assert pooled.note == "over 3 of 4 cells (9 pairs of runs); 1 left out, check learned does not hold"
    (note,) = (note for note in some.tables[0].notes if note.startswith("Check learned"))
    assert "held in corrected/m_new" in note and "failed in corrected/l_new (8.500 against 8.000)" in note
    every = pooled_rows(make_record, tmp_path, gains, checks="[learned]")
    cell = find(every, "table_mine", "pooled").cells["corrected"]
    assert cell.verdict.label == "cannot decide" and "4 left out" in cell.verdict.reason

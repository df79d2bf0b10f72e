from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from lit_ctg.errors import UserError
from lit_ctg.results.cell import Cell
from lit_ctg.results.gap import GAP_TO, Gap, shown_rows
from lit_ctg.results.render import render
from lit_ctg.results.spec import Printed, RowSpec, TableSpec
from lit_ctg.results.table import Results, Row, Table, main, results_for, tables_for
from lit_ctg.results.verdict import IMPOSSIBLE, NOT_RUN, Verdict

PAPER = "semantic_fusion"


def find(results: Results, table: str, label: str, section: str = "") -> Row:
    """Return one row by its label."""
    for one in results.tables:
        if one.spec.name == table:
            return next(r for r in one.rows if r.spec.label == label and section in r.spec.section)
    raise AssertionError(f"no table {table}")


@pytest.fixture
def results(write_records) -> Results:
    return results_for(PAPER, record_dirs=[write_records()])


def test_printed_perplexities_are_impossible_for_a_causal_model_only(results: Results) -> None:
    for label in ("Baseline, PPL", "Fusion, PPL", "Baseline, seen-only PPL", "Fusion, seen-only PPL"):
        row = find(results, "table_1", label, "Authors' mask")
        assert row.cells["corrected"].verdict.label == "impossible", label
        assert row.cells["as_published"].verdict.label == "reproduced", label
        assert len(row.cells["corrected"].values) == 5


def test_the_claimed_gain_is_computed_not_assumed(results: Results) -> None:
    row = find(results, "table_1", "Fusion against baseline, PPL")
    assert row.printed.value == -4.3
    for cell in filter(None, row.cells.values()):
        holds_zero = cell.interval[0] <= 0 <= cell.interval[1]
        assert (cell.verdict.label == "not reproduced") == (holds_zero or cell.mean > 0)


def test_hard_control_and_confusion(results: Results) -> None:
    row = find(results, "table_2", "Positive: adjective", "Trained")
    assert row.cells["corrected"].trials == 1000
    assert row.cells["as_published"].verdict.label == "reproduced"
    row = find(results, "table_3", "positive asked, negative realised", "Hard")
    assert (row.printed.value, row.cells["as_published"].mean) == (0.0, 0.0)
    assert row.cells["as_published"].verdict.label == "reproduced"


def test_channel_control_applies_to_corrected_only(results: Results) -> None:
    row = find(results, "table_control", "positive: feature channel", "Adjective")
    assert row.cells["as_published"] is None
    assert row.cells["corrected"].mean > 0.7


def test_figure_reads_the_history(results: Results) -> None:
    row = find(results, "figure_1", "Fusion, epoch 1")
    assert row.printed.value == 5.474
    assert row.cells["corrected"].mean > find(results, "figure_1", "Fusion, epoch 6").cells["corrected"].mean
    assert find(results, "figure_1", "Fusion, epoch 2").cells["corrected"].verdict.label == "not reproduced"
    assert find(results, "figure_1", "Fusion, epoch 3").cells["corrected"].verdict.label == "impossible"
    assert find(results, "figure_1", "Difference at epoch 1").printed.text == "−2.872"


def test_missing_runs_are_visible_holes(results: Results) -> None:
    cell = find(results, "table_ablation", "no gate", "Perplexity").cells["corrected"]
    assert cell.hole == "not run: ablation_no_gate"
    assert cell.verdict.label == "not run"


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


def test_default_folders_are_the_committed_ones_and_outputs(write_records, tmp_path, monkeypatch) -> None:
    write_records(("main",), seeds=(111,))
    monkeypatch.chdir(tmp_path)
    (table,) = [table for table in tables_for(PAPER) if table.spec.name == "table_1"]
    row = next(row for row in table.rows if row.spec.label == "Fusion, PPL")
    assert 111 in row.cells["corrected"].values


def test_tolerances_are_lettered_when_there_are_several(results: Results) -> None:
    table = next(table for table in results.tables if table.spec.name == "table_1")
    assert [table.mark(row) for row in table.rows[:5]] == ["a", "a", "a", "a", "b"]
    assert table.notes[0].startswith("Tolerance: (a) 5% of the number; (b) 2 (points);")
    single = next(table for table in results.tables if table.spec.name == "table_4")
    assert single.mark(single.rows[0]) == ""


@pytest.mark.parametrize("fmt", ["text", "md", "latex", "csv"])
def test_command_writes_every_format(write_records, tmp_path: Path, capsys, fmt: str) -> None:
    folder = str(write_records())
    out = tmp_path / f"table.{fmt}"
    assert main([PAPER, "--format", fmt, "--records", folder, "--out", str(out)], Console(file=StringIO())) == 0
    assert "2.249" in out.read_text(encoding="utf-8")
    main(["all", "--format", fmt, "--records", folder], Console(file=StringIO()))
    everything = capsys.readouterr().out
    # the tables of every paper, this one's among them
    assert "2.249" in everything and len(everything) > len(out.read_text(encoding="utf-8"))


def test_rows_nobody_ran_nor_printed_are_one_line(make_record) -> None:
    def row(label: str, section: str, hole: str | None, printed: Printed | None = None) -> Row:
        return Row(RowSpec(label, section=section), printed, {"corrected": Cell(hole=hole, values={1: 1.0})})

    rows = (
        *(row(f"a{n}", "A", "not run: x") for n in range(6)),
        *(row(f"b{n}", "B", "not run: x") for n in range(2)),
        row("c", "B", None),
        *(row(f"d{n}", "D", "not run: x", Printed(1.0, "1")) for n in range(4)),
    )
    table = Table(TableSpec(PAPER, "table_x", "T", "", "", tuple(one.spec for one in rows)), "small", rows)
    shown = table.shown
    assert isinstance(shown[0], Gap) and shown[0].words == "6 rows not run: a0; a1; ...; a5"
    assert [one.spec.label for one in shown[1:4]] == ["b0", "b1", "c"]
    assert shown[4].words == "4 rows not run: x. Printed: d0: 1; d1: 1; d2: 1; d3: 1"
    for fmt in ("md", "latex", "text"):
        assert "6 rows not run" in render(table, fmt) and "d3: 1" in render(table, fmt)
    assert render(table, "csv").count("not run: x") >= 12


def test_gaps_keep_what_is_printed_apart_by_reason_and_join_whole_sections() -> None:
    def row(label: str, section: str, hole: str, verdict: str = NOT_RUN) -> Row:
        cell = Cell(hole=hole, verdict=Verdict(verdict, "why"))
        return Row(RowSpec(label, section=section), Printed(0.5, "0.5"), {"corrected": cell, "as_published": None})

    def shown(*rows: Row) -> list[tuple[str, str]]:
        found = shown_rows(rows)
        return [
            (one.section, one.summary) if isinstance(one, Gap) else (one.spec.section, one.spec.label) for one in found
        ]

    a, b = "not run: a", "not run: b"
    mixed = [row(f"{label}{n}", "S", hole) for n in range(3) for label, hole in (("x", a), ("y", b))]
    assert shown(*mixed) == [("S", "3 rows not run: a"), ("S", "3 rows not run: b")]
    whole = [row(f"{section}{n}", section, a) for section in "STU" for n in range(3)]
    assert shown(*whole) == [(f"S{GAP_TO}U", "9 rows not run: a")]
    assert shown(*whole[:3], *(row(f"S{n}", "T", a) for n in range(3))) == [
        ("S", "3 rows not run: a"), ("T", "3 rows not run: a")
    ], "the same labels twice would not tell the rows apart"  # fmt: skip
    assert shown(*whole[:3], row("impossible one", "S", a, IMPOSSIBLE))[1] == ("S", "impossible one")
    assert shown(*whole[:2]) == [("S", "S0"), ("S", "S1")]


def test_missing_runs_are_named_with_the_command_that_makes_them(tmp_path: Path, write_records) -> None:
    (note,) = results_for(PAPER, record_dirs=[tmp_path / "nothing"]).notes
    assert note.startswith("Missing runs (in one regime at least): baseline, main")
    assert f"lit-ctg reproduce {PAPER} size=small makes those" in note
    (note,) = results_for(PAPER, record_dirs=[write_records()]).notes
    assert " main," not in note and "size=paper" in note


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["semantic_fushion"], "did you mean 'semantic_fusion'"),
        ([PAPER, "--format", "html"], "invalid choice"),
        ([PAPER, "--records", "nowhere/at/all"], "no records at nowhere/at/all"),
        ([PAPER, "--sise", "paper"], "unrecognized arguments"),
        ([], "required"),
    ],
)
def test_bad_input_is_one_line(words: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        main(words, Console(file=StringIO()))

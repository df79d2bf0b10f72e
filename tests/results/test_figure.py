"""A paper's figures: what is drawn from a table and from histories, and the files that `lit-ctg figure` writes."""

from __future__ import annotations

import dataclasses
import itertools
import math
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console

from lit_ctg.errors import UserError
from lit_ctg.figure import Chart
from lit_ctg.results import figure
from lit_ctg.results.figure import (
    curve_metrics,
    headline_picture,
    legend_for,
    main,
    panels_for,
    pictures,
    plots_for,
    training_curves,
    write,
)
from lit_ctg.results.gather import all_results, results_for
from lit_ctg.results.record import load_records, write_record
from lit_ctg.results.rows import build_row
from lit_ctg.results.spec import Printed, load_spec
from lit_ctg.results.table import Cell, RecordPool, Results, Table


@pytest.fixture
def tables(write_records) -> dict:
    results = results_for("semantic_fusion", record_dirs=[write_records()])
    return {table.spec.name: table for table in results.tables}


def axes_of(chart: Chart) -> Axes:
    return chart.on(Figure().add_subplot())[1]


def curves(chart: Chart) -> list[list[tuple[float, ...]]]:
    """Return the points of the curves."""
    return [[tuple(point) for point in line.get_xydata().tolist()]
            for line in axes_of(chart).lines if line.get_marker() == "o"]  # fmt: skip


def words(chart: Chart) -> list[str]:
    return [text.get_text().strip() for text in axes_of(chart).texts]


def kinds(chart: Chart) -> list[str]:
    """Return whose the curves, marks and bars are."""
    ax = axes_of(chart)
    return [str(artist.get_gid()).partition("\t")[0] for artist in (*ax.lines, *ax.patches) if artist.get_gid()]


def limits(chart: Chart) -> tuple[float, float]:
    return axes_of(chart).get_ylim()


def test_figure_1_has_a_panel_a_model_with_printed_and_both_regimes(tables) -> None:
    panels = plots_for(tables["figure_1"])
    assert len(panels) == 2
    for panel in panels:
        assert {"printed", "as_published", "corrected"} <= set(kinds(panel))
        assert "floor of a causal model" in words(panel)
        assert [len(curve) for curve in curves(panel)] == [6, 6, 6]


def table_of(tmp_path: Path, text: str, values: dict[str, float], make_record) -> Table:
    record = make_record("main", "corrected", 1)
    entry = {"unit": "", "direction": "lower", "n": 1, "ci95": None, "version": 1}
    record.metrics = {name: {"value": value, **entry} for name, value in values.items()}
    path = tmp_path / "table_1.yaml"
    path.write_text(f"title: T\n{text}")
    spec = load_spec(path, "semantic_fusion")
    pool = RecordPool([record], "semantic_fusion", "paper")
    return Table(spec, "paper", tuple(build_row(spec, row, {}, pool) for row in spec.rows))


def test_panels_share_an_axis_by_unit_and_those_without_data_are_left_out(make_record, tmp_path) -> None:
    text = """
plot: {kind: line, x: lambda, xscale: steps}
rows:
  - for: {what: {bleu: rate, bleu_2: rate, perplexity: perplexity, other: rate}, x: ["0", "0.1", "10"]}
    series: "{what}"
    x: "{x}"
    unit: "{what:label}"
    label: "{what} {x}"
    metric: "{what}/{x}"
"""
    values = {"bleu/0": 0.2, "bleu/0.1": 0.3, "bleu/10": 0.4, "bleu_2/0": 0.8, "perplexity/0": 900.0}
    table = table_of(tmp_path, text, values, make_record)
    panels = panels_for(table)
    assert [name for name, chart in panels.items() if chart is None] == ["other"]
    one, two, far = plots_for(table)
    assert limits(one) == limits(two) != limits(far)
    assert limits(one)[1] < 1 and limits(far)[1] > 800
    assert one.about == "T. bleu: rate by lambda"
    assert (axes_of(one).get_ylabel(), axes_of(far).get_ylabel()) == ("rate", "perplexity")


def test_bars_are_by_section_and_log_as_asked(make_record, tmp_path) -> None:
    text = """
plot: {kind: bars, x: perplexity, log: true, sections: [A, B, C]}
rows:
  - for: {section: [A, B, C]}
    section: "{section}"
    unit: perplexity
    label: one
    metric: "{section}"
  - {section: D, unit: percent, label: two, metric: D}
"""
    table = table_of(tmp_path, text, {"A": 10.0, "B": 1e5, "D": -40.0}, make_record)
    assert list(panels_for(table)) == ["A", "B", "C"]
    one, two = plots_for(table)
    assert [axes_of(chart).get_xlim() for chart in (one, two)] == [axes_of(one).get_xlim()] * 2
    assert axes_of(one).get_xlabel() == "perplexity (log scale)" and one.about == "T. A, perplexity"
    assert "not run" not in words(one), "a regime that nobody ran takes no room"
    assert legend_for(table) == [("corrected", "corrected (95% interval)")]


@pytest.mark.parametrize("kind", ["line, x: step", "bars, x: rate"])
def test_runs_side_by_side_have_one_scale(kind: str, make_record, tmp_path) -> None:
    text = f"""
plot: {{kind: {kind}}}
rows:
  - {{unit: rate, label: one, series: a, x: 0, metric: one}}
  - {{unit: rate, label: two, series: a, x: 1, metric: two}}
"""
    own = table_of(tmp_path, text, {"one": 0.2, "two": 0.3}, make_record)
    committed = table_of(tmp_path, text, {"one": 10.0, "two": 90.0}, make_record)

    def axis(table: Table, beside: list[Table]) -> tuple[float, float]:
        (chart,) = panels_for(table, beside).values()
        return limits(chart) if kind.startswith("line") else axes_of(chart).get_xlim()

    assert axis(own, []) != axis(committed, [])
    assert axis(own, [committed]) == axis(committed, [own])


def test_figure_6_shows_words_before_and_after(make_record, tmp_path, monkeypatch) -> None:
    record = make_record("main", "corrected", 1)
    record.samples = [
        {"method": "softmax", "text": "give 0.310, be 0.200"},
        {"method": "graphmax", "text": "be 0.400, give 0.100"},
    ]
    text = """
title: T
plot: {kind: words}
rows:
  - for: {method: [softmax, graphmax]}
    section: I was going to
    label: "{method}"
    samples: {where: {method: "{method}"}, show: 1}
"""
    path = tmp_path / "figure_6.yaml"
    path.write_text(text)
    spec = load_spec(path, "semantic_fusion")
    pool = RecordPool([record], "semantic_fusion", "paper")
    table = Table(spec, "paper", tuple(build_row(spec, row, {}, pool) for row in spec.rows))
    assert list(panels_for(table)) == ["I was going to: graphmax, corrected"]
    assert len(axes_of(plots_for(table)[0]).lines) == 2
    assert legend_for(table) == []
    first, other = table.rows
    silent = dataclasses.replace(other, cells={**other.cells, "corrected": Cell(hole="not run: main")})
    assert panels_for(dataclasses.replace(table, rows=(first, silent))) == {}
    monkeypatch.setattr(figure, "word_shift", lambda title, *lists, names, **_: dict(zip(names, lists, strict=True)))
    assert plots_for(table) == [{"softmax": [("give", 0.31), ("be", 0.2)], "graphmax": [("be", 0.4), ("give", 0.1)]}]


# --- training curves ------------------------------------------------------------------------------------------------


def records(make_record, histories: dict[int, dict], name: str = "main") -> list:
    made = []
    for seed, history in histories.items():
        record = make_record(name, "corrected", seed)
        record.history = history
        made.append(record)
    return made


def test_one_measure_of_each_family(make_record) -> None:
    history = {
        "val/accuracy": [[1, 0.1], [2, 0.2]],
        "val/perplexity": [[1, 9.0], [2, 8.0]],
        "val/loss": [[1, 2.0], [2, 1.0]],
        "train/loss": [[1, 2.0], [2, 1.0]],
        "train/cross_entropy": [[1, 2.0], [2, 1.0]],
        "increment/unseen": [[0, 5.0], [1, 4.0]],
        "sample/bleu": [[1, 0.5]],
        "trial/greedy/bleu": [[1, 0.5], [2, 0.6]],  # of generated texts
    }
    assert curve_metrics(records(make_record, {1: history})) == ["increment/unseen", "train/loss", "val/perplexity"]


def test_the_curve_is_the_mean_at_epochs_that_all_seeds_have(make_record) -> None:
    pool = RecordPool(
        records(
            make_record,
            {
                1: {"val/perplexity": [[1, 10.0], [2, 8.0], [3, 6.0]]},
                2: {"val/perplexity": [[1, 12.0], [2, 10.0]]},
                3: {"val/perplexity": [[1, 11.0], [2, 9.0]]},
            },
        ),
        "semantic_fusion",
        "paper",
    )
    (chart,) = training_curves(pool).values()
    assert curves(chart) == [[(1.0, 11.0), (2.0, 9.0)]]
    ax = axes_of(chart)
    assert ax.collections and ax.get_title(loc="left") == "main" and ax.get_ylabel() == "val/perplexity (log scale)"


def test_runs_that_measured_once_have_no_curve(make_record) -> None:
    once = records(make_record, {1: {"val/perplexity": [[3, 10.0]]}})
    assert training_curves(RecordPool(once, "semantic_fusion", "paper")) == {}
    broken = records(make_record, {1: {"val/perplexity": [[1, math.nan], [2, 5.0]]}})
    (chart,) = training_curves(RecordPool(broken, "semantic_fusion", "paper")).values()
    assert curves(chart) == [[(2.0, 5.0)]]


@pytest.mark.parametrize("seeds", [1, 2])
def test_no_interval_below_three_seeds(make_record, seeds: int) -> None:
    history = {"val/perplexity": [[1, 10.0], [2, 8.0]]}
    pool = RecordPool(records(make_record, dict.fromkeys(range(seeds), history)), "semantic_fusion", "paper")
    (chart,) = training_curves(pool).values()
    assert not axes_of(chart).collections


@pytest.fixture
def results(write_records) -> Results:
    return results_for("semantic_fusion", record_dirs=[write_records()])


def test_other_files_of_the_folder_stay(results: Results, tmp_path: Path) -> None:
    """Also pictures: somebody's own, and those of another paper or size."""
    folder = tmp_path / "figures"
    folder.mkdir()
    others = {"mine.svg": "<svg/>", "small_training.svg": "<svg/>", "notes.md": "mine"}
    for name, text in others.items():
        (folder / name).write_text(text)
    made = write([results], folder)
    assert {path.name for path in folder.iterdir()} == {*others, *(path.name for path in made)}
    assert {name: (folder / name).read_text() for name in others} == others


def test_command(write_records, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    console = Console(file=StringIO())
    assert main("semantic_fusion", records=[write_records()], out="pictures", console=console) == 0
    assert (tmp_path / "pictures" / "headline.svg").is_file()
    assert "semantic_fusion: 9 figures in pictures" in console.file.getvalue()  # type: ignore[attr-defined]
    (tmp_path / "none").mkdir()
    with pytest.raises(UserError, match="no run has anything to draw: lit-ctg reproduce paper=control_code"):
        main("control_code", records=[tmp_path / "none"], console=console)


def test_a_size_with_less_in_it_hides_no_other(write_records, make_record, tmp_path: Path) -> None:
    """One run of a larger size, not of the experiment of the headline, and everything of the smaller one stays."""
    folder = write_records()
    for record in load_records([folder]):
        record.size = "small"
        write_record(record, record.source)
    record = make_record("ablation_no_gate", "corrected", 1)
    write_record(record, tmp_path / "larger" / "run.json")
    sizes = all_results("semantic_fusion", None, [folder, tmp_path / "larger"], "auto")
    assert [one.size for one in sizes] == ["paper", "small"]
    found = pictures(sizes)
    assert "Figure 1" in found["headline"].about and "size small" in found["headline"].about
    # only what is drawn at both sizes says so in its name
    assert "figure_1" in found and "small_figure_1" not in found


def test_one_measure_against_another_is_a_curve_of_labelled_points(write_records) -> None:
    """Rows of one label in two sections are a point; one that was not run is none."""
    records = write_records(names=("main", "ablation_no_uniformizer", "uniformizer_050_trained"))
    results = results_for("semantic_fusion", record_dirs=[records])
    (table,) = (table for table in results.tables if table.spec.name == "table_uniformizer")
    chart = panels_for(table)["Words never shown against perplexity, by weight"]
    assert chart is not None
    # the last is of another condition: a point beside the curve of weights
    assert sorted(map(len, curves(chart))) == [1, 2] and legend_for(table) == []
    for weight in ("0", "0.01", "0.5, trained words"):
        assert f", {weight}, Perplexity" in chart.svg  # what hovering says


def one_seed(make_record, name: str, regime: str, points: list[list[float]], seed: int = 1, size: str = "paper"):
    record = make_record(name, regime, seed, size)
    record.history = {"val/perplexity": points}
    return record


def with_curves(records: list) -> Any:
    """Results whose headline's picture is the curves of three experiments."""
    picture = {"curves": {"one": "main", "two": "ablation_no_gate", "three": "baseline"}, "title": "Both",
               "metric": "val/perplexity", "regime": "corrected"}  # fmt: skip
    manifest = SimpleNamespace(headline=SimpleNamespace(picture=picture))
    pool = RecordPool(records, "semantic_fusion", "paper")
    return SimpleNamespace(paper="semantic_fusion", manifest=manifest, pool=pool)


def test_a_headline_of_curves_shows_the_experiments_that_were_run(make_record) -> None:
    runs = [one_seed(make_record, "main", "corrected", [[1, 11.0], [2, 9.0]]),
            one_seed(make_record, "main", "as_published", [[1, 3.0], [2, 2.0]]),
            one_seed(make_record, "ablation_no_gate", "corrected", [[1, 30.0], [2, 20.0]])]  # fmt: skip
    found = headline_picture(with_curves(runs))
    assert found is not None and found[1] == []
    chart = found[0]
    assert curves(chart) == [[(1, 11), (2, 9)], [(1, 30), (2, 20)]]
    ax = axes_of(chart)
    assert ax.get_title(loc="left") == "Both" and ax.get_ylabel() == "val/perplexity (log scale)"
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["one", "two"]
    far = with_curves([one_seed(make_record, "main", "corrected", [[1, 900.0], [2, 800.0]])])
    beside = headline_picture(with_curves(runs), [far]), headline_picture(far, [with_curves(runs)])
    assert beside[0] is not None and beside[1] is not None
    assert limits(beside[0][0]) == limits(beside[1][0]) != limits(chart)
    assert headline_picture(with_curves(runs[1:2])) is None, "no run of that regime"


def test_measures_have_axes_of_their_own(make_record) -> None:
    """Curves of one measure share one, of another measure they do not; a loss is not on a log scale."""
    made = []
    for name, high in (("main", 9.0), ("ablation_no_gate", 90.0)):
        record = make_record(name, "corrected", 1)
        record.history = {"val/perplexity": [[1, high], [2, 8.0]], "train/loss": [[1, 2.0], [2, 1.0]]}
        record.metrics["train/loss"] = {**record.metrics["val/perplexity"], "unit": "nats"}
        made.append(record)
    found = training_curves(RecordPool(made, "semantic_fusion", "paper"))
    assert list(found) == [(name, metric) for name in ("ablation_no_gate", "main")
                           for metric in ("train/loss", "val/perplexity")]  # fmt: skip
    axes = {key: limits(chart) for key, chart in found.items()}
    assert axes["main", "val/perplexity"] == axes["ablation_no_gate", "val/perplexity"]
    assert axes["main", "train/loss"][1] < 3
    names = {metric: axes_of(chart).get_ylabel() for (_, metric), chart in found.items()}
    assert names == {"train/loss": "train/loss, nats", "val/perplexity": "val/perplexity (log scale)"}


def test_a_legend_is_of_what_is_drawn(make_record, tmp_path) -> None:
    """Neither a section without a chart nor a regime without a run has words in it."""
    text = """
plot: {kind: bars, x: rate, sections: [A]}
rows:
  - {section: A, unit: rate, label: one, metric: one}
  - {section: B, unit: rate, label: two, metric: two}
"""
    table = table_of(tmp_path, text, {"one": 0.2, "two": 0.3}, make_record)
    drawn, other = table.rows
    printed = Printed(0.5, "0.5")
    table = dataclasses.replace(table, rows=(drawn, dataclasses.replace(other, printed=printed)))
    assert legend_for(table) == [("corrected", "corrected (95% interval)")]
    table = dataclasses.replace(table, rows=(dataclasses.replace(drawn, printed=printed), other))
    assert legend_for(table)[0] == ("printed", "printed")
    assert [kinds(panel).count("printed") for panel in plots_for(table)] == [1]
    # a printed number alone is drawn, but makes no picture of ours
    headline = SimpleNamespace(picture={"table": table.spec.name, "panel": "A"})

    def results_of(table: Table) -> Any:
        told = SimpleNamespace(headline=headline)
        return SimpleNamespace(paper="x", tables=(table,), manifest=told, hidden=frozenset())

    found = headline_picture(results_of(table))
    assert found is not None and (found[0].about, found[1]) == (plots_for(table)[0].about, legend_for(table))
    alone = dataclasses.replace(table.rows[0], cells={"corrected": Cell(hole="not run: main"), "as_published": None})
    table = dataclasses.replace(table, rows=(alone,))
    assert [kinds(panel).count("printed") for panel in plots_for(table)] == [1]
    assert not table.ran and headline_picture(results_of(table)) is None


# one curve of two points
CURVE = """
plot: {kind: line, x: step}
rows:
  - {unit: rate, label: one, series: a, x: 0, metric: one}
  - {unit: rate, label: two, series: a, x: 1, metric: two}
"""


def test_a_rule_is_inside_its_frame(make_record, tmp_path) -> None:
    table = table_of(tmp_path, CURVE, {"one": 5.0, "two": 6.0}, make_record)
    assert limits(plots_for(table)[0])[0] > 4
    first, second = table.rows
    spec = dataclasses.replace(first.spec, floor={"corrected": SimpleNamespace(note="")})
    cell = dataclasses.replace(first.cells["corrected"], bounds={"floor": 1.0, "expectation": 5.5})
    first = dataclasses.replace(first, spec=spec, cells={**first.cells, "corrected": cell})
    (chart,) = plots_for(dataclasses.replace(table, rows=(first, second)))
    assert not axes_of(chart).collections and words(chart) == ["floor"] and limits(chart)[0] < 1


@pytest.mark.parametrize(("most", "log"), [(4.0, False), (40.0, True)])
def test_what_is_drawn_against_what(make_record, tmp_path, most: float, log: bool) -> None:
    """The first section goes across, on a log scale where it spans more than a power of ten."""
    text = """
plot: {kind: pareto, pairs: {P: {x: Across, y: Up}}}
rows:
  - for: {section: [Across, Up], label: [a, b, c]}
    section: "{section}"
    label: "{label}"
    series: s
    metric: "{section}/{label}"
"""
    values = {"Across/a": 1.0, "Across/b": 3.0, "Across/c": most, "Up/a": 0.1, "Up/b": 0.2, "Up/c": 0.3}
    chart = panels_for(table_of(tmp_path, text, values, make_record))["P"]
    assert chart is not None and curves(chart) == [[(1.0, 0.1), (3.0, 0.2), (most, 0.3)]]
    ax = axes_of(chart)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("Across (log scale)" if log else "Across", "Up")


def test_series_of_pairs_have_colours_of_their_own(make_record, tmp_path) -> None:
    text = """
plot: {kind: pareto, pairs: {P: {x: Across, y: Up}}}
rows:
  - for: {section: [Across, Up], series: [s, t], label: [a, b]}
    section: "{section}"
    label: "{series} {label}"
    series: "{series}"
    metric: "{section}/{series}{label}"
"""
    values = {
        f"{section}/{one}": n for section in ("Across", "Up") for n, one in enumerate(("sa", "sb", "ta", "tb"), 1)
    }
    chart = panels_for(table_of(tmp_path, text, values, make_record))["P"]
    assert chart is not None and kinds(chart) == ["series0", "series1"]


def test_a_matrix_has_rows_down_and_columns_across(make_record, tmp_path) -> None:
    text = """
plot: {kind: matrix, x: realised, y: wanted}
rows:
  - for: {wanted: [p, q], realised: [r, s, t]}
    series: M
    x: "{realised}"
    y: "{wanted}"
    label: "{wanted} {realised}"
    metric: "{wanted}/{realised}"
"""
    values = {f"{y}/{x}": float(n) for n, (y, x) in enumerate(itertools.product("pq", "rst"), 1)}
    table = table_of(tmp_path, text, values, make_record)
    printed = (dataclasses.replace(row, printed=Printed(n, str(n))) for n, row in enumerate(table.rows, 1))
    table = dataclasses.replace(table, rows=tuple(printed))
    for kind, chart in zip(("printed", "corrected"), plots_for(table), strict=True):
        assert f"M, {kind}: wanted by realised" in chart.about
        ax = axes_of(chart)
        assert [label.get_text() for label in ax.get_xticklabels()] == ["r", "s", "t"]
        assert [label.get_text() for label in ax.get_yticklabels()] == ["p", "q"]
        assert [word.split(" ")[0] for word in words(chart)] == list("123456")

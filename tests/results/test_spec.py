from __future__ import annotations

import csv
from pathlib import Path

import pytest
import yaml

from lit_ctg.errors import UserError
from lit_ctg.results import spec as spec_module
from lit_ctg.results.spec import (
    ROW_KEYS,
    TableSpec,
    experiments_root,
    load_manifest,
    load_spec,
    load_specs,
    papers,
    read_printed,
)

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"
ROW = "{label: A, metric: m}"


def write(tmp_path: Path, rows: str, head: str = "title: T") -> Path:
    path = tmp_path / "table_1.yaml"
    path.write_text(f"{head}\nrows:\n{rows}\n")
    return path


def test_for_makes_a_row_for_every_combination(tmp_path: Path) -> None:
    rows = """
  - for: {path: {"off": control off, hard: masks}, model: {a: {label: A, experiment: main}}}
    label: "{model:label}, {path:label}"
    experiment: "{model:experiment}"
    metric: control/{path}/x
    bounds: {floor: {corrected: {metric: "floor/{path}", number: 2}}}
"""
    first, second = load_spec(write(tmp_path, rows), "p").rows
    assert (first.label, first.experiment) == ("A, control off", "main")
    assert first.metric == {"as_published": "control/off/x", "corrected": "control/off/x"}
    assert second.metric["corrected"] == "control/hard/x"
    assert first.floor["as_published"] is None
    assert (second.floor["corrected"].metric, second.floor["corrected"].number) == ("floor/hard", 2)


def test_a_row_has_at_most_thirty_keys() -> None:
    assert len(ROW_KEYS) <= 30


def test_defaults_and_terms_are_inherited(tmp_path: Path) -> None:
    rows = "  - {label: A, combine: difference, terms: [{experiment: x}, {metric: n}], metric: m, digits: 1}"
    head = "title: T\ndefaults: {experiment: base, unit: nats, regimes: [corrected]}"
    (row,) = load_spec(write(tmp_path, rows, head), "p").rows
    assert row.terms[0] == ("x", {"as_published": "m", "corrected": "m"})
    assert row.terms[1] == ("base", {"as_published": "n", "corrected": "n"})
    assert (row.unit, row.regimes, row.digits) == ("nats", ("corrected",), 1)


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ("label: A, metrik: m", "'metrik'; did you mean 'metric'"),
        ("label: A", "metric"),
        ("metric: m", "label"),
        ("label: A, metric: {corrected: m}", "metric"),
        ("label: A, metric: m, printed: {row: a, column: b}", "margin"),
        ("label: A, metric: m, combine: diference, terms: [{}, {}]", "combine.*did you mean 'difference'"),
        ("label: A, metric: m, combine: interaction, terms: [{}, {}, {}]", "interaction"),
        ("label: A, metric: m, terms: [{}, {}]", "combine"),
        ("label: A, metric: m, claim: lower", "claim"),
        ("label: A, metric: m, claim: {less: much}", "claim.less"),
        ("label: A, metric: m, claim: less, interval: none, margin: {relative: 0.1, why: x}", "margin"),
        ("label: A, metric: m, claim: equal", "margin"),
        ("label: A, metric: m, claim: not_less, margin: {relative: 0.1, why: x}", "margin"),
        ("label: A, metric: m, claim: never_less", "never_less"),
        ("label: A, metric: m, interval: wilson, combine: sum, terms: [{}, {}]", "wilson"),
        ("label: A, metric: m, interval: {wilson: many}", "interval.wilson"),
        ("label: A, metric: m, interval: range, combine: sum, terms: [{}, {}]", "range"),
        ("label: A, metric: m, interval: range, claim: less", "range"),
        (
            "label: A, metric: m, interval: wilson, printed: {row: a, column: b}, margin: {absolute: 1, why: w}",
            "trials",
        ),
        ("label: A, metric: m, over: {x: [1, 2]}", "combine"),
        ("label: A, metric: m, alike: [x]", "alike"),
        ("label: A, metric: m, over: {xy: [1], z: [2]}, alike: [xz]", "alike.*xz.*did you mean"),
        ("label: A, metric: m, over: {x: [1, 2]}, alike: [x]", "alike"),
        ("label: A, metric: m, over: {x: [1]}, combine: sum, terms: [{}, {}], printed: {value: y}", "over"),
        ("label: A, metric: m, bounds: {limits: [1]}", "limits"),
        ("label: A, metric: m, bounds: {flor: 1}", "bounds.*'flor'; did you mean 'floor'"),
        ("label: A, metric: m, bounds: {floor: {metrik: m}}", "floor.*metrik"),
        ("label: A, metric: m, bounds: {floor: low}", "floor=low"),
        ("label: A, metric: m, other: 'any time: why'", "other"),
        ("label: A, metric: m, too_small: {why: x}", "too_small.*below"),
        ("label: A, metric: m, margin: {rel: 1}", "margin.*rel"),
        ("label: A, metric: m, margin: {absolute: 1, why: ''}", "margin.*why"),
        ("label: A, metric: m, margin: {absolute: -1, why: x}", "margin.absolute"),
        ("label: A, metric: m, margin: {absolute: 1, relative: 1, why: x}", "margin"),
    ],
)
def test_a_mistake_in_a_row_is_one_line_that_names_file_row_and_key(tmp_path: Path, row: str, named: str) -> None:
    with pytest.raises(UserError, match=rf"table_1\.yaml, row 1.*{named}") as raised:
        load_spec(write(tmp_path, f"  - {{{row}}}"), "p")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (f"title: T\nrows: [{ROW}]\nnotes: x", "notes"),
        ("title: T\nrows: [A]", "rows"),
        ("title: T\nrows: []", "rows"),
        (f"rows: [{ROW}]", "title"),
        ("title: T\nrows: [{label: [", "cannot be read"),
        (f"title: T\nrows: [{ROW}]\nchecks: {{c: {{says: s, metric: m}}}}", "check c: .*at_most"),
        (f"title: T\nrows: [{ROW}]\nchecks: {{c: {{says: s, metric: m, below: 1, above: 2}}}}", "check c: .*at_most"),
        (f"title: T\nrows: [{ROW}]\nchecks: {{c: {{metric: m, below: 1}}}}", "check c.*says"),
        (f"title: T\nrows: [{ROW}]\nchecks: {{c: {{says: s, metric: m, below: 1, time: 3}}}}", "check c.*'times'"),
        (f"title: T\nrows: [{ROW}]\nchecks: {{c: 3}}", "check c"),
        ("title: T\nrows: [{label: A, metric: m, checks: [c]}]", "checks"),
    ],
)
def test_a_mistake_in_a_table_is_one_line_that_names_file_and_key(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "table_1.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=rf"table_1\.yaml.*{named}") as raised:
        load_spec(path, "p")
    assert "\n" not in str(raised.value)


def test_a_claim_of_no_difference_and_a_cell_of_one_regime_are_rows(tmp_path: Path) -> None:
    rows = """
  - {label: A, metric: m, claim: equal, margin: {absolute: 0.1, why: w}}
  - {label: B, metric: {corrected: m}, regimes: {corrected: [3]}}
  - {label: C, not_run: no weights, printed: {row: a, column: b}}
  - {label: D, over: {x: [1, 2]}, combine: difference, terms: [{metric: "a{x}"}, {metric: b}], experiment: "e"}
"""
    one, two, three, four = load_spec(write(tmp_path, rows), "p").rows
    assert one.margin.absolute == 0.1 and two.seeds == {"as_published": None, "corrected": [3]}
    assert three.not_run == "no weights" and three.interval == "seeds" and three.digits == 3
    assert [[metric["corrected"] for _, metric in cell] for cell in four.over] == [["a1", "b"], ["a2", "b"]]
    assert len(four.terms) == 4 and {name for name, _ in four.terms} == {"e"}


def test_a_check_reads_its_limit_by_regime(tmp_path: Path) -> None:
    head = "title: T\nchecks: {c: {says: s, metric: m, at_most: {corrected: {metric: n, number: 2}}, times: 3}}"
    made = load_spec(write(tmp_path, f"  - {ROW}", head), "p").checks["c"]
    assert (made.limit, made.times, made.experiment, made.against["as_published"]) == ("at_most", 3.0, None, None)
    assert (made.against["corrected"].metric, made.against["corrected"].number) == ("n", 2)


def test_printed_numbers_keep_their_characters(tmp_path: Path) -> None:
    path = tmp_path / "numbers.csv"
    path.write_text("paper,table,row,column,value,unit,note\np,1,a,x,1.00,rate,\np,1,a,y,,rate,not reported\n")
    numbers = read_printed(path)
    assert (numbers["1", "a", "x"].value, numbers["1", "a", "x"].text) == (1.0, "1.00")
    assert (numbers["1", "a", "y"].value, numbers["1", "a", "y"].text) == (None, "not reported")
    path.write_text("paper,table,row,column,value,unit,note\np,1,a,x,1,rate,\np,1,a,x,2,rate,\n")
    with pytest.raises(UserError, match="twice"):
        read_printed(path)
    path.write_text("paper,table,row,column,value,unit,note\np,1,a,x,one,rate,\n")
    with pytest.raises(UserError, match=r"numbers\.csv, line 2"):
        read_printed(path)


@pytest.mark.parametrize("paper", papers(EXPERIMENTS))
def test_every_printed_number_is_aimed_at(paper: str) -> None:
    """No number of a paper is forgotten: each stands in a row, or its note says why it stands in none."""
    with open(EXPERIMENTS / paper / "numbers.csv", encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    aimed = set()
    for table in load_specs(EXPERIMENTS, paper):
        for row in table.rows:
            references = row.printed if isinstance(row.printed, list) else [row.printed]
            aimed |= {
                (str(r.get("table", table.table)), str(r["row"]), str(r["column"]))
                for r in references
                if r and "row" in r
            }
    keys = {(line["table"], line["row"], line["column"]): line for line in lines}
    left = {key for key, line in keys.items() if line["note"].startswith("not aimed at: ")}
    assert aimed <= set(keys)
    assert {key for key, line in keys.items() if line["value"]} - aimed - left == set(), "neither aimed at nor left out"
    assert aimed & left == set(), "a row aims at what its note leaves out"


def test_experiments_are_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert experiments_root("semantic_fusion") == EXPERIMENTS
    own = tmp_path / "experiments" / "mine"
    own.mkdir(parents=True)
    (own / "paper.yaml").write_text("title: mine\n")
    assert experiments_root("mine") == tmp_path / "experiments"
    assert papers(tmp_path / "experiments") == ["mine"]
    with pytest.raises(UserError, match="did you mean 'semantic_fusion'"):
        experiments_root("semantic_fushion")
    # an installed package brings its own copy
    installed = tmp_path / "site" / "lit_ctg"
    (installed / "experiments" / "semantic_fusion").mkdir(parents=True)
    (installed / "experiments" / "semantic_fusion" / "paper.yaml").write_text("title: semantic fusion\n")
    monkeypatch.setattr(spec_module, "__file__", str(installed / "results" / "spec.py"))
    assert experiments_root("semantic_fusion") == installed / "experiments"


def test_a_section_stands_in_one_place() -> None:
    for table in load_specs(EXPERIMENTS, "semantic_fusion"):
        sections = [row.section for row in table.rows]
        starts = [one for index, one in enumerate(sections) if index == 0 or sections[index - 1] != one]
        assert len(starts) == len(set(starts)), table.name


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("titel: x", "'titel'; did you mean 'title'"),
        ("data: [a]", "data|title"),
        ("title: x\ndata: a", "data"),
        ("title: x\nheadline: {summary: [y]}", "headline.*rows"),
        ("title: x\nheadline: {summary: y, rows: []}", "headline.*summary"),
        ("title: x\nheadline: {summary: [y: z], rows: []}", "headline.*summary"),
        ("title: x\nheadline: {summary: [y], rows: [{table: t}]}", "headline rows.*section"),
        ("title: x\nheadline: {summary: [y], rows: [], picture: {table: t}}", "headline picture.*panel"),
        ("title: x\nheadline: {summary: [y], rows: [], picture: {curves: {}}}", "picture.*metric"),
        ("title: x\nabout: {paper: y}", "about.*authors"),
        ("title: x\nabout: {paper: y, authors: a, link: 'https://b)', does: c, found: d}", "about.*link"),
        ("title: x\nunread: {main: 3}", "unread"),
        ("- x", "title"),
        ("title: [", "cannot be read"),
        ("title: x\nruns: &r {small: [*r]}", r"\*r"),
    ],
)
def test_a_mistake_in_a_manifest_is_one_line_that_names_file_and_key(tmp_path: Path, text: str, named: str) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "paper.yaml").write_text(text)
    with pytest.raises(UserError, match=rf"paper\.yaml.*({named})") as raised:
        load_manifest(tmp_path, "mine")
    assert "\n" not in str(raised.value)


def test_a_manifest_needs_a_title_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "paper.yaml").write_text("title: My paper\n")
    manifest = load_manifest(tmp_path, "mine")
    assert (manifest.title, manifest.headline, manifest.runs, manifest.sweep) == ("My paper", None, {}, None)


# --- plots ----------------------------------------------------------------------------------------------------------

SERIES = "{label: A, metric: m, series: s, x: 1, unit: rate}"
OTHER = "{label: B, metric: m, series: s, x: 2, unit: perplexity}"
PLAIN = "{label: C, metric: m, section: S, unit: percent}"
ACROSS = "{label: C, metric: n, section: U, unit: rate}"
CHANGE = "{label: D, metric: m, section: S, unit: percent, combine: percent_change, terms: [{}, {}]}"
TEXTS = "{label: E, samples: {where: {}}}"


def load(tmp_path: Path, plot: str, *rows: str) -> TableSpec:
    path = tmp_path / "table_1.yaml"
    path.write_text(f"title: T\nplot: {plot}\nrows: [{', '.join(rows)}]\n")
    return load_spec(path, "p")


@pytest.mark.parametrize(
    ("plot", "rows"),
    [
        ("{kind: line, x: epoch, y: loss, log: true, xscale: steps}", (SERIES, PLAIN)),
        ("{kind: line, x: epoch}", (SERIES, OTHER.replace("series: s", "series: t"))),
        ("{kind: bars, x: change, sections: [S], low: 0, high: 1}", (PLAIN, SERIES)),
        ("{kind: matrix, x: a, y: b}", (SERIES.replace("x: 1", "x: 1, y: 2"),)),
        ("{kind: words}", (TEXTS,)),
        ("{kind: pareto, pairs: {P: {x: S, y: U}}}", (PLAIN, ACROSS)),
        ("{kind: line, x: epoch, pairs: {P: {x: S, y: U}}}", (SERIES, PLAIN, ACROSS)),
    ],
)
def test_good_plots(plot: str, rows: tuple[str, ...], tmp_path: Path) -> None:
    spec = load(tmp_path, plot, *rows)
    assert spec.plot == yaml.safe_load(plot) and len(spec.rows) == len(rows)


@pytest.mark.parametrize(
    ("plot", "rows", "named"),
    [
        ("{kind: lines}", (PLAIN,), "kind.*did you mean 'line'"),
        ("{kind: bars, x: a, sektions: [S]}", (PLAIN,), "'sektions'; did you mean 'sections'"),
        ("{kind: matrix, x: a, log: true}", (SERIES,), "log"),
        ("{kind: bars, log: true}", (PLAIN,), "x or y"),
        ("{kind: bars, x: a, y: b}", (PLAIN,), "x or y"),
        ("{kind: bars, x: a, sections: [T]}", (PLAIN,), "sections"),
        ("{kind: bars, x: a, sections: [S]}", (PLAIN, CHANGE), "sections"),
        ("{kind: bars, x: a, log: true, low: 0}", (PLAIN,), "low"),
        ("{kind: line, x: a}", (PLAIN,), "series"),
        ("{kind: line, y: a}", (SERIES,), "x"),
        ("{kind: line, x: a}", (SERIES, OTHER), "series 's'.*perplexity, rate"),
        ("{kind: line, x: a, y: b}", (SERIES, OTHER.replace("series: s", "series: t")), "leave it out"),
        ("{kind: matrix, x: a}", (SERIES,), "series.*x and y"),
        ("{kind: words}", (PLAIN,), "samples"),
        ("{kind: pareto}", (PLAIN,), "pairs"),
        ("{kind: pareto, pairs: {P: {x: S}}}", (PLAIN,), "pairs, P: 'y'"),
        ("{kind: pareto, pairs: {P: {x: S, y: V}}}", (PLAIN,), "pairs, P, y=V"),
        ("{kind: pareto, pairs: {P: {x: S, y: U}}}", (PLAIN, ACROSS.replace("label: C", "label: Z")), "pairs.P"),
        ("{kind: line, x: epoch, pairs: {P: {x: S, y: V}}}", (SERIES, PLAIN), "pairs, P, y=V"),
    ],
)
def test_a_mistake_in_a_plot_is_one_line(plot: str, rows: tuple[str, ...], named: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"table_1\.yaml: plot.*{named}"):
        load(tmp_path, plot, *rows)


@pytest.mark.parametrize("paper", papers(EXPERIMENTS))
def test_a_paper_s_own_tables_come_first_then_claims_then_curves(paper: str) -> None:
    names = [spec.name for spec in load_specs(EXPERIMENTS, paper)]
    kinds = [1 if name == "table_claims" else 2 if name.startswith("figure_") else 0 for name in names]
    figures = [place for place, kind in enumerate(kinds) if kind == 2]
    assert names[0].startswith("table_") and (1 not in kinds or kinds.index(1) < min(figures, default=len(names)))
    assert figures == list(range(min(figures, default=0), min(figures, default=0) + len(figures)))

from __future__ import annotations

import dataclasses
import re
from html import escape
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lit_ctg.errors import UserError
from lit_ctg.results import report
from lit_ctg.results.gather import gather
from lit_ctg.results.record import write_record
from lit_ctg.results.render import REGIME_TITLES
from lit_ctg.results.report import Part, main, parts, write_report
from lit_ctg.results.report import page as page_of
from lit_ctg.results.spec import Headline, Manifest, load_manifest
from lit_ctg.results.table import Cell, RecordPool, Results, Row, Table
from lit_ctg.results.verdict import (
    LABELS,
    NOT_RUN,
    REPRODUCED,
    SUPPORTED,
    UNDECIDED,
    Verdict,
)
from tests.committed import records_of
from tests.results.conftest import SEEDS, build_record, row_of, table_of

PAPER = "semantic_fusion"
EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"
EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)> & \"quoted\" 'too'"


class Page(HTMLParser):
    """Collects tags, attributes and text, and checks that every tag is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        assert self.open == [], "unclosed tags"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in ("meta", "br", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


# of the paper whose page is made here: its tables and figures, and the sizes of its committed records
FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "semantic_fusion"
TABLES = len(list((FOLDER / "tables").glob("*.yaml")))
SIZES = {path.name.split(".")[0].rsplit("_", 1)[1] for path in (FOLDER / "records").glob("*.tar.xz")}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("report")
    for name in ("main", "baseline"):
        for regime in ("as_published", "corrected"):
            for seed in SEEDS:
                path = folder / "outputs" / f"{name}-{regime}-{seed}" / "run.json"
                write_record(build_record(name, regime, seed), path)
    return write_report(folder / "report.html", PAPER, records=[folder / "outputs"]).read_text(encoding="utf-8")


def test_page_is_self_contained(page: str) -> None:
    parsed = Page(page)
    assert not {"script", "link", "img", "iframe"} & set(parsed.tags)
    assert all(not name.startswith("on") for name, _ in parsed.attributes)
    assert all((value or "").startswith("#") for name, value in parsed.attributes if name in ("href", "src"))
    assert "default-src 'none'; style-src 'unsafe-inline'" in [
        value for name, value in parsed.attributes if name == "content"
    ]
    assert "@import" not in page and "http://" not in page
    assert page.count("url(") == page.count("url(#"), "a picture refers to its own parts only"


@pytest.mark.long
def test_a_sample_with_markup_stays_text(make_record, tmp_path: Path) -> None:
    record = make_record("main", "corrected", 1)
    record.samples = [{"path": EVIL, "setting": EVIL, "text": EVIL}, {"path": "off", "text": EVIL}]
    record.device = EVIL
    failed = make_record("baseline", "corrected", 1)
    failed.status, failed.error = "FAILED", EVIL
    write_record(record, tmp_path / "a" / "run.json")
    write_record(failed, tmp_path / "b" / "run.json")
    text = write_report(tmp_path / "r.html", PAPER, records=[tmp_path]).read_text(encoding="utf-8")
    parsed = Page(text)
    assert "script" not in parsed.tags and "img" not in parsed.tags
    assert "".join(parsed.words).count("<script>alert(1)</script>") >= 4


def test_every_link_has_its_target(page: str) -> None:
    attributes = Page(page).attributes
    identifiers = [value for name, value in attributes if name == "id"]
    assert len(identifiers) == len(set(identifiers))
    targets = {(value or "")[1:] for name, value in attributes if name == "href"}
    assert targets <= set(identifiers)
    pictures = {target for target in targets if re.fullmatch("s[0-9]+m[0-9a-f]{10}", target)}
    assert targets - pictures == {"claims", f"own-{PAPER}-paper", *(f"{PAPER}-{size}" for size in SIZES)}


def test_answers_come_first_then_claims_then_folded_tables(page: str) -> None:
    places = [page.index(f'<h2 id="{name}">') for name in ("answers", "claims", "tables")]
    assert places == sorted(places)
    card = page[places[0] : places[1]]
    assert card.count("<article") == 1
    about = load_manifest(EXPERIMENTS, PAPER).about
    assert about is not None and page.index(escape(about.found)) < places[0], "the outcome comes first"
    # one picture of one's own runs, one of the committed ones, each named
    assert card.count("<svg") == 2 and card.count("<figcaption>") == 2
    assert ">your runs</a>" in card and ">committed records</a>" in card
    for count, label in re.findall(r"<b>(\d+)</b> (\w+)", card):
        assert int(count) > 0 and label in " ".join(LABELS)
    assert "mask, fusion against baseline, %" in page[places[1] : places[2]]
    assert " open" not in re.findall(r"<details[^>]*>", page)


@pytest.mark.long
def test_own_runs_stand_beside_the_committed_ones_and_agree_or_not(tmp_path: Path) -> None:
    record = records_of(PAPER, "main")[0]
    write_record(record, tmp_path / "run.json")
    text = write_report(tmp_path / "r.html", None, records=[tmp_path], root=EXPERIMENTS).read_text(encoding="utf-8")
    assert re.search(
        r"1 of 1 runs have a committed one of the same seed beside them: all \d+ numbers are the same", text
    )
    # the paper that was run comes first, the others are there from the committed records
    assert re.findall(r'<article class="part answer paper-(\w+)', text)[0] == PAPER
    assert text.count("<article") == 5 and "1 of your own, " in text
    record.metrics["val/perplexity"]["value"] *= 1.01
    write_record(record, tmp_path / "run.json")
    text = write_report(tmp_path / "r.html", PAPER, records=[tmp_path], root=EXPERIMENTS).read_text(encoding="utf-8")
    assert re.search(r"1 of \d+ numbers differ, most of all val/perplexity \(1%\)", text)


def test_tables_can_be_read_by_keyboard_and_screen_reader(page: str) -> None:
    regions = re.findall(r'<div class="scroll"([^>]*)>', page)
    assert any(regions)
    for region in regions:
        assert not region or ('tabindex="0"' in region and 'aria-label="' in region)
    assert page.count('<th scope="row">') > 50 and '<a class="skip" href="#claims">' in page
    assert all('role="img" aria-label="' in start for start in re.findall(r"<svg[^>]*>", page))


def test_a_failing_report_keeps_the_old_page(write_records, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "report.html"
    out.write_text("old")
    (tmp_path / "outputs" / "x").mkdir(parents=True)
    (tmp_path / "outputs" / "x" / "run.json").write_text("{")
    with pytest.raises(UserError, match=r"run\.json"):
        write_report(out, PAPER, records=[tmp_path / "outputs"])
    assert out.read_text() == "old"


@pytest.mark.long
def test_the_same_records_give_the_same_page(write_records, tmp_path: Path) -> None:
    folder = write_records(seeds=(111,))
    pages = [write_report(tmp_path / name, PAPER, records=[folder]).read_bytes() for name in ("a", "b")]
    assert pages[0] == pages[1]


def test_a_paper_without_runs_says_so(tmp_path: Path) -> None:
    text = write_report(tmp_path / "r.html", "graphmax", records=[tmp_path]).read_text(encoding="utf-8")
    words = " ".join(Page(text).words)
    assert "no runs yet" in words and "0 runs" in words and "show-size-" not in text
    assert "lit-ctg reproduce paper=graphmax size=small" in words


def test_papers_and_tables_fold_with_their_anchors_inside(page: str) -> None:
    """A browser opens a fold when a link leads into it, so the anchor is what is folded."""
    folds = re.findall(r'<details class="fold[^>]*><summary><h[34]>.*?</h[34]></summary>\s*<div id="', page)
    assert len(folds) == 1 + TABLES + len(SIZES) + TABLES, "of one's own runs and of the committed ones"


@pytest.mark.long
def test_filter_and_sizes(make_record, tmp_path: Path) -> None:
    for size in ("small", "paper"):
        record = make_record("main", "corrected", 1)
        record.size = size
        write_record(record, tmp_path / size / "run.json")
    text = write_report(tmp_path / "r.html", PAPER, records=[tmp_path]).read_text(encoding="utf-8")
    attributes = Page(text).attributes
    buttons = {value for name, value in attributes if name == "id" and (value or "").startswith("show-")}
    # one paper is no choice
    assert buttons == {f"show-{button}" for button in ("regime-all", "regime-as_published", "regime-corrected",
                                                       "size-all", "size-paper", "size-small",
                                                       "records-all", "records-own", "records-committed")}  # fmt: skip
    identifiers = [value for name, value in attributes if name == "id"]
    assert len(identifiers) == len(set(identifiers))
    classes = {value for name, value in attributes if name == "class"}
    for size in ("small", "paper"):
        assert f"fold part paper-{PAPER} size-{size} records-own" in classes
        assert f"body:has(#show-size-{size}:checked) .part:not(.size-{size})" in text
    one = write_report(tmp_path / "one.html", PAPER, records=[tmp_path], size="small").read_text(encoding="utf-8")
    assert "show-regime-corrected" in one and "small" in one


def test_every_verdict_has_its_colour() -> None:
    """What is not judged has none of its own: one grey for all of it."""
    style = (Path(report.__file__).parent / "report.css").read_text(encoding="utf-8")
    for label in LABELS:
        assert re.search(rf"\.{report.slug(label)}\b[^{{]*{{ color:", style), label


# --- pages made by hand ---------------------------------------------------------------------------------------------


def claim(label: str, verdict: str | None, **spec: Any) -> Row:
    """Return a claim that was judged in one regime, or was not run."""
    hole = Cell(hole="not run: x", verdict=Verdict(NOT_RUN))
    cell = Cell({1: 2.0}, 2.0, verdict=Verdict(verdict, "why")) if verdict else hole
    return row_of(label, None, None, cell, claim="less", metric={"corrected": label}, combine="difference", **spec)


def part_of(
    *tables: Table, own: bool = False, records: Any = (), size: str = "paper", agreement: Any = (), **options: Any
) -> Part:
    """Return a part of a page with these tables; by default one run is behind them."""
    runs = list(records) if records != () else [build_record("main", "corrected", 1, size)]
    rows = ({"says": "In short, <it> works", "table": "table_x", "section": "S", "label": "C1"},)
    labels = [row.spec.label for table in tables for row in table.rows]
    headline = Headline(("It works by 1.5 times.", "See <below>."), rows if "C1" in labels else ())
    manifest = Manifest("semantic_fusion", "mine & Yours", headline=headline)
    pool = RecordPool(runs, "semantic_fusion", size)
    return Part(Results("semantic_fusion", size, tables, pool, manifest=manifest, **options), own, agreement)


def claims() -> Table:
    return table_of(
        claim("C1", SUPPORTED, section="S"), claim("C2", UNDECIDED), claim("C3", None, section="T"), size="small"
    )


def line_of(text: str, label: str) -> str:
    """Return the row of a table."""
    (found,) = re.findall(rf'<tr><th scope="row">{re.escape(label)}</th>(.*)</tr>', text)
    return found


def test_a_narrow_screen_names_the_regimes_as_the_tables_do() -> None:
    css = (Path(report.__file__).parent / "report.css").read_text(encoding="utf-8")
    for regime, title in REGIME_TITLES.items():
        assert f'.numbers td.in-{regime}::before {{ content: "{title}"; }}' in css


def test_a_cell_shows_seeds_interval_verdict_and_finding() -> None:
    cell = Cell({1: 0.1234567, 2: 0.75}, 0.5, (0.125, 0.875), 1234, verdict=Verdict(REPRODUCED, "cl<se"),
                finding="a <finding>", spread=12.34, spread_printed=5.67)  # fmt: skip
    rows = (
        row_of("A", "1.5", cell, Cell(hole="not run: <x>\x07", verdict=Verdict(NOT_RUN))),
        row_of("B", "2.5", None, Cell(hole="diverged: x", verdict=Verdict(NOT_RUN, "why"))),
        row_of("O", None, Cell({1: 1.0}, 1.0, finding="ours"), Cell(texts=("a <text>", "b"))),
    )
    text = page_of([part_of(table_of(*rows, size="small"))])
    for shown in (
        'title="by seed: 1: 0.123457, 2: 0.75">0.500<', "[0.125, 0.875]", "n=2 (1,234 trials)", "12.3 (5.7)",
        'class="chip reproduced" title="cl&lt;se"', "a &lt;finding&gt;", "not run: &lt;x&gt;\\x07",
    ):  # fmt: skip
        assert shown in line_of(text, "A")
    assert 'class="chip not-run" title="why"' in line_of(text, "B")
    assert "ours" in line_of(text, "O") and "<q>a &lt;text&gt;</q><q>b</q>" in line_of(text, "O")


def test_claims_are_counted_and_those_that_ran_are_shown() -> None:
    text = page_of([part_of(claims(), size="small")])
    start, end = text.index('<h2 id="claims">'), text.index('<h2 id="tables">')
    card, shown = text[:start], text[start:end]
    assert re.findall(r'class="([\w-]+)" title="[^"]+"><b>(\d+)', card) == [
        ("supported", "1"),
        ("undecided", "1"),
        ("not-run", "1"),
    ]
    assert "2 claims tried" in shown and "1 claim never run" in shown
    assert "supported at size small" in line_of(shown, "In short, &lt;it&gt; works")
    assert line_of(shown, "S: C1") and "undecided at size small" in line_of(shown, "C2") and "C3" not in shown
    gone = page_of([part_of(table_of(claim("C1", None, section="S")))])
    assert "never run: <code>lit-ctg reproduce paper=semantic_fusion size=paper</code>" in gone


def test_a_card_says_whose_runs_are_counted_and_whose_sentence_it_is() -> None:
    own = part_of(claims(), own=True, size="small", agreement=("all & the same",))
    committed = part_of(claims(), records=[build_record("main", "corrected", seed) for seed in (1, 2, 3)])
    text = page_of([own, committed], ["x: left <out>"])
    assert "1 of your own, 3 committed</p>" in text and "x: left &lt;out&gt;" in text
    card = text[text.index("<article") : text.index("</article>")]
    classes = "part answer paper-semantic_fusion size-small size-paper records-committed records-own"
    assert f'<article class="{classes}"><div><h3>Mine &amp; Yours</h3>' in card
    assert "This sentence is about the committed records." in card and "all &amp; the same" in card
    assert 0 < card.index('<a href="#own-semantic_fusion-small">') < card.index('<a href="#semantic_fusion-paper">')
    assert "This sentence" not in page_of([committed]) + page_of([own])


def test_samples_are_grouped_and_cut_and_of_the_lowest_seed() -> None:
    first, second, other = (build_record("main", regime, seed) for regime, seed in
                            (("corrected", 2), ("corrected", 1), ("as_published", 3)))  # fmt: skip
    first.samples = [{"text": "of the higher seed"}]
    second.samples = [{"path": "hard", "setting": "good", "prompt": "The", "text": f"t{n}"} for n in range(3)]
    second.samples += [{"path": "hard", "setting": "good", "prompt": "One", "text": f"one{n}"} for n in range(3)]
    second.samples += [{"text": "bare", "path": "", "prompt": ""}]
    other.samples = [{"setting": "bad", "text": "other"}]
    assert report.sample_groups([second, first, other]) == [
        (
            "semantic_fusion/main, corrected, seed 1",
            {'hard, good, "The"': ["t0", "t1", "t2"], 'hard, good, "One"': ["one0"], "samples": ["bare"]},
        ),
        ("semantic_fusion/main, as published, seed 3", {"bad": ["other"]}),
    ]


def test_the_filter_hides_what_is_not_chosen_and_shows_all_at_first() -> None:
    own, committed = part_of(claims(), own=True, size="small"), part_of(claims())
    rules = report.filter_rules([own, committed]).splitlines()
    chosen = "body:has(#show-{}:checked)"
    hidden = [f"{chosen.format('regime-corrected')} {where}as_published" for where in (".in-", "svg .", ".key .for-")]
    assert f"{', '.join(hidden)} {{ display: none; }}" in rules
    assert f"{chosen.format('records-own')} .part:not(.records-own) {{ display: none; }}" in rules
    assert len(rules) == 6 and "paper" not in report.choices([own, committed])
    checked = re.findall(r'id="([^"]*)" checked', page_of([own, committed]))
    assert checked == ["show-regime-all", "show-size-all", "show-records-all"]
    empty = part_of(claims(), size="small", records=[build_record("main", "corrected", 1)])
    assert set(report.choices([committed, empty])) == {"regime"}, "no run has that size"


@pytest.fixture
def papers(tmp_path: Path) -> Path:
    """Three papers of one table: with runs of one's own and committed ones, with committed ones, without any."""
    root = tmp_path / "experiments"
    for paper in ("bare", "mine", "other"):
        (root / paper / "tables").mkdir(parents=True)
        (root / paper / "records").mkdir()
        (root / paper / "paper.yaml").write_text(f"title: {paper}\n")
        (root / paper / "numbers.csv").write_text("paper,table,row,column,value,unit,note\n,1,a,x,2.0,,\n")
        row = "{label: A, metric: val/perplexity, regimes: [corrected]}"
        (root / paper / "tables" / "t.yaml").write_text(f"title: T\ntable: 1\nrows: [{row}]\n")

    def run(paper: str, size: str, seed: int, folder: Path) -> None:
        record = build_record("main", "corrected", seed, size)
        record.paper = paper
        write_record(record, folder / f"corrected-{size}-seed{seed}.json")

    for paper, size, seed in (("mine", "paper", 1), ("mine", "paper", 2), ("other", "paper", 1), ("other", "small", 1)):
        run(paper, size, seed, root / paper / "records" / "main")
    for size in ("paper", "small"):
        run("mine", size, 1, tmp_path / "own")
    return root


def shown(root: Path, paper: str | None, size: str | None = None, records: str = "../own") -> list[tuple[Any, ...]]:
    folder = [(root / records).resolve()]
    results, _ = gather(paper, size, folder, root, every_size=True)
    return [
        (part.results.paper, part.results.size, part.origin, len(part.results.pool.records()),
         [one.pool.records()[0].seed for one in part.beside], len(part.agreement))
        for part in parts(results, root, size or "auto")
    ]  # fmt: skip


def test_ones_own_runs_go_first_each_paper_with_its_committed_ones(papers: Path) -> None:
    own, committed = "your runs", "committed records"
    mine = [
        ("mine", "paper", own, 1, [1], 1),
        ("mine", "small", own, 1, [], 0),
        ("mine", "paper", committed, 2, [1], 0),
    ]
    others = [("other", "paper", committed, 1, [], 0), ("other", "small", committed, 1, [], 0)]
    assert shown(papers, None) == [*mine, ("bare", "small", committed, 0, [], 0), *others]
    assert shown(papers, "mine") == mine
    assert shown(papers, None, "paper") == [mine[0], mine[2], ("bare", "paper", committed, 0, [], 0), others[0]]
    # of one paper alone, only what is asked for
    assert shown(papers, "other") == [("other", "small", committed, 0, [], 0)]
    assert shown(papers, "other", records="other/records") == others
    text = write_report(papers / "r.html", None, "small", [papers / ".." / "own"], papers).read_text(encoding="utf-8")
    assert re.findall(r'<article class="part answer paper-(\w+) size-small', text) == ["mine", "bare", "other"]
    (papers / "bare" / "paper.yaml").write_text("no: title\n")
    text = write_report(papers / "r.html", None, "small", [papers / ".." / "own"], papers).read_text(encoding="utf-8")
    assert "bare: left out: " in text and "paper-bare" not in text


def test_a_table_is_drawn_beside_itself_only() -> None:
    table, other = claims(), claims()
    other = dataclasses.replace(other, spec=dataclasses.replace(other.spec, name="table_y"))
    part = dataclasses.replace(part_of(table), beside=(part_of(other, table).results,))
    assert part.tables_beside(table) == [table]


def test_papers_left_out_of_dashboards_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "gather", lambda *given: ([], [f"{given[0]}: left out: broken"]))
    console = Console(file=StringIO())
    assert main("mine", target="wandb", out=tmp_path, console=console) == 0
    assert console.file.getvalue() == "mine: left out: broken\n"  # type: ignore[attr-defined]

from __future__ import annotations

import dataclasses
import html
import re
from collections import Counter
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
from lit_ctg.results.spec import Headline, Manifest
from lit_ctg.results.table import Cell, RecordPool, Results, Row, Table
from lit_ctg.results.verdict import (
    IMPOSSIBLE,
    LABELS,
    NOT_RUN,
    OTHER_SIZE,
    REPRODUCED,
    SUPPORTED,
    UNDECIDED,
    Margin,
    Verdict,
)
from tests.committed import records_of
from tests.results.conftest import SEEDS, build_record, full_cell, row_of, table_of

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


# tables and figures of the paper whose page is made here
TABLES = len(list((Path(__file__).resolve().parents[2] / "experiments" / "semantic_fusion" / "tables").glob("*.yaml")))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("report")
    for name in ("main", "baseline"):
        for regime in ("as_published", "corrected"):
            for seed in SEEDS:
                path = folder / "outputs" / f"{name}-{regime}-{seed}" / "run.json"
                write_record(build_record(name, regime, seed), path)
    return write_report(folder / "report.html", PAPER, records=[folder / "outputs"]).read_text(encoding="utf-8")


def test_page_has_every_section(page: str) -> None:
    words = " ".join(Page(page).words)
    for heading in [f"Table {n}:" for n in range(1, 7)] + [
        "Figure 1:",
        "Ablation",
        "Coupled corpus",
        "Generated samples",
    ]:
        assert heading in words, heading
    assert "printed numbers" in words and "Numbers are judged at the paper's size" in words
    assert page.count("<svg") >= 14
    assert len(page.encode()) < 5_000_000


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
    assert targets - pictures == {"claims", f"own-{PAPER}-paper", f"{PAPER}-paper"}


def test_answers_come_first_then_claims_then_folded_tables(page: str) -> None:
    places = [page.index(f'<h2 id="{name}">') for name in ("answers", "claims", "tables")]
    assert places == sorted(places)
    card = page[places[0] : places[1]]
    assert card.count("<article") == 1 and "As published the claimed gain is undecided" in card
    # one picture of one's own runs, one of the committed ones, each named
    assert card.count("<svg") == 2 and card.count("<figcaption>") == 2
    assert ">your runs</a>" in card and ">committed records</a>" in card
    for count, label in re.findall(r"<b>(\d+)</b> (\w+)", card):
        assert int(count) > 0 and label in " ".join(LABELS)
    assert html.escape("Perplexity by the authors' mask, fusion against baseline, %") in page[places[1] : places[2]]
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


@pytest.mark.long
def test_what_was_never_run_is_one_line_with_its_command(make_record, tmp_path: Path) -> None:
    write_record(make_record("baseline", "corrected", 1), tmp_path / "run.json")
    text = write_report(tmp_path / "r.html", PAPER, records=[tmp_path]).read_text(encoding="utf-8")
    own = text[text.index(f'id="own-{PAPER}-paper"') : text.index(f'id="{PAPER}-paper"')]
    line = re.search(r"<summary>(\d+) tables and figures were never run: <code>([^<]*)</code></summary>", own)
    assert line is not None and int(line[1]) > 3 and line[2] == f"lit-ctg reproduce paper={PAPER} size=paper"
    assert re.search(r"\d+ claims never run: <code>lit-ctg reproduce", text)


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
    with pytest.raises(UserError, match=r"run\.json is not a run record"):
        write_report(out, PAPER, records=[tmp_path / "outputs"])
    assert out.read_text() == "old"


@pytest.mark.long
def test_the_same_records_give_the_same_page(write_records, tmp_path: Path) -> None:
    folder = write_records(seeds=(111,))
    pages = [write_report(tmp_path / name, PAPER, records=[folder]).read_bytes() for name in ("a", "b")]
    assert pages[0] == pages[1]


@pytest.mark.long
def test_command(write_records, tmp_path: Path) -> None:
    console = Console(file=StringIO())
    out = tmp_path / "page.html"
    assert main(PAPER, records=[write_records(seeds=(111,))], out=out, console=console) == 0
    assert f"report: {out}" in console.file.getvalue()  # type: ignore[attr-defined]
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_paper_without_runs_says_so(tmp_path: Path) -> None:
    text = write_report(tmp_path / "r.html", "graphmax", records=[tmp_path]).read_text(encoding="utf-8")
    words = " ".join(Page(text).words)
    assert "no runs yet" in words and "0 runs" in words and "show-size-" not in text
    assert "lit-ctg reproduce paper=graphmax size=small" in words


def test_rows_that_lack_the_same_fold_away_with_their_printed_numbers(tmp_path: Path) -> None:
    """Tables 2 and 5 of graphmax print 40 numbers each of models whose weights are not to be had."""
    text = write_report(tmp_path / "r.html", "graphmax", records=[tmp_path]).read_text(encoding="utf-8")
    Page(text)
    assert text.count("weights cannot be had where this was measured; experiment=graphmax/pretrained takes") <= 8
    assert "32 rows not run: weights cannot be had" in text and "GPT-2, BLEU-2: 0.983" in text


def test_papers_and_tables_fold_with_their_anchors_inside(page: str) -> None:
    """A browser opens a fold when a link leads into it, so the anchor is what is folded."""
    folds = re.findall(r'<details class="fold[^>]*><summary><h[34]>.*?</h[34]></summary>\s*<div id="', page)
    assert len(folds) == 2 * (1 + TABLES), "of one's own runs and of the committed ones"


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
    assert line_of(text, "A") == (
        '<td data-head="Printed">1.5</td><td class="in-as_published">'
        '<b title="by seed: 1: 0.123457, 2: 0.75">0.500</b> <span class="range">[0.125, 0.875]</span>'
        ' <span class="n">n=2 (1,234 trials)</span> <span class="n">CV* 12.3 (5.7)</span><br>'
        '<span class="chip reproduced" title="cl&lt;se">reproduced</span>'
        '<span class="finding">a &lt;finding&gt;</span></td>'
        '<td class="hole in-corrected">not run: &lt;x&gt;\\x07</td>'
    )
    assert line_of(text, "B").endswith(
        '<td class="in-as_published">—</td>'
        '<td class="hole in-corrected">'
        'diverged: x<br><span class="chip not-run" title="why">not run</span></td>'
    )
    ours = '<span class="n">n=1</span><span class="finding">ours</span>'
    assert ours in line_of(text, "O") and "<q>a &lt;text&gt;</q><q>b</q>" in line_of(text, "O")


def test_a_printed_number_has_its_margin_s_letter_and_why_it_is_impossible() -> None:
    low = {"corrected": Verdict(IMPOSSIBLE, "below <2>")}
    first, other = (
        row_of("A", "-1.5", full_cell(), margin=Margin(relative=0.1)),
        row_of("B", "2", full_cell(), margin=Margin(0.2)),
    )
    table = table_of(first, dataclasses.replace(other, impossible=low))
    text = page_of([part_of(table)])
    assert '<td data-head="Printed">\N{MINUS SIGN}1.5 <sup>a</sup></td>' in line_of(text, "A")
    assert (
        '<td data-head="Printed">2 <sup>b</sup><br><span class="chip impossible">'
        "impossible (corrected): below &lt;2&gt;</span></td>"
    ) in line_of(text, "B")


def test_sections_and_gaps_are_as_wide_as_their_table() -> None:
    hole = Cell(hole="not run: x", verdict=Verdict(NOT_RUN))
    gone = [row_of(f"g{n}", str(n), None, hole, section="<G>") for n in range(3)]
    table = table_of(row_of("A", "1.5", full_cell()), *gone, notes=("a <note>", "another"))
    table = dataclasses.replace(table, spec=dataclasses.replace(table.spec, caption="a <caption>"))
    ours = [row_of(f"o{n}", None, None, hole) for n in range(3)]
    text = page_of([part_of(table, table_of(row_of("B", None, None, full_cell(), section="T"), *ours, title="Ours"))])
    assert '<tr class="section"><th scope="colgroup" colspan="4">&lt;G&gt;</th></tr>' in text
    assert (
        '<tr class="gap"><td class="hole" colspan="4"><details><summary>3 rows not run: x; printed</summary>'
        "g0: 0; g1: 1; g2: 2</details></td></tr>"
    ) in text
    assert "<p>a &lt;caption&gt;</p>" in text
    assert '<p class="note">a &lt;note&gt;</p>\n<p class="note">another</p>' in text
    assert text.count('<table class="numbers">') == 1 and text.count('<table class="numbers ours">') == 1
    assert '<th scope="colgroup" colspan="2">T</th>' in text
    assert '<td class="hole" colspan="2">3 rows not run: o0; o1; o2</td>' in text


def test_claims_are_counted_and_those_that_ran_are_shown() -> None:
    text = page_of([part_of(claims(), size="small")])
    start, end = text.index('<h2 id="claims">'), text.index('<h2 id="tables">')
    card, shown = text[:start], text[start:end]
    assert '<span class="muted">Corrected, 3 claims</span>' in card and "As published, " not in card
    assert (
        '<div class="counts"><span class="supported"><b>1</b> supported</span>'
        '<span class="undecided"><b>1</b> undecided</span><span class="not-run"><b>1</b> not run</span></div>'
    ) in card
    assert "<summary>2 claims tried</summary>" in shown and "table or figure" not in text, "some of it was run"
    assert (
        '<p class="note">1 claim never run: <code>lit-ctg reproduce paper=semantic_fusion size=small</code></p>'
        in shown
    )
    assert "supported at size small" in line_of(shown, "In short, &lt;it&gt; works")
    assert line_of(shown, "S: C1") and "undecided at size small" in line_of(shown, "C2") and "C3" not in shown
    assert "supported at size small" in line_of(text[end:], "C1")
    done = table_of(claim("C1", SUPPORTED, section="S"), claim("C2", UNDECIDED))
    text = page_of([part_of(done)])
    assert "<summary>all 2 claims tried</summary>" in text and "never run" not in text
    text = page_of([part_of(table_of(claim("C1", SUPPORTED, section="S")))])
    assert "<summary>1 claim tried</summary>" in text and '<span class="muted">Corrected, 1 claim</span>' in text
    gone = table_of(claim("C1", None, section="S"))
    text = page_of([part_of(gone)])
    assert "None of the claims was tried at this size." in text and "in short" not in text
    assert "1 table or figure was never run: <code>lit-ctg reproduce paper=semantic_fusion size=paper</code>" in text
    assert "2 tables and figures were never run: <code>" in page_of([part_of(gone, gone)])
    assert "not run: x" in line_of(text, "C1") and "<summary>1 hole</summary>" in text, "inside"


def test_a_card_has_its_sentence_and_says_whose_runs_are_counted() -> None:
    own = part_of(claims(), own=True, size="small", agreement=("all & the same",))
    committed = part_of(claims(), records=[build_record("main", "corrected", seed) for seed in (1, 2, 3)])
    assert own.classes == "part paper-semantic_fusion size-small records-own"
    assert committed.classes == "part paper-semantic_fusion size-paper records-committed"
    text = page_of([own, committed], ["x: left <out>"])
    assert "1 of your own, 3 committed</p>" in text and '<p class="note">x: left &lt;out&gt;</p>' in text
    card = text[text.index("<article") : text.index("</article>")]
    classes = "part answer paper-semantic_fusion size-small size-paper records-committed records-own"
    assert (
        f'<article class="{classes}"><div><h3>Mine &amp; Yours</h3><p class="sentence">It works by 1.5 times.</p>'
        in card
    )
    assert "This sentence is about the committed records." in card and "all &amp; the same" in card
    runs = '<a href="#own-semantic_fusion-small">your runs</a> <span class="muted">(1 run, size small)</span>'
    others = '<a href="#semantic_fusion-paper">committed records</a> <span class="muted">(3 runs, size paper)</span>'
    assert 0 < card.index(runs) < card.index(others)
    tables = text[text.index('<h2 id="tables">') :]
    points = "<ul><li>It works by 1.5 times.</li><li>See &lt;below&gt;.</li></ul>"
    assert tables.count(points) == 1, "below the committed ones"
    alone = page_of([committed])
    assert "3 runs</p>" in alone and "This sentence" not in alone and "<li>See" in alone
    mine = page_of([own])
    assert "This sentence" not in mine and "<li>See" not in mine and '<p class="sentence">It works' in mine
    none = page_of([part_of(records=[build_record("main", "corrected", 1, "smoke")])])
    assert "0 runs</p>" in none and "no runs yet" in none and "It works" not in none
    assert "Nothing was run yet: lit-ctg reproduce paper=semantic_fusion size=paper" in none


def test_holes_are_counted_and_the_first_notes_stand_above_them() -> None:
    hole = Cell(hole="not run: <x>", verdict=Verdict(NOT_RUN))
    table = table_of(
        row_of("A", "1", hole, hole), row_of("B", "1", full_cell(), Cell(hole="gone", verdict=hole.verdict))
    )
    text = page_of([part_of(table, notes=("n1", "n2", "n3", "n4", "n<5>"))])
    assert (
        '<p class="note">n1</p>\n<p class="note">n2</p>\n<p class="note">n3</p>\n<details><summary>4 holes</summary>'
        in text
    )
    items = ("not run: &lt;x&gt; (2 cells)", "gone (1 cell)", "n4", "n&lt;5&gt;")
    assert f'<ul class="holes">{"".join(f"<li>{item}</li>" for item in items)}</ul>' in text
    assert '<span class="muted">As published, 2 printed numbers</span>' in text
    assert "Corrected, 2 printed numbers" not in text, "none of them was run"


def test_samples_are_grouped_and_cut_and_of_the_lowest_seed() -> None:
    first, second, other = (build_record("main", regime, seed) for regime, seed in
                            (("corrected", 2), ("corrected", 1), ("as_published", 3)))  # fmt: skip
    first.samples = [{"text": "of the higher seed"}]
    second.samples = [{"path": "hard", "setting": "good", "prompt": "The <p>", "text": f"t{n}"} for n in range(3)]
    second.samples += [{"path": "hard", "setting": "good", "prompt": "One", "text": f"one{n}"} for n in range(3)]
    second.samples += [{"text": "bare", "path": "", "prompt": ""}]
    other.samples = [{"setting": "bad", "text": "other"}]
    text = page_of([part_of(records=[first, second, other])])
    assert "of the higher seed" not in text
    assert "<summary>semantic_fusion/main, corrected, seed 1</summary>" in text
    quotes = "".join(f"<q>t{n}</q>" for n in range(3))
    assert f"<tr><th>hard, good, &quot;The &lt;p&gt;&quot;</th><td>{quotes}</td></tr>" in text
    assert "<tr><th>hard, good, &quot;One&quot;</th><td><q>one0</q></td></tr>" in text, "four of a setting in all"
    assert "<tr><th>samples</th><td><q>bare</q></td></tr><" in text + "<"
    assert "<tr><th>bad</th><td><q>other</q></td></tr>" in text


def test_every_run_behind_the_numbers_is_listed() -> None:
    run, counts = build_record("main", "corrected", 1), build_record("counts_x", "corrected", 2)
    run.git = {"commit": "0123456789abcdef", "dirty": True}
    counts.git, counts.tokens_per_s = {}, None
    text = page_of([part_of(records=[run, counts])])
    assert "<h4>1 run and 1 count of its texts behind these numbers</h4>" in text

    def line(*words: object) -> str:
        return "<tr>" + "".join(f"<td>{word}</td>" for word in words) + "</tr>"

    seconds = (run.parameters, 61.5, 15300.0, run.started_at)
    assert line("main", "corrected", 1, "0123456789 + changes", "cpu", *seconds) in text
    seconds = (counts.parameters, 61.5, "", counts.started_at)
    assert line("counts_x", "corrected", 2, "unknown", "cpu", *seconds) in text
    assert "(1 run, size paper)" in text and "</header>" in text and "1 run</p>" in text
    once = [build_record(f"counts_{letter}", "corrected", 2) for letter in "dfbeac"]
    told = '<p class="note">Measured once, at the end: counts_a, counts_b, counts_c, counts_d, counts_e, counts_f.</p>'
    assert told in page_of([part_of(records=[run, *once])])


def test_the_filter_hides_what_is_not_chosen_and_shows_all_at_first() -> None:
    own, committed = part_of(claims(), own=True, size="small"), part_of(claims())
    rules = report.filter_rules([own, committed]).splitlines()
    chosen = "body:has(#show-{}:checked)"
    hidden = [f"{chosen.format('regime-corrected')} {where}as_published" for where in (".in-", "svg .", ".key .for-")]
    assert f"{', '.join(hidden)} {{ display: none; }}" in rules
    assert f"{chosen.format('records-own')} .part:not(.records-own) {{ display: none; }}" in rules
    assert len(rules) == 6 and "paper" not in report.choices([own, committed])
    form = report.filter_form([own, committed])
    assert re.findall(r'id="([^"]*)" checked', form) == ["show-regime-all", "show-size-all", "show-records-all"]
    empty = part_of(claims(), size="small", records=[build_record("main", "corrected", 1)])
    assert set(report.choices([committed, empty])) == {"regime"}, "no run has that size"


def test_a_bar_is_split_by_its_counts() -> None:
    found = report.share(Counter({SUPPORTED: 3, OTHER_SIZE: 1}), (OTHER_SIZE, UNDECIDED, SUPPORTED))
    assert found == (
        '<div class="share" aria-hidden="true"><i class="other-size" style="flex:1" title="other size"></i>'
        '<i class="supported" style="flex:3" title="supported"></i></div><div class="counts">'
        '<span class="other-size"><b>1</b> other size</span><span class="supported"><b>3</b> supported</span></div>'
    )


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

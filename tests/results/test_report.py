from __future__ import annotations

import re
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from lit_ctg.errors import UserError
from lit_ctg.results import report
from lit_ctg.results.record import load_records, write_record
from lit_ctg.results.report import main, write_report
from lit_ctg.results.verdict import LABELS
from tests.results.conftest import SEEDS, build_record

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
    assert "url(" not in page and "@import" not in page and "http://" not in page


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
    assert targets == {"claims", f"own-{PAPER}-paper", f"{PAPER}-paper"}
    assert targets <= set(identifiers)


def test_answers_come_first_then_claims_then_folded_tables(page: str) -> None:
    places = [page.index(f'<h2 id="{name}">') for name in ("answers", "claims", "tables")]
    assert places == sorted(places)
    card = page[places[0] : places[1]]
    assert card.count("<article") == 1 and "As published nothing printed is confirmed" in card
    # one picture of one's own runs, one of the committed ones, each named
    assert card.count("<svg") == 2 and card.count("<figcaption>") == 2
    assert ">your runs</a>" in card and ">committed records</a>" in card
    for count, label in re.findall(r"<b>(\d+)</b> (\w+)", card):
        assert int(count) > 0 and label in " ".join(LABELS)
    assert "Perplexity, fusion against baseline, %" in page[places[1] : places[2]]
    assert " open" not in re.findall(r"<details[^>]*>", page)


@pytest.mark.long
def test_own_runs_stand_beside_the_committed_ones_and_agree_or_not(tmp_path: Path) -> None:
    (record,) = load_records([EXPERIMENTS / PAPER / "results" / "main" / "corrected-paper-seed111.json"])
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

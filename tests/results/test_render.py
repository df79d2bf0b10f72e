from __future__ import annotations

import copy
import csv
import io
import re

import pytest
from rich.console import Console

from lit_ctg.errors import visible
from lit_ctg.results.gather import results_for
from lit_ctg.results.render import escape_latex, escape_markdown, print_tables, render, render_all
from lit_ctg.results.table import Table
from lit_ctg.results.verdict import RULES
from tests.results.conftest import SEEDS, build_record


@pytest.fixture(scope="module")
def made() -> dict[str, Table]:
    records = [build_record("main", "as_published", seed) for seed in SEEDS]
    results = results_for("semantic_fusion", record_dirs=[], size="paper", extra=records)
    return {table.spec.name: table for table in results.tables}


@pytest.fixture
def tables(made) -> dict[str, Table]:
    """Tables from the main model's as-published runs alone, so that there are numbers and holes."""
    return copy.deepcopy(made)


def test_markdown_is_a_rectangle(tables) -> None:
    text = render(tables["table_1"], "md")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {13}
    assert lines[0] == (
        "|  | Printed | As published | n | 95% interval | CV* | Verdict "
        "| Corrected | n | 95% interval | CV* | Verdict |"
    )
    fusion = next(line for line in lines if line.startswith("| Fusion, PPL"))
    assert "| 5 |" in fusion and "2.152" in fusion and "undecided" in fusion
    assert "not run: main" in fusion
    assert fusion.split(" | ")[1].endswith("; impossible \\(corrected\\): below the floor 2.672"), (
        "beside the printed number"
    )
    assert escape_markdown(RULES) in text


def test_tables_of_ours_have_no_printed_column(tables) -> None:
    assert "Printed" not in render(tables["table_ablation"], "md")
    assert "As published" not in render(tables["table_ablation"], "md")
    wrapped = r">{\raggedright\arraybackslash}p{%s\linewidth}"
    assert rf"\begin{{longtable}}{{{wrapped % 0.2}rrc{wrapped % 0.11}}}" in render(tables["table_ablation"], "latex")


def test_latex_is_balanced_and_escaped(tables) -> None:
    for table in tables.values():
        text = render(table, "latex")
        plain = re.sub(r"\\[{}\\]", "", text)
        assert plain.count("{") == plain.count("}"), table.spec.name
        assert r"\toprule" in text and r"\bottomrule" in text
        head, body = text.split(r"\endfoot")[0], text.split(r"\endfoot")[1].split(r"\end{longtable}")[0]
        assert head.count(r"\midrule") == 2 and head.index(r"\endfirsthead") < head.index(r"\endhead")
        assert text.count(r"\begin{longtable}") == text.count(r"\end{longtable}") == 1
        wanted = re.search(r"longtable}{(.*)}", text)[1]
        columns = len(re.sub(r">\{.*?\}p\{[^}]*\}", "p", wanted))
        for line in filter(None, map(str.strip, body.splitlines())):
            if "multicolumn" not in line:
                assert len(re.findall(r"(?<!\\)&", line)) == columns - 1, line
        assert not re.search(r"(?<!\\)[%#_]", body)


def test_latex_tells_every_reason_once_below_the_table(tables) -> None:
    text = render(tables["table_1"], "latex")
    body, notes = text.split(r"\end{longtable}")
    assert "not run: main" not in body and "not run: baseline" not in body and "not run (1)" in body
    assert notes.count("(1) not run: ") == 1
    # generated texts wrap
    texts = render(tables["table_5"], "latex")
    assert r"p{0.16\linewidth}" in texts and r"p{0.16\linewidth}" not in text


def test_escapes() -> None:
    assert escape_latex(r"50% a_b \x & {y}") == r"50\% a\_b \textbackslash{}x \& \{y\}"
    assert escape_markdown("a|b <script> *x*\nc") == r"a\|b \<script\> \*x\*<br>c"


def test_csv_has_full_precision_and_one_row_a_row(tables) -> None:
    lines = list(csv.DictReader(io.StringIO(render_all(list(tables.values()), "csv"))))
    assert len(lines) == sum(len(table.rows) for table in tables.values())
    line = next(line for line in lines if line["row"] == "Fusion, PPL" and line["printed"])
    cell = next(row for row in tables["table_1"].rows if row.spec.label == "Fusion, PPL").cells["as_published"]
    assert float(line["as_published_value"]) == cell.mean
    assert (line["as_published_n"], line["printed"], line["unit"]) == ("5", "2.152", "perplexity")
    assert line["corrected_value"] == ""
    assert line["corrected_reason"].startswith("not run: main")


def test_text_shows_numbers_holes_and_verdicts(tables) -> None:
    text = render(tables["table_1"], "text")
    assert "2.152" in text and re.search(r"n=5  CV\* [\d.]+ \([\d.]+\)\s+undecided", text) and "impossible" in text
    assert "not run: main" in text
    assert max(map(len, text.splitlines())) <= 120


def test_sample_texts_are_not_read_as_markup(tables) -> None:
    row = next(row for row in tables["table_5"].rows if row.spec.label == "Fusion, no control")
    object.__setattr__(row.cells["as_published"], "texts", ("[red]not a colour[/red]",))
    console = Console(file=io.StringIO(), width=120, force_terminal=True)
    print_tables([tables["table_5"]], console)
    assert "[red]not a colour[/red]" in re.sub(r"\x1b\[[\d;]*m", "", console.file.getvalue())


def test_what_a_run_wrote_cannot_drive_a_terminal_or_a_sheet(tables) -> None:
    row = next(row for row in tables["table_5"].rows if row.spec.label == "Fusion, no control")
    object.__setattr__(row.cells["as_published"], "texts", ("\x1b[2J\x07gone\u202e", "=1+cmd|' /C calc'!A0", "@SUM(1)"))
    for fmt in ("text", "md", "latex", "csv"):
        text = render(tables["table_5"], fmt)
        assert "\x1b" not in text and "\x07" not in text and "\u202e" not in text, fmt
        assert "gone" in text
    assert "\\x1b[2J" in visible("\x1b[2J") and visible("a\tb\nc") == "a\tb\nc"
    object.__setattr__(row.cells["as_published"], "texts", ("=1+cmd|' /C calc'!A0",))
    lines = list(csv.DictReader(io.StringIO(render(tables["table_5"], "csv"))))
    (value,) = [line["as_published_value"] for line in lines if "cmd" in line["as_published_value"]]
    assert value.startswith("'=")
    numbers = [
        line for line in csv.DictReader(io.StringIO(render(tables["table_1"], "csv"))) if line["as_published_value"]
    ]
    assert all(float(line["as_published_value"]) > 0 for line in numbers), "numbers stay numbers"

from __future__ import annotations

import copy
import csv
import io
import re

import pytest
from rich.console import Console

from lit_ctg.results.gather import results_for
from lit_ctg.results.render import (
    GAP_TO,
    VERDICTS,
    Gap,
    csv_cell,
    escape_latex,
    escape_markdown,
    flat,
    interval_text,
    latex_table,
    n_text,
    n_words,
    print_tables,
    printed_text,
    render_all,
    shown_rows,
    spread_text,
    value_text,
    verdict_text,
)
from lit_ctg.results.spec import Printed
from lit_ctg.results.table import Cell, Row, Table
from lit_ctg.results.verdict import (
    CANNOT_DECIDE,
    CONTRADICTED,
    IMPOSSIBLE,
    LABELS,
    NOT_RUN,
    OTHER_SIZE,
    REPRODUCED,
    RULES,
    SUPPORTED,
    UNDECIDED,
    Verdict,
)
from lit_ctg.statistics import summarize
from lit_ctg.terminal import printable
from tests.results.conftest import SEEDS, build_record, full_cell, row_of, table_of


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
    text = render_all([tables["table_1"]], "md")
    lines = [line for line in text.partition(f"### {VERDICTS}")[0].splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {8}
    assert lines[0] == "|  | Printed | As published | n | 95% interval | CV* | Verdict |", "corrected was not run"
    fusion = next(line for line in lines if line.startswith("| Fusion, PPL"))
    assert "| 5 |" in fusion and "2.152" in fusion and "[undecided](#verdicts)" in fusion
    assert fusion.split(" | ")[1].endswith("; [impossible](#verdicts) \\(corrected\\): below the floor 2.672")
    assert "Corrected: not run." in text and "<details><summary>" in text
    assert all(f"| {label} |" in text for label in LABELS), "the legend"


def test_latex_is_balanced_and_escaped(tables) -> None:
    for table in tables.values():
        text = render_all([table], "latex")
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


@pytest.mark.parametrize("fmt", ["md", "latex", "text"])
def test_words_of_a_manifest_are_characters(fmt: str) -> None:
    bad = "<script>x()</script> [a](javascript:x) \x1b[31m\u202e \\input{x} $x$"
    row = row_of(bad, bad, Cell(hole=bad, finding=bad), section=bad)
    text = render_all([table_of(row, title=bad, notes=(bad,))], fmt, [bad])
    assert "script" in text and not re.search("[\x1b\u202e]", text)
    if fmt == "md":
        ours = r"</?(details|summary|ul|li|br)>|\]\(#verdicts\)"
        assert not re.search(r"(?<!\\)(<|\]\()", re.sub(ours, "", text))
    if fmt == "latex":
        assert r"\input" not in text and not re.search(r"(?<!\\)\$x", text)


def test_csv_has_full_precision_and_one_row_a_row(tables) -> None:
    lines = list(csv.DictReader(io.StringIO(render_all(list(tables.values()), "csv"))))
    assert len(lines) == sum(len(table.rows) for table in tables.values())
    line = next(line for line in lines if line["row"] == "Fusion, PPL" and line["printed"])
    cell = next(row for row in tables["table_1"].rows if row.spec.label == "Fusion, PPL").cells["as_published"]
    assert float(line["as_published_value"]) == cell.mean
    assert (line["as_published_n"], line["printed"], line["unit"]) == ("5", "2.152", "perplexity")
    assert line["corrected_value"] == ""
    assert line["corrected_reason"].startswith("not run: main")


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
        text = render_all([tables["table_5"]], fmt)
        assert "\x1b" not in text and "\x07" not in text and "\u202e" not in text, fmt
        assert "gone" in text
    assert "\\x1b[2J" in printable("\x1b[2J") and printable("a\tb\nc") == "a\tb\nc"
    object.__setattr__(row.cells["as_published"], "texts", ("=1+cmd|' /C calc'!A0",))
    lines = list(csv.DictReader(io.StringIO(render_all([tables["table_5"]], "csv"))))
    (value,) = [line["as_published_value"] for line in lines if "cmd" in line["as_published_value"]]
    assert value.startswith("'=")
    numbers = [
        line
        for line in csv.DictReader(io.StringIO(render_all([tables["table_1"]], "csv")))
        if line["as_published_value"]
    ]
    assert all(float(line["as_published_value"]) > 0 for line in numbers), "numbers stay numbers"


# --- tables made by hand --------------------------------------------------------------------------------------------


def test_every_column_of_the_sheet_has_its_own_number() -> None:
    hole = Cell(hole="not run: x", verdict=Verdict(NOT_RUN, "no run"))
    rows = (
        row_of("A", Printed(1.5, "1.50", "nats"), full_cell(), hole, section="S", unit="%"),
        row_of("B", Printed(None, "none", "nats"), None, Cell({7: 2.0}, 2.0, folds=5)),
        row_of("C", None, None, Cell({0: 1.0, 1: 2.0}, 1.5, cells=2, verdict=Verdict("x", "y"))),
        row_of("D", None, None, Cell(texts=("=1", "b"), verdict=Verdict("x", "y")), claim="less"),
    )
    sheet = csv.DictReader(io.StringIO(render_all([table_of(*rows, size="small")], "csv")))
    lines = [{key: word for key, word in line.items() if word} for line in sheet]
    assert [name for name in sheet.fieldnames or () if name.endswith("_n")] == ["as_published_n", "corrected_n"]
    start = {"paper": "a_paper", "size": "small", "table": "table_x"}
    cell = {
        "value": "0.5", "low": "0.125", "high": "0.875", "n": "2", "trials": "1234", "cv": "12.34",
        "cv_printed": "5.67", "verdict": REPRODUCED, "finding": "a finding", "reason": "close", "note": "a note",
    }  # fmt: skip
    ours = {f"as_published_{key}": word for key, word in cell.items()}
    assert lines[0] == {
        **start, "section": "S", "row": "A", "unit": "%", "printed": "1.5", **ours,
        "corrected_verdict": NOT_RUN, "corrected_reason": "not run: x",
    }  # fmt: skip
    assert lines[1] == {
        **start, "row": "B", "unit": "nats", "printed": "none",
        "corrected_value": "2.0", "corrected_n": "1", "corrected_folds": "5",
    }  # fmt: skip
    assert lines[2] == {
        **start, "row": "C",
        "corrected_value": "1.5", "corrected_n": "2", "corrected_cells": "2", "corrected_reason": "y",
    }  # fmt: skip
    assert lines[3] == {
        **start, "row": "D", "corrected_value": "'=1\nb", "corrected_verdict": "x", "corrected_reason": "y",
    }  # fmt: skip


def test_what_a_sheet_would_run_begins_with_an_apostrophe() -> None:
    for text in ("=1", "+1", "-1", "@a", "|a", " \t=1"):
        assert csv_cell(text) == f"'{text}"
    assert [csv_cell(value) for value in ("a=1", -1.5, None, "\x1b=1")] == ["a=1", -1.5, "", r"\x1b=1"]


def test_every_special_character_is_escaped() -> None:
    assert escape_latex('#^~<>|$"\N{MINUS SIGN}\N{EM DASH}\n') == (
        r"\#\textasciicircum{}\textasciitilde{}\textless{}\textgreater{}\textbar{}\${''}$-$--- "
    )
    for letter in "\\`*_{}[]<>()#|~&!":
        assert escape_markdown(f"a{letter}") == f"a\\{letter}"


def hand_made() -> Table:
    """A section, a number of ours and a hole, a row that begins with a bracket, a gap and a regime without a cell."""
    gone = Cell(hole="not run: gone", verdict=Verdict(NOT_RUN))
    rows = (
        row_of("A", "-1.50", full_cell(), Cell(hole="not run: x\x07")),
        row_of("[B]", "2", None, full_cell(), section="S_1"),
        row_of("C", "3", None, Cell(hole="not run: y", verdict=Verdict(NOT_RUN)), section="S_1"),
        *(row_of(f"g{n}", str(n), None, gone, section="G") for n in range(3)),
    )
    return table_of(*rows, notes=("5% & more",), caption="Ours, *not* theirs.\n")


def test_a_reason_of_many_rows_is_told_once() -> None:
    """Also where a check compared other numbers in each of them."""
    words = ("not shown that it learns: 5 against 4", "not shown that it learns: 7 against 4", "not shown that: x")
    cells = [Cell({1: 1.0}, 1.0, verdict=Verdict(CANNOT_DECIDE, why)) for why in words]
    cells.append(Cell({1: 1.0}, 1.0, verdict=Verdict(OTHER_SIZE, "5 million")))
    table = table_of(*(row_of(str(n), "1", None, cell) for n, cell in enumerate(cells)))
    reasons: list[str] = []
    _, lines = flat(table, reasons)
    assert [line[-1] for line in lines] == [
        "cannot decide (1)", "cannot decide (1)", "cannot decide (2)", "other size (3)",
    ]  # fmt: skip
    assert reasons == [
        "cannot decide: not shown that it learns", "cannot decide: not shown that: x", "other size: 5 million",
    ]  # fmt: skip


def test_a_latex_table_line_by_line() -> None:
    lines = latex_table(hand_made()).splitlines()
    wide = r">{\raggedright\arraybackslash}p{%s\linewidth}"
    ours = r"0.500 & 2 (1,234 trials) & {[0.125, 0.875]} & 12.3 (5.7) & reproduced; a finding"
    head = [
        r"\toprule",
        r"& & \multicolumn{5}{c}{As published} & \multicolumn{5}{c}{Corrected} \\ "
        r"\cmidrule(lr){3-7} \cmidrule(lr){8-12}",
        " & Printed & " + " & ".join([r"Value & $n$ & 95\% interval & CV* & Verdict"] * 2) + r" \\",
        r"\midrule",
    ]
    start = lines.index(rf"\begin{{longtable}}{{{wide % 0.2}r{f'rrcr{wide % 0.11}' * 2}}}")
    assert lines[start + 1 : start + 14] == [
        r"\caption{T\_1 \& [x]} \\", *head, r"\endfirsthead", *head, r"\endhead", r"\bottomrule", r"\endfoot"
    ]  # fmt: skip
    assert lines[start + 14 :] == [
        rf"A & $-$1.50 & {ours} &  &  &  &  & not run (1) \\",
        r"\addlinespace \multicolumn{12}{l}{\emph{S\_1}} \\",
        rf"{{[B]}} & 2 & --- &  &  &  &  & {ours} \\",
        r"C & 3 & --- &  &  &  &  &  &  &  &  & not run \\",
        r"\addlinespace \multicolumn{12}{l}{\emph{G}} \\",
        rf"\multicolumn{{12}}{{{wide % 0.95}}}{{3 rows not run: gone. Printed: g0: 0; g1: 1; g2: 2}} \\",
        r"\end{longtable}",
        r"\noindent 5\% \& more\par",
        r"\noindent (1) not run: x\textbackslash{}x07.\par",
        r"\endgroup",
    ]


def test_a_table_in_a_terminal_line_by_line() -> None:
    """What is in brackets is no markup, in titles, labels, sections and notes."""
    hole = Cell(hole="not run: y", verdict=Verdict("fine\x07"), finding="[i]or[/]")
    rows = (
        row_of("[red]A[/]", "1.50", full_cell(), Cell(hole="not run: x\x07")),
        row_of("B", "2", None, hole, section="[b]S[/]"),
    )
    console = Console(file=io.StringIO(), width=140)
    print_tables([table_of(*rows, title="[b]T[/]", notes=("[red]one\x07[/]",))], console, ["[x] all"])
    shown = [line.strip(" \N{BOX DRAWINGS LIGHT HORIZONTAL}") for line in console.file.getvalue().splitlines()]
    lines = [re.split(r"\s{2,}", line) for line in shown if line]
    rules = [" ".join(line) for line in lines[8:]]
    assert lines[:8] == [
        ["[b]T[/]"],
        ["Printed", "As published", "Corrected"],
        ["[red]A[/]", "1.50", "0.500", "[0.125, 0.875]", r"not run: x\x07"],
        ["n=2 (1,234 trials)", "CV* 12.3 (5.7)", "reproduced; a finding"],
        ["[b]S[/]"],
        ["B", "2", "\N{EM DASH}", "not run: y"],
        [r"fine\x07; [i]or[/]"],
        [r"[red]one\x07[/]"],
    ]
    assert " ".join(rules).startswith("[x] all " + RULES[:40])


def test_signs_and_powers_are_those_of_the_mean() -> None:
    tiny = Cell({1: 2e-6}, 2e-6, (-1e-6, 0.25))
    assert interval_text(row_of("r"), tiny) == "[\N{MINUS SIGN}1.0e\N{MINUS SIGN}6, 2.5e\N{MINUS SIGN}1]"
    assert interval_text(row_of("r"), Cell({1: 0.25}, 0.25, (1e-6, 0.5))) == "[0.000, 0.500]"
    assert interval_text(row_of("r"), Cell({1: 0.25}, 0.25)) == ""
    # runs that all gave one number: an interval without a width would look like certainty; a narrow one is shown
    same = summarize([0.1, 0.1, 0.1])
    assert interval_text(row_of("r"), Cell({1: 0.1, 2: 0.1, 3: 0.1}, same.mean, same.ci95)) == "(no spread)"
    assert interval_text(row_of("r"), Cell({1: 0.1, 2: 0.1}, 0.1, (0.1, 0.1000001))) == "[0.100, 0.100]"
    for combine in ("difference", "percent_change", "interaction", None):
        sign, row = "+" * (combine is not None), row_of("r", combine=combine, digits=1)
        cell = Cell({1: 2.0}, 2.0, (-1.0, 5.0))
        shown = (f"{sign}2.0", f"[\N{MINUS SIGN}1.0, {sign}5.0]")
        assert (value_text(row, cell), interval_text(row, cell)) == shown


def test_what_an_interval_is_over_is_told() -> None:
    values = {1: 0.5, 2: 0.5}
    cells = {
        "1 cell": Cell(values, cells=1), "12 cells": Cell(values, cells=12), "n=2": Cell(values),
        "1 run, 5 folds": Cell({1: 0.5}, folds=5), "n=2 (1,200 trials)": Cell(values, trials=1200),
    }  # fmt: skip
    assert {n_words(cell) for cell in cells.values()} == set(cells)
    assert all(n_words(cell) == words and n_text(cell) == words.removeprefix("n=") for words, cell in cells.items())
    assert n_text(Cell()) == "" == spread_text(Cell())
    assert (spread_text(Cell(spread=1.25)), spread_text(Cell(spread=1.26, spread_printed=3.04))) == ("1.2", "1.3 (3.0)")


def test_a_printed_number_is_shown_as_printed() -> None:
    found = [printed_text(row_of("r", text)) for text in ("-1.5", "1-2", "-", "1,000")]
    assert found == ["\N{MINUS SIGN}1.5", "1-2", "-", "1,000"]
    assert printed_text(row_of("r")) == "\N{EM DASH}"


@pytest.mark.parametrize(
    ("verdict", "options", "size", "words"),
    [
        (Verdict(REPRODUCED, "why"), {}, "small", "reproduced"),
        (Verdict(UNDECIDED, "why"), {}, "small", "undecided"),
        (Verdict(IMPOSSIBLE, "why"), {}, "paper", ""),
        (Verdict(CANNOT_DECIDE, "why"), {}, "paper", "cannot decide: why"),
        (Verdict(OTHER_SIZE, "why"), {}, "paper", "other size (why)"),
        (Verdict(OTHER_SIZE, "size small"), {}, "paper", "other size"),
        (Verdict(OTHER_SIZE), {}, "paper", "other size"),
        *((Verdict(label, "why"), {"claim": "less"}, "small", f"{label} at size small")
          for label in (SUPPORTED, CONTRADICTED, UNDECIDED)),
        (Verdict(SUPPORTED, "why"), {"claim": "less"}, "paper", "supported"),
        (Verdict(NOT_RUN, "why"), {"claim": "less"}, "small", "not run"),
    ],
)  # fmt: skip
def test_verdicts_in_words(verdict: Verdict, options: dict, size: str, words: str) -> None:
    row = row_of("r", None if options else "1", **options)
    assert verdict_text(row, Cell(verdict=verdict), size) == words
    both = f"{words}; and more" if words else "and more"
    assert verdict_text(row, Cell(verdict=verdict, finding="and more"), size) == both
    ours = row_of("ours")
    assert verdict_text(ours, Cell(verdict=verdict)) == "", "nothing was printed or claimed"
    assert verdict_text(ours, Cell(hole="gone", verdict=Verdict(NOT_RUN))) == NOT_RUN


def test_rows_without_a_number_keep_their_reason() -> None:
    def row(label: str, hole: str, other: str = "", printed: str | None = None) -> Row:
        return row_of(label, printed, Cell(hole=hole), Cell(hole=other or hole))

    def shown(*rows: Row) -> list[str]:
        return [one.spec.label if isinstance(one, Row) else one.words for one in shown_rows(rows)]

    gone = [row(f"a{n}", "not recorded: x") for n in range(5)]
    assert shown(*gone) == ["5 rows not recorded: a0; a1; ...; a4"]
    assert shown(*gone[:4]) == ["4 rows not recorded: a0; a1; a2; a3"]
    assert shown(*(row(f"a{n}", "not recorded: x", "not run: x") for n in range(3))) == ["3 rows not run: a0; a1; a2"]
    twice = [row(f"a{n}", "not run: x", "not run: y", "1") for n in range(3)]
    assert shown(*twice) == ["3 rows not run: x; not run: y. Printed: a0: 1; a1: 1; a2: 1"]
    nothing = [row_of(f"n{n}") for n in range(3)]
    assert shown(*nothing) == ["n0", "n1", "n2"], "no regime applies"
    half = [row_of(f"h{n}", None, Cell({1: 1.0}, 1.0), Cell(hole="x")) for n in range(3)]
    assert shown(*half) == ["h0", "h1", "h2"]


def test_only_whole_sections_that_lack_the_same_are_joined() -> None:
    def gone(section: str, printed: str | None = "1", hole: str = "not run", label: str = "") -> list[Row]:
        return [row_of(f"{label or section}{n}", printed, None, Cell(hole=hole), section=section) for n in range(3)]

    def shown(*rows: Row) -> list[str]:
        return [one.spec.label if isinstance(one, Row) else one.words for one in shown_rows(rows)]

    s, t = (f"3 rows not run. Printed: {x}0: 1; {x}1: 1; {x}2: 1" for x in "ST")
    assert shown(*gone("S"), *gone("T")) == ["6 rows not run. Printed: S0: 1; S1: 1; S2: 1; T0: 1; T1: 1; T2: 1"]
    assert shown(*gone("S"), *gone("T", None)) == [s, "3 rows not run: T0; T1; T2"]
    assert shown(*gone("S"), *gone("T", hole="no weights"))[0] == s
    assert shown(row_of("r", "1", None, full_cell(), section="S"), *gone("S"), *gone("T")) == ["r", s, t]
    assert shown(*gone("S"), *gone("T"), row_of("r", "1", None, full_cell(), section="T")) == [s, t, "r"]
    (joined,) = shown_rows([*gone("S"), *gone("T"), *gone("U")])
    assert isinstance(joined, Gap) and (joined.section, len(joined.labels)) == (f"S{GAP_TO}U", 9)
    assert len(shown_rows([*gone("S"), *gone("T", label="S")])) == 2, "labels twice would not tell the rows apart"
    pairs = zip(gone("S", hole="not run: a"), gone("S", hole="not run: b", label="b"), strict=True)
    mixed = [words.partition(".")[0] for words in shown(*(row for pair in pairs for row in pair))]
    assert mixed == ["3 rows not run: a", "3 rows not run: b"]
    bound = Cell(hole="not run", verdict=Verdict(IMPOSSIBLE, "why"))
    assert shown(*gone("S"), row_of("bound", "1", None, bound, section="S")) == [s, "bound"]


def test_columns_of_long_words_wrap_and_others_do_not() -> None:
    def columns(label: str, printed: str, texts: str) -> str:
        heading = "a heading that is longer than any number"
        row = row_of(label, printed, Cell({1: 1.0}, 1.0), Cell(texts=(texts,)), section=heading)
        found = re.search(r"longtable}{(.*)}", latex_table(table_of(row)))
        assert found is not None
        return re.sub(r">\{.*?\}p\{([\d.]+)[^}]*\}", r"<\1>", found[1])

    own = "rrc<0.11>"
    assert columns("r" * 30, "1", "t" * 24) == f"<0.2>r{own}{own}"
    assert columns("r", "1" * 25, "t") == f"<0.2><0.1>{own}{own}"
    assert columns("r", "1", "t" * 25) == f"<0.2>r{own}<0.16>rc<0.11>"

"""The README's results are those of the committed records, and a headline that names no row is told."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from lit_ctg.errors import UserError
from lit_ctg.results.gather import results_for
from lit_ctg.results.readme import BEGIN, END, filled, find_row, main, section
from lit_ctg.results.spec import MANIFEST, load_manifest, papers

ROOT = Path(__file__).resolve().parents[2]
EXPERIMENTS = ROOT / "experiments"


def test_the_readme_says_what_the_records_say() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert filled(text, EXPERIMENTS) == text, "make tables brings it up to date"


@pytest.mark.parametrize("paper", papers(EXPERIMENTS))
def test_headlines_name_rows_that_are_there(paper: str) -> None:
    headline, results = load_manifest(EXPERIMENTS, paper).headline, results_for(paper, EXPERIMENTS, [])
    for wanted in headline.rows if headline is not None else ():
        assert find_row(results, wanted) is not None


def test_a_number_is_that_of_its_table() -> None:
    (line,) = [line for line in section(EXPERIMENTS).splitlines() if line.startswith("| Perplexity of the baseline |")]
    table = (EXPERIMENTS / "semantic_fusion" / "tables.md").read_text(encoding="utf-8")
    (row,) = [row for row in table.splitlines() if row.startswith("| Baseline, PPL | 2.249")]
    for word in ("2.249", row.split(" | ")[2], "undecided", "impossible \\(corrected\\): below the floor"):
        assert word in line


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A paper without any records."""
    root = tmp_path / "experiments"
    skip = shutil.ignore_patterns("results")
    shutil.copytree(EXPERIMENTS / "semantic_fusion", root / "semantic_fusion", ignore=skip)
    return root


def test_a_paper_without_records_is_one_line(copy: Path) -> None:
    assert [line for line in section(copy).splitlines() if "none yet" in line] == section(copy).splitlines()[2:]


def test_only_what_stands_between_the_marks_changes(copy: Path, tmp_path: Path, capsys) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", encoding="utf-8")
    assert main([str(readme), "--experiments", str(copy)]) == 0
    text = readme.read_text(encoding="utf-8")
    assert text.startswith(f"before\n{BEGIN}\n") and text.endswith(f"{END}\nafter\n")
    assert "none yet" in text and "old" not in text
    readme.write_text(f"{END}\n{BEGIN}\n", encoding="utf-8")
    capsys.readouterr()
    assert main([str(readme), "--experiments", str(copy)]) == 2
    assert "once each and in this order" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"titel": "x"}, "unknown key 'titel'"),
        ({"rows": [{"table": "table_1"}]}, "'section' is missing"),
        ({"rows": [{"table": "tabel_1", "section": "", "label": "", "says": ""}]}, "no table 'tabel_1'.*table_1"),
        (
            {"rows": [{"table": "table_1", "section": "Authors' mask", "label": "Baseline, PLP", "says": ""}]},
            "has no row.*Baseline, PPL",
        ),
    ],
)
def test_a_damaged_headline_is_one_line(change: dict, expected: str, copy: Path) -> None:
    path = copy / "semantic_fusion" / MANIFEST
    manifest = yaml.safe_load(path.read_text(encoding="utf-8"))
    manifest["headline"] |= change
    path.write_text(yaml.safe_dump(manifest), encoding="utf-8")
    with pytest.raises(UserError, match=expected):
        for wanted in load_manifest(copy, "semantic_fusion").headline.rows:
            find_row(results_for("semantic_fusion", copy, []), wanted)
    (line,) = [line for line in section(copy).splitlines() if "left out" in line]
    assert line.startswith("semantic")


def test_a_paper_needs_no_headline(copy: Path) -> None:
    path = copy / "semantic_fusion" / MANIFEST
    manifest = yaml.safe_load(path.read_text(encoding="utf-8"))
    del manifest["headline"]
    path.write_text(yaml.safe_dump(manifest), encoding="utf-8")
    assert "none yet" in section(copy) and "left out" not in section(copy)

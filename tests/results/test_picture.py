"""A paper's figures as files: what is in them, that they stand alone, and what goes when there is nothing to draw."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from lit_ctg.errors import UserError
from lit_ctg.results.gather import all_results, results_for
from lit_ctg.results.picture import main, pictures, write
from lit_ctg.results.plot import panels_for
from lit_ctg.results.record import load_records, write_record
from lit_ctg.results.table import Results

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def results(write_records) -> Results:
    return results_for("semantic_fusion", record_dirs=[write_records()])


def test_a_file_holds_every_panel_and_its_style(results: Results) -> None:
    found = pictures([results])
    table = next(table for table in results.tables if table.spec.name == "figure_1")
    root = ElementTree.fromstring(found["figure_1.svg"])
    inner = root.findall(f"{SVG}svg")
    assert len(inner) == len(panels_for(table)) == 2
    assert "prefers-color-scheme: dark" in root.findtext(f"{SVG}style", "")
    words = {element.text for element in root.iter(f"{SVG}text")}
    assert {"printed", "as published (95% interval)", "Fusion", "Baseline"} <= words
    # two columns side by side, inside the ground
    ground = root.find(f"{SVG}rect")
    assert ground is not None and len({panel.get("y") for panel in inner}) == 1
    right = max(float(panel.get("x", 0)) + float(panel.get("width", 0)) for panel in inner)
    assert right <= float(ground.get("width", 0))


def test_files_load_and_run_nothing(results: Results) -> None:
    for name, svg in pictures([results]).items():
        root = ElementTree.fromstring(svg)
        tags = {element.tag.removeprefix(SVG) for element in root.iter()}
        assert not tags & {"script", "image", "use", "foreignObject"}, name
        assert "url(" not in svg and "@import" not in svg and "href" not in svg, name
        assert root.get("role") == "img" and root.get("aria-label"), name


def test_the_headline_is_the_panel_that_the_manifest_names(results: Results) -> None:
    table = next(table for table in results.tables if table.spec.name == "figure_1")
    panel = panels_for(table)["Fusion"]
    assert panel is not None
    root = ElementTree.fromstring(pictures([results])["headline.svg"])
    (inner,) = root.findall(f"{SVG}svg")
    assert inner.get("aria-label") == ElementTree.fromstring(panel).get("aria-label")
    assert (root.get("aria-label") or "").startswith("semantic fusion: Figure 1")


def test_figures_that_are_gone_are_deleted_and_nothing_else(results: Results, tmp_path: Path) -> None:
    folder = tmp_path / "figures"
    folder.mkdir()
    (folder / "old.svg").write_text("<svg/>")
    (folder / "notes.md").write_text("mine")
    made = write([results], folder)
    assert {path.name for path in folder.iterdir()} == {"notes.md", *(path.name for path in made)}


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
    assert "Figure 1" in found["headline.svg"] and "size small" in found["headline.svg"]
    assert "small_figure_1.svg" in found and "figure_1.svg" not in found

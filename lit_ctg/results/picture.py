"""`lit-ctg figure`: a paper's figures as SVG files, beside its tables and from the same records.

``headline.svg`` is the one picture of the paper's manifest, ``<table>.svg`` the panels of a table or figure, and
``training.svg`` the training curves, of the largest size that was run; of the others ``<size>_<table>.svg``. A file
holds its own style and loads nothing; the same records give the same bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from html import unescape
from pathlib import Path

from rich.console import Console

from lit_ctg.errors import UserError
from lit_ctg.figure import sheet
from lit_ctg.files import write_atomic
from lit_ctg.results.gather import gather
from lit_ctg.results.plot import has_ours, headline_picture, legend_for, plots_for, training_curves
from lit_ctg.results.record import REGIMES
from lit_ctg.results.render import REGIME_TITLES
from lit_ctg.results.table import Results

HEADLINE, TRAINING = "headline.svg", "training.svg"


def pictures(sizes: Sequence[Results]) -> dict[str, str]:
    """Return file name -> SVG of everything that a paper's records let draw, the largest size first."""
    found: dict[str, str] = {}
    for results in sizes:
        start = "" if results is sizes[0] else f"{results.size}_"
        about = f", size {results.size}" if len(sizes) > 1 else ""
        if HEADLINE not in found and (headline := headline_picture(results)) is not None:
            svg, legend = headline
            found[HEADLINE] = sheet([svg], legend, f"{results.title}: {_words(svg)}{about}")
        for table in results.tables:
            if has_ours(table) and (plots := plots_for(table)):
                found[f"{start}{table.spec.name}.svg"] = sheet(plots, legend_for(table), table.title + about)
        if curves := training_curves(results.pool):
            legend = [
                (regime, f"{REGIME_TITLES[regime].lower()} (mean over seeds, 95% interval from three on)")
                for regime in REGIMES
                if any(own == regime for _, own in results.pool.runs)
            ]
            found[start + TRAINING] = sheet(list(curves.values()), legend, f"{results.title}: training curves{about}")
    return found


def _words(svg: str) -> str:
    """Return what a plot says of itself."""
    return unescape(svg.split('aria-label="', 1)[1].split('"', 1)[0])


def write(sizes: Sequence[Results], folder: Path) -> list[Path]:
    """Write a paper's figures into ``folder``, each whole or not at all, and delete those it no longer has.

    Raises:
        UserError: a file cannot be written.
    """
    made = pictures(sizes)
    for name, svg in made.items():
        write_atomic(folder / name, svg)
    for old in folder.glob("*.svg"):
        if old.name not in made:
            old.unlink()
    return [folder / name for name in made]


def main(
    paper: str | None = None,
    size: str | None = None,
    records: Sequence[str | Path] | None = None,
    out: str | Path | None = None,
    console: Console | None = None,
) -> int:
    """Write the figures of a paper, or of all into a folder each.

    Args:
        paper, size, records: see ``render.main``.
        out: the folder, by default ``outputs/figures/<paper>``; of all papers, the folder that holds theirs.
        console: where to say what was written.

    Raises:
        UserError: no such paper, a damaged record, a paper without anything to draw, or a file that cannot be written.
    """
    shown = console or Console()
    results, left_out = gather(paper, size, records, every_size=True)
    every = paper in (None, "all")
    if not every and not pictures(results):
        raise UserError(f"{paper}: no run has anything to draw: lit-ctg reproduce paper={paper} makes the runs")
    for name, sizes in itertools.groupby(results, key=lambda one: one.paper):
        folder = Path(out or Path("outputs") / "figures")
        folder = folder / name if every or out is None else folder
        made = write(list(sizes), folder)
        shown.print(f"{name}: {len(made)} figures in {folder}", markup=False, highlight=False, soft_wrap=True)
    for line in left_out:
        shown.print(line, markup=False, highlight=False, soft_wrap=True)
    return 0

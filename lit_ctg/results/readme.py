"""`python -m lit_ctg.results.readme [README.md]`: the README's results, from the committed records alone.

Between its two marks the README says, for every paper, how many printed numbers got which verdict and what became of
the few rows that ``experiments/<paper>/headline.yaml`` names::

    title: semantic fusion
    summary: What came out, in words without numbers. (Shown once there are records.)
    rows:
      - {table: table_1, section: Authors' mask, label: "Baseline, PPL", says: Perplexity of the baseline}
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lit_ctg.errors import UserError, did_you_mean
from lit_ctg.results.cell import Cell, Row
from lit_ctg.results.cell_text import (
    NOT_APPLICABLE,
    REGIME_TITLES,
    interval_text,
    printed_text,
    value_text,
    verdict_text,
)
from lit_ctg.results.files import write_atomic
from lit_ctg.results.render import escape_markdown
from lit_ctg.results.schema import REGIMES
from lit_ctg.results.spec import papers
from lit_ctg.results.table import Results, results_for
from lit_ctg.results.verdict import LABELS, NOT_RUN

HEADLINE = "headline.yaml"
BEGIN = "<!-- results: written by `make tables` from the committed records -->"
END = "<!-- end of results -->"
_KEYS = ("title", "summary", "rows")
_ROW_KEYS = ("table", "section", "label", "says")


@dataclass(frozen=True)
class Headline:
    """What the README says of one paper."""

    paper: str
    title: str
    summary: str
    rows: tuple[dict[str, str], ...]


def load_headline(root: Path, paper: str) -> Headline:
    """Read a paper's ``headline.yaml``.

    Raises:
        UserError: it is missing or damaged.
    """
    path = root / paper / HEADLINE
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise UserError(f"{path}: cannot be read ({' '.join(str(error).split())})") from None
    _check(data, _KEYS, str(path))
    for row in data["rows"]:
        _check(row, _ROW_KEYS, f"{path}, rows")
    return Headline(paper, str(data["title"]), " ".join(str(data["summary"]).split()), tuple(data["rows"]))


def _check(data: Any, keys: Sequence[str], where: str) -> None:
    if not isinstance(data, dict):
        raise UserError(f"{where}: expected a mapping with {', '.join(keys)}")
    for key in data:
        if key not in keys:
            raise UserError(f"{where}: unknown key '{key}'{did_you_mean(str(key), keys)}")
    if missing := [key for key in keys if key not in data]:
        raise UserError(f"{where}: '{missing[0]}' is missing")


def find_row(results: Results, wanted: dict[str, str]) -> Row:
    """Return the row of a table that a headline names.

    Raises:
        UserError: no such table or row.
    """
    tables = {table.spec.name: table for table in results.tables}
    name = wanted["table"]
    if name not in tables:
        raise UserError(f"{results.paper}/{HEADLINE}: no table '{name}'{did_you_mean(name, tables)}")
    key = (wanted["section"], wanted["label"])
    rows = {(row.spec.section, row.spec.label): row for row in tables[name].rows}
    if key not in rows:
        near = did_you_mean(" / ".join(key), map(" / ".join, rows))
        raise UserError(f"{results.paper}/{HEADLINE}: {name} has no row '{' / '.join(key)}'{near}")
    return rows[key]


def section(root: Path) -> str:
    """Return the results of all papers below ``root`` as Markdown, without the marks."""
    found = [(load_headline(root, name), results_for(name, root, [root / name / "results"])) for name in papers(root)]
    found.sort(key=lambda pair: not pair[1].pool.records())
    lines = ["| paper | runs | as published | corrected |", "| --- | --- | --- | --- |"]
    lines += [_verdict_line(headline, results) for headline, results in found]
    for headline, results in found:
        if results.pool.records():
            lines += ["", *_paper(headline, results)]
    return "\n".join(lines) + "\n"


def _verdict_line(headline: Headline, results: Results) -> str:
    count, folder = len(results.pool.records()), f"experiments/{headline.paper}"
    if not count:
        return f"| [{headline.title}]({folder}/README.md) | none yet | {NOT_APPLICABLE} | {NOT_APPLICABLE} |"
    counts = [results.verdicts(regime) for regime in REGIMES]
    words = [", ".join(f"{found[label]} {label}" for label in LABELS if found[label]) for found in counts]
    runs = f"{count}, size {results.size}"
    return f"| [{headline.title}]({folder}/tables.md) | {runs} | {words[0]} | {words[1]} |"


def _paper(headline: Headline, results: Results) -> list[str]:
    titles = " | ".join(REGIME_TITLES[regime] for regime in REGIMES)
    lines = [f"**{headline.title[0].upper()}{headline.title[1:]}.** {headline.summary}", ""]
    lines += [f"| | Printed | {titles} |", "| --- | ---: | --- | --- |"]
    for wanted in headline.rows:
        row = find_row(results, wanted)
        cells = [_cell(row, row.cells[regime]) for regime in REGIMES]
        lines.append(f"| {' | '.join([escape_markdown(wanted['says']), escape_markdown(printed_text(row)), *cells])} |")
    return lines


def _cell(row: Row, cell: Cell | None) -> str:
    """Return value, interval and verdict; of a hole only that it is one (the tables say which run is missing)."""
    if cell is None:
        return NOT_APPLICABLE
    if cell.hole is not None:
        return NOT_RUN
    words = " ".join(filter(None, (value_text(row, cell), interval_text(row, cell))))
    return escape_markdown(": ".join(filter(None, (words, verdict_text(row, cell)))))


def filled(text: str, root: Path) -> str:
    """Return a README with its results renewed.

    Raises:
        UserError: the marks are not there, once each and in order.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end) or BEGIN in after or END in before + after:
        raise UserError(f"the README needs the lines '{BEGIN}' and '{END}', once each and in this order")
    return f"{before}{BEGIN}\n\n{section(root)}\n{END}{after}"


def main(words: Sequence[str] | None = None) -> int:
    """Run ``python -m lit_ctg.results.readme [README.md] [--experiments experiments]``."""
    parser = argparse.ArgumentParser(prog="python -m lit_ctg.results.readme")
    parser.add_argument("readme", nargs="?", default=Path("README.md"), type=Path)
    parser.add_argument("--experiments", default=Path("experiments"), type=Path)
    options = parser.parse_args(words)
    try:
        if not options.readme.is_file():
            raise UserError(f"no file {options.readme}")
        write_atomic(options.readme, filled(options.readme.read_text(encoding="utf-8"), options.experiments))
    except UserError as error:
        print(f"readme: {error}", file=sys.stderr)
        return 2
    print(f"results written to {options.readme}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

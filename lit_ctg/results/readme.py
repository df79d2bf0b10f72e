"""`python -m lit_ctg.results.readme [README.md]`: the README's results, from the committed records alone.

Between its two marks the README says, for every paper, how many claims and printed numbers got which verdict, and what
became of the few rows that the paper's manifest names in ``headline`` (``spec.py``). A broken paper is left out with
a line.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from lit_ctg.errors import UserError, did_you_mean
from lit_ctg.files import write_atomic
from lit_ctg.results.gather import AUTO, all_results
from lit_ctg.results.picture import HEADLINE
from lit_ctg.results.plot import headline_picture
from lit_ctg.results.record import REGIMES
from lit_ctg.results.render import (
    NOT_APPLICABLE,
    REGIME_TITLES,
    escape_markdown,
    interval_text,
    marked,
    value_text,
    verdict_text,
)
from lit_ctg.results.spec import MANIFEST, Headline, papers
from lit_ctg.results.table import Cell, Results, Row, Table
from lit_ctg.results.verdict import CLAIM_LABELS, NOT_RUN, NUMBER_LABELS

BEGIN = "<!-- results: written by `make tables` from the committed records -->"
END = "<!-- end of results -->"


def find_row(results: Results, wanted: dict[str, str]) -> tuple[Table, Row]:
    """Return the row that a headline names, with its table.

    Raises:
        UserError: no such table or row.
    """
    tables = {table.spec.name: table for table in results.tables}
    name = wanted["table"]
    if name not in tables:
        raise UserError(f"{results.paper}/{MANIFEST}, headline: no table '{name}'{did_you_mean(name, tables)}")
    key = (wanted["section"], wanted["label"])
    rows = {(row.spec.section, row.spec.label): row for row in tables[name].rows}
    if key not in rows:
        near = did_you_mean(" / ".join(key), map(" / ".join, rows))
        raise UserError(f"{results.paper}/{MANIFEST}, headline: {name} has no row '{' / '.join(key)}'{near}")
    return tables[name], rows[key]


def section(root: Path) -> str:
    """Return the results of all papers below ``root`` as Markdown, without the marks."""
    found, left_out = [], []
    for name in papers(root):
        try:
            sizes = all_results(name, root, [root / name / "results"], AUTO)
            found.append((sizes, _headline(sizes)))
        except UserError as error:
            left_out.append(f"\n{name}: left out: {escape_markdown(str(error))}")
    found.sort(key=lambda pair: not pair[0][0].pool.records())
    lines = ["| paper | runs | | as published | corrected |", "| --- | --- | --- | --- | --- |"]
    for sizes, _ in found:
        for results in sizes:
            lines += _verdict_lines(results)
    for sizes, headline in found:
        if sizes[0].pool.records() and headline:
            lines += ["", *headline]
    return "\n".join([*lines, *left_out]) + "\n"


def _verdict_lines(results: Results) -> list[str]:
    count, folder = len(results.pool.trained()), f"experiments/{results.paper}"
    if not count:
        return [f"| [{results.title}]({folder}/README.md) | none yet | | {NOT_APPLICABLE} | {NOT_APPLICABLE} |"]
    lines = []
    for claims, words, labels in ((True, "claims", CLAIM_LABELS), (False, "numbers", NUMBER_LABELS)):
        cells = " | ".join(_counts(results.verdicts(regime, claims), labels) for regime in REGIMES)
        start = f"[{results.title}]({folder}/tables.md) | {count}, size {results.size}" if claims else " |"
        lines.append(f"| {start} | {words} | {cells} |")
    return lines


def _counts(found: Counter[str], labels: Sequence[str]) -> str:
    return ", ".join(f"{found[label]} {label}" for label in labels if found[label]) or NOT_APPLICABLE


def _headline(sizes: Sequence[Results]) -> list[str]:
    """Return a paper's summary, picture and rows, each of the largest size that has it; nothing without a headline."""
    results = sizes[0]
    headline: Headline | None = results.manifest.headline if results.manifest is not None else None
    if headline is None:
        return []
    titles = " | ".join(REGIME_TITLES[regime] for regime in REGIMES)
    lines = [f"**{results.title[0].upper()}{results.title[1:]}.** {headline.summary}", ""]
    if any(headline_picture(one) is not None for one in sizes):
        # beside the tables, by `make tables`
        lines += [f"![{results.title}](experiments/{results.paper}/figures/{HEADLINE})", ""]
    lines += [f"| | Printed | {titles} |", "| --- | ---: | --- | --- |"]
    for wanted in headline.rows:
        table, row = find_row(results, wanted)
        cells = [_of_sizes(sizes, wanted, regime) for regime in REGIMES]
        printed = escape_markdown(marked(table, row).replace(f" ({table.mark(row)})", ""))
        lines.append(f"| {' | '.join([escape_markdown(wanted['says']), printed, *cells])} |")
    return lines


def _of_sizes(sizes: Sequence[Results], wanted: dict[str, str], regime: str) -> str:
    """Return a regime's cell of the largest size at which it was run; with the size where there are several."""
    rows = [(results, find_row(results, wanted)[1]) for results in sizes]
    run = [(results, row) for results, row in rows if (cell := row.cells[regime]) is not None and cell.hole is None]
    results, row = run[0] if run else rows[0]
    words = _cell(row, row.cells[regime], results.size)
    return f"{words} (size {results.size})" if run and len(sizes) > 1 and "at size" not in words else words


def _cell(row: Row, cell: Cell | None, size: str) -> str:
    """Return value, interval and verdict; of a hole only that it is one (the tables say which run is missing)."""
    if cell is None:
        return NOT_APPLICABLE
    if cell.hole is not None:
        return NOT_RUN
    words = " ".join(filter(None, (value_text(row, cell), interval_text(row, cell))))
    return escape_markdown(": ".join(filter(None, (words, verdict_text(row, cell, size)))))


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

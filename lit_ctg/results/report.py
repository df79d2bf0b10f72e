"""The report: one self-contained HTML page with verdicts, tables, plots and samples; no script, no network."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from rich.console import Console

from lit_ctg import __version__
from lit_ctg.errors import UserError, did_you_mean
from lit_ctg.results import dashboard
from lit_ctg.results.cell import Cell, Row
from lit_ctg.results.cell_text import (
    NOT_APPLICABLE,
    REGIME_TITLES,
    interval_text,
    n_words,
    printed_text,
    section_of,
    value_text,
    verdict_text,
)
from lit_ctg.results.curves import training_curves
from lit_ctg.results.files import write_atomic
from lit_ctg.results.gap import Gap
from lit_ctg.results.plot import legend_for, panels_for
from lit_ctg.results.record import RunRecord
from lit_ctg.results.report_top import filter_form, filter_rules, runs_words, section_id, slug, verdicts
from lit_ctg.results.schema import REGIMES
from lit_ctg.results.table import (
    AUTO,
    Arguments,
    Results,
    Table,
    add_common,
    all_results,
    checked_folders,
    chosen_papers,
)
from lit_ctg.results.verdict import NOT_RUN, RULES

DEFAULT_OUT = Path("outputs") / "report.html"
TARGETS = ("html", "wandb")
_SETTINGS = ("target=", "entity=", "project=")
# texts shown of each control path and setting; the rest stays in samples.jsonl
SAMPLES_SHOWN = 6
# notes above a paper's tables; the others are with the holes
NOTES_SHOWN = 3
# the page may run nothing and load nothing, whatever a sample says
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def write_report(
    out: Path,
    papers: Sequence[str],
    root: Path | None = None,
    record_dirs: Iterable[Path | str] | None = None,
    size: str = AUTO,
) -> Path:
    """Write the page for ``papers`` to ``out``, whole or not at all; return its path.

    Size "auto" shows every size that a paper has finished runs of.

    Raises:
        UserError: no such paper, a damaged record, or ``out`` cannot be written.
    """
    folders = None if record_dirs is None else list(record_dirs)
    known: dict[Path, RunRecord] = {}
    results = [result for paper in papers for result in all_results(paper, root, folders, size, known)]
    write_atomic(Path(out), page(results))
    return Path(out)


def page(results: Sequence[Results]) -> str:
    """Return the whole page."""
    style = Path(__file__).with_name("report.css").read_text(encoding="utf-8") + filter_rules(results)
    body = "".join(_paper(result) for result in results)
    count = sum(len(result.pool.records()) for result in results)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f"<title>lit_ctg: printed numbers and ours</title>\n<style>\n{style}\n</style>\n</head>\n<body>\n"
        "<header><h1>Printed numbers and ours</h1>"
        f'<p class="muted">lit_ctg {_e(__version__)}, {count} runs</p></header>\n'
        f"<main>\n{filter_form(results)}{verdicts(results)}{body}</main>\n<footer><p>{_e(RULES)}</p></footer>\n</body>\n</html>\n"
    )


def _paper(result: Results) -> str:
    links = "".join(f'<a href="#{_anchor(table)}">{_e(_short(table))}</a>' for table in result.tables)
    title = f'<h2>{_e(result.paper.replace("_", " "))} <span class="muted">{_e(runs_words(result))}</span></h2>'
    parts = [f'<details class="fold part paper-{_e(result.paper)} size-{_e(result.size)}"><summary>{title}</summary>\n']
    parts.append(f'<div id="{section_id(result)}"><nav>{links}</nav>\n')
    parts.append(_holes(result))
    parts += [_table(table) for table in result.tables]
    parts.append(_curves(result))
    parts += [_samples(result.pool.records()), _runs(result), "</div></details>\n"]
    return "".join(parts)


def _holes(result: Results) -> str:
    """Every hole once, and what was left out."""
    cells = [cell for table in result.tables for row in table.rows for cell in row.cells.values()]
    holes = Counter(cell.hole for cell in cells if cell is not None and cell.hole is not None)
    lines = [f"{hole} ({count} cells)" for hole, count in holes.items()]
    told = "".join(f'<p class="note">{_e(note)}</p>\n' for note in result.notes[-NOTES_SHOWN:])
    lines += result.notes[:-NOTES_SHOWN]
    if not lines:
        return told
    items = "".join(f"<li>{_e(line)}</li>" for line in lines)
    return f'{told}<details><summary>{len(lines)} holes</summary><ul class="holes">{items}</ul></details>\n'


def _table(table: Table) -> str:
    head = "".join(f'<th class="in-{regime}">{_e(REGIME_TITLES[regime])}</th>' for regime in table.regimes)
    parts = [f'<details class="fold"><summary><h3>{_e(table.title)}</h3></summary><div id="{_anchor(table)}">\n']
    if table.spec.caption:
        parts.append(f"<p>{_e(table.spec.caption)}</p>\n")
    panels = panels_for(table)
    plots = [svg for svg in panels.values() if svg is not None]
    if plots:
        keys = "".join(
            f'<span class="for-{kind}"><i class="{kind}"></i>{_e(words)}</span>' for kind, words in legend_for(table)
        )
        parts.append(f'<div class="key">{keys}</div>\n' if keys else "")
        parts.append(f'<div class="plots">{"".join(plots)}</div>\n')
    if undrawn := [name for name, svg in panels.items() if svg is None]:
        parts.append(f'<p class="note">Not drawn, for want of runs: {_e("; ".join(undrawn))}.</p>\n')
    parts.append(f'<div class="scroll"><table class="numbers{"" if table.has_printed else " ours"}">')
    printed_head = "<th>Printed</th>" if table.has_printed else ""
    parts.append(f"<thead><tr><th></th>{printed_head}{head}</tr></thead><tbody>\n")
    section, columns = "", 1 + table.has_printed + len(table.regimes)
    for row in table.shown:
        if section_of(row) != section:
            section = section_of(row)
            parts.append(f'<tr class="section"><th colspan="{columns}">{_e(section)}</th></tr>\n')
        if not isinstance(row, Row):
            parts.append(f'<tr class="gap"><td class="hole" colspan="{columns}">{_gap(row)}</td></tr>\n')
            continue
        cells = "".join(_cell(row, row.cells[regime], regime) for regime in table.regimes)
        printed = f'<td data-head="Printed">{_e(printed_text(row))}{_mark(table, row)}</td>' if printed_head else ""
        parts.append(f"<tr><th>{_e(row.spec.label)}</th>{printed}{cells}</tr>\n")
    parts.append("</tbody></table></div>\n")
    parts += [f'<p class="note">{_e(note)}</p>\n' for note in table.notes]
    return "".join([*parts, "</div></details>\n"])


def _gap(gap: Gap) -> str:
    """Return a gap in one line; what was printed there unfolds."""
    if not gap.printed:
        return _e(gap.words)
    return f"<details><summary>{_e(gap.summary)}; printed</summary>{_e(gap.numbers)}</details>"


def _mark(table: Table, row: Row) -> str:
    mark = table.mark(row)
    return f" <sup>{_e(mark)}</sup>" if mark else ""


def _cell(row: Row, cell: Cell | None, regime: str) -> str:
    head, own = f'data-head="{_e(REGIME_TITLES[regime])}"', f"in-{regime}"
    if cell is None:
        return f'<td class="{own}" {head}>{NOT_APPLICABLE}</td>'
    if cell.hole is not None:
        return f'<td class="hole {own}" {head}>{_e(cell.hole)}{_chip(row, cell)}</td>'
    if cell.texts:
        texts = f'{_quotes(cell.texts)}<span class="n">{_e(n_words(cell))}</span>'
        return f'<td class="{own}" {head}>{texts}{_chip(row, cell)}</td>'
    seeds = ", ".join(f"{seed}: {value:.6g}" for seed, value in cell.values.items())
    numbers = f'<b title="by seed: {_e(seeds)}">{_e(value_text(row, cell))}</b>'
    numbers += f' <span class="range">{_e(interval_text(row, cell))}</span> <span class="n">{_e(n_words(cell))}</span>'
    return f'<td class="{own}" {head}>{numbers}{_chip(row, cell)}</td>'


def _chip(row: Row, cell: Cell) -> str:
    """Return the verdict as a chip, the finding as words below it."""
    verdict = cell.verdict if row.judged or cell.hole is not None else None
    parts = ""
    if verdict is not None and not (cell.hole is not None and verdict.label == NOT_RUN and "not run" in cell.hole):
        words = verdict_text(row, cell).split("; ")[0]
        parts += f'<br><span class="chip {slug(verdict.label)}" title="{_e(verdict.reason)}">{_e(words)}</span>'
    return parts + (f'<span class="finding">{_e(cell.finding)}</span>' if cell.finding else "")


def _curves(result: Results) -> str:
    """Training curves of every experiment that measured more than once."""
    panels = training_curves(result.pool)
    if not panels:
        return ""
    shown = [
        (regime, REGIME_TITLES[regime].lower()) for regime in REGIMES if any(r == regime for _, r in result.pool.runs)
    ]
    keys = "".join(f'<span class="for-{kind}"><i class="{kind}"></i>{_e(words)}</span>' for kind, words in shown)
    alone = {record.name for record in result.pool.records()} - {experiment for experiment, _ in panels}
    once = f'<p class="note">Measured once, at the end: {_e(", ".join(sorted(alone)))}.</p>\n' if alone else ""
    return (
        '<details class="fold"><summary><h3>Training curves</h3></summary><div>\n'
        f'<p class="note">Mean over seeds, with its 95% interval from three on.</p><div class="key">{keys}</div>\n'
        f'<div class="plots">{"".join(panels.values())}</div>\n{once}</div></details>\n'
    )


def _samples(records: Sequence[RunRecord]) -> str:
    """Generated texts of the lowest seed of every experiment and regime, as plain text."""
    parts, seen = [], set()
    for record in records:
        key = (record.name, record.regime)
        if record.samples and key not in seen:
            seen.add(key)
            groups: dict[str, list[str]] = {}
            for sample in record.samples:
                words = [str(sample[field]) for field in ("path", "setting") if sample.get(field)]
                words += [f'"{sample["prompt"]}"'] if sample.get("prompt") else []
                groups.setdefault(", ".join(words) or "samples", []).append(sample["text"])
            rows = "".join(
                f"<tr><th>{_e(name)}</th><td>{_quotes(texts[:SAMPLES_SHOWN])}</td></tr>"
                for name, texts in groups.items()
            )
            title = f"{record.experiment}, {REGIME_TITLES[record.regime].lower()}, seed {record.seed}"
            parts.append(
                f'<details><summary>{_e(title)}</summary><div class="scroll"><table>{rows}</table></div></details>\n'
            )
    return f"<h3>Generated samples</h3>\n{''.join(parts)}" if parts else ""


def _runs(result: Results) -> str:
    """Which runs the numbers come from."""
    columns = ("experiment", "regime", "seed", "commit", "device", "parameters", "seconds", "tokens/s", "started")
    rows = []
    for record in result.pool.records():
        commit = str(record.git.get("commit") or "unknown")[:10] + (" + changes" if record.git.get("dirty") else "")
        words: list[object] = [record.name, record.regime, record.seed, commit, record.device, record.parameters]
        words += [record.wall_time_s, record.tokens_per_s, record.started_at]
        rows.append("<tr>" + "".join(f"<td>{_e('' if word is None else str(word))}</td>" for word in words) + "</tr>")
    if not rows:
        return ""
    head = "".join(f"<th>{_e(column)}</th>" for column in columns)
    table = f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
    return f"<h3>Runs</h3>\n<details><summary>{len(rows)} runs behind these numbers</summary>{table}</details>\n"


def _quotes(texts: Sequence[str]) -> str:
    return "".join(f"<q>{_e(text)}</q>" for text in texts)


def _e(text: str) -> str:
    return escape(text, quote=True)


def _short(table: Table) -> str:
    return table.title.split(":")[0]


def _anchor(table: Table) -> str:
    return _e(f"{table.spec.paper}-{table.size}-{table.spec.name}")


def main(words: Sequence[str], console: Console | None = None) -> int:
    """Run ``lit-ctg report [<paper>|all] [--records FOLDER] [--size SIZE] [--out FILE]``.

    ``target=wandb entity=NAME [project=lit_ctg]`` publishes dashboards instead, or writes them to ``--out FOLDER``.
    """
    parser = Arguments(prog="lit-ctg report", add_help=False)
    for key, default in (("target", "html"), ("entity", ""), ("project", "lit_ctg")):
        parser.add_argument(f"--{key}", default=default, help=f"also as {key}=...")
    parser.add_argument("paper", nargs="?", default="all")
    add_common(parser)
    options = parser.parse_args([f"--{word}" if word.startswith(_SETTINGS) else word for word in words])
    if options.target not in TARGETS:
        raise UserError(f"target={options.target}{did_you_mean(options.target, TARGETS)}; one of {', '.join(TARGETS)}")
    folders = checked_folders(options.records)
    if options.target == "wandb":
        return _dashboards(options, folders, console or Console())
    out = write_report(options.out or DEFAULT_OUT, chosen_papers(options.paper), None, folders, options.size)
    (console or Console()).print(f"report: {out}", markup=False, highlight=False, soft_wrap=True)
    return 0


def _dashboards(options: argparse.Namespace, folders: Sequence[Path] | None, console: Console) -> int:
    if not options.entity and options.out is None:
        raise UserError("target=wandb needs entity=<your name or team at W&B>, or --out FOLDER to write the files only")
    results = [
        result
        for paper in chosen_papers(options.paper)
        for result in all_results(paper, None, folders, options.size)[:1]
    ]
    if options.out is None:
        made = dashboard.publish(results, options.entity, options.project)
    else:
        made = list(map(str, dashboard.write(results, options.out, options.entity or "entity", options.project)))
    for place in made:
        console.print(f"dashboard: {place}", markup=False, highlight=False, soft_wrap=True)
    return 0

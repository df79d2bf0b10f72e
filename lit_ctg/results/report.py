"""The report: one self-contained HTML page with verdicts, tables, plots and samples; no script, no network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape
from pathlib import Path

import yaml
from rich.console import Console

from lit_ctg import __version__
from lit_ctg.errors import UserError, did_you_mean
from lit_ctg.figure import style_sheet
from lit_ctg.files import write_atomic
from lit_ctg.results import dashboard
from lit_ctg.results.plot import legend_for, panels_for, training_curves
from lit_ctg.results.record import REGIMES, RunRecord
from lit_ctg.results.render import (
    NOT_APPLICABLE,
    REGIME_TITLES,
    Gap,
    impossible_text,
    interval_text,
    n_words,
    printed_text,
    section_of,
    shown_rows,
    spread_text,
    value_text,
    verdict_text,
    visible,
)
from lit_ctg.results.spec import experiments_root, load_manifest
from lit_ctg.results.table import Cell, Results, Row, Table, gather
from lit_ctg.results.verdict import CLAIM_LABELS, IMPOSSIBLE, NOT_RUN, NUMBER_LABELS, RULES

DEFAULT_OUT = Path("outputs") / "report.html"
TARGETS = ("html", "wandb", "sweep")
# texts shown of each control path and setting; the rest stays in samples.jsonl
SAMPLES_SHOWN = 6
# notes above a paper's tables; the others are with the holes
NOTES_SHOWN = 3
# the page may run nothing and load nothing, whatever a sample says
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def write_report(
    out: Path,
    paper: str | None = None,
    size: str | None = None,
    records: Sequence[Path | str] | None = None,
    root: Path | None = None,
) -> Path:
    """Write the page for one paper, or for all, to ``out``, whole or not at all; return its path.

    Size "auto" shows every size that a paper has finished runs of.

    Raises:
        UserError: no such paper, a damaged record, or ``out`` cannot be written.
    """
    results, left_out = gather(paper, size, records, root, every_size=True)
    write_atomic(Path(out), page(results, left_out))
    return Path(out)


def page(results: Sequence[Results], left_out: Sequence[str] = ()) -> str:
    """Return the whole page; ``left_out`` has a line for every paper that is not on it."""
    own = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    style = style_sheet() + own + filter_rules(results)
    body = "".join(_paper(result) for result in results)
    count = sum(len(result.pool.records()) for result in results)
    absent = "".join(f'<p class="note">{_e(line)}</p>' for line in left_out)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f"<title>lit_ctg: printed numbers and ours</title>\n<style>\n{style}\n</style>\n</head>\n<body>\n"
        "<header><h1>Printed numbers and ours</h1>"
        f'<p class="muted">lit_ctg {_e(__version__)}, {count} runs</p>{absent}</header>\n'
        f"<main>\n{filter_form(results)}{verdicts(results)}{body}</main>\n<footer><p>{_e(RULES)}</p></footer>\n</body>\n</html>\n"
    )


def _paper(result: Results) -> str:
    links = "".join(f'<a href="#{_anchor(table)}">{_e(_short(table))}</a>' for table in result.tables)
    title = f'<h2>{_e(result.title)} <span class="muted">{_e(runs_words(result))}</span></h2>'
    summary = result.manifest.headline.summary if result.manifest and result.manifest.headline else ""
    parts = [f'<details class="fold part paper-{_e(result.paper)} size-{_e(result.size)}"><summary>{title}</summary>\n']
    parts.append(f'<div id="{section_id(result)}"><nav>{links}</nav>\n')
    parts.append(f"<p>{_e(summary)}</p>\n" if summary and result.pool.records() else "")
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
    told = "".join(f'<p class="note">{_e(note)}</p>\n' for note in result.notes[:NOTES_SHOWN])
    lines += result.notes[NOTES_SHOWN:]
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
    for row in shown_rows(table.rows):
        if section_of(row) != section:
            section = section_of(row)
            parts.append(f'<tr class="section"><th colspan="{columns}">{_e(section)}</th></tr>\n')
        if not isinstance(row, Row):
            parts.append(f'<tr class="gap"><td class="hole" colspan="{columns}">{_gap(row)}</td></tr>\n')
            continue
        cells = "".join(_cell(row, row.cells[regime], regime, table.size) for regime in table.regimes)
        printed = f'<td data-head="Printed">{_printed(table, row)}</td>' if printed_head else ""
        parts.append(f"<tr><th>{_e(row.spec.label)}</th>{printed}{cells}</tr>\n")
    parts.append("</tbody></table></div>\n")
    parts += [f'<p class="note">{_e(note)}</p>\n' for note in table.notes]
    return "".join([*parts, "</div></details>\n"])


def _gap(gap: Gap) -> str:
    """Return a gap in one line; what was printed there unfolds."""
    if not gap.printed:
        return _e(gap.words)
    return f"<details><summary>{_e(gap.summary)}; printed</summary>{_e(gap.numbers)}</details>"


def _printed(table: Table, row: Row) -> str:
    """Return the printed number with the letter of its margin, and why it cannot be where it cannot."""
    mark = table.mark(row)
    number = _e(printed_text(row)) + (f" <sup>{_e(mark)}</sup>" if mark else "")
    why = impossible_text(row)
    return number + (f'<br><span class="chip {slug(IMPOSSIBLE)}">{_e(why)}</span>' if why else "")


def _cell(row: Row, cell: Cell | None, regime: str, size: str) -> str:
    head, own = f'data-head="{_e(REGIME_TITLES[regime])}"', f"in-{regime}"
    if cell is None:
        return f'<td class="{own}" {head}>{NOT_APPLICABLE}</td>'
    if cell.hole is not None:
        return f'<td class="hole {own}" {head}>{_e(cell.hole)}{_chip(row, cell, size)}</td>'
    if cell.texts:
        texts = f'{_quotes(cell.texts)}<span class="n">{_e(n_words(cell))}</span>'
        return f'<td class="{own}" {head}>{texts}{_chip(row, cell, size)}</td>'
    seeds = ", ".join(f"{seed}: {value:.6g}" for seed, value in cell.values.items())
    numbers = f'<b title="by seed: {_e(seeds)}">{_e(value_text(row, cell))}</b>'
    numbers += f' <span class="range">{_e(interval_text(row, cell))}</span> <span class="n">{_e(n_words(cell))}</span>'
    if spread := spread_text(cell):
        numbers += f' <span class="n">CV* {_e(spread)}</span>'
    return f'<td class="{own}" {head}>{numbers}{_chip(row, cell, size)}</td>'


def _chip(row: Row, cell: Cell, size: str) -> str:
    """Return the verdict as a chip, the finding as words below it."""
    verdict = cell.verdict if row.judged or cell.hole is not None else None
    parts = ""
    if verdict is not None and not (cell.hole is not None and verdict.label == NOT_RUN and "not run" in cell.hole):
        words = verdict_text(row, cell, size).removesuffix(cell.finding).removesuffix("; ")
        if words:
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
    return escape(visible(text), quote=True)


def _short(table: Table) -> str:
    return table.title.split(":")[0]


def _anchor(table: Table) -> str:
    return _e(f"{table.spec.paper}-{table.size}-{table.spec.name}")


# --- the top: filter and verdicts -----------------------------------------------------------------------------------

ALL = "all"


def section_id(result: Results) -> str:
    """Return the anchor of a paper's section at one size."""
    return escape(f"{result.paper}-{result.size}", quote=True)


def runs_words(result: Results) -> str:
    """Return how many runs a paper has, and of which size."""
    count = len(result.pool.records())
    return f"{count} run{'s' * (count != 1)}, size {result.size}" if count else "no runs yet"


def slug(label: str) -> str:
    """Return a verdict's class name."""
    return label.replace(" ", "-")


def choices(results: Sequence[Results]) -> dict[str, dict[str, str]]:
    """Return what the page can be filtered by: group -> value -> words; groups with one value are left out."""
    groups = {
        "paper": {result.paper: result.title for result in results},
        "regime": {regime: title.lower() for regime, title in REGIME_TITLES.items()},
        "size": {result.size: result.size for result in results if result.pool.records()},
    }
    return {group: values for group, values in groups.items() if len(values) > 1}


def filter_rules(results: Sequence[Results]) -> str:
    """Return the style rules that hide what is not chosen."""
    rules = []
    for group, values in choices(results).items():
        for value in values:
            chosen = f"body:has(#show-{group}-{value}:checked)"
            if group == "regime":
                others = [other for other in values if other != value]
                hidden = [f"{chosen} {where}{other}" for other in others for where in (".in-", "svg .", ".key .for-")]
                rules.append(f"{', '.join(hidden)} {{ display: none; }}")
            else:
                rules.append(f"{chosen} .part:not(.{group}-{value}) {{ display: none; }}")
    return "\n".join(rules)


def filter_form(results: Sequence[Results]) -> str:
    """Return the radio buttons of the filter."""
    parts = []
    for group, values in choices(results).items():
        options = []
        for value, words in {ALL: "all", **values}.items():
            checked = " checked" if value == ALL else ""
            options.append(
                f'<label><input type="radio" name="{group}" id="show-{group}-{value}"{checked}>'
                f"<span>{escape(words)}</span></label>"
            )
        parts.append(f"<fieldset><legend>{group}</legend>{''.join(options)}</fieldset>")
    return f'<form class="filter">{"".join(parts)}</form>\n' if parts else ""


def share(counts: Counter[str], labels: Sequence[str]) -> str:
    """Return one bar split by verdict, and the counts in words."""
    shown = [(label, counts[label]) for label in labels if counts[label]]
    bar = "".join(
        f'<i class="{slug(label)}" style="flex:{count}" title="{escape(label)}"></i>' for label, count in shown
    )
    words = "".join(f'<span class="{slug(label)}"><b>{count}</b> {escape(label)}</span>' for label, count in shown)
    return f'<div class="share">{bar}</div><div class="counts">{words}</div>'


def verdicts(results: Sequence[Results]) -> str:
    """Return the verdicts of every paper and regime, claims and printed numbers apart, as bars with links."""
    rows = []
    for result in results:
        bars = "".join(
            f'<div class="in-{regime}">'
            f'<span class="muted">{escape(title)}, {sum(counts.values())} {words}</span>{share(counts, labels)}</div>'
            for regime, title in REGIME_TITLES.items()
            for claims, words, labels in ((True, "claims", CLAIM_LABELS), (False, "printed numbers", NUMBER_LABELS))
            if (counts := result.verdicts(regime, claims))
        )
        rows.append(
            f'<div class="part paper-{result.paper} size-{result.size} verdicts">'
            f'<a href="#{section_id(result)}">{escape(result.title)}</a> '
            f'<span class="muted">{escape(runs_words(result))}</span>{bars}</div>'
        )
    return f'<h2>Verdicts</h2>\n<div class="panel">{"".join(rows)}</div>\n'


# --- the command ----------------------------------------------------------------------------------------------------


def main(
    paper: str | None = None,
    size: str | None = None,
    target: str = "html",
    records: Sequence[str | Path] | None = None,
    out: str | Path | None = None,
    entity: str = "",
    project: str = "lit_ctg",
    console: Console | None = None,
) -> int:
    """Write the report of a paper, or of all.

    Args:
        paper, size, records: see ``render.main``.
        target: ``html``; ``wandb`` publishes dashboards, or writes them to the folder ``out``; ``sweep`` writes the
            paper's W&B sweep to the file ``out``.
        out: file of the page, by default ``outputs/report.html``.
        entity, project: where dashboards go.
        console: where to say what was written.

    Raises:
        UserError: no such paper or target, or a file that cannot be written.
    """
    if target not in TARGETS:
        raise UserError(f"target={target}{did_you_mean(target, TARGETS)}; one of {', '.join(TARGETS)}")
    shown = console or Console()
    if target == "wandb":
        return _dashboards(paper, size, records, out, entity, project, shown)
    if target == "sweep":
        made = write_sweep(paper, out)
        shown.print(f"sweep: {made}; wandb sweep {made}", markup=False, highlight=False, soft_wrap=True)
        return 0
    made = write_report(Path(out) if out is not None else DEFAULT_OUT, paper, size, records)
    shown.print(f"report: {made}", markup=False, highlight=False, soft_wrap=True)
    return 0


def write_sweep(paper: str | None, out: str | Path | None, root: Path | None = None) -> Path:
    """Write a paper's W&B sweep, the part ``sweep`` of its manifest, as a file that ``wandb sweep`` reads.

    Raises:
        UserError: no paper or file is named, or the paper has no sweep.
    """
    if paper in (None, "all") or out is None:
        raise UserError("target=sweep needs paper=<one paper> and out=<file>")
    manifest = load_manifest(root or experiments_root(paper), str(paper))
    if manifest.sweep is None:
        raise UserError(f"{paper}: its paper.yaml has no 'sweep'")
    write_atomic(Path(out), yaml.safe_dump(manifest.sweep, sort_keys=False, width=120))
    return Path(out)


def _dashboards(
    paper: str | None,
    size: str | None,
    records: Sequence[str | Path] | None,
    out: str | Path | None,
    entity: str,
    project: str,
    console: Console,
) -> int:
    if not entity and out is None:
        raise UserError("target=wandb needs entity=<your name or team at W&B>, or out=FOLDER to write the files only")
    results, left_out = gather(paper, size, records)
    if out is None:
        made = dashboard.publish(results, entity, project)
    else:
        made = list(map(str, dashboard.write(results, Path(out), entity or "entity", project)))
    for place in made:
        console.print(f"dashboard: {place}", markup=False, highlight=False, soft_wrap=True)
    for line in left_out:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return 0

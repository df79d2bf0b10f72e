"""The report: one self-contained HTML page; no script, no network.

Answers come first: for each paper one sentence, its picture and how many claims are supported, contradicted or
undecided; then the claims; then tables, curves and samples, folded. The user's own runs of a paper are shown beside its
committed records, and the page says which is which and whether they agree; other papers show their committed records.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import yaml

from lit_ctg import __version__
from lit_ctg.errors import UserError, did_you_mean
from lit_ctg.figure import Chart
from lit_ctg.files import write_atomic
from lit_ctg.results.figure import headline_picture, legend_for, panels_for, training_curves
from lit_ctg.results.gather import ALL, AUTO, all_results, gather, twins
from lit_ctg.results.publish import publish_dashboards, write_dashboards
from lit_ctg.results.record import RECORDS, REGIMES, RunRecord, check_no_input
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
)
from lit_ctg.results.spec import experiments_root, load_manifest
from lit_ctg.results.table import Cell, Results, Row, Table
from lit_ctg.results.verdict import CLAIM_LABELS, IMPOSSIBLE, NOT_RUN, NUMBER_LABELS, RULES
from lit_ctg.terminal import Console, printable

DEFAULT_OUT = Path("outputs") / "report.html"
TARGETS = ("html", "wandb", "sweep")
# texts shown per route and setting of a control, whatever their prompts; the rest stays in samples.jsonl
SAMPLES_SHOWN = 4
# notes above a paper's tables; the others are listed with the holes
NOTES_SHOWN = 3
# the page may run nothing and load nothing, whatever a sample contains
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


@dataclass(frozen=True)
class Part:
    """One paper at one size, from the user's own runs or from the committed records."""

    results: Results
    own: bool
    # how the user's runs compare with the committed ones
    agreement: tuple[str, ...] = ()
    # the paper's other runs on the page, of this size: pictures of both have the same scales
    beside: tuple[Results, ...] = ()

    def tables_beside(self, table: Table) -> list[Table]:
        """Return the same table with the other runs."""
        return [other for one in self.beside for other in one.tables if other.spec.name == table.spec.name]

    @property
    def origin(self) -> str:
        """Whose runs these are."""
        return "your runs" if self.own else "committed records"

    @property
    def anchor(self) -> str:
        """The id of its section."""
        start = "own-" if self.own else ""
        return escape(f"{start}{self.results.paper}-{self.results.size}", quote=True)

    @property
    def classes(self) -> str:
        """The classes by which the filter finds it."""
        origin = "own" if self.own else "committed"
        return f"part paper-{_e(self.results.paper)} size-{_e(self.results.size)} records-{origin}"


def write_report(
    out: Path,
    paper: str | None = None,
    size: str | None = None,
    records: Sequence[Path | str] | None = None,
    root: Path | None = None,
) -> Path:
    """Write the page for one paper, or for all, to ``out``, whole or not at all; return its path.

    Size "auto" shows every size with finished runs.

    Raises:
        UserError: no such paper, a damaged record, or ``out`` cannot be written.
    """
    top = root if root is not None else experiments_root(None if paper in (None, "all") else paper)
    results, left_out = gather(paper, size, records, top, every_size=True)
    write_atomic(Path(out), page(parts(results, top, AUTO if size in (None, ALL) else str(size)), left_out))
    return Path(out)


def parts(results: Sequence[Results], root: Path, size: str = AUTO) -> list[Part]:
    """Return what the page shows: first papers with runs of the user's own, each followed by its committed records.

    Among several papers, those without a run among the given records are shown from the committed ones.
    """
    found: list[list[Part]] = []
    for paper, group in itertools.groupby(results, key=lambda one: one.paper):
        sizes, committed = list(group), root / paper / RECORDS
        own = [one for one in sizes if not _committed(one, committed)]
        others = [one for one in sizes if _committed(one, committed) and one.pool.records()]
        alone = len({one.paper for one in results}) == 1 and not own
        if not others and not alone and committed.is_dir():
            others = [one for one in all_results(paper, root, [committed], size) if one.pool.records()]
        shown = [Part(one, True, tuple(twins(one.pool, committed, None)), _of_size(one, others)) for one in own]
        shown += [Part(one, False, (), _of_size(one, own)) for one in others]
        found.append(shown or [Part(one, False) for one in sizes])
    found.sort(key=lambda shown: not shown[0].own)
    return [part for shown in found for part in shown]


def _of_size(result: Results, others: Sequence[Results]) -> tuple[Results, ...]:
    return tuple(one for one in others if one.size == result.size)


def _committed(result: Results, folder: Path) -> bool:
    """Say whether all runs are committed ones."""
    inside = folder.resolve()
    return all(one.source is not None and inside in one.source.resolve().parents for one in result.pool.records())


def page(shown: Sequence[Part], left_out: Sequence[str] = ()) -> str:
    """Return the whole page; ``left_out`` has one line for every paper that is not on it."""
    own = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    style = own + filter_rules(shown)
    count = sum(len(part.results.pool.trained()) for part in shown)
    mine = sum(len(part.results.pool.trained()) for part in shown if part.own)
    whose = f"{mine} of your own, {count - mine} committed" if mine else _plural(count, "run")
    absent = "".join(f'<p class="note">{_e(line)}</p>' for line in left_out)
    answers = "".join(_answer(list(group)) for _, group in itertools.groupby(shown, key=lambda one: one.results.paper))
    return _smaller(
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f"<title>lit_ctg: printed numbers and ours</title>\n<style>\n{style}\n</style>\n</head>\n<body>\n"
        '<a class="skip" href="#claims">Skip to the claims</a>\n'
        "<header><h1>Printed numbers and ours</h1>"
        f'<p class="muted">lit_ctg {_e(__version__)}, {_e(whose)}</p>{absent}{filter_form(shown)}</header>\n'
        f'<main>\n<h2 id="answers">Answers</h2>\n{answers}'
        f'<h2 id="claims">Claims</h2>\n{"".join(map(_claims, shown))}'
        f'<h2 id="tables">Tables, curves and samples</h2>\n{"".join(map(_paper, shown))}</main>\n'
        f"<footer><p>{_e(RULES)}</p></footer>\n</body>\n</html>\n"
    )


def _smaller(html: str) -> str:
    """Return a page whose pictures share the styles that many parts have, and no name of a part."""
    first, *pictures = html.split("<svg ")
    name = re.compile(r'( id="| href="#|url\(#)([mp][0-9a-f]{10})(?=["\)])')
    pictures = [name.sub(rf"\1s{at}\2", picture).replace(" \nL ", "L") for at, picture in enumerate(pictures)]
    written = re.compile(r'(<(?:path|text|use)[^<>]*?) style="([^"<>]*)"')
    often = Counter(found[2] for picture in pictures for found in written.finditer(picture)).most_common(200)
    named = {style: f"k{number}" for number, (style, count) in enumerate(often) if count > 1}
    rules = "".join(f"svg .{short}{{{style}}}\n" for style, short in named.items())

    def shortened(found: re.Match[str]) -> str:
        return f'{found[1]} class="{named[found[2]]}"' if found[2] in named else found[0]

    whole = "<svg ".join([first, *(written.sub(shortened, picture) for picture in pictures)])
    return whole.replace("</style>", f"{rules}</style>", 1)


# --- answers --------------------------------------------------------------------------------------------------------


def _answer(shown: Sequence[Part]) -> str:
    """Return the card of a paper: its sentence, the counts of its claims and one picture per origin of runs."""
    first = shown[0].results
    headline = first.manifest.headline if first.manifest is not None else None
    sentence = headline.summary[0] if headline is not None else ""
    origins = {part.own for part in shown}
    words, drawings = "", ""
    for own in sorted(origins, reverse=True):
        mine = [part for part in shown if part.own == own]
        words += "".join(_counted(part) for part in mine)
        # the picture of the first size that has one
        pictures = [picture for part in mine if (picture := headline_picture(part.results, part.beside)) is not None]
        drawings += "".join(_picture(*picture, mine[0].origin if len(origins) > 1 else "") for picture in pictures[:1])
    about = f'<p class="sentence">{_e(sentence)}</p>' if sentence and first.pool.records() else ""
    if about and True in origins:
        about += '<p class="note">This sentence is about the committed records.</p>' if False in origins else ""
    classes = f"part answer paper-{_e(first.paper)} " + " ".join(f"size-{_e(part.results.size)}" for part in shown)
    classes += "".join(f" records-{'own' if own else 'committed'}" for own in sorted(origins))
    title = f"<h3>{_e(first.title[:1].upper() + first.title[1:])}</h3>"
    return f'<article class="{classes}"><div>{title}{about}{words}</div>\n{drawings}</article>\n'


def _counted(part: Part) -> str:
    """Return the counts of claims of one part, and how the user's runs agree with the committed ones."""
    bars = "".join(
        f'<div class="in-{regime}"><span class="muted">{escape(title)}, {_plural(sum(counts.values()), "claim")}</span>'
        f"{share(counts, CLAIM_LABELS)}</div>"
        for regime, title in REGIME_TITLES.items()
        if (counts := part.results.verdicts(regime, True)) and set(counts) != {NOT_RUN}
    )
    link = f'<a href="#{part.anchor}">{_e(part.origin)}</a>'
    told = "".join(f'<p class="note">{_e(line)}</p>' for line in part.agreement)
    none = "" if bars else f'<p class="note">{_e(_no_claims(part))}</p>'
    start = f'<div class="counted"><p>{link} <span class="muted">({_e(runs_words(part.results))})</span></p>'
    return f"{start}{bars}{none}{told}</div>"


def _no_claims(part: Part) -> str:
    if not part.results.pool.records():
        paper, size = part.results.paper, part.results.size
        return f"Nothing was run yet: lit-ctg reproduce paper={paper} size={size}"
    if any(row.is_claim and _ran(row) for table in part.results.shown for row in table.rows):
        return "Its claims repeat those of another table, which counts them."
    return "None of the claims was tried at this size."


def _picture(chart: Chart, legend: Sequence[tuple[str, str]], origin: str) -> str:
    caption = f"<figcaption>{_e(origin)}</figcaption>" if origin else ""
    return f'<figure class="plots">{caption}{chart.svg}{_key(legend)}</figure>\n'


def _key(legend: Sequence[tuple[str, str]]) -> str:
    """Return the legend of some plots."""
    keys = "".join(f'<span class="for-{kind}"><i class="{kind}"></i>{_e(words)}</span>' for kind, words in legend)
    return f'<div class="key">{keys}</div>\n' if keys else ""


# --- claims ---------------------------------------------------------------------------------------------------------


def _claims(part: Part) -> str:
    """Return a paper's headline rows, all judged claims, and one line for those that were not run."""
    result = part.results
    if not result.pool.records():
        return ""
    headline = result.manifest.headline if result.manifest is not None else None
    rows = [(wanted["says"], *result.named(wanted)) for wanted in headline.rows] if headline is not None else []
    rows = [(says, table, row) for says, table, row in rows if _ran(row)]
    body = _claim_table(f"{result.title}, in short", rows, result.size) if rows else ""
    tables = {id(row): table for table in result.tables for row in table.rows}
    claims = result.counted(True)
    judged = [row for row in claims if _ran(row)]
    if judged:
        every = [(_claim_words(row), tables[id(row)], row) for row in judged]
        words = f"{'all ' * (len(judged) == len(claims) > 1)}{_plural(len(judged), 'claim')} tried"
        table = _claim_table(f"{result.title}, claims", every, result.size)
        body += f"<details><summary>{words}</summary>{table}</details>\n"
    if absent := len(claims) - len(judged):
        command = f"lit-ctg reproduce paper={result.paper} size={result.size}"
        body += f'<p class="note">{_plural(absent, "claim")} never run: <code>{_e(command)}</code></p>\n'
    if not body:
        return ""
    title = f'<h3>{_e(result.title)} <span class="muted">{_e(f"{part.origin}, {runs_words(result)}")}</span></h3>'
    return f'<details class="fold wide {part.classes}"><summary>{title}</summary><div>{body}</div></details>\n'


def _ran(row: Row) -> bool:
    return any(cell is not None and cell.hole is None for cell in row.cells.values())


def _claim_words(row: Row) -> str:
    return f"{row.spec.section}: {row.spec.label}" if row.spec.section else row.spec.label


def _claim_table(caption: str, rows: Sequence[tuple[str, Table, Row]], size: str) -> str:
    head = "".join(f'<th scope="col" class="in-{regime}">{_e(title)}</th>' for regime, title in REGIME_TITLES.items())
    lines = ""
    for says, table, row in rows:
        cells = "".join(_cell(row, row.cells[regime], regime, size) for regime in REGIME_TITLES)
        printed = f'<td data-head="Printed">{_printed(table, row)}</td>'
        lines += f'<tr><th scope="row">{_e(says)}</th>{printed}{cells}</tr>\n'
    top = f'<caption>{_e(caption)}</caption><thead><tr><td></td><th scope="col">Printed</th>{head}</tr></thead>'
    return _scroll(caption, f'<table class="numbers">{top}<tbody>\n{lines}</tbody></table>')


def _scroll(name: str, table: str) -> str:
    """Return a table that scrolls sideways where necessary, also by keyboard."""
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{_e(name)}">{table}</div>\n'


# --- papers ---------------------------------------------------------------------------------------------------------


def _paper(part: Part) -> str:
    result = part.results
    whose = f"{part.origin}, {runs_words(result)}" if result.pool.records() else runs_words(result)
    title = f'<h3>{_e(result.title)} <span class="muted">{_e(whose)}</span></h3>'
    summary = result.manifest.headline.summary if result.manifest and result.manifest.headline else ()
    body = [f'<details class="fold {part.classes}"><summary>{title}</summary>\n<div id="{part.anchor}">']
    if summary and result.pool.records() and not part.own:
        body.append(f"<ul>{''.join(f'<li>{_e(point)}</li>' for point in summary)}</ul>\n")
    body += [_numbers(result), _holes(result)]
    ran = [table for table in result.tables if any(map(_ran, table.rows))]
    body += [_table(table, part) for table in ran]
    body.append(_never([table for table in result.shown if table not in ran], part))
    body.append(_curves(result))
    body += [_samples(result.pool.records()), _runs(result), "</div></details>\n"]
    return "".join(body)


def _numbers(result: Results) -> str:
    """Return the verdicts on the printed numbers."""
    bars = "".join(
        f'<div class="in-{regime}"><span class="muted">{escape(title)}, '
        f"{_plural(sum(counts.values()), 'printed number')}</span>{share(counts, NUMBER_LABELS)}</div>"
        for regime, title in REGIME_TITLES.items()
        if (counts := result.verdicts(regime, False)) and set(counts) != {NOT_RUN}
    )
    return f'<div class="panel">{bars}</div>\n' if bars else ""


def _never(tables: Sequence[Table], part: Part) -> str:
    """Return tables and figures without any run: one line with the command, the printed numbers inside."""
    if not tables:
        return ""
    command = f"lit-ctg reproduce paper={part.results.paper} size={part.results.size}"
    what = "1 table or figure was" if len(tables) == 1 else f"{len(tables)} tables and figures were"
    words = f"{what} never run: <code>{_e(command)}</code>"
    return f"<details><summary>{words}</summary>{''.join(_table(table, part) for table in tables)}</details>\n"


def _holes(result: Results) -> str:
    """Return every hole once, and what was left out."""
    cells = [cell for table in result.tables for row in table.rows for cell in row.cells.values()]
    holes = Counter(cell.hole for cell in cells if cell is not None and cell.hole is not None)
    lines = [f"{hole} ({_plural(count, 'cell')})" for hole, count in holes.items()]
    told = "".join(f'<p class="note">{_e(note)}</p>\n' for note in result.notes[:NOTES_SHOWN])
    lines += result.notes[NOTES_SHOWN:]
    if not lines:
        return told
    items = "".join(f"<li>{_e(line)}</li>" for line in lines)
    return f'{told}<details><summary>{_plural(len(lines), "hole")}</summary><ul class="holes">{items}</ul></details>\n'


def _table(table: Table, part: Part) -> str:
    head = "".join(f'<th scope="col" class="in-{regime}">{_e(REGIME_TITLES[regime])}</th>' for regime in table.regimes)
    anchor = f"{part.anchor}-{_e(table.spec.name)}"
    parts = [f'<details class="fold"><summary><h4>{_e(table.title)}</h4></summary><div id="{anchor}">\n']
    if table.spec.caption:
        parts.append(f"<p>{_e(table.spec.caption)}</p>\n")
    panels = panels_for(table, part.tables_beside(table))
    plots = [chart.svg for chart in panels.values() if chart is not None]
    if plots:
        parts.append(_key(legend_for(table)))
        parts.append(f'<div class="plots">{"".join(plots)}</div>\n')
    if undrawn := [name for name, chart in panels.items() if chart is None]:
        parts.append(f'<p class="note">Not drawn, for want of runs: {_e("; ".join(undrawn))}.</p>\n')
    region = f'role="region" tabindex="0" aria-label="{_e(table.title)}"'
    parts.append(f'<div class="scroll" {region}><table class="numbers{"" if table.has_printed else " ours"}">')
    printed_head = '<th scope="col">Printed</th>' if table.has_printed else ""
    parts.append(f"<thead><tr><td></td>{printed_head}{head}</tr></thead><tbody>\n")
    section, columns = "", 1 + table.has_printed + len(table.regimes)
    for row in shown_rows(table.rows):
        if section_of(row) != section:
            section = section_of(row)
            parts.append(f'<tr class="section"><th scope="colgroup" colspan="{columns}">{_e(section)}</th></tr>\n')
        if not isinstance(row, Row):
            parts.append(f'<tr class="gap"><td class="hole" colspan="{columns}">{_gap(row)}</td></tr>\n')
            continue
        cells = "".join(_cell(row, row.cells[regime], regime, table.size) for regime in table.regimes)
        printed = f'<td data-head="Printed">{_printed(table, row)}</td>' if printed_head else ""
        parts.append(f'<tr><th scope="row">{_e(row.spec.label)}</th>{printed}{cells}</tr>\n')
    parts.append("</tbody></table></div>\n")
    parts += [f'<p class="note">{_e(note)}</p>\n' for note in table.notes]
    return "".join([*parts, "</div></details>\n"])


def _gap(gap: Gap) -> str:
    """Return a gap as one line, under which the printed numbers unfold."""
    if not gap.printed:
        return _e(gap.words)
    return f"<details><summary>{_e(gap.summary)}; printed</summary>{_e(gap.numbers)}</details>"


def _printed(table: Table, row: Row) -> str:
    """Return the printed number with the letter of its margin, and the reason if it is impossible."""
    mark = table.mark(row)
    number = _e(printed_text(row)) + (f" <sup>{_e(mark)}</sup>" if mark else "")
    why = impossible_text(row)
    return number + (f'<br><span class="chip {slug(IMPOSSIBLE)}">{_e(why)}</span>' if why else "")


def _cell(row: Row, cell: Cell | None, regime: str, size: str) -> str:
    own = f"in-{regime}"  # on a narrow screen the page says by this class which regime it is
    if cell is None:
        return f'<td class="{own}">{NOT_APPLICABLE}</td>'
    if cell.hole is not None:
        return f'<td class="hole {own}">{_e(cell.hole)}{_chip(row, cell, size)}</td>'
    if cell.texts:
        texts = f'{_quotes(cell.texts)}<span class="n">{_e(n_words(cell))}</span>'
        return f'<td class="{own}">{texts}{_chip(row, cell, size)}</td>'
    seeds = ", ".join(f"{seed}: {value:.6g}" for seed, value in cell.values.items())
    numbers = f'<b title="by seed: {_e(seeds)}">{_e(value_text(row, cell))}</b>'
    if interval := interval_text(row, cell):
        numbers += f' <span class="range">{_e(interval)}</span>'
    numbers += f' <span class="n">{_e(n_words(cell))}</span>'
    if spread := spread_text(cell):
        numbers += f' <span class="n">CV* {_e(spread)}</span>'
    return f'<td class="{own}">{numbers}{_chip(row, cell, size)}</td>'


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
    """Return the training curves of every experiment that measured more than once."""
    panels = training_curves(result.pool)
    if not panels:
        return ""
    shown = [
        (regime, REGIME_TITLES[regime].lower()) for regime in REGIMES if any(r == regime for _, r in result.pool.runs)
    ]
    alone = {record.name for record in result.pool.records()} - {experiment for experiment, _ in panels}
    once = f'<p class="note">Measured once, at the end: {_e(", ".join(sorted(alone)))}.</p>\n' if alone else ""
    return (
        '<details class="fold"><summary><h4>Training curves</h4></summary><div>\n'
        f'<p class="note">Mean over seeds, with its 95% interval from three on.</p>{_key(shown)}'
        f'<div class="plots">{"".join(chart.svg for chart in panels.values())}</div>\n{once}</div></details>\n'
    )


def _samples(records: Sequence[RunRecord]) -> str:
    """Return generated texts of the lowest seed of every experiment and regime, a few of each setting."""
    parts, seen = [], set()
    for record in records:
        key = (record.name, record.regime)
        if record.samples and key not in seen:
            seen.add(key)
            groups: dict[str, list[str]] = {}
            shown: Counter[tuple[str, str]] = Counter()
            for sample in record.samples:
                place = str(sample.get("path") or ""), str(sample.get("setting") or "")
                shown[place] += 1
                if shown[place] <= SAMPLES_SHOWN:
                    words = [word for word in place if word]
                    words += [f'"{sample["prompt"]}"'] if sample.get("prompt") else []
                    groups.setdefault(", ".join(words) or "samples", []).append(sample["text"])
            rows = "".join(f"<tr><th>{_e(name)}</th><td>{_quotes(texts)}</td></tr>" for name, texts in groups.items())
            title = f"{record.experiment}, {REGIME_TITLES[record.regime].lower()}, seed {record.seed}"
            parts.append(
                f'<details><summary>{_e(title)}</summary><div class="scroll"><table>{rows}</table></div></details>\n'
            )
    start = '<details class="fold"><summary><h4>Generated samples</h4></summary><div>'
    return f"{start}\n{''.join(parts)}</div></details>\n" if parts else ""


def _runs(result: Results) -> str:
    """Return the runs that the numbers come from."""
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
    runs = len(result.pool.trained())
    texts = [_plural(len(rows) - runs, "count") + " of its texts"] if len(rows) > runs else []
    behind = " and ".join([_plural(runs, "run"), *texts])
    return f"<details><summary><h4>{behind} behind these numbers</h4></summary>{table}</details>\n"


def _quotes(texts: Sequence[str]) -> str:
    return "".join(f"<q>{_e(text)}</q>" for text in texts)


def _e(text: str) -> str:
    return escape(printable(text), quote=True)


# --- the filter -----------------------------------------------------------------------------------------------------


def runs_words(result: Results) -> str:
    """Say how many runs a paper has, and of which size."""
    count = len(result.pool.trained())
    return f"{_plural(count, 'run')}, size {result.size}" if result.pool.records() else "no runs yet"


def _plural(count: int, word: str) -> str:
    return f"{count} {word}{'s' * (count != 1)}"


def slug(label: str) -> str:
    """Return a verdict's class name."""
    return label.replace(" ", "-")


def choices(shown: Sequence[Part]) -> dict[str, dict[str, str]]:
    """Return the filters of the page: group -> value -> words; groups with one value are left out."""
    ran = [part for part in shown if part.results.pool.records()]
    groups = {
        "paper": {part.results.paper: part.results.title for part in shown},
        "regime": {regime: title.lower() for regime, title in REGIME_TITLES.items()},
        "size": {part.results.size: part.results.size for part in ran},
        "records": {("own" if part.own else "committed"): part.origin for part in ran},
    }
    return {group: values for group, values in groups.items() if len(values) > 1}


def filter_rules(shown: Sequence[Part]) -> str:
    """Return the style rules that hide what is not selected."""
    rules = []
    for group, values in choices(shown).items():
        for value in values:
            chosen = f"body:has(#show-{group}-{value}:checked)"
            if group == "regime":
                others = [other for other in values if other != value]
                hidden = [f"{chosen} {where}{other}" for other in others for where in (".in-", "svg .", ".key .for-")]
                rules.append(f"{', '.join(hidden)} {{ display: none; }}")
            else:
                rules.append(f"{chosen} .part:not(.{group}-{value}) {{ display: none; }}")
    return "\n".join(rules)


def filter_form(shown: Sequence[Part]) -> str:
    """Return the radio buttons of the filter."""
    parts = []
    for group, values in choices(shown).items():
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
    return f'<div class="share" aria-hidden="true">{bar}</div><div class="counts">{words}</div>'


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
        paper, size, records: see ``publish.table_command``.
        target: ``html``; ``wandb`` publishes dashboards, or writes them to the folder ``out``; ``sweep`` writes the
            paper's W&B sweep to the file ``out``.
        out: file of the page, by default ``outputs/report.html``.
        entity, project: where dashboards go.
        console: where to report what was written.

    Raises:
        UserError: no such paper or target, or a file that cannot be written.
    """
    if target not in TARGETS:
        raise UserError(f"target={target}{did_you_mean(target, TARGETS)}; one of {', '.join(TARGETS)}")
    if out is not None:
        check_no_input(out)
    shown = console or Console()
    if target == "wandb":
        return _dashboards(paper, size, records, out, entity, project, shown)
    if target == "sweep":
        made = write_sweep(paper, out)
        shown.print(f"sweep: {made}; wandb sweep {made}", markup=False, highlight=False, soft_wrap=True)
        return 0
    with shown.status("reading records"):  # only on a terminal
        made = write_report(Path(out) if out is not None else DEFAULT_OUT, paper, size, records)
    shown.print(f"report: {made}", markup=False, highlight=False, soft_wrap=True)
    return 0


def write_sweep(paper: str | None, out: str | Path | None, root: Path | None = None) -> Path:
    """Write a paper's W&B sweep, the entry ``sweep`` of its manifest, as a file that ``wandb sweep`` reads.

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
        made = publish_dashboards(results, entity, project)
    else:
        made = list(map(str, write_dashboards(results, Path(out), entity or "entity", project)))
    for place in made:
        console.print(f"dashboard: {place}", markup=False, highlight=False, soft_wrap=True)
    for line in left_out:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return 0

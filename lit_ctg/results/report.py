"""The report: one self-contained HTML page; no script, no network.

Answers come first: for each paper one sentence, its picture and how many claims are supported, contradicted or
undecided; then the claims; then tables, curves and samples, folded. The user's own runs of a paper are shown beside its
committed records, and the page says which is which and whether they agree; other papers show their committed records.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, Template
from markupsafe import Markup

from lit_ctg import __version__
from lit_ctg.errors import UserError
from lit_ctg.files import write_atomic
from lit_ctg.results.figure import headline_picture, legend_for, panels_for, training_curves
from lit_ctg.results.gather import ALL, AUTO, all_results, gather, twins
from lit_ctg.results.publish import fill_readme, publish_dashboards, write_dashboards
from lit_ctg.results.record import RECORDS, REGIMES, RunRecord, check_no_input
from lit_ctg.results.render import (
    NOT_APPLICABLE,
    REGIME_TITLES,
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
from lit_ctg.results.table import Cell, RecordPool, Results, Row, Table
from lit_ctg.results.verdict import CLAIM_LABELS, HOW, LEGEND, NOT_RUN, NUMBER_LABELS
from lit_ctg.terminal import Console, printable

DEFAULT_OUT = Path("outputs") / "report.html"
# texts shown per route and setting of a control, whatever their prompts; the rest stays in samples.jsonl
SAMPLES_SHOWN = 4
# notes above a paper's tables; the others are listed with the holes
NOTES_SHOWN = 3
RUN_COLUMNS = ("experiment", "regime", "seed", "commit", "device", "parameters", "seconds", "tokens/s", "started")


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
    def group(self) -> str:
        """The value of the filter that shows it."""
        return "own" if self.own else "committed"

    @property
    def anchor(self) -> str:
        return f"{'own-' * self.own}{self.results.paper}-{self.results.size}"

    @property
    def classes(self) -> str:
        """The classes by which the filter finds it."""
        return f"part paper-{self.results.paper} size-{self.results.size} records-{self.group}"

    @property
    def command(self) -> str:
        return f"lit-ctg reproduce paper={self.results.paper} size={self.results.size}"

    @property
    def summary(self) -> tuple[str, ...]:
        headline = self.results.manifest.headline if self.results.manifest is not None else None
        return headline.summary if headline is not None else ()

    @property
    def claims(self) -> dict[str, Any]:
        """The rows of the headline, all judged claims, how many of all that is, and how many were not run."""
        result = self.results
        headline = result.manifest.headline if result.manifest is not None else None
        short = [(wanted["says"], *result.named(wanted)) for wanted in (headline.rows if headline is not None else ())]
        tables = {id(row): table for table in result.tables for row in table.rows}
        every = result.counted(True)
        tried = [(": ".join(filter(None, (row.spec.section, row.spec.label))), tables[id(row)], row)
                 for row in every if row.ran]  # fmt: skip
        words = f"{'all ' * (len(tried) == len(every) > 1)}{plural(len(tried), 'claim')} tried"
        short = [(says, table, row) for says, table, row in short if row.ran]
        return {"short": short, "judged": tried, "words": words, "absent": len(every) - len(tried)}


def write_report(
    out: Path,
    paper: str | None = None,
    size: str | None = None,
    records: Sequence[Path | str] | None = None,
    root: Path | None = None,
) -> Path:
    """Write the page for one paper, or for all, to ``out``, whole or not at all; return its path.

    Size "auto" shows every size with finished runs.
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
    css = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    count = sum(len(part.results.pool.trained()) for part in shown)
    mine = sum(len(part.results.pool.trained()) for part in shown if part.own)
    whose = f"{mine} of your own, {count - mine} committed" if mine else plural(count, "run")
    style = css + filter_rules(shown)
    # pictures share the styles that many parts have, and no name of a part
    html = template().render(shown=shown, left_out=left_out, style=style, whose=whose).lstrip()
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


@cache
def template() -> Template:
    """Return ``report.html``, which escapes whatever it inserts, control characters included."""
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, finalize=_shown)
    environment.globals |= {thing.__name__: thing for thing in _SHOWN} | {
        "version": __version__, "REGIME_TITLES": REGIME_TITLES, "NOT_APPLICABLE": NOT_APPLICABLE, "RULES": HOW,
        "LEGEND": LEGEND, "CLAIM_LABELS": CLAIM_LABELS, "NUMBER_LABELS": NUMBER_LABELS, "NOTES_SHOWN": NOTES_SHOWN,
        "ALL": ALL, "RUN_COLUMNS": RUN_COLUMNS,
    }  # fmt: skip
    return environment.from_string(Path(__file__).with_name("report.html").read_text(encoding="utf-8"))


def _shown(value: object) -> object:
    return "" if value is None else value if isinstance(value, Markup) else printable(str(value))


# --- what the template asks for -------------------------------------------------------------------------------------


def answers(shown: Sequence[Part]) -> list[dict[str, Any]]:
    """Return a card a paper: its outcome, first detail, parts, and a picture for the user's and the committed runs."""
    cards = []
    for _, group in itertools.groupby(shown, key=lambda part: part.results.paper):
        own = sorted(group, key=lambda part: not part.own)
        sides = []
        for _, same in itertools.groupby(own, key=lambda part: part.own):
            mine = list(same)
            # of the first size that has one
            pictures = (headline_picture(part.results, part.beside) for part in mine)
            side = {"group": mine[0].group, "origin": mine[0].origin}
            sides.append({**side, "picture": next((one for one in pictures if one is not None), None)})
        first = own[0].results
        detail = next(iter(own[0].summary), "") if first.pool.records() else ""
        about = first.manifest.about if first.manifest is not None else None
        sentence = about.found if about is not None and detail else detail
        cards.append({"first": first, "sentence": sentence, "detail": detail, "parts": own, "sides": sides})
    return cards


def judged(result: Results, claims: bool) -> dict[str, Counter[str]]:
    """Return the verdicts on claims, or on printed numbers, of each regime that was run."""
    found = {regime: result.verdicts(regime, claims) for regime in REGIME_TITLES}
    return {regime: counts for regime, counts in found.items() if counts and set(counts) != {NOT_RUN}}


def no_claims(part: Part) -> str:
    """Say why a part has no verdict on a claim."""
    if not part.results.pool.records():
        return f"Nothing was run yet: {part.command}"
    if any(row.is_claim and row.ran for table in part.results.shown for row in table.rows):
        return "Its claims repeat those of another table, which counts them."
    return "None of the claims was tried at this size."


def chip_words(row: Row, cell: Cell, size: str) -> str:
    """Return the words of a verdict without the finding, which has a line below it."""
    verdict = cell.verdict if row.judged or cell.hole is not None else None
    if verdict is None or (cell.hole is not None and verdict.label == NOT_RUN and "not run" in cell.hole):
        return ""
    return verdict_text(row, cell, size).removesuffix(cell.finding).removesuffix("; ")


def seeds(cell: Cell) -> str:
    """Return the values of a cell by seed."""
    return ", ".join(f"{seed}: {value:.6g}" for seed, value in cell.values.items())


def hole_lines(result: Results) -> list[str]:
    """Return every hole once, and the notes that are not shown above the tables."""
    cells = [cell for table in result.tables for row in table.rows for cell in row.cells.values()]
    holes = Counter(cell.hole for cell in cells if cell is not None and cell.hole is not None)
    return [f"{hole} ({plural(count, 'cell')})" for hole, count in holes.items()] + [*result.notes[NOTES_SHOWN:]]


def legend_of_runs(pool: RecordPool) -> list[tuple[str, str]]:
    """Return the regimes that were run, with their names."""
    return [(regime, REGIME_TITLES[regime].lower()) for regime in REGIMES if any(own == regime for _, own in pool.runs)]


def measured_once(pool: RecordPool, panels: Iterable[tuple[str, str]]) -> list[str]:
    """Return the experiments that have no training curve."""
    return sorted({record.name for record in pool.records()} - {experiment for experiment, _ in panels})


def sample_groups(records: Sequence[RunRecord]) -> list[tuple[str, dict[str, list[str]]]]:
    """Return texts of the lowest seed of every experiment and regime, a few of each setting, by their settings."""
    found, seen = [], set()
    for record in records:
        key = (record.name, record.regime)
        if not record.samples or key in seen:
            continue
        seen.add(key)
        groups: dict[str, list[str]] = {}
        shown: Counter[tuple[str, str]] = Counter()
        for sample in record.samples:
            place = str(sample.get("path") or ""), str(sample.get("setting") or "")
            shown[place] += 1
            if shown[place] <= SAMPLES_SHOWN:
                words = [*filter(None, place), *([f'"{sample["prompt"]}"'] if sample.get("prompt") else [])]
                groups.setdefault(", ".join(words) or "samples", []).append(sample["text"])
        found.append((f"{record.experiment}, {REGIME_TITLES[record.regime].lower()}, seed {record.seed}", groups))
    return found


def run_words(record: RunRecord) -> list[object]:
    """Return one run behind the numbers, as ``RUN_COLUMNS`` has it."""
    commit = str(record.git.get("commit") or "unknown")[:10] + (" + changes" if record.git.get("dirty") else "")
    measured = [record.parameters, record.wall_time_s, record.tokens_per_s, record.started_at]
    return [record.name, record.regime, record.seed, commit, record.device, *measured]


def runs_words(result: Results) -> str:
    """Say how many runs a paper has, and of which size."""
    count = len(result.pool.trained())
    return f"{plural(count, 'run')}, size {result.size}" if result.pool.records() else "no runs yet"


def plural(count: int, word: str) -> str:
    """Return e.g. ``2 runs``."""
    return f"{count} {word}{'s' * (count != 1)}"


def capital(words: str) -> str:
    """Return words with a capital letter at their start."""
    return words[:1].upper() + words[1:]


def slug(label: str) -> str:
    """Return a verdict's class name."""
    return label.replace(" ", "-")


def choices(shown: Sequence[Part]) -> dict[str, dict[str, str]]:
    """Return the filters of the page: group -> value -> words; groups with one value are left out."""
    with_runs = [part for part in shown if part.results.pool.records()]
    groups = {
        "paper": {part.results.paper: part.results.title for part in shown},
        "regime": {regime: title.lower() for regime, title in REGIME_TITLES.items()},
        "size": {part.results.size: part.results.size for part in with_runs},
        "records": {part.group: part.origin for part in with_runs},
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


_SHOWN: tuple[Callable[..., Any], ...] = (
    answers, capital, chip_words, choices, hole_lines, impossible_text, interval_text, judged, legend_for,
    legend_of_runs, measured_once, n_words, no_claims, panels_for, plural, printed_text, run_words, runs_words,
    sample_groups, section_of, seeds, shown_rows, slug, spread_text, training_curves, value_text,
)  # fmt: skip


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
        target: ``html``; ``wandb`` publishes dashboards, or writes them to the folder ``out``; ``sweep`` writes the
            paper's W&B sweep to the file ``out``; ``readme`` fills the table of papers in ``out`` (README.md).
        out: file of the page, by default ``outputs/report.html``.
        console: where to report what was written.
    """
    if out is not None:
        check_no_input(out)
    shown = console or Console()
    if target == "wandb":
        return _dashboards(paper, size, records, out, entity, project, shown)
    if target == "readme":
        return fill_readme(Path(out or "README.md"), Path((records or ["experiments"])[0]))
    if target == "sweep":
        made = write_sweep(paper, out)
        shown.print(f"sweep: {made}; wandb sweep {made}", markup=False, highlight=False, soft_wrap=True)
        return 0
    with shown.status("reading records"):  # only on a terminal
        made = write_report(Path(out) if out is not None else DEFAULT_OUT, paper, size, records)
    shown.print(f"report: {made}", markup=False, highlight=False, soft_wrap=True)
    return 0


def write_sweep(paper: str | None, out: str | Path | None) -> Path:
    """Write a paper's W&B sweep, the entry ``sweep`` of its manifest, as a file that ``wandb sweep`` reads.

    Raises:
        UserError: no paper or file is named, or the paper has no sweep.
    """
    if paper in (None, "all") or out is None:
        raise UserError("target=sweep needs paper=<one paper> and out=<file>")
    manifest = load_manifest(experiments_root(paper), str(paper))
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

"""Where results go: tables on the terminal or in a file, the README, Every Eval Ever, W&B."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lit_ctg.errors import UserError
from lit_ctg.files import reading, write_atomic
from lit_ctg.results.gather import gather
from lit_ctg.results.record import RECORDS, RunRecord, check_no_input, check_plain
from lit_ctg.results.render import (
    REGIME_TITLES,
    escape_markdown,
    print_tables,
    render_all,
)
from lit_ctg.results.spec import About, Manifest, load_manifest, papers, place_of
from lit_ctg.results.table import Results, source_name, sources_of
from lit_ctg.results.verdict import domain_of
from lit_ctg.terminal import Console

if TYPE_CHECKING:
    from wandb_workspaces.reports.v2 import Report
    from wandb_workspaces.workspaces import Workspace


def table_command(
    paper: str | None = None,
    size: str | None = None,
    format: str = "text",
    records: Sequence[str | Path] | None = None,
    out: str | Path | None = None,
    console: Console | None = None,
) -> int:
    """Print the tables of a paper, or of all, or write them to a file.

    Args:
        paper: name of a paper; None or "all" for all.
        size: see ``gather``.
        format: text, md (markdown), latex, csv or eee, which writes a file for every run.
        records: folders and files with records; default: see ``results_for``.
        out: file to write instead of printing; with format=eee the folder.
        console: where to print.

    Raises:
        UserError: no such paper, size or format, or ``out`` cannot be written.
    """
    format = "md" if format == "markdown" else format
    if out is not None:
        check_no_input(out)
    results, left_out = gather(paper, size, records)
    often = {name for name, count in Counter(result.paper for result in results).items() if count > 1}
    tables = [table.of_its_size() if result.paper in often else table for result in results for table in result.shown]
    # the sizes of a table follow each other
    tables.sort(key=lambda table: (table.spec.paper, *place_of(table.spec)))
    notes = [*(note for result in results for note in result.notes), *left_out]
    shown = console or Console()
    if format == "eee":
        if out is None:
            raise UserError("format=eee writes a file for every run: give out=<folder>")
        count = write_evaluations([record for result in results for record in result.pool.records()], Path(out))
        shown.print(f"written: {count} runs to {out}", markup=False, highlight=False, soft_wrap=True)
    elif out is not None:
        write_atomic(Path(out), render_all(tables, format, notes))
        shown.print(f"written: {out}", markup=False, highlight=False, soft_wrap=True)
    elif format == "text" and shown.is_terminal:
        print_tables(tables, shown, notes)
    else:
        print(render_all(tables, format, notes), end="")
    if format == "csv" or out is not None:
        for line in left_out:
            shown.print(line, markup=False, highlight=False, soft_wrap=True)
    return 0


# --- the README: `lit-ctg report target=readme out=README.md` ---------------------------------------------------------


# Between its marks the README has a table of the papers with records: paper, method and finding, from ``about`` in each
# manifest (``spec.py``). A broken manifest is left out with a line. A new paper needs no change of the README.

BEGIN = "<!-- papers: written by `make tables` from experiments/<paper>/paper.yaml -->"
END = "<!-- end of papers -->"


def readme_section(root: Path) -> str:
    """Return the papers below ``root`` that have records as a Markdown table, without the marks."""
    lines = ["| paper | what it does | what we found |", "| --- | --- | --- |"]
    left_out = []
    for name in papers(root):
        try:
            manifest = load_manifest(root, name)
        except UserError as error:
            left_out.append(f"\n{name}: left out: {escape_markdown(str(error))}")
            continue
        if manifest.about is not None and any((root / name / RECORDS).glob("*")):
            lines.append(_readme_row(manifest, manifest.about))
    return "\n".join([*lines, *left_out]) + "\n"


def _readme_row(manifest: Manifest, about: About) -> str:
    title = manifest.title[:1].upper() + manifest.title[1:]
    links = [f"[paper]({about.link})", *([f"[their code]({about.code})"] if about.code else [])]
    paper = f"[**{escape_markdown(title)}**](docs/papers/{manifest.paper}.md), {escape_markdown(about.authors)}"
    return f"| {paper}: {', '.join(links)} | {escape_markdown(about.does)} | {escape_markdown(about.found)} |"


def filled(text: str, root: Path) -> str:
    """Return a README with its table of papers updated.

    Raises:
        UserError: the marks are not there exactly once each and in order.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end) or BEGIN in after or END in before + after:
        raise UserError(f"the README needs the lines '{BEGIN}' and '{END}', once each and in this order")
    return f"{before}{BEGIN}\n\n{readme_section(root)}\n{END}{after}"


# --- Every Eval Ever: `lit-ctg table format=eee` --------------------------------------------------------------------


# One document per run, so that others can read our results beside theirs, in version 0.3.0 of the shared schema
# (https://github.com/evaleval/every_eval_ever, ``eval.schema.json``). Each measured number that has a direction becomes
# an evaluation result with its unit, bounds and interval. The schema has no place for printed numbers or verdicts;
# they stay in our tables. Its package needs Python 3.12 and is not a dependency; ``every_eval_ever validate`` checks
# the folder.

EVALUATION_SCHEMA = "0.3.0"
LEVEL = 0.95


def evaluation(record: RunRecord) -> dict[str, Any]:
    """Return a finished run as a document of the schema.

    Numbers without a direction (counts, mere references) and those that are NaN or infinite have no place there.
    """
    began = str(int(datetime.fromisoformat(record.started_at).timestamp()))
    model = f"{record.paper}-{record.name}-{record.regime}-{record.size}"
    data = _source(record)
    return {
        "schema_version": EVALUATION_SCHEMA,
        "evaluation_id": f"{record.paper}/lit_ctg_{model}-seed{record.seed}/{began}",
        "evaluation_timestamp": record.started_at,
        # the run's time, so that the same record gives the same document
        "retrieved_timestamp": began,
        "source_metadata": {
            "source_name": "lit_ctg run records",
            "source_type": "evaluation_run",
            "source_organization_name": "lit_ctg",
            "evaluator_relationship": "first_party",
            "additional_details": {
                "commit": str(record.git.get("commit")),
                "configuration": record.config_hash,
                "processor": str(record.processor),
                "threads": str(record.threads),
            },
        },
        "eval_library": {"name": "lit_ctg", "version": version("lit_ctg")},
        "model_info": {
            "name": f"{record.paper}/{record.name}, {record.regime}, size {record.size}",
            "id": f"lit_ctg/{model}",
            "developer": "lit_ctg",
            "additional_details": {
                "deployment_type": "self_deployed",
                "model_availability": "unknown",
                "parameters": str(record.parameters),
                "seed": str(record.seed),
            },
        },
        "evaluation_results": [
            _result(name, entry, data)
            for name, entry in sorted(record.metrics.items())
            if entry["direction"] in ("lower", "higher") and math.isfinite(entry["value"])
        ],
    }


def _source(record: RunRecord) -> dict[str, Any]:
    """Return what the run read: generated corpora, local folders or data sets of the hub."""
    names = {source_name(*source) for source in sources_of(record.config)}
    return {"dataset_name": ", ".join(sorted(names)) or f"generated by {record.paper}", "source_type": "other"}


def _result(name: str, entry: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
    domain = domain_of(entry["unit"], entry["direction"])
    details: dict[str, Any] = {"score": entry["value"], "details": {"version": str(entry["version"])}}
    uncertainty: dict[str, Any] = {"num_samples": entry["n"]} if entry["n"] else {}
    if entry["ci95"] is not None and all(map(math.isfinite, entry["ci95"])):
        low, high = entry["ci95"]
        uncertainty["confidence_interval"] = {"lower": low, "upper": high, "confidence_level": LEVEL}
    if uncertainty:
        details["uncertainty"] = uncertainty
    return {
        "evaluation_result_id": name,
        "evaluation_name": name,
        "source_data": data,
        "metric_config": {
            "metric_id": f"lit_ctg.{name}",
            "metric_name": name,
            "metric_unit": entry["unit"],
            "lower_is_better": entry["direction"] == "lower",
            "score_type": "continuous",
            "min_score": _bound(domain.low),
            "max_score": _bound(domain.high),
        },
        "score_details": details,
    }


def _bound(value: float) -> float | str:
    """Return a number, or the schema's word for an infinite one."""
    return value if math.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")


def write_evaluations(records: Iterable[RunRecord], folder: Path) -> int:
    """Write one file per finished run into ``folder``; return how many.

    Raises:
        UserError: the folder cannot be written, or a record's paper or name is not a plain folder name.
    """
    count = 0
    for record in records:
        check_plain(record)
        path = folder / record.paper / record.name / f"{record.regime}-{record.size}-seed{record.seed}.json"
        write_atomic(path, json.dumps(evaluation(record), indent=1, ensure_ascii=False, allow_nan=False) + "\n")
        count += 1
    return count


# --- W&B dashboards: `lit-ctg report target=wandb` ------------------------------------------------------------------


# Dashboards as code: one workspace and one report per paper, from its tables and records.

# tables that every run logs (callback/wandb_tables.py)
LOGGED_TABLES = ("generations", "samples", "metrics", "verdicts")
LINES_A_PANEL = 8
PANELS_A_SECTION = 12


def metric_panels(results: Results) -> dict[str, dict[str, list[str]]]:
    """Return the curves of a paper's runs: section -> panel title -> metrics of one unit."""
    units: dict[str, str] = {}
    curves: set[str] = set()
    for record in results.pool.records():
        curves |= set(record.history)
        units |= {name: str(entry["unit"]) for name, entry in record.metrics.items()}
    sections: dict[str, dict[str, list[str]]] = {"training": {"loss in nats": ["train/loss"]}}
    for name in sorted(curves):
        family, _, rest = name.partition("/")
        title = f"{rest.split('/')[0]}, {units.get(name, '')}".rstrip(", ")
        sections.setdefault(family, {}).setdefault(title, []).append(name)
    return sections


def _line_plots(panels: Mapping[str, Sequence[str]]) -> list[Any]:
    import wandb_workspaces.reports.v2 as wr

    return [
        wr.LinePlot(title=title, x="Step", y=list(names[:LINES_A_PANEL]), max_runs_to_show=20)
        for title, names in list(panels.items())[:PANELS_A_SECTION]
    ]


def workspace(results: Results, entity: str, project: str) -> Workspace:
    """Return the workspace of a paper: curves by kind, then the tables that runs log."""
    import wandb_workspaces.reports.v2 as wr
    import wandb_workspaces.workspaces as ws

    sections = [
        ws.Section(name=name, panels=_line_plots(panels), is_open=True)
        for name, panels in metric_panels(results).items()
    ]
    tables = [wr.WeavePanelSummaryTable(table_name=name) for name in LOGGED_TABLES]
    sections.append(ws.Section(name="tables", panels=tables, is_open=True))
    return ws.Workspace(
        name=f"lit_ctg: {results.paper} ({results.size})",
        entity=entity,
        project=project,
        sections=sections,
        runset_settings=ws.RunsetSettings(filters=[ws.Tags().isin([tag]) for tag in (results.paper, results.size)]),
    )


def wandb_report(results: Results, entity: str, project: str) -> Report:
    """Return the report of a paper: verdict counts, every table against the paper, and the curves."""
    import wandb_workspaces.reports.v2 as wr

    blocks: list[Any] = [wr.TableOfContents(), wr.H1("Verdicts"), wr.MarkdownBlock(text=_verdict_counts(results))]
    blocks += [wr.H1("Tables"), wr.MarkdownBlock(text=render_all(results.shown, "md", results.notes))]
    # a run set without a project takes the report's, so building one needs no server
    runs = wr.Runset(name=results.paper, filters=f"Tags in ['{results.paper}'] and Tags in ['{results.size}']")
    for name, panels in metric_panels(results).items():
        blocks += [wr.H1(name), wr.PanelGrid(runsets=[runs], panels=_line_plots(panels))]
    return wr.Report(
        entity=entity,
        project=project,
        title=f"lit_ctg: {results.paper} ({results.size})",
        description="Printed numbers beside ours, as published and corrected",
        blocks=blocks,
    )


def _verdict_counts(results: Results) -> str:
    lines = []
    for regime, title in REGIME_TITLES.items():
        for claims, words in ((True, "claims"), (False, "printed numbers")):
            counts = results.verdicts(regime, claims)
            labels = ", ".join(f"{count} {label}" for label, count in counts.most_common())
            lines.append(f"- {title}, {words}: {labels or 'none judged'}")
    return "\n".join(lines)


def serialised(made: Workspace | Report) -> str:
    """Return what would be sent to W&B, as JSON."""
    return json.dumps(json.loads(made._to_model().model_dump_json(by_alias=True)), indent=1, sort_keys=True) + "\n"


def write_dashboards(results: Sequence[Results], folder: Path, entity: str, project: str) -> list[Path]:
    """Write every workspace and report to ``folder`` instead of publishing them; return the files."""
    written = []
    for result in results:
        for name, made in _both(result, entity, project).items():
            written.append(folder / f"{result.paper}-{result.size}-{name}.json")
            write_atomic(written[-1], serialised(made))
    return written


def publish_dashboards(results: Sequence[Results], entity: str, project: str) -> list[str]:
    """Save every workspace and report in W&B; return their addresses.

    Raises:
        UserError: not logged in, offline, or W&B refuses.
    """
    links = []
    for result in results:
        for name, made in _both(result, entity, project).items():
            try:
                made.save()
            except Exception as error:  # whatever the client raises, the user gets one line
                reason = " ".join(str(error).split())
                raise UserError(
                    f"W&B did not take the {name} of {result.paper} ({result.size}): {reason}; log in with `wandb "
                    "login`, or write the files with out=FOLDER"
                ) from error
            links.append(str(made.url))
    return links


def _both(result: Results, entity: str, project: str) -> dict[str, Workspace | Report]:
    try:
        return {"workspace": workspace(result, entity, project), "report": wandb_report(result, entity, project)}
    except ImportError as error:
        raise UserError("target=wandb needs wandb-workspaces: pip install 'lit-ctg[dashboards]'") from error


def fill_readme(readme: Path, root: Path) -> int:
    """Write the table of papers between the marks of a README.

    Raises:
        UserError: there is no such file, or it has no marks.
    """
    with reading(readme, "a README", "give another out="):
        text = readme.read_text(encoding="utf-8")
    write_atomic(readme, filled(text, root))
    print(f"papers written to {readme}")
    return 0

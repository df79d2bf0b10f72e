"""W&B dashboards as code: one workspace and one report a paper, from its tables and records.

``lit-ctg report target=wandb`` publishes them; ``out=FOLDER`` writes what would be sent and sends nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lit_ctg.errors import UserError
from lit_ctg.files import write_atomic
from lit_ctg.results.render import REGIME_TITLES, render_all
from lit_ctg.results.table import Results

if TYPE_CHECKING:
    from wandb_workspaces.reports.v2 import Report
    from wandb_workspaces.workspaces import Workspace

# tables that every run logs (callback/wandb_tables.py)
TABLES = ("generations", "samples", "metrics", "verdicts")
LINES_A_PANEL = 8
PANELS_A_SECTION = 12


def metric_panels(results: Results) -> dict[str, dict[str, list[str]]]:
    """Return the curves of a paper's runs: section -> title of a panel -> metrics of one unit."""
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
    tables = [wr.WeavePanelSummaryTable(table_name=name) for name in TABLES]
    sections.append(ws.Section(name="tables", panels=tables, is_open=True))
    return ws.Workspace(
        name=f"lit_ctg: {results.paper}",
        entity=entity,
        project=project,
        sections=sections,
        runset_settings=ws.RunsetSettings(filters=[ws.Tags().isin([results.paper])]),
    )


def report(results: Results, entity: str, project: str) -> Report:
    """Return the report of a paper: verdict counts, every table against the paper, and the curves."""
    import wandb_workspaces.reports.v2 as wr

    blocks: list[Any] = [wr.TableOfContents(), wr.H1("Verdicts"), wr.MarkdownBlock(text=_verdicts(results))]
    blocks += [wr.H1("Tables"), wr.MarkdownBlock(text=render_all(results.tables, "md", results.notes))]
    # a run set without a project is that of the report's own, so building one asks no server
    runs = wr.Runset(name=results.paper, filters=f"Tags in ['{results.paper}']")
    for name, panels in metric_panels(results).items():
        blocks += [wr.H1(name), wr.PanelGrid(runsets=[runs], panels=_line_plots(panels))]
    return wr.Report(
        entity=entity,
        project=project,
        title=f"lit_ctg: {results.paper} ({results.size})",
        description="Printed numbers beside ours, as published and corrected",
        blocks=blocks,
    )


def _verdicts(results: Results) -> str:
    lines = []
    for regime, title in REGIME_TITLES.items():
        for claims, words in ((True, "claims"), (False, "printed numbers")):
            counts = results.verdicts(regime, claims)
            told = ", ".join(f"{count} {label}" for label, count in counts.most_common())
            lines.append(f"- {title}, {words}: {told or 'none judged'}")
    return "\n".join(lines)


def serialised(made: Workspace | Report) -> str:
    """Return what would be sent to W&B, as JSON."""
    return json.dumps(json.loads(made._to_model().model_dump_json(by_alias=True)), indent=1, sort_keys=True) + "\n"


def write(results: Sequence[Results], folder: Path, entity: str, project: str) -> list[Path]:
    """Write every workspace and report to ``folder`` instead of publishing them; return the files."""
    written = []
    for result in results:
        for name, made in _both(result, entity, project).items():
            written.append(folder / f"{result.paper}-{name}.json")
            write_atomic(written[-1], serialised(made))
    return written


def publish(results: Sequence[Results], entity: str, project: str) -> list[str]:
    """Save every workspace and report at W&B; return their addresses.

    Raises:
        UserError: not logged in, offline, or W&B refuses.
    """
    links = []
    for result in results:
        for name, made in _both(result, entity, project).items():
            try:
                made.save()
            except Exception as error:  # whatever the client raises, the user needs one line
                reason = " ".join(str(error).split())
                raise UserError(
                    f"W&B did not take the {name} of {result.paper}: {reason}; log in with `wandb login`, or write the "
                    "files with out=FOLDER"
                ) from error
            links.append(str(made.url))
    return links


def _both(result: Results, entity: str, project: str) -> dict[str, Workspace | Report]:
    try:
        return {"workspace": workspace(result, entity, project), "report": report(result, entity, project)}
    except ImportError as error:
        raise UserError("target=wandb needs wandb-workspaces: pip install 'lit-ctg[dashboards]'") from error

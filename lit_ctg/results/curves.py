"""Training curves of the report: what runs measured epoch by epoch, mean over seeds, both regimes in one panel."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from lit_ctg.results.figure import Line, line_chart
from lit_ctg.results.interval import domain_of, mean_interval
from lit_ctg.results.pool import RecordPool
from lit_ctg.results.record import RunRecord
from lit_ctg.results.verdict import MIN_SEEDS

# of each family of measures (train, val, ...) the first of these that there is, else the first by name
PREFERRED = ("perplexity", "loss", "cross_entropy")


def curve_metrics(records: Sequence[RunRecord]) -> list[str]:
    """Return one measure of each family that some run has at two epochs or more."""
    families: dict[str, list[str]] = {}
    for name in sorted({name for r in records for name, points in r.history.items() if len(points) > 1}):
        family, _, rest = name.partition("/")
        families.setdefault(family, []).append(rest)
    return [f"{family}/{_first(names)}" for family, names in families.items()]


def _first(names: Sequence[str]) -> str:
    return next((wanted for wanted in PREFERRED if wanted in names), names[0])


def training_curves(pool: RecordPool) -> dict[tuple[str, str], str]:
    """Return (experiment, measure) -> SVG, a panel each; runs that measured once have none."""
    panels: dict[tuple[str, str], str] = {}
    for experiment in dict.fromkeys(name for name, _ in pool.runs):
        runs = {regime: found for (name, regime), found in pool.runs.items() if name == experiment}
        records = [record for found in runs.values() for record in found.values()]
        for metric in curve_metrics(records):
            unit, direction = _unit(records, metric)
            lines = [line for regime, found in runs.items() if (line := _line(regime, found, metric, unit, direction))]
            y = metric if metric.endswith(unit) else f"{metric}, {unit}"
            log = unit.startswith("perplexity")
            if lines:
                chart = line_chart(experiment, lines, x="epoch", y=y, log=log, about="Training curve. ")
                panels[experiment, metric] = chart
    return panels


def _unit(records: Sequence[RunRecord], metric: str) -> tuple[str, str]:
    found = next((record.metrics[metric] for record in records if metric in record.metrics), None)
    return (str(found["unit"]), str(found["direction"])) if found else (metric.rpartition("/")[2], "none")


def _line(regime: str, runs: Mapping[int, RunRecord], metric: str, unit: str, direction: str) -> Line | None:
    """Return the mean over seeds at the epochs that all of them have."""
    curves = [dict(map(tuple, record.history.get(metric, []))) for record in runs.values()]
    curves = [curve for curve in curves if len(curve) > 1]
    if not curves:
        return None
    points, band = [], {}
    for epoch in sorted(set.intersection(*map(set, curves))):
        values = [curve[epoch] for curve in curves]
        points.append((float(epoch), statistics.fmean(values)))
        if len(values) >= MIN_SEEDS and all(map(math.isfinite, values)):
            interval = mean_interval(values, domain_of(unit, direction))
            if interval is not None:
                band[float(epoch)] = interval
    return Line(regime, points, band) if len(points) > 1 else None

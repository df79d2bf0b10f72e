"""Table specifications, ``experiments/<paper>/table_*.yaml`` and ``figure_*.yaml``, and the printed numbers they name.

A specification is a mapping::

    title: ...            table: "1"  (its number in paper_numbers.csv)      caption: ...
    digits: 3             plot: {kind: line|bars|matrix|words, ...}  (see plot_spec.py)
    names: {...}          only a place for YAML anchors
    defaults: {...}       keys every row gets unless it has them itself
    rows:
      - label: Fusion, perplexity
        for: {model: [a, b]}              # optional: a row for every combination; "{model}" is filled in everywhere
                                          # {a: A} gives "{model:label}", {a: {experiment: m}} "{model:experiment}" too
        printed: {row: fusion, column: ppl}   # or a list, combined as the terms are; {value: text} for a printed text
        experiment: main
        metric: val/perplexity            # or {as_published: ..., corrected: ...}; "run/parameters" reads the record
        epoch: 3                          # reads the history instead
        combine: difference|ratio|percent_change|sum|mean     of    terms: [{experiment: ..., metric: ...}, ...]
        tolerance: {relative: 0.05, why: ...} or {absolute: ...}
        floor, ceiling, reference, expectation: a number, or {number, metric, experiment, note}; or one for each regime
        claim: less|greater               # a paired difference with a stated sign; its size may be printed or not
        not_run: why                      # what to say where there is no run, e.g. of a model that cannot be had
        goal: {at_most: 1.25} or {at_least: 0.3}
        interval: seeds|wilson|folds|none # Student t over seeds (folds: of one seed over its folds), Wilson over the
                                          # pooled trials, or an exact number
        regimes: [corrected]              # the others do not apply
        seeds: [111]                      # only these, or {as_published: [111]}; default: all there are
        section, series, x, y, unit, digits: where the row stands in table and plot
        samples: {where: {...}, show: 3, expect: regex}       # a row of generated texts
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from lit_ctg.errors import UserError, did_you_mean
from lit_ctg.results.plot_spec import check_plot
from lit_ctg.results.schema import REGIMES
from lit_ctg.results.verdict import Tolerance

# the same language, several times as fast where libyaml is there
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
COMBINATIONS = ("difference", "ratio", "percent_change", "sum", "mean")
_TABLE_KEYS = ("title", "table", "caption", "digits", "plot", "names", "defaults", "rows")


@dataclass(frozen=True)
class Quantity:
    """A bound or reference: a metric of the same seeds' records where they have it, else a stated number."""

    number: float | None = None
    metric: str | None = None
    experiment: str | None = None
    note: str = ""


@dataclass(frozen=True)
class Printed:
    """A printed number: its value, and the characters it was printed with."""

    value: float | None
    text: str
    unit: str = ""


@dataclass(frozen=True)
class RowSpec:
    """One row as specified; dictionaries keyed by regime are filled for every regime."""

    label: str
    experiment: str = "main"
    metric: dict[str, str | None] = field(default_factory=dict)
    epoch: int | None = None
    printed: Any = None
    combine: str | None = None
    terms: tuple[tuple[str, dict[str, str | None]], ...] = ()
    tolerance: Tolerance | None = None
    floor: dict[str, Quantity | None] = field(default_factory=dict)
    ceiling: dict[str, Quantity | None] = field(default_factory=dict)
    reference: dict[str, Quantity | None] = field(default_factory=dict)
    expectation: dict[str, Quantity | None] = field(default_factory=dict)
    claim: str | None = None
    not_run: str = ""
    goal: dict[str, float] | None = None
    interval: str = "seeds"
    regimes: tuple[str, ...] = REGIMES
    seeds: dict[str, list[int] | None] = field(default_factory=dict)
    section: str = ""
    series: str = ""
    x: Any = None
    y: Any = None
    unit: str = ""
    digits: int = 3
    samples: dict[str, Any] | None = None


@dataclass(frozen=True)
class TableSpec:
    """One table as specified; ``name`` is the file's stem."""

    paper: str
    name: str
    title: str
    caption: str
    table: str
    rows: tuple[RowSpec, ...]
    plot: dict[str, Any] | None = None


def experiments_root(paper: str | None = None, start: Path | None = None) -> Path:
    """Return the ``experiments`` folder: below ``start`` (default: here), else the package's copy or its checkout's.

    Raises:
        UserError: none of them has the paper.
    """
    package = Path(__file__).resolve().parents[1]
    places = [(start or Path.cwd()) / "experiments", package / "experiments", package.parent / "experiments"]
    for place in places:
        if any(place.glob(f"{paper or '*'}/paper_numbers.csv")):
            return place
    known = sorted({path.parent.name for place in places for path in place.glob("*/paper_numbers.csv")})
    if paper is None:
        raise UserError(f"no experiments/*/paper_numbers.csv in {places[0]} nor in the package")
    raise UserError(f"no paper '{paper}'{did_you_mean(paper, known)}; there are: {', '.join(known)}")


def papers(root: Path) -> list[str]:
    """Return the papers that have printed numbers."""
    return sorted(path.parent.name for path in root.glob("*/paper_numbers.csv"))


def read_printed(path: Path) -> dict[tuple[str, str, str], Printed]:
    """Read ``paper_numbers.csv``: (table, row, column) -> printed number; an empty value means "not reported".

    A note that begins with ``not aimed at: `` says why the number stands in no row.

    Raises:
        UserError: a column is missing, a value is no number, or a number stands there twice.
    """
    numbers: dict[tuple[str, str, str], Printed] = {}
    with open(path, encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            try:
                key = (line["table"], line["row"], line["column"])
                value = float(line["value"]) if line["value"] else None
            except (KeyError, TypeError, ValueError) as error:
                raise UserError(f"{path}: damaged line {line} ({error})") from None
            if key in numbers:
                raise UserError(f"{path}: table {key[0]}, row {key[1]}, column {key[2]} stands there twice")
            numbers[key] = Printed(value, line["value"] or "not reported", line["unit"])
    return numbers


def load_specs(root: Path, paper: str) -> list[TableSpec]:
    """Load all specifications of a paper: printed tables and figures first, then ours."""
    files = [path for path in (root / paper).glob("*.yaml") if path.stem.startswith(("table_", "figure_"))]
    specs = [load_spec(path, paper) for path in files]
    return sorted(specs, key=lambda spec: (not spec.table, spec.name.startswith("figure_"), spec.name))


def load_spec(path: Path, paper: str) -> TableSpec:
    """Load one specification.

    Raises:
        UserError: not YAML, an unknown key, or a row that does not say what it measures.
    """
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=_LOADER)
    except (OSError, yaml.YAMLError) as error:
        raise UserError(f"{path}: cannot be read ({' '.join(str(error).split())})") from None
    if not isinstance(data, dict):
        raise UserError(f"{path}: expected a mapping with title and rows")
    _known(data, _TABLE_KEYS, str(path))
    defaults = {"digits": data.get("digits", 3), **(data.get("defaults") or {})}
    rows = []
    for number, raw in enumerate(data.get("rows") or [], start=1):
        where = f"{path}, row {number}"
        rows += [_row(filled, where) for filled in _expand({**defaults, **raw}, where)]
    if not rows or "title" not in data:
        raise UserError(f"{path}: title or rows are missing")
    check_plot(data.get("plot"), rows, str(path))
    table = str(data.get("table", ""))
    return TableSpec(paper, path.stem, data["title"], data.get("caption", ""), table, tuple(rows), data.get("plot"))


def _expand(raw: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """Return one mapping for every combination of the row's ``for`` values."""
    choices = []
    for name, values in raw.pop("for", {}).items():
        if not isinstance(values, (list, dict)):
            raise UserError(f"{where}: for.{name} must be a list or a mapping")
        choices.append([_placeholders(name, value, values) for value in values])
    return [_fill(raw, {k: v for words in picked for k, v in words.items()}) for picked in itertools.product(*choices)]


def _placeholders(name: str, value: Any, values: Any) -> dict[str, str]:
    """Return what one value of ``for`` fills in: ``{name}``, and ``{name:field}`` for each of its fields."""
    fields = values[value] if isinstance(values, dict) else {}
    fields = fields if isinstance(fields, dict) else {"label": fields}
    return {f"{{{name}}}": str(value)} | {f"{{{name}:{key}}}": str(word) for key, word in fields.items()}


def _fill(node: Any, words: Mapping[str, str]) -> Any:
    """Return ``node`` with every placeholder replaced, in keys of mappings too."""
    if isinstance(node, dict):
        return {_fill(key, words): _fill(value, words) for key, value in node.items()}
    if isinstance(node, list):
        return [_fill(item, words) for item in node]
    if isinstance(node, str):
        for placeholder, word in words.items():
            node = node.replace(placeholder, word)
    return node


def _row(raw: dict[str, Any], where: str) -> RowSpec:
    _known(raw, tuple(RowSpec.__dataclass_fields__), where)
    if "label" not in raw:
        raise UserError(f"{where}: label is missing")
    values = dict(raw)
    values["metric"] = _by_regime(raw.get("metric"))
    own = str(raw.get("experiment", "main"))
    values["terms"] = tuple(
        (str(term.get("experiment", own)), _by_regime(term.get("metric", raw.get("metric"))))
        for term in raw.get("terms", [{}])
    )
    for key in ("floor", "ceiling", "reference", "expectation"):
        values[key] = {regime: _quantity(value) for regime, value in _by_regime(raw.get(key)).items()}
    if raw.get("tolerance") is not None:
        _known(raw["tolerance"], ("relative", "absolute", "why"), f"{where}, tolerance")
        values["tolerance"] = Tolerance(**raw["tolerance"])
    values["seeds"] = _by_regime(raw.get("seeds"))
    values["epoch"] = None if raw.get("epoch") is None else int(raw["epoch"])
    values["regimes"] = tuple(raw.get("regimes", REGIMES))
    row = RowSpec(**values)
    _check_row(row, where)
    return row


def _check_row(row: RowSpec, where: str) -> None:
    if row.combine is not None and row.combine not in COMBINATIONS:
        raise UserError(f"{where}: combine is '{row.combine}'{did_you_mean(row.combine, COMBINATIONS)}")
    if (row.combine is None) != (len(row.terms) == 1):
        raise UserError(f"{where}: combine and terms (two or more) belong together")
    if row.claim not in (None, "less", "greater"):
        raise UserError(f"{where}: claim is '{row.claim}', expected less or greater")
    if row.interval not in ("seeds", "wilson", "folds", "none") or (row.interval == "wilson" and row.combine):
        raise UserError(f"{where}: interval is seeds, folds, none, or wilson for a single rate")
    if not set(row.regimes) <= set(REGIMES):
        raise UserError(f"{where}: regimes are {', '.join(REGIMES)}")
    if (
        row.samples is None
        and not row.not_run
        and any(metric[regime] is None for _, metric in row.terms for regime in row.regimes)
    ):
        raise UserError(f"{where} ({row.label}): metric is missing")
    if row.samples is None and row.printed is not None and row.tolerance is None and not row.not_run:
        raise UserError(f"{where} ({row.label}): a printed number needs a stated tolerance")


def _by_regime(value: Any) -> dict[str, Any]:
    """Return ``{regime: value}``; a mapping keyed by regimes only is taken as such."""
    if isinstance(value, dict) and value and set(value) <= set(REGIMES):
        return {regime: value.get(regime) for regime in REGIMES}
    return dict.fromkeys(REGIMES, value)


def _quantity(value: Any) -> Quantity | None:
    if value is None or isinstance(value, Quantity):
        return value
    return Quantity(**value) if isinstance(value, dict) else Quantity(number=float(value))


def _known(data: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in data:
        if key not in known:
            raise UserError(f"{where}: unknown key '{key}'{did_you_mean(str(key), known)}")

"""A paper's folder: its manifest, the printed numbers, and the specification of every table and figure.

``experiments/<paper>/`` holds ``paper.yaml``, ``numbers.csv`` and ``tables/*.yaml``. The manifest is a mapping::

    title: semantic fusion
    data: [wikitext2]                 # folders of local data that are the paper's kind of data; others are "other data"
    unread: {main: model.scene}       # experiment -> the part of its configuration that no number reads
    about:                            # optional: the paper's row in the README, and its answer on the report
      {paper: its title, authors: Orten and Fulda (2025), link: https://..., code: https://... (optional),
       does: what the method does, found: what we found in one line}     # its decimals must be in the tables
    headline:                         # optional: what the report shows first
      summary: [The answer in a sentence., What else there is to know., ...]   # its decimals must be in the tables
      rows: [{table: table_1, section: ..., label: ..., says: ...}, ...]
      picture: {table: figure_1, panel: Fusion}      # optional: the one picture, a panel of a table's plot, or curves:
               # {curves: {words: experiment, ...}, metric: val/perplexity, regime: corrected, title: ...}
    runs: {small: [...], paper: [...]}      # optional: what `lit-ctg reproduce` runs (run/reproduce.py)
    sweep: {...}                      # optional: a W&B sweep (`lit-ctg report paper=... target=sweep out=sweep.yaml`)

A table is a mapping::

    title: ...            table: "1"  (its number in numbers.csv)      caption: ...
    digits: 3             plot: {kind: line|bars|matrix|words, ...}  (see ``check_plot``)
    names: {...}          ignored, a place for YAML anchors
    checks:               # what must hold, by its whole interval, before a row that names it can decide anything
      learned: {says: perplexity below that of word frequencies, metric: val/perplexity,
                below: {metric: reference/unigram_perplexity}}     # at_most, at_least, below or above; times: 3
    defaults: {...}       keys of every row that does not set them itself
    rows:
      - label: Fusion, perplexity
        for: {model: [a, b]}              # optional: a row for every combination; "{model}" is replaced everywhere
                                          # {a: A} gives "{model:label}", {a: {experiment: m}} "{model:experiment}" too
        printed: {row: fusion, column: ppl}   # or a list, combined as the terms are; {value: text} for a printed text
        experiment: main
        metric: val/perplexity            # or {as_published: ..., corrected: ...}; "run/parameters" reads the record;
                                          # "rest(whole, part)", "fall(metric)" and
                                          # "below(metric, other, times)": see ``RecordPool``
        epoch: 3                          # reads the history instead
        combine: difference|ratio|percent_change|sum|mean     of    terms: [{experiment: ..., metric: ...}, ...]
                 interaction of four terms: (first - second) - (third - fourth)
        over: {layers: ["2", "4"]}        # "on average": the terms are filled in for every combination; the mean over
                                          # the seeds of each of these cells is a value; cells that fail a check are
                                          # left out
        alike: [layers]                   # names of "over" that hardly matter: what differs in them alone is one cell,
                                          # whose value is the mean
        margin: {relative: 0.05, why: ...} or {absolute: 1, why: ...}      # how close is close enough, and why
        other: "other metric: deviation 3"    # why not comparable: other size, other metric or other data; by regime
                                          # "sign only: why": the printed size of a difference is of another metric;
                                          # "any size: why": the printed number does not depend on the size of the run
        too_small: {below: 0.02, why: ...}    # all terms below it: the metric is at its floor
        checks: [learned]                 # must hold in every experiment of the row (of the cell, in a row "over")
        some: [learned]                   # must hold in at least one of them
        mechanism: [learned]              # how the method works: stops no verdict, a note says what failed
        untrained: untrained/control/hard     # the same quantity of the model before training
        bounds: {floor: ..., ceiling: ..., expectation: ...}    # each a number, or {number, metric, experiment, note},
                                          # or one for each regime; limits: [0, 200], the range of values, where the
                                          # unit does not imply it
        claim: less|greater|equal|not_less|not_greater    # than 0, of a difference paired by seed; or
                                          # never_less, of a row "over": in no pair of its runs; {less: 0.01}: the
                                          # smallest difference that would matter, else the printed one counts
        repeats: Table 1                  # already in another row: shown, not counted
        not_run: why                      # what to say where there is no run, e.g. of an unavailable model
        goal: {at_most: 1.25} or {at_least: 0.3}
        interval: seeds|wilson|folds|range|none   # over seeds (folds: of one seed over its folds), Wilson over the
                                          # pooled trials (Student over seeds where
                                          # wider), the range of the runs where they are of several kinds (from
                                          # ``RANGE_RUNS`` on), or an exact number; {wilson: 200}: the printed number
                                          # is a rate over this many trials
        regimes: [corrected]              # the others do not apply; or {corrected: [111], as_published: null}: the
                                          # seeds that count, null for all there are
        section, series, x, y, unit, digits: the row's place in table and plot
        samples: {where: {...}, show: 3, expect: regex}       # a row of generated texts
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import MinLen

from lit_ctg.errors import UserError, did_you_mean, refuse
from lit_ctg.files import read_yaml, reading
from lit_ctg.limits import (
    Choice,
    Count,
    Matches,
    NonNegative,
    Whole,
    check_arguments,
    check_mapping,
    check_value,
    hints_of,
)
from lit_ctg.results.record import REGIMES, SIZES
from lit_ctg.results.verdict import NOT_COMPARABLE, Margin

DIFFERENCES = ("difference", "percent_change", "interaction")  # combinations for which 0 means no effect
MANIFEST, NUMBERS, TABLES, CLAIMS_TABLE = "paper.yaml", "numbers.csv", "tables", "table_claims"
_LIMITS = ("at_most", "at_least", "below", "above")
QUANTITIES = ("floor", "ceiling", "expectation")
_BOUNDS = (*QUANTITIES, "limits")
# what else `other` may begin with: the row is comparable, as far as it says
_PARTLY = ("sign only", "any size")

# the keys of each mapping in a file, with their types
_Choices = dict[str, list[Any] | dict[str, Any]]
_MANIFEST = {
    "title": str, "data": list[str] | None, "unread": dict[str, str] | None, "about": dict[str, str] | None,
    "headline": dict[str, Any] | None, "runs": dict[str, list[Any]] | None, "sweep": dict[str, Any] | None,
}  # fmt: skip
_HEADLINE = {"summary": Annotated[list[str], MinLen(1)], "rows": list[dict[str, str]], "picture": dict[str, Any] | None}
_HEADLINE_ROW = dict.fromkeys(("table", "section", "label", "says"), str)
_PICTURE = {"table": str, "panel": str}
_CURVES = {"curves": dict[str, str], "metric": str, "regime": str, "title": str}
_TABLE = {
    "title": str, "table": str | int, "caption": str, "digits": Whole, "plot": Any, "names": Any,
    "checks": dict[str, Any] | None, "defaults": dict[str, Any] | None,
    "rows": Annotated[list[dict[str, Any]], MinLen(1)],
}  # fmt: skip
_CHECK = {"says": str, "metric": Any, "experiment": str, "times": Any, **dict.fromkeys(_LIMITS, Any)}
_TERM = {"experiment": str, "metric": Any}
# those inside a row, each with the keys that it needs
_INSIDE: dict[str, tuple[Mapping[str, Any], tuple[str, ...]]] = {
    "bounds": (dict.fromkeys(_BOUNDS, Any), ()),
    "goal": (dict.fromkeys(_LIMITS[:2], float), ()),
    "margin": ({"relative": Any, "absolute": Any, "why": Annotated[str, MinLen(1)]}, ("why",)),
    "samples": ({"where": dict[str, Any], "show": Count, "expect": str}, ()),
    "too_small": ({"below": NonNegative, "why": str}, ("below",)),
}


Address = Annotated[str, Matches(r"(https://[\w./:%-]+)?"), "an https:// address"]


@dataclass(frozen=True)
class About:
    """A paper and its outcome in one line: its row in the README (see above)."""

    paper: str
    authors: str
    link: Annotated[Address, MinLen(1)]
    does: str
    found: str
    code: Address = ""


@dataclass(frozen=True)
class Headline:
    """What the report shows first of one paper: a summary in points, rows, and a picture (see above)."""

    summary: tuple[str, ...]
    rows: tuple[dict[str, str], ...]
    picture: dict[str, Any] | None = None


@dataclass(frozen=True)
class Manifest:
    """A paper's ``paper.yaml``; ``data`` None means that any local data is the paper's kind of data.

    ``unread`` names, for an experiment, the part of its configuration that no number of it has read.
    """

    paper: str
    title: str
    data: tuple[str, ...] | None = None
    about: About | None = None
    headline: Headline | None = None
    runs: dict[str, list[Any]] = field(default_factory=dict)
    sweep: dict[str, Any] | None = None
    unread: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Quantity:
    """A bound or reference: a metric from the records of the same seeds if recorded, else a stated number."""

    number: float | None = None
    metric: str | None = None
    experiment: str | None = None
    note: str = ""


@dataclass(frozen=True)
class Check:
    """A condition for a row to decide anything: a metric against a limit, for every experiment of the row or for one.

    ``limit`` is one of at_most, at_least, below, above; ``times`` multiplies the quantity it is compared with.
    """

    name: str
    says: str
    metric: dict[str, str | None]
    limit: str
    against: dict[str, Quantity | None]
    experiment: str | None = None
    times: float = 1.0


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
    epoch: Whole | None = None
    printed: Any = None
    combine: Literal["difference", "ratio", "percent_change", "sum", "mean", "interaction"] | None = None
    terms: tuple[tuple[str, dict[str, str | None]], ...] = ()
    over: tuple[tuple[tuple[str, dict[str, str | None]], ...], ...] = ()
    alike: tuple[str, ...] = ()  # for each of ``over`` the cell that it belongs to
    margin: Margin | None = None
    trials: int | None = None
    any_size: str = ""
    other: dict[str, str | None] = field(default_factory=dict)
    too_small: dict[str, Any] | None = None
    checks: tuple[str, ...] = ()
    some: tuple[str, ...] = ()
    mechanism: tuple[str, ...] = ()
    sign_only: dict[str, str | None] = field(default_factory=dict)
    untrained: dict[str, str | None] = field(default_factory=dict)
    floor: dict[str, Quantity | None] = field(default_factory=dict)
    ceiling: dict[str, Quantity | None] = field(default_factory=dict)
    expectation: dict[str, Quantity | None] = field(default_factory=dict)
    claim: Literal["less", "greater", "equal", "not_less", "not_greater", "never_less"] | None = None
    effect: float | None = None
    repeats: str = ""
    not_run: str = ""
    goal: dict[str, float] | None = None
    interval: Literal["seeds", "wilson", "folds", "range", "none"] = "seeds"
    limits: list[float] | None = None
    regimes: tuple[Annotated[str, Choice(REGIMES)], ...] = REGIMES
    seeds: dict[str, list[int] | None] = field(default_factory=dict)
    section: str = ""
    series: str = ""
    x: Any = None
    y: Any = None
    unit: str = ""
    digits: Whole = 3
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
    checks: dict[str, Check] = field(default_factory=dict)


# fields that a row writes under another key: bounds, interval, claim, regimes and other
_WRITTEN_WITH_ANOTHER = (*_BOUNDS, "trials", "effect", "seeds", "sign_only", "any_size")
ROW_KEYS = (*(key for key in RowSpec.__dataclass_fields__ if key not in _WRITTEN_WITH_ANOTHER), "bounds")


# --- the folders ----------------------------------------------------------------------------------------------------


def experiments_root(paper: str | None = None, start: Path | None = None) -> Path:
    """Return the ``experiments`` folder: below ``start`` (default: here), else the package's copy or its checkout's.

    Raises:
        UserError: none of them has the paper.
    """
    package = Path(__file__).resolve().parents[1]
    places = [(start or Path.cwd()) / "experiments", package / "experiments", package.parent / "experiments"]
    for place in places:
        found = papers(place)
        if found if paper is None else paper in found:
            return place
    known = sorted({name for place in places for name in papers(place)})
    if paper is None:
        raise UserError(f"no experiments/*/{MANIFEST} in {places[0]} nor in the package")
    raise UserError(f"no paper '{paper}'{did_you_mean(paper, known)}; there are: {', '.join(known)}")


def papers(root: Path) -> list[str]:
    """Return the folders that are papers, even incomplete ones: those with a manifest, printed numbers or tables."""
    parts = (MANIFEST, NUMBERS, TABLES)
    if not root.is_dir():
        return []
    return sorted(path.name for path in root.iterdir() if any((path / part).exists() for part in parts))


def load_manifest(root: Path, paper: str) -> Manifest:
    """Read a paper's ``paper.yaml`` (``UserError``: it is missing or damaged)."""
    path = root / paper / MANIFEST
    data = check_mapping(str(path), read_yaml(path, aliases=True), _MANIFEST, ("title",))
    runs = check_mapping(f"{path}, runs", data.get("runs") or {}, dict.fromkeys(SIZES, list[Any]))
    kinds = data.get("data")
    about = None if data.get("about") is None else _about(data["about"], f"{path}, about")
    headline = None if data.get("headline") is None else _headline(data["headline"], f"{path}, headline")
    unread, sweep = data.get("unread") or {}, data.get("sweep")
    return Manifest(paper, data["title"], None if kinds is None else tuple(kinds), about, headline, runs, sweep, unread)


def _about(data: Any, where: str) -> About:
    hints = hints_of(About)
    check_mapping(where, data, hints, [key for key in hints if key != "code"])
    return About(**{key: " ".join(words.split()) for key, words in data.items()})


def _headline(data: Any, where: str) -> Headline:
    check_mapping(where, data, _HEADLINE, ("summary", "rows"))
    for row in data["rows"]:
        check_mapping(f"{where} rows", row, _HEADLINE_ROW, _HEADLINE_ROW)
    if (picture := data.get("picture")) is not None:
        kind: Mapping[str, Any] = _CURVES if "curves" in picture else _PICTURE
        check_mapping(f"{where} picture", picture, kind, kind)
    return Headline(tuple(" ".join(point.split()) for point in data["summary"]), tuple(data["rows"]), picture)


def read_printed(path: Path) -> dict[tuple[str, str, str], Printed]:
    """Read ``numbers.csv``: (table, row, column) -> printed number; an empty value means "not reported".

    A note that begins with ``not aimed at: `` says why no row has the number.

    Raises:
        UserError: it cannot be read, a column is missing, a value is not a number, or a number occurs twice.
    """
    numbers: dict[tuple[str, str, str], Printed] = {}
    with reading(path, "printed numbers", "correct the file"):
        lines = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    for count, line in enumerate(lines, start=2):
        with reading(f"{path}, line {count}", "a printed number", "correct it", KeyError, TypeError):
            key = (line["table"], line["row"], line["column"])
            if key in numbers:
                raise ValueError(f"table {key[0]}, row {key[1]}, column {key[2]} appears twice")
            value = float(line["value"]) if line["value"] else None
            numbers[key] = Printed(value, line["value"] or "not reported", line["unit"])
    return numbers


# --- tables ---------------------------------------------------------------------------------------------------------


def load_specs(root: Path, paper: str) -> list[TableSpec]:
    """Load all specifications of a paper: its tables, its claims, its figures, then ours."""
    return sorted((load_spec(path, paper) for path in (root / paper / TABLES).glob("*.yaml")), key=place_of)


def place_of(spec: TableSpec) -> tuple[int, str]:
    """Return where a table is shown among those of its paper."""
    if spec.name == CLAIMS_TABLE:
        return 1, spec.name
    figure = spec.name.startswith("figure_")
    return (2 if figure else 0 if spec.table else 3), spec.name


def load_spec(path: Path, paper: str) -> TableSpec:
    """Load one specification (``UserError``: not YAML, an unknown key, or a row that does not say what it measures)."""
    data = check_mapping(str(path), read_yaml(path, aliases=True), _TABLE, ("title", "rows"))
    defaults = {"digits": data.get("digits", 3), **(data.get("defaults") or {})}
    checks = {name: _check(name, raw, str(path)) for name, raw in (data.get("checks") or {}).items()}
    rows = []
    for number, raw in enumerate(data["rows"], start=1):
        where = f"{path}, row {number}"
        rows += [_row(filled, where) for filled in _expand({**defaults, **raw}, where)]
    names = list[Annotated[str, Choice(tuple(checks))]]
    for row in rows:
        check_value(f"{path} ({row.label}), checks", [*row.checks, *row.some, *row.mechanism], names)
    check_plot(data.get("plot"), rows, str(path))
    return TableSpec(
        paper,
        path.stem,
        data["title"],
        data.get("caption", ""),
        str(data.get("table", "")),
        tuple(rows),
        data.get("plot"),
        checks,
    )


def _check(name: str, raw: Any, path: str) -> Check:
    where = f"{path}, check {name}"
    check_mapping(where, raw, _CHECK, ("says", "metric"))
    limits = [key for key in _LIMITS if key in raw]
    if len(limits) != 1:
        raise UserError(f"{where}: give one of {', '.join(_LIMITS)}")
    against = {regime: _quantity(value, where) for regime, value in _by_regime(raw[limits[0]]).items()}
    times = _converted(float, raw.get("times", 1.0), f"{where}: times")
    return Check(name, raw["says"], _by_regime(raw["metric"]), limits[0], against, raw.get("experiment"), times)


def _converted(kind: Callable[[Any], Any], value: Any, key: str) -> Any:
    """Return a number that may be written as a word, as placeholders give it."""
    try:
        return kind(value)
    except (TypeError, ValueError) as error:
        raise UserError(f"{key}={value}: give a number") from error


def _expand(raw: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """Return one mapping for every combination of the row's ``for`` values."""
    given = raw.pop("for", {})
    check_value(f"{where}, for", given, _Choices)
    choices = [[_placeholders(name, value, values) for value in values] for name, values in given.items()]
    return [_fill(raw, {k: v for words in picked for k, v in words.items()}) for picked in itertools.product(*choices)]


def _placeholders(name: str, value: Any, values: Any) -> dict[str, str]:
    """Return the replacements for one value of ``for``: ``{name}``, and ``{name:field}`` for each of its fields."""
    fields = values[value] if isinstance(values, dict) else {}
    fields = fields if isinstance(fields, dict) else {"label": fields}
    return {f"{{{name}}}": str(value)} | {f"{{{name}:{key}}}": str(word) for key, word in fields.items()}


def _fill(node: Any, words: Mapping[str, str]) -> Any:
    """Return ``node`` with every placeholder replaced, including those in keys of mappings."""
    if isinstance(node, dict):
        return {_fill(key, words): _fill(value, words) for key, value in node.items()}
    if isinstance(node, list):
        return [_fill(item, words) for item in node]
    if isinstance(node, str):
        for placeholder, word in words.items():
            node = node.replace(placeholder, word)
    return node


def _row(raw: dict[str, Any], where: str) -> RowSpec:
    check_mapping(where, raw, dict.fromkeys(ROW_KEYS, Any), ("label",))
    where = f"{where} ({raw['label']})"
    for key, (hints, needed) in _INSIDE.items():
        if raw.get(key) is not None:
            check_mapping(f"{where}, {key}", raw[key], hints, needed)
    values = raw = _unfolded(raw, where)
    metric, own = raw.get("metric"), str(raw.get("experiment", "main"))

    def terms_of(terms: list[Any]) -> tuple[tuple[str, dict[str, str | None]], ...]:
        given = [check_mapping(f"{where}, terms", term, _TERM) for term in terms]
        return tuple((term.get("experiment", own), _by_regime(term.get("metric", metric))) for term in given)

    terms, over = raw.get("terms", [{}]), raw.get("over")
    values = {**raw, "metric": _by_regime(metric), "terms": terms_of(terms)}
    if over:
        check_value(f"{where}, over", over, _Choices)
        alike = raw.get("alike") or []
        check_value(f"{where}, alike", alike, list[Annotated[str, Choice(tuple(over))]])
        own_cell = " ".join(f"{{{name}}}" for name in over if name not in alike)
        cells = _expand({"for": dict(over), "terms": terms, "cell": own_cell}, where)
        values["alike"] = tuple(cell["cell"] for cell in cells) if alike else ()
        values["over"] = tuple(terms_of(cell["terms"]) for cell in cells)
        values["terms"] = tuple(term for cell in values["over"] for term in cell)
    for key in QUANTITIES:
        quantities = _by_regime(raw.get(key)).items()
        values[key] = {regime: _quantity(value, f"{where}, {key}") for regime, value in quantities}
    if (margin := raw.get("margin")) is not None:
        kinds = {key: str if key == "why" else float for key in margin}
        parts = {key: _converted(kinds[key], part, f"{where}: margin.{key}") for key, part in margin.items()}
        check_arguments(Margin, parts, f"{where}: margin")
        values["margin"] = Margin(**parts)
    for key in ("seeds", "untrained"):
        values[key] = _by_regime(raw.get(key))
    values["epoch"] = None if raw.get("epoch") is None else _converted(int, raw["epoch"], f"{where}: epoch")
    values["regimes"] = tuple(raw.get("regimes", REGIMES))
    values |= {key: tuple(raw.get(key) or ()) for key in ("checks", "some", "mechanism")}
    check_arguments(RowSpec, values, f"{where}: row")
    row = RowSpec(**values)
    refuse(_row_faults(row), f"{where}: ")
    return row


def _unfolded(raw: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return a row with one field for each part that is written under a common key."""
    row = {key: value for key, value in raw.items() if key != "bounds"} | (raw.get("bounds") or {})
    for key, field_name, kind in (("interval", "trials", int), ("claim", "effect", float)):
        if isinstance(pair := raw.get(key), dict) and len(pair) == 1:
            ((row[key], given),) = pair.items()
            row[field_name] = _converted(kind, given, f"{where}: {key}.{row[key]}")
    if isinstance(regimes := raw.get("regimes"), dict):
        row["regimes"], row["seeds"] = list(regimes), {regime: regimes.get(regime) for regime in REGIMES}
    row["other"] = _by_regime(raw.get("other"))
    row["sign_only"] = dict.fromkeys(REGIMES)
    for regime, words in row["other"].items():
        label, _, why = str(words).partition(":")
        if label in _PARTLY:
            row["other"][regime] = None
            if label == "any size":
                row["any_size"] = why.strip()
            else:
                row["sign_only"][regime] = why.strip()
    return row


def _row_faults(row: RowSpec) -> Iterator[str]:
    """Yield what contradicts itself in a row, or is missing."""
    if row.alike and not row.over:
        yield "alike is for a row with over"
    if row.alike and not any(row.alike):
        yield "alike names all of over, so there would be a single cell"
    if (row.combine is None) != (len(row.terms) == 1):
        yield "combine and terms (two or more) belong together"
    if row.combine == "interaction" and len(row.over[0] if row.over else row.terms) != 4:
        yield "combine: interaction is of four terms, (first - second) - (third - fourth)"
    if row.over and (row.combine is None or row.printed is not None or row.samples is not None):
        yield "over is for combined terms without a printed number"
    if row.claim == "never_less" and not (row.over and row.combine == "difference"):
        yield "claim: never_less is for differences over cells"
    # without an interval a margin says how close to 0 is too close to call, see verdict.judge_claim
    sided = row.claim in (None, "less", "greater", "never_less") and (row.interval != "none" or row.margin is None)
    if row.claim is not None and not sided and (row.margin is None or row.margin.absolute is None):
        yield f"claim: {row.claim} needs margin: {{absolute: ..., why: ...}}, stated in advance"
    if row.margin is not None and (row.margin.relative is None) == (row.margin.absolute is None):
        yield "margin is relative or absolute: give one of the two"
    if row.interval == "wilson" and row.combine:
        yield "interval: wilson is for a single rate"
    if row.interval == "range" and (row.combine or row.claim is not None):
        yield "interval: range is for a single metric without a claim"
    if row.interval == "wilson" and row.printed is not None and row.claim is None and row.trials is None:
        yield "beside a printed number interval: wilson needs the trials of the paper, {wilson: 200}"
    if row.limits is not None and len(row.limits) != 2:
        yield "bounds.limits are two numbers"
    if any(words is not None and words.partition(":")[0] not in NOT_COMPARABLE for words in row.other.values()):
        yield f"other begins with one of {', '.join((*NOT_COMPARABLE, *_PARTLY))}, then ':' and why"
    measured = row.samples is None and not row.not_run
    if measured and any(metric[regime] is None for _, metric in row.terms for regime in row.regimes):
        yield "'metric' is missing"
    if measured and row.printed is not None and row.margin is None and row.claim is None:
        yield "a printed number needs a stated margin"


def _by_regime(value: Any) -> dict[str, Any]:
    """Return ``{regime: value}``; a mapping whose keys are all regimes is used as it is."""
    if isinstance(value, dict) and value and set(value) <= set(REGIMES):
        return {regime: value.get(regime) for regime in REGIMES}
    return dict.fromkeys(REGIMES, value)


def _quantity(value: Any, where: str) -> Quantity | None:
    if isinstance(value, dict):
        return Quantity(**check_mapping(where, value, hints_of(Quantity)))
    return None if value is None else Quantity(_converted(float, value, where))


# --- plots ----------------------------------------------------------------------------------------------------------

_Pairs = Annotated[dict[str, dict[str, str]], MinLen(1)]
_PLOTS: dict[str, dict[str, Any]] = {
    "line": {"x": str, "y": str, "log": bool, "xscale": Literal["linear", "steps"], "pairs": _Pairs},
    "bars": {"x": str, "y": str, "log": bool, **dict.fromkeys(("low", "high", "base"), float), "sections": list[str]},
    "matrix": {"x": str, "y": str},
    "words": {},
    "pareto": {"pairs": _Pairs},
}
_NEEDED: dict[str, tuple[str, ...]] = {"line": ("x",), "pareto": ("pairs",)}


def unit_of(row: RowSpec) -> str:
    """Return the unit of a row's number; a difference does not have the unit of its terms."""
    return f"change, {row.unit}" if row.combine in DIFFERENCES else row.unit


def check_plot(plot: Any, rows: Sequence[RowSpec], where: str) -> None:
    """Check a ``plot`` entry against the rows it draws; it is one of::

        {kind: line, x: epoch, y: validation perplexity, log: true, xscale: steps}
                                      # one panel per series; y may be left out: then it is each panel's unit, as
                                      # it must be where the units differ; xscale steps: equal distances
        {kind: bars, x: perplexity, log: true, low: 0, high: 1, base: 1, sections: [...]}
                                      # one chart per named section, else a single one; x or y names the measure;
                                      # base: where bars begin, else 0 or the end of a log axis
        {kind: matrix, x: realised, y: intended}      # one panel per series
        {kind: words}                 # best words of a section's first row against those of its others
        {kind: pareto, pairs: {<title>: {x: <section>, y: <section>}}}
                                      # one measure against another: rows of one label in both sections are a point,
                                      # those of a series a curve; words beside a point: the row's x, else its label

    A line plot takes ``pairs`` too. Panels and charts of one unit share their axis.

    Raises:
        UserError: unknown kind or key, a key that this kind does not use, missing sections or series, or numbers of
        several units on one axis.
    """
    if plot is None:
        return
    kind = str(plot.get("kind")) if isinstance(plot, dict) else "none"
    check_value(f"{where}: plot.kind", kind, Annotated[str, Choice(tuple(_PLOTS))])
    section = Annotated[str, Choice(tuple(dict.fromkeys(row.section for row in rows)))]
    hints = _PLOTS[kind] | {"kind": str} | ({"sections": list[section]} if kind == "bars" else {})
    check_mapping(f"{where}: plot", plot, hints, _NEEDED.get(kind, ()))
    for title, pair in plot.get("pairs", {}).items():
        check_mapping(f"{where}: plot.pairs, {title}", pair, {"x": section, "y": section}, ("x", "y"))
    refuse((*_FAULTS[kind](plot, rows), *_pair_faults(plot, rows)), f"{where}: plot: ")


def _line_faults(plot: dict[str, Any], rows: Sequence[RowSpec]) -> Iterator[str]:
    yield from _undrawn(rows, ("x",))
    units: dict[str, set[str]] = {}
    for row in rows:
        if row.series:
            units.setdefault(row.series, set()).add(unit_of(row))
    for series, found in units.items():
        if len(found) > 1:
            yield f"series '{series}' has several units: {', '.join(sorted(found))}"
    if "y" in plot and len(set().union(*units.values())) > 1:
        yield "y is for panels of one unit, and these have several: leave it out"


def _bar_faults(plot: dict[str, Any], rows: Sequence[RowSpec]) -> Iterator[str]:
    if ("x" in plot) == ("y" in plot):
        yield "bars need x or y (one of them): what they measure"
    for section in plot.get("sections", [None]):
        units = {unit_of(row) for row in rows if section in (None, row.section) and row.samples is None}
        if len(units) > 1:
            yield f"a bar chart has one unit, not {', '.join(unit or 'none' for unit in sorted(units))}: give sections"
    for key in ("low", "high", "base"):
        if plot.get("log") and plot.get(key, 1) <= 0:
            yield f"{key} is {plot[key]}, and a log scale begins above 0"


def _matrix_faults(plot: dict[str, Any], rows: Sequence[RowSpec]) -> Iterator[str]:
    yield from _undrawn(rows, ("x", "y"))


def _undrawn(rows: Sequence[RowSpec], keys: Sequence[str]) -> Iterator[str]:
    drawn = [row for row in rows if row.series]
    if not drawn or any(getattr(row, key) is None for row in drawn for key in keys):
        yield f"its rows are those with a 'series': give them {' and '.join(keys)}"


def _word_faults(plot: dict[str, Any], rows: Sequence[RowSpec]) -> Iterator[str]:
    if all(row.samples is None for row in rows):
        yield "words need rows of samples"


def _pair_faults(plot: dict[str, Any], rows: Sequence[RowSpec]) -> Iterator[str]:
    for title, pair in plot.get("pairs", {}).items():
        own, other = ({row.label for row in rows if row.section == pair[axis]} for axis in ("x", "y"))
        if not own & other:
            yield f"pairs.{title}: no row has the same label in both sections"


_FAULTS: dict[str, Callable[[dict[str, Any], Sequence[RowSpec]], Iterator[str]]] = {
    "line": _line_faults, "bars": _bar_faults, "matrix": _matrix_faults, "words": _word_faults, "pareto": _pair_faults,
}  # fmt: skip

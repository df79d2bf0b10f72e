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
    checks:               # what must hold before a row that names the check can decide anything
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
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from lit_ctg.errors import UserError, did_you_mean
from lit_ctg.files import read_yaml
from lit_ctg.results.record import REGIMES, SIZES
from lit_ctg.results.verdict import CLAIMS, NOT_COMPARABLE, Margin

COMBINATIONS = ("difference", "ratio", "percent_change", "sum", "mean", "interaction")
DIFFERENCES = ("difference", "percent_change", "interaction")  # combinations for which 0 means no effect
MANIFEST, NUMBERS, TABLES, CLAIMS_TABLE = "paper.yaml", "numbers.csv", "tables", "table_claims"
_MANIFEST_KEYS = ("title", "data", "unread", "about", "headline", "runs", "sweep")
_HEADLINE_KEYS = ("summary", "rows")
_PICTURES = (("table", "panel"), ("curves", "metric", "regime", "title"))
_HEADLINE_ROW_KEYS = ("table", "section", "label", "says")
_TABLE_KEYS = ("title", "table", "caption", "digits", "plot", "names", "checks", "defaults", "rows")
_CHECK_KEYS = ("says", "metric", "experiment", "at_most", "at_least", "below", "above", "times")
_LIMITS = ("at_most", "at_least", "below", "above")
_INTERVALS = ("seeds", "wilson", "folds", "range", "none")
_QUANTITIES = ("floor", "ceiling", "expectation")
_BOUNDS = (*_QUANTITIES, "limits")
# what else `other` may begin with: the row is comparable, as far as it says
_PARTLY = ("sign only", "any size")


@dataclass(frozen=True)
class About:
    """A paper and its outcome in one line: its row in the README (see above)."""

    paper: str
    authors: str
    link: str
    does: str
    found: str
    code: str = ""


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
    epoch: int | None = None
    printed: Any = None
    combine: str | None = None
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
    sign_only: dict[str, str | None] = field(default_factory=dict)
    untrained: dict[str, str | None] = field(default_factory=dict)
    floor: dict[str, Quantity | None] = field(default_factory=dict)
    ceiling: dict[str, Quantity | None] = field(default_factory=dict)
    expectation: dict[str, Quantity | None] = field(default_factory=dict)
    claim: str | None = None
    effect: float | None = None
    repeats: str = ""
    not_run: str = ""
    goal: dict[str, float] | None = None
    interval: str = "seeds"
    limits: list[float] | None = None
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
    """Read a paper's ``paper.yaml``.

    Raises:
        UserError: it is missing or damaged.
    """
    path = root / paper / MANIFEST
    data = _read_mapping(path)
    _known(data, _MANIFEST_KEYS, str(path))
    if not isinstance(data.get("title"), str):
        raise UserError(f"{path}: 'title' is missing")
    kinds = data.get("data")
    if kinds is not None and not (isinstance(kinds, list) and all(isinstance(kind, str) for kind in kinds)):
        raise UserError(f"{path}: 'data' must list folders")
    unread = data.get("unread") or {}
    if not isinstance(unread, dict) or not all(isinstance(part, str) for part in unread.values()):
        raise UserError(f"{path}: 'unread' must be a mapping from experiments to parts of the configuration")
    runs = data.get("runs") or {}
    if not isinstance(runs, dict) or not set(runs) <= set(SIZES):
        raise UserError(f"{path}: 'runs' must be a mapping with keys among {', '.join(SIZES)}")
    sweep = data.get("sweep")
    if sweep is not None and not isinstance(sweep, dict):
        raise UserError(f"{path}: 'sweep' must be a mapping")
    about = None if data.get("about") is None else _about(data["about"], f"{path}, about")
    headline = None if data.get("headline") is None else _headline(data["headline"], str(path))
    return Manifest(paper, data["title"], None if kinds is None else tuple(kinds), about, headline, runs, sweep, unread)


def _about(data: Any, where: str) -> About:
    keys = [one.name for one in fields(About)]
    _whole({"code": "", **data} if isinstance(data, dict) else data, keys, where)
    if wrong := [key for key, words in data.items() if not isinstance(words, str)]:
        raise UserError(f"{where}: '{wrong[0]}' must be text")
    for key in ("link", "code"):
        if data.get(key) and not re.fullmatch(r"https://[\w./:%-]+", data[key]):
            raise UserError(f"{where}: '{key}' must be an https:// address")
    return About(**{key: " ".join(words.split()) for key, words in data.items()})


def _headline(data: Any, where: str) -> Headline:
    picture = data.get("picture") if isinstance(data, dict) else None
    if picture is not None:
        _whole(picture, _PICTURES["curves" in picture], f"{where}, headline picture")
        data = {key: value for key, value in data.items() if key != "picture"}
    _whole(data, _HEADLINE_KEYS, f"{where}, headline")
    summary = data["summary"]
    if not (isinstance(summary, list) and summary and all(isinstance(point, str) for point in summary)):
        raise UserError(f"{where}, headline: summary must be a list of sentences")
    if not isinstance(data["rows"], list):
        raise UserError(f"{where}, headline: rows must be a list")
    for row in data["rows"]:
        _whole(row, _HEADLINE_ROW_KEYS, f"{where}, headline rows")
    return Headline(tuple(" ".join(point.split()) for point in summary), tuple(data["rows"]), picture)


def _whole(data: Any, keys: Sequence[str], where: str) -> None:
    """Check that a mapping has exactly these keys."""
    if not isinstance(data, dict):
        raise UserError(f"{where}: expected a mapping with {', '.join(keys)}")
    _known(data, tuple(keys), where)
    if missing := [key for key in keys if key not in data]:
        raise UserError(f"{where}: '{missing[0]}' is missing")


def read_printed(path: Path) -> dict[tuple[str, str, str], Printed]:
    """Read ``numbers.csv``: (table, row, column) -> printed number; an empty value means "not reported".

    A note that begins with ``not aimed at: `` says why no row has the number.

    Raises:
        UserError: it cannot be read, a column is missing, a value is not a number, or a number occurs twice.
    """
    numbers: dict[tuple[str, str, str], Printed] = {}
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({' '.join(str(error).split())})") from None
    for line in csv.DictReader(text.splitlines()):
        try:
            key = (line["table"], line["row"], line["column"])
            value = float(line["value"]) if line["value"] else None
            numbers_unit = line["unit"]
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path}: damaged line {line} ({error})") from None
        if key in numbers:
            raise UserError(f"{path}: table {key[0]}, row {key[1]}, column {key[2]} appears twice")
        numbers[key] = Printed(value, line["value"] or "not reported", numbers_unit)
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
    """Load one specification.

    Raises:
        UserError: not YAML, an unknown key, or a row that does not say what it measures.
    """
    data = _read_mapping(path)
    _known(data, _TABLE_KEYS, str(path))
    defaults = {"digits": data.get("digits", 3), **(data.get("defaults") or {})}
    checks = {name: _check(name, raw, str(path)) for name, raw in (data.get("checks") or {}).items()}
    rows = []
    for number, raw in enumerate(data.get("rows") or [], start=1):
        where = f"{path}, row {number}"
        if not isinstance(raw, dict):
            raise UserError(f"{where}: expected a mapping")
        rows += [_row(filled, where) for filled in _expand({**defaults, **raw}, where)]
    if not rows or "title" not in data:
        raise UserError(f"{path}: title or rows are missing")
    for row in rows:
        for name in (*row.checks, *row.some):
            if name not in checks:
                raise UserError(f"{path} ({row.label}): no check '{name}'{did_you_mean(name, checks)}")
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


def _read_mapping(path: Path) -> dict[str, Any]:
    data = read_yaml(path, aliases=True)
    if not isinstance(data, dict):
        raise UserError(f"{path}: expected a mapping")
    return data


def _check(name: str, raw: Any, path: str) -> Check:
    where = f"{path}, check {name}"
    if not isinstance(raw, dict):
        raise UserError(f"{where}: expected a mapping")
    _known(raw, _CHECK_KEYS, where)
    limits = [key for key in _LIMITS if key in raw]
    if len(limits) != 1 or "says" not in raw or "metric" not in raw:
        raise UserError(f"{where}: needs says, metric and one of {', '.join(_LIMITS)}")
    against = {regime: _quantity(value) for regime, value in _by_regime(raw[limits[0]]).items()}
    own = raw.get("experiment")
    return Check(name, raw["says"], _by_regime(raw["metric"]), limits[0], against, own, float(raw.get("times", 1.0)))


def _expand(raw: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """Return one mapping for every combination of the row's ``for`` values."""
    choices = []
    for name, values in raw.pop("for", {}).items():
        if not isinstance(values, (list, dict)):
            raise UserError(f"{where}: for.{name} must be a list or a mapping")
        choices.append([_placeholders(name, value, values) for value in values])
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
    _known(raw, ROW_KEYS, where)
    if "label" not in raw:
        raise UserError(f"{where}: label is missing")
    raw = _unfolded(raw, where)
    values = dict(raw)
    values["metric"] = _by_regime(raw.get("metric"))
    own = str(raw.get("experiment", "main"))

    def terms_of(terms: list[dict[str, Any]]) -> tuple[tuple[str, dict[str, str | None]], ...]:
        metric = raw.get("metric")
        return tuple((str(t.get("experiment", own)), _by_regime(t.get("metric", metric))) for t in terms)

    values["terms"] = terms_of(raw.get("terms", [{}]))
    if raw.get("over"):
        if not isinstance(raw["over"], dict):
            raise UserError(f"{where}: over gives each name its values, as in {{size: [128, 512]}}")
        alike = _alike(raw, where)
        own_cell = " ".join(f"{{{name}}}" for name in raw["over"] if name not in alike)
        cells = _expand({"for": dict(raw["over"]), "terms": raw.get("terms", [{}]), "cell": own_cell}, where)
        values["alike"] = tuple(cell["cell"] for cell in cells) if alike else ()
        values["over"] = tuple(terms_of(cell["terms"]) for cell in cells)
        values["terms"] = tuple(term for cell in values["over"] for term in cell)
    for key in _QUANTITIES:
        values[key] = {regime: _quantity(value) for regime, value in _by_regime(raw.get(key)).items()}
    if raw.get("margin") is not None:
        _known(raw["margin"], ("relative", "absolute", "why"), f"{where}, margin")
        try:  # a placeholder gives a word
            parts: dict[str, Any] = {key: part if key == "why" else float(part) for key, part in raw["margin"].items()}
        except (TypeError, ValueError) as error:
            raise UserError(f"{where} ({raw['label']}): a margin is a number: {error}") from error
        values["margin"] = Margin(**parts)
        if not str(values["margin"].why).strip():
            raise UserError(f"{where} ({raw['label']}): a margin needs its reason, margin: {{..., why: ...}}")
    for key in ("seeds", "untrained"):
        values[key] = _by_regime(raw.get(key))
    values["epoch"] = None if raw.get("epoch") is None else int(raw["epoch"])
    values["regimes"] = tuple(raw.get("regimes", REGIMES))
    values["checks"], values["some"] = tuple(raw.get("checks") or ()), tuple(raw.get("some") or ())
    row = RowSpec(**values)
    _check_row(row, where)
    return row


def _unfolded(raw: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return a row with a field of its own for everything that is written under one key."""
    row = {key: value for key, value in raw.items() if key != "bounds"}
    bounds = raw.get("bounds") or {}
    if not isinstance(bounds, dict):
        raise UserError(f"{where}: bounds is a mapping with some of {', '.join(_BOUNDS)}")
    _known(bounds, _BOUNDS, f"{where}, bounds")
    row |= bounds
    for key, field_name, number in (("interval", "trials", int), ("claim", "effect", float)):
        if isinstance(pair := raw.get(key), dict):
            if len(pair) != 1:
                raise UserError(f"{where}: {key} is a word, or one word and its number as in {{word: 10}}")
            ((row[key], given),) = pair.items()
            try:
                row[field_name] = number(given)
            except (TypeError, ValueError) as error:
                raise UserError(f"{where}: {key} has a number beside its word: {error}") from error
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


def _alike(raw: dict[str, Any], where: str) -> list[str]:
    names = raw.get("alike") or []
    for name in names:
        if name not in raw["over"]:
            raise UserError(f"{where}: alike names {name}, which is not in over{did_you_mean(name, list(raw['over']))}")
    if names and len(names) == len(raw["over"]):
        raise UserError(f"{where}: alike names all of over, so there would be a single cell")
    return list(names)


def _check_row(row: RowSpec, where: str) -> None:
    if row.alike and not row.over:
        raise UserError(f"{where}: alike is for a row with over")
    if row.combine is not None and row.combine not in COMBINATIONS:
        raise UserError(f"{where}: combine is '{row.combine}'{did_you_mean(row.combine, COMBINATIONS)}")
    if (row.combine is None) != (len(row.terms) == 1):
        raise UserError(f"{where}: combine and terms (two or more) belong together")
    terms = row.over[0] if row.over else row.terms
    if row.combine == "interaction" and len(terms) != 4:
        raise UserError(f"{where}: combine: interaction is of four terms, (first - second) - (third - fourth)")
    if row.over and (row.combine is None or row.printed is not None or row.samples is not None):
        raise UserError(f"{where}: over is for combined terms without a printed number")
    if row.claim is not None and row.claim not in CLAIMS:
        raise UserError(f"{where}: claim is '{row.claim}', expected one of {', '.join(CLAIMS)}")
    if row.claim == "never_less" and not (row.over and row.combine == "difference"):
        raise UserError(f"{where}: claim never_less is for differences over cells, of whose pairs it speaks")
    # without an interval a margin says how close to 0 is too close to call, see verdict.judge_claim
    margin_counts = row.claim not in ("less", "greater", "never_less") or (
        row.interval == "none" and row.margin is not None
    )
    if row.claim is not None and margin_counts and (row.margin is None or row.margin.absolute is None):
        raise UserError(f"{where} ({row.label}): claim {row.claim} needs margin: {{absolute: ...}}, stated in advance")
    if row.interval not in _INTERVALS or (row.interval == "wilson" and row.combine):
        raise UserError(f"{where}: interval is seeds, folds, range, none, or wilson for a single rate")
    if row.interval == "range" and (row.combine or row.claim is not None):
        raise UserError(
            f"{where} ({row.label}): interval: range is for a single metric without a claim: where one more run lies"
        )
    if row.interval == "wilson" and row.printed is not None and row.claim is None and row.trials is None:
        raise UserError(
            f"{where} ({row.label}): beside a printed number wilson needs the trials of the paper, {{wilson: 200}}"
        )
    if row.limits is not None and not (isinstance(row.limits, list) and len(row.limits) == 2):
        raise UserError(f"{where}: limits are two numbers")
    if not set(row.regimes) <= set(REGIMES):
        raise UserError(f"{where}: regimes are {', '.join(REGIMES)}")
    for words in row.other.values():
        if words is not None and words.partition(":")[0] not in NOT_COMPARABLE:
            known = ", ".join((*NOT_COMPARABLE, *_PARTLY))
            raise UserError(f"{where}: other begins with one of {known}, then ':' and why")
    if row.too_small is not None and "below" not in row.too_small:
        raise UserError(f"{where}: too_small needs 'below'")
    measured = row.samples is None and not row.not_run
    if measured and any(metric[regime] is None for _, metric in row.terms for regime in row.regimes):
        raise UserError(f"{where} ({row.label}): metric is missing")
    if measured and row.printed is not None and row.margin is None and row.claim is None:
        raise UserError(f"{where} ({row.label}): a printed number needs a stated margin")


def _by_regime(value: Any) -> dict[str, Any]:
    """Return ``{regime: value}``; a mapping whose keys are all regimes is used as it is."""
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


# --- plots ----------------------------------------------------------------------------------------------------------

PLOT_KEYS = {
    "line": ("x", "y", "log", "xscale", "pairs"),
    "bars": ("x", "y", "log", "low", "high", "base", "sections"),
    "matrix": ("x", "y"),
    "words": (),
    "pareto": ("pairs",),
}
SCALES = ("linear", "steps")


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
    kind = plot.get("kind") if isinstance(plot, dict) else None
    if kind not in PLOT_KEYS:
        raise UserError(
            f"{where}: plot.kind is '{kind}'{did_you_mean(str(kind), PLOT_KEYS)}; one of {', '.join(PLOT_KEYS)}"
        )
    for key in plot:
        if key != "kind" and key not in PLOT_KEYS[kind]:
            known = any(key in keys for keys in PLOT_KEYS.values())
            told = f"plot.{key} is not used by kind '{kind}'" if known else f"unknown key 'plot.{key}'"
            near = "" if known else did_you_mean(str(key), PLOT_KEYS[kind])
            raise UserError(f"{where}: {told}{near}; it uses {', '.join(PLOT_KEYS[kind]) or 'none'}")
    checks = {"line": _check_line, "bars": _check_bars, "matrix": _check_matrix, "words": _check_words}
    checks.get(kind, _check_pairs)(plot, rows, where)
    if kind == "line" and "pairs" in plot:
        _check_pairs(plot, rows, where)


def _check_line(plot: dict[str, Any], rows: Sequence[RowSpec], where: str) -> None:
    if plot.get("xscale", "linear") not in SCALES:
        raise UserError(f"{where}: plot.xscale is '{plot['xscale']}', expected one of {', '.join(SCALES)}")
    drawn = _with_series(rows, where)
    if "x" not in plot or any(row.x is None for row in drawn):
        raise UserError(f"{where}: a line plot needs plot.x, what its x axis shows, and 'x' in every row with a series")
    units: dict[str, set[str]] = {}
    for row in drawn:
        units.setdefault(row.series, set()).add(unit_of(row))
    if mixed := next((series for series, found in units.items() if len(found) > 1), None):
        raise UserError(f"{where}: series '{mixed}' has several units: {', '.join(sorted(units[mixed]))}")
    if "y" in plot and len(found := set().union(*units.values())) > 1:
        raise UserError(f"{where}: plot.y names panels of several units ({', '.join(sorted(found))}): leave it out")


def _check_bars(plot: dict[str, Any], rows: Sequence[RowSpec], where: str) -> None:
    if ("x" in plot) == ("y" in plot):
        raise UserError(f"{where}: a bar plot needs plot.x or plot.y (one of them): what its bars measure")
    known = list(dict.fromkeys(row.section for row in rows))
    for section in plot.get("sections", []):
        if section not in known:
            raise UserError(f"{where}: plot.sections: no section '{section}'{did_you_mean(section, known)}")
    for section in plot.get("sections", [None]):
        units = {unit_of(row) for row in rows if section in (None, row.section) and row.samples is None}
        if len(units) > 1:
            words = ", ".join(unit or "none" for unit in sorted(units))
            raise UserError(f"{where}: a bar chart has one unit, not {words}: choose plot.sections")
    for key in ("low", "high", "base"):
        if isinstance(number := plot.get(key, 1), bool) or not isinstance(number, int | float):
            raise UserError(f"{where}: plot.{key} is '{number}', expected a number")
        if plot.get("log") and number <= 0:
            raise UserError(f"{where}: plot.{key} is {number}, a log scale begins above 0")


def _check_matrix(plot: dict[str, Any], rows: Sequence[RowSpec], where: str) -> None:
    if any(row.x is None or row.y is None for row in _with_series(rows, where)):
        raise UserError(f"{where}: a matrix needs 'x' and 'y' in every row with a series")


def _check_words(plot: dict[str, Any], rows: Sequence[RowSpec], where: str) -> None:
    if all(row.samples is None for row in rows):
        raise UserError(f"{where}: plot.kind 'words' needs rows of samples")


def _check_pairs(plot: dict[str, Any], rows: Sequence[RowSpec], where: str) -> None:
    pairs = plot.get("pairs")
    if not isinstance(pairs, dict) or not pairs:
        raise UserError(f"{where}: plot.pairs is a mapping <title>: {{x: <section>, y: <section>}}")
    known = list(dict.fromkeys(row.section for row in rows))
    for title, pair in pairs.items():
        if not isinstance(pair, dict) or set(pair) != {"x", "y"}:
            raise UserError(
                f"{where}: plot.pairs.{title} needs x and y, the sections that are compared with each other"
            )
        for section in pair.values():
            if section not in known:
                raise UserError(f"{where}: plot.pairs.{title}: no section '{section}'{did_you_mean(section, known)}")
        own, other = ({row.label for row in rows if row.section == pair[axis]} for axis in ("x", "y"))
        if not own & other:
            raise UserError(f"{where}: plot.pairs.{title}: no row has the same label in both sections")


def _with_series(rows: Sequence[RowSpec], where: str) -> list[RowSpec]:
    drawn = [row for row in rows if row.series]
    if not drawn:
        raise UserError(f"{where}: this plot draws rows that have a 'series', and there is none")
    return drawn

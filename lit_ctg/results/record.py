"""The run record: what every run leaves as ``run.json``, and all that tables and reports read.

The file is strict JSON with one metric, one history and one part of the configuration per line. A metric whose value
is not finite is stored as ``"value": null`` with ``"note": "nan"``, ``"inf"`` or ``"-inf"`` and read back as that
number. An interval with a non-finite bound is stored as null, a non-finite history value as null (read back as NaN), a
non-finite number in the configuration as its name. Epochs in ``history`` count from 1 (the value after that many).
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import lzma
import math
import platform
import re
import subprocess
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from lit_ctg.errors import UserError
from lit_ctg.files import (
    Unpacked,
    check_regular,
    locked,
    named_floats,
    plain_name,
    reading,
    sample_lines,
    write_atomic,
)

SCHEMA_VERSION = 1
REGIMES = ("as_published", "corrected")
SIZES = ("smoke", "small", "paper")
# DIVERGED is a result too: the run ended where its numbers stopped being finite, and would do so again
STATUSES = ("DONE", "DIVERGED", "FAILED")
DIRECTIONS = ("lower", "higher", "none")
RECORDS = "records"  # a paper's folder of committed records, packed by family, regime and size
DIGESTS = "digests.txt"  # beside the archives: what every record in them must be
MOST_UNPACKED = 2**30  # bytes of an archive of records

_REMEDY, _ARCHIVE = "pass another file, or run the job again", "an archive of run records"

_TEXT, _COUNT, _NUMBER = (str,), (int,), (int, float)
_MAYBE = type(None)
_MISSING = type("missing", (), {})()
# fields that older records lack
_LATER = {"processor": None, "precision": None}
_CHOICES = {"status": STATUSES, "regime": REGIMES, "size": SIZES}

_ONE_A_LINE = ("config", "metrics", "history", "samples")

# a record in a run directory, or a committed one named after its regime, size and seed
_RECORD_NAME = re.compile(r"run\.json|(?P<regime>[a-z_]+)-(?P<size>[a-z]+)-seed(?P<seed>\d+)\.json")

_ARCHIVE_NAME = re.compile(rf".+_({'|'.join(REGIMES)})_(?P<size>{'|'.join(SIZES)})\.tar\.xz", re.DOTALL)

# keys of the configuration (dotted, from the root) that do not change what a training run computes
HASH_IGNORED = (
    "output_root",
    "skip_completed",
    "ckpt_path",
    "debug",
    "threads",
    "jobs",
    "logger",
    "hydra",
    "prompt",
    "n",
    "control",
    "path",
    "decoding.routes",
    "callback.control_trial.decoding.routes",
    "callback.progress",
    "callback.run_record",
    "callback.checkpoint",
    "data.cache_root",
    "data.num_workers",
    "data.pin_memory",
    "data.persistent_workers",
    "trainer.default_root_dir",
    "trainer.enable_checkpointing",
    "trainer.enable_model_summary",
    "trainer.enable_progress_bar",
    "trainer.log_every_n_steps",
    "trainer.logger",
)

PACKAGES = ("torch", "lightning", "torchmetrics", "hydra-core", "omegaconf", "transformers", "numpy", "scipy")


@dataclass(kw_only=True)
class RunRecord:
    """One run.

    ``metrics`` holds ``{name: {value, unit, direction, n, ci95, version}}`` with plain Python values, ``history``
    ``{name: [[epoch, value], ...]}``, ``samples`` dicts with at least ``text``. In the file every field is required
    (null where the type allows) except ``samples`` and ``corpus``, the checksums of its data and of weights that it was
    given; ``source``, the file it was read from (below its archive if it is packed), is not in it. A DIVERGED run says
    in ``error`` what was not finite and when; the numbers that it has are kept.
    """

    schema_version: int = SCHEMA_VERSION
    status: str = "DONE"
    error: str | None = None
    name: str
    paper: str
    experiment: str
    regime: str
    size: str
    seed: int
    config: dict[str, Any]
    config_hash: str
    git: dict[str, Any]
    versions: dict[str, str]
    device: str | None = None
    processor: str | None = None
    threads: int | None = None
    precision: str | None = None
    parameters: int | None = None
    wall_time_s: float | None = None
    tokens_per_s: float | None = None
    peak_memory_mb: float | None = None
    started_at: str
    metrics: dict[str, dict[str, Any]] = field(default_factory=dict)
    history: dict[str, list[list[float]]] = field(default_factory=dict)
    samples: list[dict[str, Any]] = field(default_factory=list)
    corpus: dict[str, str] = field(default_factory=dict)
    source: Path | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the record as strict JSON values, in the order of the schema."""
        data: dict[str, Any] = {key: getattr(self, key) for key in FIELDS}
        data["config"] = named_floats(self.config)
        data["metrics"] = {name: _metric_to_json(entry) for name, entry in sorted(self.metrics.items())}
        data["history"] = {
            name: [[epoch, value if math.isfinite(value) else None] for epoch, value in points]
            for name, points in sorted(self.history.items())
        }
        for key in ("wall_time_s", "tokens_per_s", "peak_memory_mb"):
            if data[key] is not None and not math.isfinite(data[key]):
                data[key] = None
        if self.corpus:
            data["corpus"] = self.corpus
        if self.samples:
            data["samples"] = named_floats(self.samples)
        return data


def _accepted(hint: Any) -> tuple[type, ...]:
    """Return the types that a field may have; a number without a point is a float too."""
    kinds = tuple(get_origin(part) or part for part in (get_args(hint) if isinstance(hint, UnionType) else (hint,)))
    return (int, *kinds) if float in kinds else kinds


# field -> accepted types, in the order of the file
FIELDS = {name: _accepted(hint) for name, hint in get_type_hints(RunRecord).items()
          if name not in ("samples", "corpus", "source")}  # fmt: skip


def in_float32(record: RunRecord) -> bool:
    """Say whether a run that asked for bfloat16 products had float32 ones (``lit_ctg/run/precision.py``)."""
    asked = str((record.config.get("trainer") or {}).get("precision"))
    return asked.startswith("bf16") and record.precision == "32-true"


def write_record(record: RunRecord, path: Path) -> None:
    """Write ``record`` to ``path`` whole or not at all.

    Raises:
        UserError: the record breaks its own schema, or the folder cannot be written.
    """
    write_atomic(path, _written(record, path))


def _written(record: RunRecord, path: Path) -> str:
    """Return the text of a record that is to lie at ``path`` (``UserError``: the record breaks its own schema)."""
    data = record.to_json()
    validate(data, str(path))
    for name, entry in data["metrics"].items():
        read_metric(entry, f"metrics.{name}", str(path))
    for name, points in data["history"].items():
        read_points(points, name, str(path))
    return laid_out(data)


def laid_out(data: Mapping[str, Any]) -> str:
    """Return a record as JSON with one field per line, and one entry of a long field per line."""
    fields = []
    for key, value in data.items():
        text = _compact(value)
        if value and key in _ONE_A_LINE:
            named = isinstance(value, Mapping)
            lines = [f"{_compact(k)}: {_compact(v)}" for k, v in value.items()] if named else map(_compact, value)
            opening, closing = "{}" if named else "[]"
            text = opening + "".join(f"\n  {line}," for line in lines).rstrip(",") + f"\n {closing}"
        fields.append(f" {_compact(key)}: {text}")
    return "{\n" + ",\n".join(fields) + "\n}\n"


def _compact(value: Any) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False)


def load_record(path: Path) -> RunRecord:
    """Read one record and the generated texts beside it.

    Raises:
        UserError: the file is missing or damaged; names the file and the field.
    """
    with reading(path, "a run record", _REMEDY):
        check_regular(path)
        text = path.read_text(encoding="utf-8")
    beside = _samples_path(path)
    with reading(beside, "texts of a run", "delete the file"):
        texts = beside.read_bytes().decode() if beside.is_file() else ""
    return _parse(text, path, texts)


def _parse(text: str, path: Path, texts: str, brief: bool = False) -> RunRecord:
    """Return the record written in ``text``.

    Args:
        texts: the samples that lie beside it.
        brief: leave out metrics, histories and samples.
    """
    where = str(path)
    with reading(path, "a run record", _REMEDY):
        data = json.loads(text, parse_constant=_refuse_constant)
    if isinstance(data, dict):
        data = _LATER | data | ({"metrics": {}, "history": {}, "samples": []} if brief else {})
    validate(data, where)
    record = RunRecord(
        **{key: data[key] for key in FIELDS if key not in ("metrics", "history")},
        metrics={name: read_metric(entry, f"metrics.{name}", where) for name, entry in data["metrics"].items()},
        history={name: read_points(points, name, where) for name, points in data["history"].items()},
        corpus=data.get("corpus", {}),
        samples=[] if brief else data.get("samples") or _parse_samples(texts, _samples_path(path)),
        source=path,
    )
    check_plain(record)
    named = _RECORD_NAME.fullmatch(path.name)
    if named and named["seed"] is not None:
        stated = (named["regime"], named["size"], int(named["seed"]))
        if stated != (record.regime, record.size, record.seed):
            raise UserError(
                f"{where} holds regime={record.regime} size={record.size} seed={record.seed}: rename the file"
            )
    return record


def check_sources(paths: Iterable[Path | str]) -> None:
    """Refuse what cannot hold records: ``load_records`` finds none there, as in a folder of runs yet to come.

    Raises:
        UserError: nothing is there, or a file of another kind.
    """
    for path in map(Path, paths):
        if not path.is_dir() and not (path.is_file() and _is_named(path)):
            raise UserError(f"no records at {path}: pass a run directory or a folder of them with records=")


def check_no_input(out: Path | str) -> None:
    """Refuse to write a table or page over a record, its texts, an archive or a manifest, which nothing makes again."""
    path = Path(out)
    name = re.sub(r"\.samples\.jsonl$", ".json", path.name)
    inputs = _RECORD_NAME.fullmatch(name) or _is_archive(path) or name in ("samples.jsonl", "paper.yaml")
    if inputs and path.is_file():
        raise UserError(f"out={out} is a run's record or a paper's manifest, not written over: choose another file")


def load_records(
    paths: Iterable[Path | str],
    known: dict[Path, RunRecord] | None = None,
    *,
    size: str | None = None,
    brief: bool = False,
) -> list[RunRecord]:
    """Read all records in files, archives and folders (searched to any depth; a missing folder has none).

    A record in an archive has its place there: ``main_corrected_paper.tar.xz/main/corrected-paper-seed1.json``. Records
    in ``known`` are not read again; newly read ones are added to it.

    Args:
        size: only runs of this size; archives of others are not read.
        brief: leave out metrics, histories and texts of packed runs; most of the time goes into them.
    """
    known = {} if known is None else known
    files: list[Path] = []
    named: set[Path] = set()
    for path in map(Path, paths):
        if not path.is_dir() and _is_named(path):
            files.append(path)
            named.add(path.resolve())
        else:
            found = (file for kind in ("*.json", "*.tar.xz") for file in path.rglob(kind))
            files += sorted(file for file in found if _is_record(file.relative_to(path)) or _is_archive(file, size))
    packed: dict[Path, list[Path]] = {}
    for place in known:
        packed.setdefault(place.parent.parent, []).append(place)
    wanted: list[Path] = []
    for file in dict.fromkeys(file.resolve() for file in files):
        if _is_archive(file):
            if file not in packed:
                read = _read_archive(file, brief)
                known |= read
                packed[file] = list(read)
            wanted += packed[file]
            continue
        try:
            known[file] = known[file] if file in known else load_record(file)
            wanted.append(file)
        except UserError:
            # a run that starts meanwhile puts the record of its folder aside
            if file in named or file.exists():
                raise
    return [known[place] for place in wanted if size in (None, known[place].size)]


def _is_named(path: Path) -> bool:
    """Say whether a path is of a file that may be a record, or several."""
    return path.suffix == ".json" or _is_archive(path)


def _is_archive(path: Path, size: str | None = None) -> bool:
    named = _ARCHIVE_NAME.fullmatch(path.name)
    return named is not None and size in (None, named["size"])


def _read_archive(archive: Path, brief: bool = False) -> dict[Path, RunRecord]:
    """Return the records in an archive, by their places.

    Raises:
        UserError: the archive or a record in it is damaged; names the file.
    """
    files = {archive / name: content for name, content in unpacked(archive).items()}
    with reading(archive, _ARCHIVE, "delete it"):
        texts = {place: content.decode() for place, content in files.items()}
    places = sorted(place for place in texts if place.suffix == ".json" and _is_record(place.relative_to(archive)))
    return {place: _parse(texts[place], place, texts.get(_samples_path(place), ""), brief) for place in places}


def unpacked(archive: Path) -> dict[str, bytes]:
    """Return the files in an archive of records, ``<name>/<file>`` each.

    Raises:
        UserError: it is damaged or holds something else.
    """
    files = {}
    with reading(archive, _ARCHIVE, "delete it", EOFError, lzma.LZMAError, tarfile.TarError):
        check_regular(archive)
        with (
            Unpacked(lzma.open(archive), archive, most=MOST_UNPACKED) as stream,
            tarfile.open(fileobj=stream, mode="r|", bufsize=2**20) as members,
        ):
            for member in members:
                file = members.extractfile(member) if member.isfile() else None
                if file is None or member.name.count("/") != 1:
                    raise ValueError(f"it holds {member.name!r}")
                for part in member.name.split("/"):
                    plain_name(part, f"{archive}: a name in it", "delete it")
                files[member.name] = file.read()
    return files


def packed(files: Mapping[str, bytes]) -> bytes:
    """Return an archive, the same bytes for the same files."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(files):
            member = tarfile.TarInfo(name)
            member.size = len(files[name])
            archive.addfile(member, io.BytesIO(files[name]))
    return packed.getvalue()


def _is_record(path: Path) -> bool:
    """Say whether a file found under a folder is a training run's record, from its name and place alone."""
    named = _RECORD_NAME.fullmatch(path.name)
    if named is None or "evaluate" in path.parts[:-1]:  # `lit-ctg evaluate` may have used any checkpoint
        return False
    return named["regime"] is None or (named["regime"] in REGIMES and named["size"] in SIZES)


def _metric_to_json(entry: Mapping[str, Any]) -> dict[str, Any]:
    entry = dict(entry)
    interval = entry.get("ci95")
    entry["ci95"] = list(interval) if interval and all(map(math.isfinite, interval)) else None
    if isinstance(entry.get("value"), float) and not math.isfinite(entry["value"]):
        entry |= {"value": None, "note": str(entry["value"])}
    return entry


def _samples_path(record: Path) -> Path:
    """Return ``samples.jsonl`` in a run directory, or the name of a committed record with ``.samples.jsonl``."""
    return record.with_name("samples.jsonl") if record.name == "run.json" else record.with_suffix(".samples.jsonl")


def _parse_samples(text: str, path: Path) -> list[dict[str, Any]]:
    samples = []
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            with reading(f"{path}, line {number}", "JSON", "delete the file"):
                samples.append(json.loads(line))
            check_sample(samples[-1], f"line {number}", str(path))
    return samples


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


# --- what a record must look like -----------------------------------------------------------------------------------


def validate(data: Any, where: str) -> None:
    """Check types and choices of every field."""
    _check(data, (dict,), "the whole", where)
    for key, types in FIELDS.items():
        _check(data.get(key, _MISSING), types, key, where, _CHOICES.get(key))
    if data["schema_version"] > SCHEMA_VERSION:
        raise UserError(f"{where}: schema_version {data['schema_version']} is newer than this package: update lit-ctg")
    for part in ("trainer", "data", "model", "callback"):  # read by tables; a run of the level field may name its model
        types = (dict, str, _MAYBE) if part == "model" and data["paper"] == "field" else (dict, _MAYBE)
        _check(data["config"].get(part), types, f"config.{part}", where)
    corpus, samples = data.get("corpus", {}), data.get("samples", [])
    _check(corpus, (dict,), "corpus", where)
    for key, checksum in corpus.items():
        _check(checksum, _TEXT, f"corpus.{key}", where)
    _check(samples, (list,), "samples", where)
    for index, sample in enumerate(samples):
        check_sample(sample, f"samples[{index}]", where)


def _check(
    value: Any,
    types: tuple[type, ...],
    key: str,
    where: str,
    choices: Sequence[str] | None = None,
    length: int | None = None,
) -> None:
    """Refuse a value of another type, that is not among ``choices``, or of another length; quick, as there are many."""
    wrong = not isinstance(value, types) or (isinstance(value, bool) and bool not in types)
    if wrong or (choices and value not in choices) or (length is not None and len(value) != length):
        shown = type(value).__name__ if wrong else repr(value)[:60]
        expected = choices or ["null" if kind is _MAYBE else kind.__name__ for kind in types]
        count = f" of {length}" * (length is not None)
        raise UserError(
            f"{where}: field '{key}' is {shown}, expected {' or '.join(expected)}{count}; run the job again"
        )


def check_sample(sample: Any, key: str, where: str) -> None:
    """Check that a sample is an object with a text."""
    _check(sample, (dict,), key, where)
    _check(sample.get("text"), _TEXT, f"{key}.text", where)


def read_metric(entry: Any, key: str, where: str) -> dict[str, Any]:
    """Check one metric and return it, with its value restored from ``note`` where it was not finite."""
    _check(entry, (dict,), key, where)
    value, note = entry.get("value"), entry.get("note")
    if value is None and note in ("nan", "inf", "-inf"):
        value = float(note)
    _check(value, _NUMBER, f"{key}.value", where)
    for name, types in {"unit": _TEXT, "direction": _TEXT, "n": _COUNT, "version": _COUNT}.items():
        _check(entry.get(name), types, f"{key}.{name}", where, DIRECTIONS if name == "direction" else None)
    kept = {name: entry[name] for name in ("unit", "direction", "n", "version")}
    interval, folds = entry.get("ci95"), entry.get("folds")
    if interval is not None:
        _check_numbers(interval, f"{key}.ci95", where, length=2)
    if folds is not None:
        _check_numbers(folds, f"{key}.folds", where)
        kept["folds"] = folds
    with reading(where, f"a run record, field '{key}.value'", _REMEDY, OverflowError):
        return {"value": float(value), **kept, "ci95": interval}


def _check_numbers(value: Any, key: str, where: str, length: int | None = None) -> None:
    _check(value, (list,), key, where, length=length)
    for number in value:
        _check(number, _NUMBER, key, where)


def read_points(points: Any, name: str, where: str) -> list[list[float]]:
    """Check one history and return its ``[epoch, value]`` pairs, null values as NaN."""
    key = f"history.{name}"
    _check(points, (list,), key, where)
    for point in points:
        _check(point, (list,), key, where, length=2)
        _check(point[0], _NUMBER, key, where)
        _check(point[1], (int, float, _MAYBE), key, where)
    return [[epoch, math.nan if value is None else value] for epoch, value in points]


# --- committed records ----------------------------------------------------------------------------------------------


def collect(records: list[RunRecord], root: Path, *, replace: bool = False) -> list[Path]:
    """Copy finished runs into ``root``, for the repository's tables; return the places of the new records.

    A record belongs to the archive ``<paper>/records/<family>_<regime>_<size>.tar.xz`` as
    ``<name>/<regime>-<size>-seed<seed>.json``, its generated samples beside it; of several runs with one such name, the
    last started. An existing record stays unless ``replace`` is set. An archive is replaced whole or not at all, and
    ``digests.txt`` beside it says what each new record is. Where the run wrote (``output_root``) changes no result and
    may reveal somebody's folders: the copy says "outputs".

    Args:
        replace: overwrite a record of the same experiment, regime, size and seed.

    Raises:
        UserError: a run of uncommitted or unknown code, or one whose name or paper is not a plain folder name; nothing
            is copied then.
    """
    finished = [record for record in records if record.status in ("DONE", "DIVERGED")]
    latest = {
        (record.paper, record.name, record.regime, record.size, record.seed): record
        for record in sorted(finished, key=lambda record: record.started_at)
    }
    archives: dict[Path, list[RunRecord]] = {}
    # all of them before the first is copied
    for record in latest.values():
        if record.git.get("dirty") is not False:
            why = "made with uncommitted changes" if record.git.get("dirty") else "its commit is not known"
            raise UserError(f"{record.source}: {why}, so nobody could repeat it: commit, and run in a git checkout")
        check_plain(record)
        name = f"{family(record.paper, record.name)}_{record.regime}_{record.size}.tar.xz"
        archives.setdefault(root / record.paper / RECORDS / name, []).append(record)
    written = []
    with locked(root / ".collect.lock"):
        for archive, own in archives.items():
            files = unpacked(archive) if archive.exists() else {}
            new = {}
            digests = read_digests(archive.parent)
            for record in own:
                stem = stem_of(record)
                place = f"{stem}.json"
                if place in files and not replace:
                    continue
                config = {**record.config, "output_root": "outputs"}
                bare = dataclasses.replace(record, samples=[], config=config)
                new[place] = _written(bare, archive / place).encode()
                new[f"{stem}.samples.jsonl"] = sample_lines(record.samples, archive)
                written.append(archive / place)
                kept = _parse(new[place].decode(), archive / place, new[f"{stem}.samples.jsonl"].decode())
                digests = {key: digest for key, digest in digests.items() if key[0] != stem}
                digests[stem, record.started_at] = digest_of(kept)
            if new:
                # before the archive: after an interruption the next `lit-ctg collect` writes both
                write_digests(archive.parent, digests)
                write_atomic(archive, packed({name: text for name, text in {**files, **new}.items() if text}))
    return written


def collect_command(records: list[str] | None, out: str, replace: bool) -> list[str]:
    """Collect the records of some folders, by default ``outputs``; return the line of the answer."""
    sources = records or ["outputs"]
    check_sources(sources)
    written = collect(load_records(sources), Path(out), replace=replace)
    return [f"{len(written)} records written below {out}"]


def family(paper: str, name: str) -> str:
    """Return what runs are packed with: of a paper, up to two leading words of their names; of the field, the task."""
    if paper == "field":
        return name.partition("-")[0]
    first, _, rest = name.partition("_")
    second = rest.partition("_")[0]
    return f"{first}_{second}" if first.isalpha() and second.isalpha() else first


def check_plain(record: RunRecord) -> None:
    """Refuse a record whose paper or name, after which folders are named, would lead elsewhere."""
    for key in ("paper", "name"):
        plain_name(getattr(record, key), f"{record.source}: its {key}", "delete the file")


# --- where a result comes from --------------------------------------------------------------------------------------


def config_hash(config: Mapping[str, Any], without: Iterable[str] = HASH_IGNORED) -> str:
    """Return the SHA-256 of the canonical JSON of a resolved configuration, less keys that change no result.

    Only the name of a class (``_target_``) counts, not its module: a class that moves within the package is the same
    class, and its finished runs are still found.

    Args:
        config: plain nested dicts, lists, numbers and strings.
        without: dotted keys, from the root, that are left out with everything below them.
    """
    data = config.get("data")
    order = data.get("order_seed") if isinstance(data, Mapping) else None
    own = {"training_seed": config.get("training_seed"), "data.order_seed": order}
    # where they are null a run is that of a configuration from before they existed
    unset = {key for key, value in own.items() if value is None}
    return _hash(without_modules(drop_keys(config, frozenset(without) | unset)))


def _hash(kept: Any) -> str:
    text = json.dumps(named_floats(kept), sort_keys=True, separators=(",", ":"), allow_nan=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


# keys that earlier versions of ``config_hash`` counted, and whether they counted the modules of classes
_EARLIER: tuple[tuple[set[str], bool], ...] = (
    (set(), False),
    ({"callback.run_record"}, False),
    ({"callback.run_record"}, True),
    ({"callback.run_record", "path"}, True),
)


def has_own_hash(record: RunRecord) -> bool:
    """Say whether the stored hash is that of the stored configuration, as ``config_hash`` has it or once had it."""
    if record.config_hash == config_hash(record.config):
        return True
    ignored = frozenset(HASH_IGNORED)
    kept = ((drop_keys(record.config, ignored - counted), modules) for counted, modules in _EARLIER)
    return record.config_hash in {_hash(config if modules else without_modules(config)) for config, modules in kept}


def stem_of(record: RunRecord) -> str:
    """Return a record's place in its archive, less the extension."""
    return f"{record.name}/{record.regime}-{record.size}-seed{record.seed}"


def digest_of(record: RunRecord) -> str:
    """Return a digest of all that a record says, its texts included, except where the run wrote."""
    said = {key: getattr(record, key) for key in (*FIELDS, "corpus", "samples")}
    said["config"] = {**record.config, "output_root": "outputs"}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]


def read_digests(folder: Path) -> dict[tuple[str, str], str]:
    """Return the digests in a folder of records: (place in its archive, when it started) -> digest; maybe none.

    Raises:
        UserError: the file is damaged.
    """
    path = folder / DIGESTS
    if not path.is_file():
        return {}
    with reading(path, "digests of records", "restore it with git"):
        lines = [line.split(" ") for line in path.read_text(encoding="utf-8").splitlines()]
        return {(stem, started): digest for stem, started, digest in lines}


def write_digests(folder: Path, digests: Mapping[tuple[str, str], str]) -> None:
    """Write the digests of a folder of records."""
    write_atomic(folder / DIGESTS, "".join(f"{' '.join(key)} {digest}\n" for key, digest in sorted(digests.items())))


def drop_keys(config: Mapping[str, Any], ignored: frozenset[str], prefix: str = "") -> dict[str, Any]:
    """Return a copy of ``config`` without the dotted keys in ``ignored``."""
    kept = {}
    for key, value in config.items():
        dotted = f"{prefix}{key}"
        if dotted not in ignored:
            kept[key] = drop_keys(value, ignored, f"{dotted}.") if isinstance(value, Mapping) else value
    return kept


def without_modules(config: Any) -> Any:
    """Return a copy of ``config`` with every ``_target_`` reduced to the name of its class."""
    if isinstance(config, Mapping):
        return {
            key: str(value).rpartition(".")[2] if key == "_target_" else without_modules(value)
            for key, value in config.items()
        }
    return [without_modules(value) for value in config] if isinstance(config, list | tuple) else config


def environment() -> dict[str, Any]:
    """Return ``{"git": {commit, dirty}, "versions": {...}, "processor": model}``; nulls where that is not known.

    ``dirty`` says whether the package or its configuration differ from the commit. The named packages are not imported.
    """
    versions = {"python": platform.python_version(), "platform": platform.platform()}
    for package in ("lit-ctg", *PACKAGES):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    git = _git_state(Path(__file__).resolve().parents[2])
    return {"git": git, "versions": versions, "processor": processor_model()}


def processor_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str | None:
    """Return the processor's model as the system reports it, else None."""
    try:
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Model") and value.strip():
                return " ".join(value.split())
    except OSError:  # not Linux
        pass
    return platform.processor() or platform.machine() or None


def _git_state(root: Path) -> dict[str, Any]:
    """Return commit and dirty flag of the checkout that tracks this package, nulls if none does."""
    # an environment inside some other checkout is not that checkout's code: ask whether git tracks this very file
    if _git(root, "ls-files", "--error-unmatch", "lit_ctg/__init__.py") is None:
        return {"commit": None, "dirty": None}
    changes = _git(root, "status", "--porcelain", "--", "lit_ctg", "conf")
    return {"commit": _git(root, "rev-parse", "HEAD"), "dirty": None if changes is None else bool(changes)}


def _git(root: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None

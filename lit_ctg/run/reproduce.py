"""`lit-ctg reproduce`: run what the tables still lack, then print the tables and write the report.

The entry ``runs`` of ``experiments/<paper>/paper.yaml`` lists the runs of each size in their order::

    small:
      - experiment: [main, baseline]                 # one or more experiments of the paper
        regime: [as_published, corrected]
        seed: [0, 1, 2]
        set: {backbone.layers: [2, 6], model.file: "{local}/x"}  # overrides; a list is swept, {local} is the folder
                                                     # of local data
        data: control_code                           # a folder in there: data.source=local, data.root={local}/...
        priority: 1                                  # `lit-ctg lab` runs lower ones first, of all papers (default 0)
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from lit_ctg.config import compose, composed, prepare_overrides, variants
from lit_ctg.errors import UserError, refuse
from lit_ctg.files import config_folder, read_yaml
from lit_ctg.limits import check_mapping
from lit_ctg.results.gather import OUTPUTS
from lit_ctg.results.record import RECORDS, REGIMES, RunRecord, check_sources, load_records
from lit_ctg.results.spec import MANIFEST, experiments_root, load_manifest, papers
from lit_ctg.run.directory import FINAL
from lit_ctg.terminal import Console
from lit_ctg.trust import without_trust, words_from_file

# of an entry; patterns of those that choose something follow
_KEYS = dict.fromkeys(("experiment", "regime", "seed", "data"), Any) | {"set": dict[str, Any], "priority": int}
# what the working directory's manifests may change: settings of these groups, but not the classes behind them
_GROUPS = ("model", "data", "backbone", "decoding", "metric", "callback", "trainer", "name")
_SETTING = re.compile(r"(?:" + "|".join(_GROUPS) + r")(?:[./]\w+)*")
# groups that have no part in the name of a run or in its corpus
_APART = ("callback", "metric", "decoding", "trainer", "logger")
_PLACE = re.compile(r"\{\w*\}")
# names of experiments, options of a group and folders of data: nothing that leaves conf/ or the folder of local data
_OPTION = re.compile(r"[\w-][\w.-]*(?:/[\w-][\w.-]*)*")


@dataclass(frozen=True)
class Group:
    """Runs that differ only in the seed: one sweep.

    ``folders`` are the folders of real data that it reads, ``corpus`` is what ``corpus_of`` says of its configuration.
    """

    paper: str
    name: str
    regime: str
    size: str
    seeds: tuple[int, ...]
    words: tuple[str, ...]
    folders: tuple[Path, ...] = ()
    corpus: tuple[str, str] = ("", "")
    priority: int = 0

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Return the key of its records."""
        return self.paper, self.name, self.regime, self.size

    def command(self) -> list[str]:
        """Return the overrides of ``lit-ctg train -m``."""
        return [*self.words, f"seed={','.join(map(str, self.seeds))}", "skip_completed=true"]


def load_groups(root: Path, paper: str, size: str, local: str = "local") -> list[Group]:
    """Return the runs that a paper's manifest lists for one size.

    Args:
        local: folder of the local data sets.

    Raises:
        UserError: no such file, size or key, or an override that cannot be composed.
    """
    path, sizes = root / paper / MANIFEST, load_manifest(root, paper).runs
    if size not in sizes:
        raise UserError(f"{path} lists no runs of size={size}: there are {', '.join(sizes) or 'none'}")
    with words_from_file():
        return [group for entry in sizes[size] for group in _groups(entry, paper, size, local, path)]


def _groups(entry: Any, paper: str, size: str, local: str, path: Path) -> Iterator[Group]:
    check_mapping(str(path), entry, _KEYS, ("experiment",))
    for key, pattern in (("experiment", _OPTION), ("data", _OPTION), ("regime", "|".join(REGIMES)), ("seed", r"\d+")):
        for value in _list(entry.get(key, [])):
            if not re.fullmatch(pattern, str(value)):
                raise UserError(f"{path}: '{key}' cannot be {value!r}")
    swept, priority = _checked(entry.get("set", {}), path), entry.get("priority", 0)
    folder = Path(local) / entry["data"] if "data" in entry else None
    data = [] if folder is None else ["data.source=local", f"data.root={folder}"]
    swept = {key: [_placed(value, local, path) for value in _list(values)] for key, values in swept.items()}
    for experiment in _list(entry["experiment"]):
        for values in itertools.product(*swept.values()):
            own = [f"{key}={_word(value)}" for key, value in zip(swept, values, strict=True)]
            named = [value for value in values if isinstance(value, Path)]
            folders = tuple(dict.fromkeys([*([] if folder is None else [folder]), *named]))
            chosen = [f"experiment={paper}/{experiment}", f"size={size}"]
            name, corpus = _named(f"{paper}/{experiment}", f"size={size}", own, folder)
            words = [*chosen, *data, *own]
            for regime in _list(entry.get("regime", REGIMES)):
                seeds = tuple(_list(entry.get("seed", [0])))
                asked = (*words, f"regime={regime}")
                yield Group(paper, name, regime, size, seeds, asked, folders, corpus, priority)


def _checked(swept: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the overrides of an entry; refuse those that reach beyond the experiment.

    The manifest may come from whatever folder the command is started in, so it is trusted less than a command line:
    its jobs may name no class of the user's own (``trust.py``), and it reads no files or variables by a resolver.
    """
    for key, values in swept.items():
        refuse((fault for value in _list(values) for fault in _faults(str(key), value)), f"{path}: 'set' of '{key}': ")
    return swept


def _faults(key: str, value: Any) -> Iterator[str]:
    """Yield why a manifest may not give a setting this value."""
    if any(part.startswith("_") for part in re.split(r"[./]", key)) or not _SETTING.fullmatch(key):
        yield f"it may not be changed, only settings of {', '.join(_GROUPS)}"
    if not isinstance(value, (str, int, float, bool, type(None))):
        yield f"give numbers and words, not {value!r}"
    elif not _PLACE.search(str(value)):  # those are _placed's
        yield from _word_faults(key, value)


@functools.cache
def _word_faults(key: str, value: Any) -> tuple[str, ...]:
    """Return why a value is not a word: a sweep, the call of a resolver, or an option outside ``conf/``."""
    try:
        override = OverridesParser.create().parse_override(f"{key}={_word(value)}")
    except HydraException:
        return (f"{value!r} cannot be read",)
    option = (config_folder() / key).is_dir() or key == "name"
    if override.is_sweep_override() or (option and not _OPTION.fullmatch(str(value))):
        return (f"give {'an option' if option else 'one value'}, not {value!r}",)
    # as Hydra reads it, without its escapes; any resolver has a colon
    read = override.value()
    if isinstance(read, dict) or ("${" in str(read) and ":" in str(read)):
        return (f"give numbers and words, not {value!r}; only keys of the manifest may be interpolated",)
    return ()


def _placed(value: Any, local: str, path: Path) -> Any:
    """Return a value unchanged, or the path for ``{local}/...``."""
    found = _PLACE.search(value) if isinstance(value, str) else None
    if found is None:
        return value
    below = value.removeprefix("{local}/")
    if below == value or not _OPTION.fullmatch(below):
        raise UserError(f"{path}: cannot fill in '{value}': only '{{local}}/<folder>' is allowed")
    return Path(local) / below


def _named(experiment: str, size: str, words: Sequence[str], folder: Path | None) -> tuple[str, tuple[str, str]]:
    """Return the name and the corpus of a configuration.

    Composing takes a quarter of a second, and a paper has dozens: it is left out where the files state the name, and
    the corpus is a folder or that of the experiment which the others vary.

    Args:
        size: ``size=...``.
        words: further overrides.
        folder: of real data.
    """
    try:
        parsed = OverridesParser.create().parse_overrides([*words])
        own = _relevant((each.key_or_group, each.value()) for each in parsed)
        base, varied = _varied(experiment)
        changes = [*varied, *own]
        name = dict([*_stated(base), *changes]).get("name")
        corpus = ("local", folder.name) if folder else None
        if not corpus and not any(_group(key) == "data" for key, _ in changes):
            corpus = corpus_of(_composed(base, size))
        if corpus and name and "${" not in str(name):
            return str(name), corpus
        if any(_chooses(key) for key, _ in varied):
            base, changes = experiment, own
        chosen = [f"{key}={_word(value)}" for key, value in changes if _chooses(key)]
        cfg = _cell(tuple(key for key, _ in changes), experiment, base, size, *chosen)
        for key, value in changes:
            if not _chooses(key):
                OmegaConf.update(cfg, key, value)
        return str(cfg.name), corpus or corpus_of(cfg)
    except (HydraException, OmegaConfBaseException, ValueError):
        cfg = compose([f"experiment={experiment}", size, *words])  # reports what is wrong with it in one line
        return str(cfg.name), ("local", folder.name) if folder else corpus_of(cfg)


def _group(key: str) -> str:
    return re.split(r"[./@]", key)[0]


def _relevant(settings: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Return the settings that may have a part in a run's name or corpus."""
    return [(key, value) for key, value in settings if _group(key) not in _APART]


def _varied(experiment: str) -> tuple[str, list[tuple[str, Any]]]:
    """Return the file in ``conf/experiment`` that an experiment varies, and the settings that it changes, in order."""
    if (variant := variants().get(experiment)) is None:
        return experiment, []
    paper, _, name = experiment.partition("/")
    base, settings = _varied(f"{paper}/{variant['of']}")
    return base, [*settings, ("name", name), *_relevant(variant.get("set", {}).items())]


@functools.cache
def _stated(experiment: str) -> list[tuple[str, Any]]:
    """Return the name that the file of an experiment states."""
    path = config_folder() / "experiment" / f"{experiment}.yaml"
    return [("name", read_yaml(path, aliases=True).get("name"))] if path.is_file() else []


def _chooses(key: str) -> bool:
    """Return whether a setting chooses an option of a group."""
    return (config_folder() / key.partition("@")[0]).is_dir()


def corpus_of(config: Mapping[str, Any]) -> tuple[str, str]:
    """Return the source of a run's text and, of local text, the last folder of its root, as the tables compare it."""
    data = config.get("data")
    source = data.get("source") if isinstance(data, Mapping) else None
    folder = Path(str(data.get("root"))).name if isinstance(data, Mapping) and source == "local" else ""
    return str(source or ""), folder


@functools.cache
def _cell(keys: tuple[str, ...], experiment: str, *base: str) -> DictConfig:
    """Return the configuration of the cells of a grid, each of which sets all of ``keys`` anew: copies take long."""
    return copy.deepcopy(_composed(*base))


@functools.cache
def _composed(experiment: str, *words: str) -> DictConfig:
    """Return a composition without what has no part in a run's name or corpus."""
    without = ("callback=[]", "metric=[]")
    cfg = composed(prepare_overrides(without_trust([f"experiment={experiment}", *words, *without])))
    with open_dict(cfg):
        return OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key not in _APART])


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _word(value: Any) -> str:
    """Return a YAML value in Hydra's syntax."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return str(value)


def missing(groups: Iterable[Group], records: Iterable[RunRecord]) -> list[Group]:
    """Return the groups with the seeds that have no finished record on their corpus; complete groups are left out."""
    # a run that diverged would diverge again
    done = [r for r in records if r.status in FINAL]
    seen = {((r.paper, r.name, r.regime, r.size), r.seed, corpus_of(r.config)) for r in done}
    left = []
    for group in groups:
        seeds = tuple(seed for seed in group.seeds if (group.key, seed, group.corpus) not in seen)
        if seeds:
            left.append(dataclasses.replace(group, seeds=seeds))
    return left


def estimate(group: Group, records: Iterable[RunRecord]) -> float | None:
    """Estimate the seconds of one run from past runs of the same name, else of the paper, at this size; else None."""
    own = (group.paper, group.size)
    past = [r for r in records if r.status == "DONE" and (r.paper, r.size) == own and r.wall_time_s is not None]
    alike = [r for r in past if r.name == group.name] or past
    return fmean(float(r.wall_time_s or 0) for r in alike) if alike else None


def plan_lines(groups: Sequence[Group], records: Sequence[RunRecord]) -> list[str]:
    """Return one line per group and one with the sum, with estimates in hours."""
    lines, total, unknown = [], 0.0, 0
    for group in groups:
        seconds = estimate(group, records)
        count = len(group.seeds)
        cost = "no past run to estimate from" if seconds is None else f"about {seconds * count / 3600:.2f} h"
        total += (seconds or 0.0) * count
        unknown += count * (seconds is None)
        lacks = ", ".join(map(str, absent(group)))
        where = f"; needs {lacks}" if lacks else ""
        seeds = ", ".join(map(str, group.seeds))
        lines.append(f"{group.paper}/{group.name} {group.regime} {group.size}, seeds {seeds}: {cost}{where}")
    runs = sum(len(group.seeds) for group in groups)
    words = f"{runs} runs missing, about {total / 3600:.2f} h by past records"
    return [*lines, words + (f" and {unknown} runs without one" if unknown else "")]


def absent(group: Group) -> list[Path]:
    """Return the missing folders that a group reads."""
    return [folder for folder in group.folders if not folder.exists()]


def run(groups: Sequence[Group], output_root: str, console: Console) -> int:
    """Run the groups one after the other; return 0, or 1 if a run failed or its data is missing."""
    from lit_ctg.run.sweep import sweep

    code = 0
    for number, group in enumerate(groups, start=1):
        label = f"[{number}/{len(groups)}] {group.paper}/{group.name} {group.regime} {group.size}"
        if lacking := absent(group):
            folders = ", ".join(map(str, lacking))
            console.print(f"{label}: not run, there is no folder {folders}; give local=<folder>", markup=False)
            code = 1
            continue
        console.print(f"{label}: seeds {', '.join(map(str, group.seeds))}", markup=False)
        with words_from_file():
            code = max(code, sweep([*group.command(), f"output_root={output_root}"]))
    return code


def record_folders(paper: str, output_root: str, records: Sequence[str] | None = None) -> list[Path]:
    """Return the folders of ``records``; by default the committed records of the chosen papers and the user's own.

    Raises:
        UserError: a folder of ``records`` is missing.
    """
    folders = [Path(folder) for folder in records or ()]
    check_sources(folders)
    root, chosen = _chosen(paper)
    return folders or [*(root / name / RECORDS for name in chosen), Path(output_root)]


def _chosen(paper: str) -> tuple[Path, list[str]]:
    """Return the folder of the manifests, and the papers of ``paper=``."""
    root = experiments_root(None if paper == "all" else paper)
    return root, papers(root) if paper == "all" else [paper]


def check_local(local: str | None) -> None:
    """Refuse a ``local=`` that is not a folder; the default need not be there, and then such runs are named."""
    if local is not None and not Path(local).is_dir():
        raise UserError(f"local={local} is not a folder: give the one that holds the corpora (docs/sweeps.md)")


def planned(
    paper: str,
    size: str,
    local: str,
    folders: Sequence[Path],
    console: Console | None = None,
    left_out: list[str] | None = None,
) -> tuple[list[Group], list[RunRecord]]:
    """Return the runs of a paper, or of all, that have no record, and the records.

    Args:
        console: where to report a paper that is left out of ``paper=all``.
        left_out: the same lines are added to it.
    """
    left_out = [] if left_out is None else left_out
    every = paper == "all"
    root, chosen = _chosen(paper)
    records = load_records(folders, size=size, brief=True)
    groups: list[Group] = []
    for name in chosen:
        try:
            if every and size not in load_manifest(root, name).runs:
                if console:
                    console.print(f"{name}: no runs of size={size}", markup=False)
                continue
            groups += load_groups(root, name, size, local)
        except UserError as error:
            if not every:
                raise
            left_out.append(f"{name}: left out: {error}")
            if console:
                console.print(left_out[-1], markup=False)
    return missing(groups, records), records


def main(
    paper: str,
    size: str = "small",
    local: str | None = None,
    output_root: str = OUTPUTS,
    records: Sequence[str] | None = None,
    dry_run: bool = False,
    console: Console | None = None,
) -> int:
    """Run what a paper's tables lack, then print them and write the report; return 0, or 1 if a run failed.

    Args:
        local: folder of the real corpora, ``local`` by default.
        records: folders; what has a record there is not repeated. Default: the committed ones and ``output_root``.
        dry_run: only print what would run.

    Raises:
        UserError: no such paper or size, or a damaged manifest of the paper that is named.
    """
    console = console or Console(soft_wrap=True, highlight=False)
    check_local(local)
    folders = record_folders(paper, output_root, records)
    groups, known = planned(paper, size, local or "local", folders, console)
    for line in plan_lines(groups, known):
        console.print(line, markup=False)
    if dry_run:
        return 0
    with words_from_file():  # a fault is reported before the first run, not after the ones before it
        for group in groups:
            compose(group.words)
    code = run(groups, output_root, console)
    _show(paper, size, Path(output_root), folders, console)
    return code


def _show(paper: str, size: str, output_root: Path, folders: Sequence[Path], console: Console) -> None:
    """Print the tables and write the report from old and new records."""
    from lit_ctg.results.publish import table_command
    from lit_ctg.results.report import main as report

    found = [folder for folder in dict.fromkeys([*folders, output_root]) if folder.is_dir()]
    table_command(paper, size, records=found, console=console)
    report(paper, size, records=found, out=output_root / "report.html", console=console)

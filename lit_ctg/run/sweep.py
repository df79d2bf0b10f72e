"""`lit-ctg train -m`: Hydra's multirun with guarded jobs: a failure is reported at once and the sweep continues.

Every finished job prints one line with the time left. Jobs report in a journal, so that this holds for every launcher
(sweep=basic|local|slurm|ray). With ``jobs`` other than 1 (sweep=local) each job is a process.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import hydra
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override
from hydra.core.utils import JobReturn, JobStatus
from omegaconf import DictConfig, OmegaConf

from lit_ctg.config import (
    LIMITS,
    check,
    compose,
    composed_by_hydra,
    config_folder,
    experiments,
    explained,
    hydra_main,
    prepare_overrides,
    quoted,
    register,
    searchpath_of,
)
from lit_ctg.core.divergence import Diverged
from lit_ctg.errors import UserError, one_line
from lit_ctg.files import writing
from lit_ctg.limits import check_value
from lit_ctg.run.directory import FINAL, REMEDY, finished, stem_of
from lit_ctg.run.jobs import JOURNAL_VARIABLE, Jobs, cores
from lit_ctg.run.launch import is_first_process, started_together
from lit_ctg.terminal import Console, printable
from lit_ctg.trust import named_by_user, without_trust

if TYPE_CHECKING:
    from lightning import Callback

# seconds between two reads of the journal
POLL = 0.2
# outcomes of a job, in the order of the summary, which names some only when they occur
STATUSES = ("DONE", "TRIED", "SKIPPED", "BUSY", "DIVERGED", "FAILED")
SELDOM = ("TRIED", "BUSY", "DIVERGED")


def sweep(words: list[str], dry_run: bool = False, leave: bool = False) -> int:
    """Run every combination of the comma-separated values; return 0, or 1 if some job failed or was not run.

    A run that diverged is a result, not a failure.

    Args:
        words: overrides as Hydra reads them; ``experiment=glob(...)`` matches over all papers.
        dry_run: print a line for each job and stop.
        leave: submit the jobs to SLURM and do not wait for them.

    Raises:
        UserError: the overrides cannot be composed, so no job was started; or the journal cannot be written.
    """
    if together := started_together():
        raise UserError(
            f"{together.world_size()} processes were started: start a sweep in one, with sweep=local or slurm"
        )
    overrides = prepare_overrides(without_trust(words))
    register()
    with explained():
        overrides = applied_per_job(overrides)
        jobs, limit, launcher = plan(overrides)
    beside = searchpath_of(overrides)
    if dry_run:
        return _show_jobs(jobs, beside)
    if leave and not launcher.startswith("submitit"):
        raise UserError("leave=true is for jobs that SLURM runs: add sweep=slurm, or leave it out")
    _check_jobs(jobs, beside)
    root = next((word.partition("=")[2].strip("'\"") for word in words if word.startswith("output_root=")), "outputs")
    folder = _new_folder(Path(root) / "sweeps")
    journal = folder / "jobs.jsonl"
    os.environ[JOURNAL_VARIABLE] = str(journal.resolve())
    began = time.monotonic()
    # a job's folder has its overrides
    ours = {"hydra.sweep.dir": quoted(str(folder)), "hydra.output_subdir": ".hydra"}
    given = {word.partition("=")[0] for word in overrides}
    overrides += [f"{key}={value}" for key, value in ours.items() if key not in given]
    left: contextlib.AbstractContextManager[list[str]] = _submitting() if leave else contextlib.nullcontext([])
    try:
        # what Hydra writes there; errors of jobs end in the journal
        with (
            _watching(journal, len(jobs)),
            _side_by_side(limit, folder / "jobs") as pool,
            writing(folder, remedy=REMEDY),
            left as submitted,
        ):
            hydra_main(_job, ["--multirun", *overrides])
            pool.finish()
    finally:
        os.environ.pop(JOURNAL_VARIABLE, None)
    if leave:
        print(f"{len(submitted)} jobs submitted: {' '.join(submitted)}; each adds a line to {journal} when it ends")
        return 0
    return _summary(journal, len(jobs), time.monotonic() - began)


@contextlib.contextmanager
def _submitting() -> Iterator[list[str]]:
    """Have Hydra's launcher not wait for the jobs that it submits; yield their ids."""
    import submitit

    wait, ids = submitit.Job.results, list[str]()

    def results(job: Any) -> list[JobReturn]:
        ids.append(str(job.job_id))
        return [JobReturn(status=JobStatus.COMPLETED, _return_value="SUBMITTED")]

    submitit.Job.results = results
    try:
        yield ids
    finally:
        submitit.Job.results = wait


def applied_per_job(words: Sequence[str]) -> list[str]:
    """Return the words of a sweep so that each applies to the job, whose experiment it may need.

    Hydra composes the words without a choice before it chooses experiments, where they would find no such key; a
    choice among one value waits. Patterns of experiments become names.
    """
    parser, known = override_parser(), experiments(searchpath_of(words))
    named = [_named(override, known) for override in parser.parse_overrides(list(words))]
    overrides = parser.parse_overrides(named)
    if not any(override.key_or_group == "experiment" and override.is_sweep_override() for override in overrides):
        return named
    return [
        word if _is_general(override) else _one_choice(word) for word, override in zip(named, overrides, strict=True)
    ]


def _named(override: Override, known: Sequence[str]) -> str:
    pattern = override.value()
    if override.key_or_group != "experiment" or not isinstance(pattern, Glob):
        return str(override.input_line)
    if not (names := pattern.filter(list(known))):
        raise UserError(f"{override.input_line}: nothing matches; name the experiments, separated by commas")
    return f"experiment={','.join(names)}"


def _is_general(override: Override) -> bool:
    """Return whether a word means something without an experiment, or cannot be a choice."""
    if override.is_sweep_override() or override.is_delete() or override.is_hydra_override():
        return True
    return not re.search(r"[./]", override.key_or_group) or not override.get_value_element_as_str()


def _one_choice(word: str) -> str:
    key, _, value = word.partition("=")
    return f"{key}=choice({value})"


def override_parser() -> OverridesParser:
    """Return Hydra's parser, which looks up options that patterns match."""
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(config_folder()), version_base="1.3", job_name="lit_ctg"):
        return OverridesParser.create(GlobalHydra.instance().config_loader())


def _check_jobs(jobs: Sequence[Sequence[str]], beside: Sequence[str]) -> None:
    """Refuse a sweep whose first and last job cannot be composed; a single bad job fails by itself.

    Raises:
        UserError: what is wrong with the first.
    """
    try:
        compose([*jobs[0], *beside, _numbered(0)])
    except UserError as error:
        with contextlib.suppress(UserError):
            compose([*jobs[-1], *beside, _numbered(len(jobs) - 1)])
            return
        raise error


def _numbered(job: int) -> str:
    """Return the override that tells a job its number."""
    return f"hydra.job.num={job}"


def _show_jobs(jobs: Sequence[Sequence[str]], beside: Sequence[str]) -> int:
    """Print number, overrides, folder and state of each job; return 1 if some job cannot be composed."""
    failed = 0
    for number, job in enumerate(jobs):
        line = f"[{number + 1}/{len(jobs)}] {' '.join(job)}"
        try:
            stem = stem_of(compose([*job, *beside, _numbered(number)]))
        except UserError as error:
            failed += 1
            print(printable(f"{line}: {error}"), file=sys.stderr)
            continue
        done = finished(stem, FINAL)
        print(printable(f"{line}: {done[-1]}, done" if done else f"{line}: {stem}"))
    return 1 if failed else 0


def _new_folder(parent: Path) -> Path:
    """Make a folder named after the time that nobody else has, even if sweeps start in the same second."""
    with writing(parent, remedy=REMEDY):
        parent.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f"{datetime.now():%Y-%m-%d_%H-%M-%S}-", dir=parent))


def plan(words: Sequence[str]) -> tuple[list[list[str]], int, str]:
    """Return the overrides of each job of a sweep, how many jobs run side by side in processes, and the launcher.

    The jobs are those that Hydra's sweeper makes from these words and from the experiment's ``hydra.sweeper.params``.

    Raises:
        HydraException, OmegaConfBaseException: the overrides cannot be composed.
        UserError: ``jobs`` is below 1, or a pattern (``glob(...)``) that matches no option.
    """
    parser = override_parser()
    given = parser.parse_overrides(list(words))
    fixed = [word for word, override in zip(words, given, strict=True) if not override.is_sweep_override()]
    cfg, settings = composed_by_hydra([*fixed, _numbered(0)])
    params = cast("dict[str, Any]", OmegaConf.to_container(settings.sweeper, resolve=False)).get("params") or {}
    # as in the sweeper: a word of the command line replaces the experiment's sweep over the same key
    every = parser.parse_overrides([f"{key}={value}" for key, value in params.items()])
    every += [override for override in given if not override.is_hydra_override()]
    for override in every:
        if override.is_discrete_sweep() and not any(True for _ in override.sweep_string_iterator()):
            raise UserError(f"{override.input_line}: nothing matches; name the options, separated by commas")
    limit = cfg.get("jobs", 1)
    check_value("jobs", limit, LIMITS["jobs"])
    (jobs,) = BasicSweeper.split_arguments(every, None)
    return jobs, limit or cores(), str(settings.runtime.choices["hydra/launcher"])


# the jobs of this process's sweep; None: they run in this process
_pool: Jobs | None = None


@contextlib.contextmanager
def _side_by_side(limit: int, logs: Path) -> Iterator[Jobs]:
    """Let ``_job`` start processes, ``limit`` at a time; a limit of one runs jobs here."""
    global _pool
    with Jobs(limit, logs) as pool:
        _pool = pool if limit > 1 else None
        try:
            yield pool
        finally:
            _pool = None


def _job(cfg: DictConfig) -> str:
    """Run one job of Hydra's sweep here, or start a process for it."""
    settings = HydraConfig.get()
    words = cast("list[str]", OmegaConf.to_container(settings.overrides.task, resolve=False))
    beside = [*searchpath_of(settings.overrides.hydra), _numbered(settings.job.num)]
    if _pool is not None:
        _pool.start([*words, *beside])
        return "STARTED"
    # in a sweep over several papers only the job's own words say which variant of a corpus it reads
    if prepare_overrides(words) != words:
        return _run(lambda: compose([*words, *beside]), words)
    named_by_user(cfg)
    return _run(lambda: check(cfg), words)


def run_job(words: Sequence[str]) -> int:
    """Run one job in its own process; return 0: its outcome is in the journal (1: that cannot be written)."""
    try:
        _run(lambda: compose(words), [word for word in words if not word.startswith("hydra.")])
    except UserError as error:
        print(printable(one_line(error)), file=sys.stderr)
        return 1
    return 0


def _run(composed: Callable[[], DictConfig], words: Sequence[str]) -> str:
    """Run one job; a failure becomes a line on the screen and in the journal, not the end of the sweep."""
    entry = outcome_of(composed, words)
    # one line in one write: jobs may run side by side; further processes of a multi-device run are not jobs
    if is_first_process():
        path = os.environ[JOURNAL_VARIABLE]
        again = f"free some space: the same command continues ({entry['job']}: {entry['status'].lower()})"
        with writing(path, remedy=again), open(path, "a", encoding="utf-8") as journal:
            journal.write(json.dumps(entry) + "\n")
    return str(entry["status"])


def outcome_of(composed: Callable[[], DictConfig], words: Sequence[str], *callbacks: Callback) -> dict[str, Any]:
    """Train one configuration; return its line of the journal, whatever happens.

    Args:
        composed: composes it.
        words: its overrides.
        callbacks: more callbacks of the trainer.
    """
    from lit_ctg.run.train import train

    register()
    began = time.monotonic()
    entry: dict[str, Any] = {"job": "unknown", "status": "FAILED", "overrides": list(words)}
    entry |= {"folder": None, "error": None}
    debug = False
    try:
        cfg = composed()
        debug = cfg.debug
        entry["job"] = f"{cfg.paper}/{cfg.name} {cfg.regime.name} {cfg.size.name} seed {cfg.seed}"
        outcome = train(cfg, *callbacks)
        entry |= {"status": outcome.status, "folder": str(outcome.folder)}
    except UserError as error:
        entry |= {"status": "DIVERGED" if isinstance(error, Diverged) else "FAILED", "error": one_line(error)}
    except Exception as error:
        if debug:
            traceback.print_exc()
        entry["error"] = one_line(error)
    entry["seconds"] = round(time.monotonic() - began, 1)
    return entry


@contextlib.contextmanager
def _watching(journal: Path, jobs: int) -> Iterator[None]:
    """Print a line for every new job in the journal, while the sweep runs and once more at its end."""
    ended, began, shown = threading.Event(), time.monotonic(), 0

    def tell() -> None:
        nonlocal shown
        entries = _entries(journal)
        for count in range(shown + 1, len(entries) + 1):
            error = entries[count - 1]["error"]
            line = progress_line(entries[:count], jobs, time.monotonic() - began)
            print(printable(f"{line}: {error}" if error else line), file=sys.stderr if error else None, flush=True)
        shown = len(entries)

    def watch() -> None:
        while not ended.wait(POLL):
            tell()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        tell()


def progress_line(entries: Sequence[Mapping[str, Any]], jobs: int, elapsed: float) -> str:
    """Return the line of the job that finished last: its number, outcome, duration, and the time left in the sweep.

    The time left assumes that the rest continues at the pace of the jobs run so far, side by side or not.

    Args:
        entries: the journal so far.
        jobs: of the whole sweep.
        elapsed: seconds since the sweep began.
    """
    last, ran = entries[-1], sum(entry["status"] not in ("SKIPPED", "BUSY") for entry in entries)
    line = f"[{len(entries)}/{jobs}] {last['status'].lower()} {last['job']} in {duration(last['seconds'])}"
    remaining = jobs - len(entries)
    if remaining and ran:
        line += f"; {duration(remaining * elapsed / ran)} left"
    return line


def duration(seconds: float) -> str:
    """Return seconds in at most two units: 41 s, 3 min 20 s, 2 h 5 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _entries(journal: Path) -> list[dict[str, Any]]:
    """Return the entries of the journal; none if no job got as far as writing one."""
    text = journal.read_text(encoding="utf-8") if journal.exists() else ""
    entries = []
    # an unterminated line is still being written
    for line in text[: text.rfind("\n") + 1].splitlines():
        with contextlib.suppress(ValueError):  # cut off by a full disk: its job counts as lost
            entries.append(json.loads(line))
    return entries


def _summary(journal: Path, jobs: int, seconds: float) -> int:
    """Print the outcomes of the jobs; return the exit code."""
    entries = _entries(journal)
    console = Console(soft_wrap=True, highlight=False)
    counts = {status: [entry for entry in entries if entry["status"] == status] for status in STATUSES}
    summary = ", ".join(
        f"{len(found)} {status.lower()}" for status, found in counts.items() if found or status not in SELDOM
    )
    console.print(f"sweep of {len(entries)} jobs in {duration(seconds)}: {summary}")
    for entry in [*counts["DIVERGED"], *counts["FAILED"]]:
        console.print(f"  {entry['status']} {entry['job']}: {entry['error']}", markup=False)
    for entry in counts["BUSY"]:
        console.print(f"  BUSY {entry['job']}: another process is at it in {entry['folder']}", markup=False)
    if counts["BUSY"]:
        console.print("  busy jobs are not done: give the same command again when the other process has ended")
    if lost := jobs - len(entries):
        console.print(f"  {lost} jobs ended without a word: killed, or out of memory; the same command runs them again")
    return 1 if counts["FAILED"] or counts["BUSY"] or lost else 0

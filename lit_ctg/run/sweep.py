"""`lit-ctg train -m`: Hydra's multirun with guarded jobs: a failure is reported at once and the sweep continues.

Every finished job prints one line with the time left. Jobs report in a journal, so that this holds for every launcher
(sweep=basic|local|slurm|ray). With ``jobs`` other than 1 (sweep=local) each job is a process.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from lit_ctg.config import LIMITS, check, compose, config_folder, explained, prepare_overrides, quoted, register
from lit_ctg.core.divergence import Diverged
from lit_ctg.errors import UserError, one_line
from lit_ctg.files import writing
from lit_ctg.limits import check_value
from lit_ctg.run.directory import REMEDY
from lit_ctg.run.jobs import JOURNAL_VARIABLE, Jobs, cores
from lit_ctg.terminal import Console, printable
from lit_ctg.trust import named_by_user, without_trust

# seconds between two reads of the journal
POLL = 0.2
# outcomes of a job, in the order of the summary, which names some only when they occur
STATUSES = ("DONE", "SKIPPED", "BUSY", "DIVERGED", "FAILED")
SELDOM = ("BUSY", "DIVERGED")


def sweep(words: list[str]) -> int:
    """Run every combination of the comma-separated values; return 0, or 1 if some job failed or was not run.

    A run that diverged is a result, not a failure.

    Raises:
        UserError: the overrides cannot be composed, so no job was started; or the journal cannot be written.
    """
    overrides = prepare_overrides(without_trust(words))
    root = next(
        (word.partition("=")[2].strip("'\"") for word in words if word.startswith("output_root=")),
        "outputs",
    )
    os.environ["HYDRA_FULL_ERROR"] = "1"
    register()
    with explained():
        jobs, limit = plan(overrides)
    folder = _new_folder(Path(root) / "sweeps")
    journal = folder / "jobs.jsonl"
    os.environ[JOURNAL_VARIABLE] = str(journal.resolve())
    began = time.monotonic()
    run = hydra.main(config_path=str(config_folder()), config_name="config", version_base="1.3")(_job)
    if not any(word.startswith("hydra.sweep.dir=") for word in overrides):
        overrides.append(f"hydra.sweep.dir={quoted(str(folder))}")
    arguments, sys.argv = sys.argv, ["lit-ctg", "--multirun", *overrides]
    try:
        # what Hydra writes there; errors of jobs end in the journal
        with (
            explained(),
            Watcher(journal, jobs),
            _side_by_side(limit, folder / "jobs") as pool,
            writing(folder, remedy=REMEDY),
        ):
            run()
            pool.finish()
    finally:
        sys.argv = arguments
        os.environ.pop(JOURNAL_VARIABLE, None)
    return _summary(journal, jobs, time.monotonic() - began)


def _new_folder(parent: Path) -> Path:
    """Make a folder named after the time that nobody else has, even if sweeps start in the same second."""
    with writing(parent, remedy=REMEDY):
        parent.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f"{datetime.now():%Y-%m-%d_%H-%M-%S}-", dir=parent))


def plan(overrides: Sequence[str]) -> tuple[int, int]:
    """Return the jobs of a sweep, and how many of them run side by side in separate processes.

    The jobs are those that Hydra's sweeper makes from these words and from the experiment's ``hydra.sweeper.params``.

    Raises:
        HydraException, OmegaConfBaseException: the overrides cannot be composed.
        UserError: ``jobs`` is below 1, no experiment, or a pattern (``glob(...)``) that matches no option.
    """
    GlobalHydra.instance().clear()
    with hydra.initialize_config_dir(str(config_folder()), version_base="1.3", job_name="lit_ctg"):
        parser = OverridesParser.create(GlobalHydra.instance().config_loader())
        given = parser.parse_overrides(list(overrides))
        fixed = [word for word, override in zip(overrides, given, strict=True) if not override.is_sweep_override()]
        cfg = hydra.compose("config", overrides=fixed, return_hydra_config=True)
        if not any(override.get_key_element() == "experiment" for override in given):
            check(cfg)  # no job chooses another experiment
        params = cast("dict[str, Any]", OmegaConf.to_container(cfg.hydra.sweeper, resolve=False)).get("params") or {}
        own = parser.parse_overrides([f"{key}={value}" for key, value in params.items()])
        # as in the sweeper: a word of the command line replaces the experiment's sweep over the same key
        choices = {override.get_key_element(): _choices(override) for override in [*own, *given]}
    GlobalHydra.instance().clear()
    limit = cfg.get("jobs", 1)
    check_value("jobs", limit, LIMITS["jobs"])
    return math.prod(choices.values()), limit or cores()


def _choices(override: Override) -> int:
    if not override.is_discrete_sweep():
        return 1
    if not (count := sum(1 for _ in override.sweep_string_iterator())):
        raise UserError(f"{override.input_line}: nothing matches; name the options, separated by commas")
    return count


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
    words = list(HydraConfig.get().overrides.task)
    if _pool is not None:
        _pool.start(words)
        return "STARTED"
    # in a sweep over several papers only the job's own words say which variant of a corpus it reads
    if prepare_overrides(words) != words:
        return _run(lambda: compose(words))
    named_by_user(cfg)
    return _run(lambda: check(cfg))


def run_job(words: Sequence[str]) -> int:
    """Run one job in its own process; return 0: its outcome is in the journal (1: that cannot be written)."""
    try:
        _run(lambda: compose(words))
    except UserError as error:
        print(printable(one_line(error)), file=sys.stderr)
        return 1
    return 0


def _run(composed: Callable[[], DictConfig]) -> str:
    """Run one job; a failure becomes a line on the screen and in the journal, not the end of the sweep."""
    from lit_ctg.run.train import train

    register()
    began = time.monotonic()
    entry: dict[str, Any] = {"job": "unknown", "status": "FAILED", "folder": None, "error": None}
    debug = False
    try:
        cfg = composed()
        debug = cfg.debug
        entry["job"] = f"{cfg.paper}/{cfg.name} {cfg.regime.name} {cfg.size.name} seed {cfg.seed}"
        outcome = train(cfg)
        entry |= {"status": outcome.status, "folder": str(outcome.folder)}
    except UserError as error:
        entry |= {"status": "DIVERGED" if isinstance(error, Diverged) else "FAILED", "error": one_line(error)}
    except Exception as error:
        if debug:
            traceback.print_exc()
        entry["error"] = one_line(error)
    entry["seconds"] = round(time.monotonic() - began, 1)
    # one line in one write: jobs may run side by side; further processes of a multi-device run are not jobs
    if int(os.environ.get("LOCAL_RANK", 0)) == 0:
        path = os.environ[JOURNAL_VARIABLE]
        again = f"free some space: the same command continues ({entry['job']}: {entry['status'].lower()})"
        with writing(path, remedy=again), open(path, "a", encoding="utf-8") as journal:
            journal.write(json.dumps(entry) + "\n")
    return str(entry["status"])


class Watcher:
    """Prints a line for every new job in the journal, while the sweep runs and once more at its end."""

    def __init__(self, journal: Path, jobs: int) -> None:
        self.journal, self.jobs, self.shown, self.began = journal, jobs, 0, time.monotonic()
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watcher:
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.ended.set()
        self.thread.join()
        self._tell()

    def _watch(self) -> None:
        while not self.ended.wait(POLL):
            self._tell()

    def _tell(self) -> None:
        entries = _entries(self.journal)
        for count in range(self.shown + 1, len(entries) + 1):
            last = entries[count - 1]
            line = progress_line(entries[:count], self.jobs, time.monotonic() - self.began)
            text = f"{line}: {last['error']}" if last["error"] else line
            print(printable(text), file=sys.stderr if last["error"] else sys.stdout, flush=True)
        self.shown = len(entries)


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

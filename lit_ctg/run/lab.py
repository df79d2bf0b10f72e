"""`lit-ctg lab`: what `lit-ctg reproduce` would run, in the background, one run per core.

One process outlives the terminal. It starts runs (run/jobs.py), which lock, resume and skip by themselves, and plans
anew whenever one ends. ``<output_root>/lab`` holds ``settings.json`` (of the last start), ``lock`` (held while the
process lives), ``stop`` (asks it to end: no process is signalled by its number), ``state.json`` (its last plan, for
``status``) and of each run ``jobs/<key>.log`` and, until ``start retry=true``, ``jobs/<key>.failed``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Interval

from lit_ctg.command import read_value
from lit_ctg.errors import UserError, one_line, within
from lit_ctg.files import try_lock, write_atomic
from lit_ctg.limits import Whole, check_mapping, check_value
from lit_ctg.results.record import RunRecord, collect, load_records
from lit_ctg.results.spec import experiments_root
from lit_ctg.run.jobs import BUSY, COMMAND, JOURNAL_VARIABLE, Jobs, cores, start_job
from lit_ctg.run.reproduce import Group, absent, check_local, plan_lines, planned, record_folders
from lit_ctg.terminal import printable
from lit_ctg.trust import words_from_file

# seconds between two looks at the runs, between two plans, and for a start or a stop
POLL, AGAIN, LONGEST = 0.2, 60.0, 60.0
# what a full disk says, and the free bytes below which it is full whatever a run said last
FULL, LEAST_SPACE = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT), "disk full"), 2**26
_DEFAULTS = {"paper": "all", "size": "paper", "local": "local", "workers": "", "nice": "19"}


class Lab:
    """The lab of one output root. A job is a ``Group`` of one seed."""

    def __init__(self, output_root: Path | str) -> None:
        self.root = Path(output_root).resolve()
        self.folder = self.root / "lab"
        self.stop, self.finished, self.busy_until = self.folder / "stop", set[Group](), dict[Group, float]()

    def settings(self) -> dict[str, str]:
        """Return the settings of the last start (``UserError``: there was none, or they cannot be read)."""
        path = self.folder / "settings.json"
        if not path.exists():
            raise UserError(f"no lab at {self.root}: lit-ctg lab start creates one")
        with within(remedy="delete the file and start the lab again"):
            found = check_mapping(str(path), _read(path), dict.fromkeys(_DEFAULTS, str), _DEFAULTS)
            for key in ("workers", "nice"):
                check_value(f"{path}, {key}", read_value(key, found[key]), Whole)
        return found

    def state(self) -> dict[str, Any]:
        """Return the last plan: ``running`` (name and log of each), ``lines``, and how many runs are ``left``."""
        return {"running": [], "lines": [], "left": None, **_read(self.folder / "state.json")}

    def file(self, job: Group, kind: str) -> Path:
        """Return the ``log`` of a job, or the file that says how it ``failed``."""
        return self.folder / "jobs" / f"{hashlib.sha256(' '.join(job.command()).encode()).hexdigest()[:12]}.{kind}"

    def alive(self) -> bool:
        """Return whether a process works on this lab."""
        for _ in range(3):  # whoever asks the same holds the lock for a moment
            if (lock := try_lock(self.folder / "lock")) is not None:
                lock.release()
                return False
            time.sleep(POLL / 10)
        return True

    def plan(self, settings: Mapping[str, str]) -> tuple[list[Group], list[RunRecord], list[str]]:
        """Return the jobs still to run by ``priority``, all records, and a line per paper that cannot be read."""
        left_out: list[str] = []
        folders = record_folders(settings["paper"], str(self.root))
        groups, records = planned(settings["paper"], settings["size"], settings["local"], folders, left_out=left_out)
        groups.sort(key=lambda group: group.priority)
        jobs = [dataclasses.replace(group, seeds=(seed,)) for group in groups for seed in group.seeds]
        return jobs, records, left_out

    def work(self) -> None:
        """Run jobs until none is left or ``stop`` is there (``UserError``: the disk is full)."""
        running: dict[Group, subprocess.Popen[bytes]] = {}
        with Jobs(1, self.folder / "jobs") as pool:  # whatever ends this ends them
            again = 0.0
            while not self.stop.exists():
                for job in [job for job, process in running.items() if process.poll() is not None]:
                    self.judge(job, running.pop(job).returncode)
                    again = 0.0
                if time.monotonic() >= again:
                    left = self.fill(running)
                    pool.running = list(running.values())
                    if not left:
                        return
                    again = time.monotonic() + AGAIN
                time.sleep(POLL)

    def fill(self, running: dict[Group, subprocess.Popen[bytes]]) -> bool:
        """Start as many jobs as there is room for; return whether there is, or may be, anything left to do."""
        settings = self.settings()
        try:
            jobs, records, left_out = self.plan(settings)
        except UserError as error:  # a manifest that is being edited, perhaps
            jobs, records, left_out = list(running), [], [one_line(error)]
        left = [job for job in jobs if not self.file(job, "failed").exists() and not absent(job)]
        free = [job for job in left if job not in running and self.busy_until.get(job, 0.0) < time.monotonic()]
        for job in free[: max(0, int(settings["workers"]) - len(running))]:
            # two single-threaded processes finish more runs than one with two threads
            threads = os.environ.get("OMP_NUM_THREADS", "1")
            words = [*job.command(), f"output_root={os.path.relpath(self.root)}"]
            with words_from_file(), open(self.file(job, "log"), "wb") as log:
                running[job] = start_job(words, log, COMMAND, OMP_NUM_THREADS=threads)
        self.tell(jobs, list(running), records, left_out)
        return bool(running or left or left_out)

    def judge(self, job: Group, code: int) -> None:
        """Note how a job ended (``UserError``: the disk is full: the other runs would end the same way)."""
        if code == BUSY:
            self.busy_until[job] = time.monotonic() + LONGEST  # another process works on it
        elif code == 0 and job not in self.finished:
            self.finished.add(job)
        else:
            reason = last_line(self.file(job, "log")) or f"exit code {code}"
            if code < 0:
                memory = ", possibly out of memory" if code == -signal.SIGKILL else ""
                reason = f"killed by signal {-code} ({signal.Signals(-code).name}){memory}"
            elif code == 0:
                reason = "ended without error, but left no record where its manifest says"
            if any(word in reason for word in FULL) or shutil.disk_usage(self.root).free < LEAST_SPACE:
                raise UserError(f"the disk is full ({title(job)}: {reason})")
            write_atomic(self.file(job, "failed"), reason + "\n")

    def tell(self, jobs: list[Group], running: list[Group], records: list[RunRecord], left_out: list[str]) -> None:
        """Write ``state.json``: what is running, what comes next, what failed, and how long the rest may take."""
        failed = [job for job in jobs if self.file(job, "failed").exists()]
        left = [job for job in jobs if job not in failed]
        *waiting, rest = plan_lines([job for job in left if job not in running], records)
        lines = [f"next     {line}" for line in waiting[:5]]
        lines += [f"         and {len(waiting) - 5} more"] if len(waiting) > 5 else []
        for job in failed:
            reason = self.file(job, "failed").read_text(encoding="utf-8").strip()
            lines.append(f"failed   {title(job)}: {reason}; its log: {self.file(job, 'log')}")
        named = [[title(job), str(self.file(job, "log"))] for job in running]
        able = [job for job in left if not absent(job)]
        state = {"running": named, "lines": [*lines, *left_out, rest], "left": len(able)}
        write_atomic(self.folder / "state.json", json.dumps(state, indent=1))

    def status(self) -> list[str]:
        """Return one screen: what is running, what comes next, what failed, and how long the rest may take."""
        settings, state, alive = self.settings(), self.state(), self.alive()
        why = last_line(self.folder / "log")
        first = (
            f"running, {settings['workers']} runs at a time" if alive else "not running: lit-ctg lab start continues"
        )
        word = "running" if alive else "cut off"
        now = [f"{word}  {name}: {last_line(Path(log)) or 'no output yet'}" for name, log in state["running"]]
        return [first, *([f"it ended: {why}"] if why and not alive else []), *now, *state["lines"]]


def title(job: Group) -> str:
    return f"{job.paper}/{job.name} {job.regime} {job.size} seed {job.seeds[0]}"


def _read(path: Path) -> dict[str, Any]:
    """Return the dict in a JSON file, {} where it cannot be read."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        found = json.loads(path.read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    return {}


def last_line(path: Path) -> str:
    """Return the last non-empty line of a log, or "" if there is none."""
    lines = re.split(r"[\r\n]", path.read_text(encoding="utf-8", errors="replace")) if path.exists() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def serve(output_root: str) -> int:
    """Be the process of a lab."""
    os.environ.pop(JOURNAL_VARIABLE, None)  # exit codes say how jobs end
    lab, end = Lab(output_root), time.monotonic() + 25 * POLL
    while (lock := try_lock(lab.folder / "lock")) is None:  # whoever asks whether it is alive holds it for a moment
        if time.monotonic() > end:
            return 0
        time.sleep(POLL)
    try:
        lab.stop.unlink(missing_ok=True)
        with words_from_file():  # of manifests
            lab.work()
        return 0
    except UserError as error:
        print(printable(one_line(error)), file=sys.stderr)
        return 2
    finally:
        lock.release()


def start(output_root: str, retry: bool = False, **given: Any) -> list[str]:
    """Start the lab's process if there is none; return the lines of the answer.

    Args:
        given: paper, size, local, workers, nice; None means the value of the last start.

    Raises:
        UserError: no such paper, size or folder.
    """
    lab, given = Lab(output_root), {name: value for name, value in given.items() if value is not None}
    check_local(given.get("local"))
    values = {**_DEFAULTS, "workers": str(cores())}
    with contextlib.suppress(UserError):
        values |= lab.settings()
    values |= {name: str(value) for name, value in given.items()}
    # one per core
    check_value("lab: workers", int(values["workers"]), Annotated[int, Interval(ge=1, le=cores())])
    jobs, _, left_out = lab.plan(values)  # a mistake is reported here, not in the log
    write_atomic(lab.folder / "settings.json", json.dumps(values, indent=1))
    for path in (lab.folder / "jobs").glob("*.failed") if retry else ():
        path.unlink()
    if not (already := lab.alive()):
        _launch(lab, values["nice"])
    without = sum(bool(absent(job)) for job in jobs)
    todo = f"{len(jobs) - without} runs to do" + (f", {without} without data" if without else "")
    return [*left_out, f"{'running already' if already else 'started'}, {todo}; lit-ctg lab status says more"]


def stop(output_root: str) -> list[str]:
    """End the lab's runs at their next checkpoint; return the lines of the answer.

    Raises:
        UserError: there was no lab, or a run does not end.
    """
    lab = Lab(output_root)
    lab.settings()
    alive, end = lab.alive(), time.monotonic() + LONGEST
    while lab.alive() and time.monotonic() < end:
        lab.stop.touch()
        time.sleep(POLL)
    if lab.alive():
        raise UserError(f"the lab at {lab.root} has not ended its runs yet: see lit-ctg lab status")
    lab.stop.unlink(missing_ok=True)
    return [f"{'stopped' if alive else 'not running'}; lit-ctg lab start continues from the last checkpoints"]


def status(output_root: str) -> list[str]:
    """Return the status of a lab in lines; see ``Lab.status``."""
    return Lab(output_root).status()


def collected(output_root: str) -> list[str]:
    """Copy the finished records to ``experiments/``; return the lines of the answer.

    Raises:
        UserError: there was no lab, or a record that cannot be copied.
    """
    lab = Lab(output_root)
    lab.settings()
    root = experiments_root(None)
    written = collect(load_records([lab.root]), root)
    return [*map(str, written), f"{len(written)} new records below {root}; make tables writes tables from them"]


def _launch(lab: Lab, nice: str) -> None:
    """Start the process of a lab, which outlives this one and its terminal, and wait until it holds the lock."""
    (lab.folder / "jobs").mkdir(exist_ok=True)
    with open(lab.folder / "log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "lit_ctg.run.lab", str(lab.root), nice],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,
        )
    end = time.monotonic() + LONGEST
    while process.poll() is None and not lab.alive() and time.monotonic() < end:
        time.sleep(POLL)


if __name__ == "__main__":
    os.nice(int(sys.argv[2]))
    sys.exit(serve(sys.argv[1]))

"""`lit-ctg lab`: what `lit-ctg reproduce` would run, in the background, one worker per core.

A job is one run that the papers' manifests list and that has no record. All state is on disk, so that workers can be
stopped, and the machine restarted, at any time:

- a run that has a finished record, in the output root or among the committed ones, is done;
- ``<output_root>/lab/jobs/<job>.lock`` is held by the worker on that job, ``worker-<k>.lock`` by a living worker;
- ``jobs/<job>.failed`` says how a job failed; it is retried after ``start retry=true``;
- ``settings.json`` holds the settings of the last start, ``jobs/<job>.log`` the output of a job.

Workers reread settings, manifests and records before every job: added runs are run, and runs finished meanwhile are
left out.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from lit_ctg.errors import UserError, did_you_mean, one_line
from lit_ctg.files import try_lock, write_atomic
from lit_ctg.results.record import RunRecord, load_records
from lit_ctg.results.spec import experiments_root
from lit_ctg.run.jobs import BUSY, COMMAND, JOURNAL_VARIABLE, PATIENCE, cores
from lit_ctg.run.reproduce import Group, absent, check_local, estimate, planned
from lit_ctg.terminal import Console, printable

ACTIONS = ("start", "stop", "status", "collect")
# seconds between a worker's checks of its job, and the longest wait for a start or a stop
POLL = 0.2
LONGEST = 60.0
# how often a worker reads what cannot be read, and the seconds between
ATTEMPTS, RETRY = 3, 5.0
_EPOCH = re.compile(r"epoch (\d+)/(\d+)")
_DEFAULTS = {
    "paper": "all",
    "size": "paper",
    "local": "local",
    "output_root": "outputs",
    "workers": "",
    "nice": "19",
    "retry": "false",
}


@dataclass(frozen=True)
class Job:
    """One run: one seed of a group of ``lit-ctg reproduce``."""

    group: Group
    seed: int

    @property
    def words(self) -> list[str]:
        """The overrides of ``lit-ctg train``."""
        return [*self.group.words, f"seed={self.seed}", "skip_completed=true"]

    @property
    def key(self) -> str:
        """The name of its files: twelve digits, the same in every process."""
        return hashlib.sha256("\n".join(self.words).encode()).hexdigest()[:12]

    def __str__(self) -> str:
        return f"{self.group.paper}/{self.group.name} {self.group.regime} {self.group.size} seed {self.seed}"


class Lab:
    """The jobs of one output root and the workers on them.

    Args:
        settings: the settings of ``lit-ctg lab start``, all of them.

    Attributes:
        left_out: papers whose manifest could not be read when ``jobs`` was last asked, a line each.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.settings = dict(settings)
        self.output_root = Path(settings["output_root"])
        self.folder = self.output_root / "lab"
        self.left_out: list[str] = []

    @classmethod
    def at(cls, output_root: Path) -> Lab:
        """Return the lab that was last started there.

        Raises:
            UserError: there is none, or its settings cannot be read.
        """
        path = output_root / "lab" / "settings.json"
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise UserError(f"no lab at {output_root}: lit-ctg lab start creates one") from error
        except (OSError, ValueError) as error:
            raise UserError(f"{path} cannot be read ({error}): delete it and start the lab again") from error
        if not isinstance(found, dict) or set(found) != set(_DEFAULTS):
            raise UserError(f"{path} is not of this version: delete it and start the lab again")
        return cls(found)

    def jobs(self) -> tuple[list[Job], list[RunRecord]]:
        """Return the jobs still to run, in order (``priority`` in the manifests, then as listed), and all records.

        Raises:
            UserError: see ``reproduce.planned``.
        """
        self.left_out = []
        groups, records = planned(self.settings, left_out=self.left_out)
        groups.sort(key=lambda group: group.priority)
        return [Job(group, seed) for group in groups for seed in group.seeds], records

    def next(self) -> tuple[Job, contextlib.AbstractContextManager[None]] | None:
        """Return the first job that can be run and that no worker holds, with its lock; None if there is none.

        Raises:
            UserError: there is none, but a paper's manifest cannot be read.
        """
        for job in self.jobs()[0]:
            if self.failure(job) is not None or absent(job.group):
                continue
            lock = try_lock(self.folder / "jobs" / f"{job.key}.lock")
            if lock is not None:
                return job, _held(lock)
        if self.left_out:
            raise UserError("; ".join(self.left_out))
        return None

    def failure(self, job: Job) -> str | None:
        """Return how a job failed, or None if it has not."""
        with contextlib.suppress(OSError):
            return self._file(job, "failed").read_text(encoding="utf-8").strip()
        return None

    def log(self, job: Job) -> Path:
        """Return the log file of a job."""
        return self._file(job, "log")

    def _file(self, job: Job, kind: str) -> Path:
        return self.folder / "jobs" / f"{job.key}.{kind}"

    def busy(self, job: Job) -> bool:
        """Return whether a worker is on a job."""
        path = self.folder / "jobs" / f"{job.key}.lock"
        return path.exists() and _is_held(path)

    def workers(self) -> dict[int, int]:
        """Return the process of every living worker."""
        alive = {}
        for path in sorted(self.folder.glob("worker-*.pid")):
            if _is_held(path.with_suffix(".lock")):
                with contextlib.suppress(OSError, ValueError):
                    alive[int(path.stem.removeprefix("worker-"))] = int(path.read_text(encoding="utf-8"))
        return alive

    def run(self, job: Job) -> int:
        """Run a job to its end; return its exit code. It dies with this process, however this ends."""
        # two single-threaded processes finish more runs than one with two threads
        environment = {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        environment.pop(JOURNAL_VARIABLE, None)  # the exit code says how it ended
        with open(self.log(job), "ab") as log:
            began = log.tell()  # earlier attempts have written what stands before
            child = subprocess.Popen(
                [*COMMAND, *job.words, f"output_root={self.output_root}"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        try:
            while child.poll() is None:
                time.sleep(POLL)
        except KeyboardInterrupt:
            # it ends by itself and keeps its last checkpoint
            os.killpg(child.pid, signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(PATIENCE)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            raise
        if child.returncode not in (0, BUSY):
            self.give_up(job, _reason(child.returncode, self.log(job), began))
        return child.returncode

    def give_up(self, job: Job, reason: str) -> None:
        """Record why a job is not retried."""
        write_atomic(self._file(job, "failed"), reason + "\n")


def _reason(code: int, log: Path, began: int) -> str:
    """Return in one line why a job failed: the signal that killed it, else the last line that it wrote.

    Args:
        code: its exit code, negative after a signal.
        log: its log file.
        began: number of bytes that earlier attempts had written there.
    """
    if code < 0:
        memory = ", perhaps for want of memory" if code == -signal.SIGKILL else ""
        return f"killed by signal {-code} ({signal.Signals(-code).name}){memory}"
    lines = log.read_bytes()[began:].decode("utf-8", errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), f"exit code {code}")


@contextlib.contextmanager
def _held(lock: object) -> Iterator[None]:
    try:
        yield
    finally:
        lock.release()  # type: ignore[attr-defined]  # filelock's classes differ by platform


def _is_held(path: Path) -> bool:
    lock = try_lock(path)
    if lock is None:
        return True
    lock.release()
    return False


def work(output_root: str, number: int) -> int:
    """Be worker ``number``: run one job after the other until none is left, a start wants fewer, or SIGTERM arrives."""
    lab = Lab.at(Path(output_root))
    # whoever checks whether it is alive holds the lock for a moment
    end = time.monotonic() + 25 * POLL
    while (alive := try_lock(lab.folder / f"worker-{number}.lock")) is None:
        if time.monotonic() > end:
            return 0
        time.sleep(POLL)
    write_atomic(lab.folder / f"worker-{number}.pid", f"{os.getpid()}\n")

    def stop(signum: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    try:
        ended: set[str] = set()
        # a start beside living workers may have changed the settings, and how many workers there are to be
        while number < int((lab := Lab.at(Path(output_root))).settings["workers"]):
            if (found := _next(lab)) is None:
                break
            job, lock = found
            with lock:
                if job.key in ended:
                    lab.give_up(job, "ended without error, but left no record where its manifest says")
                    continue
                code = lab.run(job)
                if code == 0:
                    ended.add(job.key)
                elif code == BUSY:
                    time.sleep(LONGEST)  # a foreign process is on it; it would be offered again at once
    except UserError as error:
        print(printable(one_line(error)), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    finally:
        alive.release()
    return 0


def _next(lab: Lab) -> tuple[Job, contextlib.AbstractContextManager[None]] | None:
    """Return ``lab.next()``; what cannot be read is tried again, since a manifest may be half saved.

    Raises:
        UserError: it still cannot be read.
    """
    for _ in range(ATTEMPTS - 1):
        with contextlib.suppress(UserError):
            return lab.next()
        time.sleep(RETRY)
    return lab.next()


def main(words: Sequence[str], console: Console | None = None) -> int:
    """Run ``lit-ctg lab start|stop|status|collect``.

    Raises:
        UserError: no such action, an impossible setting, no lab there.
    """
    from lit_ctg.command import settings

    console = console or Console(soft_wrap=True, highlight=False, markup=False)
    given = settings(words, "lab", ("action", *_DEFAULTS))
    action = given.pop("action", "status")
    if action not in ACTIONS:
        raise UserError(f"lit-ctg lab {action}{did_you_mean(action, ACTIONS)}: one of {', '.join(ACTIONS)}")
    if action == "start":
        return _start(given, console)
    root = Path(given.pop("output_root", _DEFAULTS["output_root"]))
    if given:
        raise UserError(f"lit-ctg lab {action} takes output_root only: {', '.join(given)} belong to start")
    lab = Lab.at(root)
    if action == "stop":
        return _stop(lab, console)
    if action == "collect":
        return _collect(lab, console)
    for line in status_lines(lab):
        console.print(line, markup=False)
    return 0


def _start(given: Mapping[str, str], console: Console) -> int:
    """Start the workers that are not yet alive; settings not given are those of the last start."""
    root = Path(given.get("output_root", _DEFAULTS["output_root"]))
    check_local(given)
    with contextlib.suppress(UserError):
        given = {**Lab.at(root).settings, "retry": "false", **given}
    values = {**_DEFAULTS, "workers": str(cores()), **given}
    for name, least, most in (("workers", 1, cores()), ("nice", 0, 19)):
        if not values[name].isdecimal() or not least <= int(values[name]) <= most:
            raise UserError(f"lit-ctg lab: {name}={values[name]}: give a whole number from {least} to {most}")
    if values["retry"] not in ("true", "false"):
        raise UserError(f"lit-ctg lab: retry={values['retry']}: give true or false")
    lab = Lab(values)
    jobs, _ = lab.jobs()  # report a mistake here, not in a worker's log
    write_atomic(lab.folder / "settings.json", json.dumps(values, indent=1))
    for path in (lab.folder / "jobs").glob("*.failed") if values["retry"] == "true" else ():
        path.unlink()
    alive = lab.workers()
    made = {
        number: _launch(lab, number, int(values["nice"]))
        for number in range(int(values["workers"]))
        if number not in alive
    }
    end = time.monotonic() + LONGEST
    # a worker that finds nothing to do ends at once
    while time.monotonic() < end and any(one.poll() is None and k not in lab.workers() for k, one in made.items()):
        time.sleep(POLL)
    alive = lab.workers()
    extra = sum(number >= int(values["workers"]) for number in alive)
    ending = f" ({extra} of them until the current run ends)" if extra else ""
    without = sum(bool(absent(job.group)) for job in jobs)
    todo = f"{len(jobs) - without} runs to do" + (f", {without} without data" if without else "")
    console.print(f"{len(alive)} workers{ending}, {todo}; lit-ctg lab status says more", markup=False)
    for line in lab.left_out:
        console.print(line, markup=False)
    return 0


def _launch(lab: Lab, number: int, nice: int) -> subprocess.Popen[bytes]:
    """Start a worker that outlives this process and its terminal."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    lab.folder.mkdir(parents=True, exist_ok=True)
    with open(lab.folder / f"worker-{number}.log", "ab") as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "lit_ctg.run.lab", str(lab.output_root), str(number), str(nice)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )


def _stop(lab: Lab, console: Console) -> int:
    """End all workers and their runs; each run keeps its last checkpoint."""
    alive = lab.workers()
    for process in alive.values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGTERM)
    end = time.monotonic() + LONGEST
    while lab.workers() and time.monotonic() < end:
        time.sleep(POLL)
    left = lab.workers()
    console.print(f"{len(alive) - len(left)} workers stopped; lit-ctg lab start continues from the last checkpoints")
    return 1 if left else 0


def _collect(lab: Lab, console: Console) -> int:
    """Copy finished records to ``experiments/``, where the repository's tables and report read them."""
    from lit_ctg.results.record import collect

    root = experiments_root(None)
    written = collect(load_records([lab.output_root]), root)
    for path in written:
        console.print(str(path), markup=False)
    console.print(f"{len(written)} new records below {root}; make tables writes tables and figures from them")
    return 0


def status_lines(lab: Lab) -> list[str]:
    """Return one screen: what is running, what comes next, what failed, and how long the rest may take.

    Times are those of past runs of the same name, else of the same paper and size; for a run in progress, the time its
    epochs have taken so far.
    """
    jobs, records = lab.jobs()
    alive = lab.workers()
    running = [job for job in jobs if lab.busy(job)]
    failed = [job for job in jobs if lab.failure(job) is not None and job not in running]
    unreadable = [job for job in jobs if absent(job.group) and job not in running and job not in failed]
    waiting = [job for job in jobs if job not in running and job not in failed and job not in unreadable]
    processes = f" (processes {', '.join(map(str, alive.values()))})" if alive else ": lit-ctg lab start continues"
    lines = [f"{len(alive)} workers{processes}"]
    seconds, unknown = 0.0, 0
    for job in [*running, *waiting]:
        whole = estimate(job.group, records)
        last = last_line(lab.log(job)) if job in running else ""
        done = _EPOCH.search(last)
        part = 1 - int(done[1]) / max(int(done[2]), 1) if done else 1.0
        unknown += whole is None
        seconds += (whole or 0.0) * part
        if job in running:
            lines.append(f"running  {job}: {last or 'has printed nothing yet'}")
    for job in waiting[:5]:
        lines.append(f"next     {job}{_hours(estimate(job.group, records))}")
    if len(waiting) > 5:
        lines.append(f"         and {len(waiting) - 5} more")
    lines += [f"failed   {job}: {lab.failure(job)}; its log: {lab.log(job)}" for job in failed]
    if unreadable:
        folders = sorted({str(folder) for job in unreadable for folder in absent(job.group)})
        lines.append(f"without data  {len(unreadable)} runs need {', '.join(folders)}: local=<folder>")
    lines += lab.left_out
    rest = f"{len(running) + len(waiting)} runs left"
    if seconds:
        rest += f", about {seconds / 3600 / max(len(alive), 1):.1f} h with {max(len(alive), 1)} workers"
    return [*lines, rest + (f", and {unknown} runs without a past one to estimate from" if unknown else "")]


def _hours(seconds: float | None) -> str:
    return "" if seconds is None else f" (about {seconds / 3600:.2f} h)"


def last_line(path: Path) -> str:
    """Return the last non-empty line of a log, or "" if there is none."""
    try:
        with open(path, "rb") as handle:
            handle.seek(max(0, path.stat().st_size - 4096))
            text = handle.read().decode("utf-8", errors="replace")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(re.split(r"[\r\n]", text)) if line.strip()), "")


if __name__ == "__main__":
    os.nice(int(sys.argv[3]))
    sys.exit(work(sys.argv[1], int(sys.argv[2])))

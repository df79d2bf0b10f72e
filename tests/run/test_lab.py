"""`lit-ctg lab`: jobs in order, one worker a job, failures told once, and stop, crash and start lose nothing."""

from __future__ import annotations

import json
import os
import signal
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from lit_ctg.errors import UserError
from lit_ctg.files import try_lock, write_atomic
from lit_ctg.results.spec import MANIFEST
from lit_ctg.run import lab as module
from lit_ctg.run.jobs import BUSY
from lit_ctg.run.lab import Lab, last_line, main, status_lines

TWO = """
- {experiment: main, regime: corrected, seed: [1, 2], priority: 2}
- {experiment: baseline, regime: corrected, seed: [3]}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a working folder whose manifest lists two groups of runs of size=smoke."""
    monkeypatch.chdir(tmp_path)
    write_runs(TWO)
    return tmp_path


def write_runs(text: str) -> None:
    paper = Path("experiments") / "semantic_fusion"
    (paper / "tables").mkdir(parents=True, exist_ok=True)
    (paper / MANIFEST).write_text(f"title: t\nruns:\n  smoke:\n{textwrap.indent(text.strip(), '    ')}\n")


def make(**given: str) -> Lab:
    lab = Lab({**module._DEFAULTS, "paper": "semantic_fusion", "size": "smoke", "workers": "1", "nice": "0", **given})
    (lab.folder / "jobs").mkdir(parents=True, exist_ok=True)
    return lab


def work(number: int) -> int:
    """Be a worker in this process, and give it back its own way of ending."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        return module.work("outputs", number)
    finally:
        signal.signal(signal.SIGTERM, before)


def wait_for(what: Callable[[], object], seconds: float = 240) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.2)


def test_lower_priority_numbers_come_first_then_the_order_of_the_manifest(folder: Path) -> None:
    jobs, _ = make().jobs()
    assert [(job.group.name, job.seed) for job in jobs] == [("baseline", 3), ("main", 1), ("main", 2)]
    assert len({job.key for job in jobs}) == 3 and jobs[0].key == make().jobs()[0][0].key
    assert jobs[0].words[-2:] == ["seed=3", "skip_completed=true"]


def test_a_worker_takes_what_nobody_is_at_and_nothing_that_failed_or_lacks_its_data(folder: Path) -> None:
    lab = make()
    first, second, third = lab.jobs()[0]
    lock = try_lock(lab.folder / "jobs" / f"{first.key}.lock")
    assert lock is not None and lab.busy(first) and not lab.busy(second)
    (lab.folder / "jobs" / f"{second.key}.failed").write_text("lit-ctg: no such thing\n")
    found = lab.next()
    assert found is not None and found[0] == third
    with found[1]:
        assert lab.next() is None
    lock.release()
    found = lab.next()
    assert found is not None and found[0] == first
    found[1].__enter__()
    write_runs("- {experiment: main, regime: corrected, seed: [1], data: nowhere}")
    assert make().next() is None
    assert status_lines(make())[1:] == ["without data  1 runs need local/nowhere: local=<folder>", "0 runs left"]


@pytest.mark.parametrize(
    ("code", "failed"), [(0, None), (BUSY, None), (1, "lit-ctg: the last line"), (2, "lit-ctg: the last line")]
)
def test_what_a_failed_job_said_is_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch, code: int, failed: str | None
) -> None:
    script = f"import sys; print(sys.argv[1:]); print('lit-ctg: the last line'); print(); sys.exit({code})"
    monkeypatch.setattr(module, "COMMAND", (sys.executable, "-c", script))
    lab = make()
    job = lab.jobs()[0][0]
    assert lab.run(job) == code
    assert lab.failure(job) == failed
    assert "'seed=3'" in lab.log(job).read_text() and "'output_root=outputs'" in lab.log(job).read_text()
    lines = status_lines(lab)
    assert lines[0] == "0 workers: lit-ctg lab start continues"
    assert [line for line in lines if line.startswith("failed")] == (
        [f"failed   {job}: {failed}; its log: {lab.log(job)}"] if failed else []
    )
    assert lines[-1].startswith("2 runs left" if failed else "3 runs left")


@pytest.mark.parametrize(
    ("end", "failed"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "killed by signal 9 (SIGKILL), perhaps for want of memory"),
        ("os.kill(os.getpid(), signal.SIGABRT)", "killed by signal 6 (SIGABRT)"),
        ("sys.exit(3)", "exit code 3"),
    ],
)
def test_a_failed_job_is_not_told_with_the_words_of_an_earlier_attempt(
    folder: Path, monkeypatch: pytest.MonkeyPatch, end: str, failed: str
) -> None:
    lab = make()
    job = lab.jobs()[0][0]
    lab.log(job).write_text("epoch 3/9\n")
    monkeypatch.setattr(module, "COMMAND", (sys.executable, "-c", f"import os, signal, sys; {end}"))
    assert lab.run(job) != 0
    assert lab.failure(job) == failed and lab.log(job).read_text() == "epoch 3/9\n"


def test_a_start_tries_failed_jobs_again_only_when_asked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Ended:
        def poll(self) -> int:
            return 0

    monkeypatch.setattr(module, "_launch", lambda *_: Ended())
    lab = make()
    job = lab.jobs()[0][0]
    words = ["action=start", "paper=semantic_fusion", "size=smoke"]
    for retry, failure in ((["retry=true"], None), ([], "no"), (["retry=false"], "no"), (["retry=true"], None)):
        lab.give_up(job, "no")
        assert main([*words, *retry]) == 0
        assert lab.failure(job) == failure


def test_a_worker_waits_for_a_manifest_that_is_half_saved(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_atomic(make().folder / "settings.json", json.dumps(make().settings))
    done: list[module.Job] = []
    monkeypatch.setattr(Lab, "run", lambda self, job: done.append(job) or 0)
    write_runs("- {experiment: main")
    monkeypatch.setattr(module.time, "sleep", lambda _: write_runs(TWO))
    assert work(0) == 0 and len(set(done)) == 3
    write_runs("- {experiment: main")
    monkeypatch.setattr(module.time, "sleep", lambda _: None)
    capsys.readouterr()
    assert work(0) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert MANIFEST in line


def test_a_paper_that_cannot_be_read_is_told_where_all_are_asked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its runs were not there, without a word, and a worker that found nothing else ended."""
    lab = make(paper="all")
    write_atomic(lab.folder / "settings.json", json.dumps(lab.settings))
    done: list[module.Job] = []
    monkeypatch.setattr(Lab, "run", lambda self, job: done.append(job) or 0)
    monkeypatch.setattr(module, "RETRY", 0)
    write_runs("- {experiment: main")
    assert lab.jobs()[0] == []
    (line,) = lab.left_out
    assert line.startswith("semantic_fusion: left out: ") and MANIFEST in line and line in status_lines(lab)
    assert work(0) == 2 and line in capsys.readouterr().err and not done
    monkeypatch.setattr(module, "_launch", lambda *_: SimpleNamespace(poll=lambda: 0))
    assert main(["action=start"]) == 0 and line in capsys.readouterr().out
    write_runs(TWO)
    assert len(lab.jobs()[0]) == 3 and lab.left_out == []


@pytest.mark.long
def test_a_run_that_cannot_be_is_given_up_with_its_own_line(folder: Path) -> None:
    """By the command that workers use, not by a stand-in: a code of 0 or 75 would offer it again for ever."""
    write_runs("- {experiment: main, regime: corrected, seed: [1], set: {backbone.heads: 7}}")
    lab = make()
    (job,) = lab.jobs()[0]
    assert lab.run(job) == 2
    failure = lab.failure(job)
    assert failure is not None and failure.startswith("lit-ctg: ") and "heads" in failure
    assert lab.next() is None and status_lines(lab)[-1] == "0 runs left"


def test_a_job_without_a_record_is_not_run_for_ever(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_runs("- {experiment: main, regime: corrected, seed: [1]}")
    monkeypatch.setattr(module, "COMMAND", (sys.executable, "-c", "print('done')"))
    lab = make()
    (lab.folder / "settings.json").write_text(json.dumps(lab.settings))
    (job,) = lab.jobs()[0]
    assert work(0) == 0
    assert lab.log(job).read_text() == "done\n" and "no record" in str(lab.failure(job))


def test_a_living_worker_takes_the_settings_of_a_later_start(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here another start, while the first job runs, asks for a size that has other runs."""
    write_runs("- {experiment: main, regime: corrected, seed: [1, 2]}")
    manifest = folder / "experiments" / "semantic_fusion" / MANIFEST
    manifest.write_text(manifest.read_text() + "  small:\n    - {experiment: baseline, regime: corrected, seed: [3]}\n")
    lab, done = make(), []
    settings = lab.folder / "settings.json"
    settings.write_text(json.dumps(lab.settings))

    def run(lab: Lab, job: module.Job) -> int:
        done.append(str(job))
        lab.give_up(job, "done")
        settings.write_text(json.dumps({**lab.settings, "size": "small"}))
        return 2

    monkeypatch.setattr(Lab, "run", run)
    assert work(0) == 0
    assert done == ["semantic_fusion/main corrected smoke seed 1", "semantic_fusion/baseline corrected small seed 3"]


def test_a_worker_too_many_ends_after_its_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here a later start, while the first job runs, wants one worker; this is the second."""
    lab, done = make(workers="2"), []
    settings = lab.folder / "settings.json"
    settings.write_text(json.dumps(lab.settings))

    def run(lab: Lab, job: module.Job) -> int:
        done.append(job)
        lab.give_up(job, "done")
        settings.write_text(json.dumps({**lab.settings, "workers": "1"}))
        return 2

    monkeypatch.setattr(Lab, "run", run)
    assert work(1) == 0
    assert len(done) == 1 and len([job for job in lab.jobs()[0] if lab.failure(job) is None]) == 2
    assert work(0) == 0 and len(done) == 3


def test_status_counts_what_is_left_of_a_running_job(folder: Path) -> None:
    """By its epochs; the length of a run is that of past runs."""
    lab = make()
    job = lab.jobs()[0][0]
    log = "semantic_fusion/baseline corrected seed 3 epoch 3/4  train/loss 1.0\n"
    lab.log(job).write_text(f"x\rsemantic_fusion/baseline epoch 1/4\r{log}", newline="")
    assert last_line(lab.log(job)) == log.strip() and last_line(folder / "none") == ""
    record = json.loads(
        next(Path(__file__).parents[2].glob("experiments/semantic_fusion/results/main/*.json")).read_text()
    )
    path = folder / "outputs" / "semantic_fusion" / "other" / "x" / "run.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({**record, "name": "other", "size": "smoke", "wall_time_s": 7200.0, "status": "DONE"}))
    lock = try_lock(lab.folder / "jobs" / f"{job.key}.lock")
    assert lock is not None
    lines = status_lines(lab)
    assert lines[1] == f"running  {job}: {log.strip()}" and lines[2].endswith(
        "main corrected smoke seed 1 (about 2.00 h)"
    )
    # a quarter of two hours, and two of two hours
    assert lines[-1] == "3 runs left, about 4.5 h with 1 workers"
    lock.release()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["begin"], "one of start, stop, status, collect"),
        (["start", "size=huge"], "one of smoke, small, paper"),
        (["start", "paper=nobody"], "nobody"),
        (["start", "workers=many"], "workers=many: give a whole number from 1 to"),
        (["start", "workers=0"], "workers=0: give a whole number from 1 to"),
        (["start", "nice=20"], "nice=20: give a whole number from 0 to 19"),
        (["start", "local=no/corpora"], "local=no/corpora is not a folder"),
        (["start", "retry=True"], "retry=True: give true or false"),
        (["start", "pages=1"], "no setting 'pages'"),
        (["status"], "no lab at outputs: lit-ctg lab start creates one"),
        (["stop", "paper=all"], "takes output_root only"),
    ],
)
def test_bad_input(folder: Path, words: list[str], line: str) -> None:
    with pytest.raises(UserError, match=line):
        main(words)
    assert not (folder / "outputs").exists()


def test_damaged_settings_are_one_line(folder: Path) -> None:
    lab = make()
    for text in ("{", "[]", '{"paper": "all"}'):
        (lab.folder / "settings.json").write_text(text)
        with pytest.raises(UserError, match="delete it and start the lab again"):
            main(["status"])


def test_collect_copies_finished_records(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lab = make()
    (lab.folder / "settings.json").write_text(json.dumps(lab.settings))
    record = json.loads(
        next(Path(__file__).parents[2].glob("experiments/semantic_fusion/results/main/*.json")).read_text()
    )
    path = folder / "outputs" / "semantic_fusion" / "main" / "x" / "run.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({**record, "seed": 99}))
    assert main(["collect"], Console(soft_wrap=True)) == 0
    (copied,) = (folder / "experiments").rglob("*-seed99.json")
    assert str(copied.relative_to(folder)) in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.timeout(600)
def test_start_stop_and_start_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A short run is finished, a long one cut off and gone on with, by a worker that outlives the command."""
    steps = "callback.control_trial: null, trainer.limit_val_batches: 1, trainer.limit_train_batches: 2"
    write_runs(
        f"- {{experiment: baseline, regime: corrected, seed: [3], set: {{{steps.partition(', ')[2]}}}}}\n"
        "- {experiment: main, regime: corrected, seed: [1], set: {trainer.max_epochs: 9000}}"
    )
    words = ["start", "paper=semantic_fusion", "size=smoke", "workers=1", "nice=0"]
    try:
        assert main(words) == 0
        assert "1 workers" in capsys.readouterr().out
        lab = Lab.at(Path("outputs"))
        (process,) = lab.workers().values()
        long = next(job for job in lab.jobs()[0] if job.group.name == "main")
        wait_for(lambda: (n := epoch(lab, long)) and n >= 2)
        (record,) = Path("outputs/semantic_fusion/baseline").glob("*/run.json")
        assert json.loads(record.read_text())["status"] == "DONE"
        assert [str(job) for job in lab.jobs()[0]] == [str(long)] and lab.busy(long)
        assert main(["status"]) == 0
        assert f"running  {long}: " in capsys.readouterr().out
        assert main(["stop"]) == 0
        assert not lab.workers() and not lab.busy(long)
        wait_for(lambda: not alive(process))
        reached = epoch(lab, long)

        assert main(["start"]) == 0  # with the settings it had
        wait_for(lambda: epoch(lab, long) > reached)
        (process,) = lab.workers().values()
        assert lab.log(long).read_text().count("epoch 1/9000 ") == 1, "it began anew"
        # a crash takes the job along, and the next start goes on
        os.kill(process, signal.SIGKILL)
        wait_for(lambda: not lab.workers() and not lab.busy(long))
    finally:
        main(["stop"])


def epoch(lab: Lab, job: module.Job) -> int:
    """Return the last epoch in a job's log, 0 before the first."""
    text = lab.log(job).read_text() if lab.log(job).exists() else ""
    return max((int(found[1]) for found in module._EPOCH.finditer(text)), default=0)


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_start_counts_the_runs_without_data(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_runs("- {experiment: main, regime: corrected, seed: [1, 2], data: nowhere}")
    try:
        assert main(["start", "paper=semantic_fusion", "size=smoke", "workers=1", "nice=0"]) == 0
        # the worker finds nothing to do; whether it has ended yet is a matter of time
        assert "workers, 0 runs to do, 2 without data; " in capsys.readouterr().out
    finally:
        main(["stop"])

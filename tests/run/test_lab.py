"""`lit-ctg lab`: jobs in order, failures told once, and stop, crash, full disk and start lose nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lit_ctg import trust
from lit_ctg.cli import dispatch
from lit_ctg.errors import UserError
from lit_ctg.files import try_lock
from lit_ctg.results.record import load_records
from lit_ctg.results.spec import MANIFEST
from lit_ctg.run import lab as module
from lit_ctg.run.jobs import BUSY
from lit_ctg.run.lab import Lab, last_line, serve, title
from tests.committed import data_of, records_of

TWO = """
- {experiment: main, regime: corrected, seed: [1, 2], priority: 2}
- {experiment: baseline, regime: corrected, seed: [3]}
"""
ALL = [
    f"semantic_fusion/{name} corrected smoke seed {seed}" for name, seed in (("baseline", 3), ("main", 1), ("main", 2))
]


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """Return the lab of a folder whose manifest lists three runs of size=smoke."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "AGAIN", 0.1)
    write_runs(TWO)
    lab = Lab("outputs")
    (lab.folder / "jobs").mkdir(parents=True)
    settings(lab)
    return lab


def write_runs(text: str) -> None:
    paper = Path("experiments") / "semantic_fusion"
    (paper / "tables").mkdir(parents=True, exist_ok=True)
    (paper / MANIFEST).write_text(f"title: t\nruns:\n  smoke:\n{textwrap.indent(text.strip(), '    ')}\n")


def settings(lab: Lab, **given: str) -> None:
    chosen = {"paper": "semantic_fusion", "size": "smoke", "workers": "1", "nice": "0", **given}
    (lab.folder / "settings.json").write_text(json.dumps(module._DEFAULTS | chosen))


def stand_in(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Let a script be what a job runs; it finds its words in ``sys.argv``, and adds their seed to ``done``.

    Its words are a manifest's, so they choose no code.
    """
    told = (
        f"import os, signal, sys, time; os.environ[{trust.FROM_FILE!r}]; open('done', 'a').write(sys.argv[-3] + ' '); "
    )
    monkeypatch.setattr(module, "COMMAND", (sys.executable, "-c", told + script))


def done() -> list[str]:
    return Path("done").read_text().split() if Path("done").exists() else []


def wait_for(what: Callable[[], object], seconds: float = 240) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.1)


def failed(lab: Lab) -> dict[str, str]:
    jobs = lab.plan(lab.settings())[0]
    return {title(job): path.read_text().strip() for job in jobs if (path := lab.file(job, "failed")).exists()}


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ("print('lit-ctg: the last line'); print(); sys.exit(2)", "lit-ctg: the last line"),
        ("sys.exit(3)", "exit code 3"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "killed by signal 9 (SIGKILL), possibly out of memory"),
        ("os.kill(os.getpid(), signal.SIGABRT)", "killed by signal 6 (SIGABRT)"),
    ],
)
def test_jobs_run_by_priority_and_each_failure_is_kept(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, end: str, reason: str
) -> None:
    lab.file(lab.plan(lab.settings())[0][0], "log").write_text("of an earlier attempt\n")
    stand_in(monkeypatch, end)
    assert serve("outputs") == 0
    assert done() == ["seed=3", "seed=1", "seed=2"]
    assert failed(lab) == dict.fromkeys(ALL, reason)
    lines = lab.status()
    assert lines[0] == "not running: lit-ctg lab start continues" and lab.state()["left"] == 0
    assert [line for line in lines if line.startswith("failed")] == [
        f"failed   {title(job)}: {reason}; its log: {lab.file(job, 'log')}" for job in lab.plan(lab.settings())[0]
    ]
    assert serve("outputs") == 0 and len(done()) == 3, "failed runs are left alone"


def test_a_job_without_a_record_is_not_run_for_ever(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, "")
    assert serve("outputs") == 0
    assert sorted(done()) == sorted(2 * ["seed=1", "seed=2", "seed=3"])
    assert all("no record" in reason for reason in failed(lab).values()) and len(failed(lab)) == 3


@pytest.mark.parametrize("free", [None, 2**20])
def test_a_full_disk_ends_the_lab_and_burns_no_run(lab: Lab, monkeypatch: pytest.MonkeyPatch, free: int | None) -> None:
    """The run says so, or what it last printed is on a disk without space."""
    said = "lit-ctg: cannot write last.ckpt: No space left on device" if free is None else "epoch 3/9"
    stand_in(monkeypatch, f"print({said!r}); sys.exit(2)")
    if free is not None:
        usage = module.shutil.disk_usage(".")
        monkeypatch.setattr(module.shutil, "disk_usage", lambda path: usage._replace(free=free))
    assert serve("outputs") == 2
    assert done() == ["seed=3"] and failed(lab) == {}


def test_a_run_of_another_process_is_tried_again_later(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, f"sys.exit({BUSY} if sys.argv[-3] == 'seed=3' and not os.path.exists('free') else 1)")
    monkeypatch.setattr(module, "LONGEST", 1.0)
    monkeypatch.setattr(Lab, "tell", lambda self, jobs, *rest: Path("free").touch() if len(done()) == 3 else None)
    assert serve("outputs") == 0
    assert done() == ["seed=3", "seed=1", "seed=2", "seed=3"]


def test_what_lacks_its_data_is_named_and_left_out(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    write_runs("- {experiment: main, regime: corrected, seed: [1], data: nowhere}")
    stand_in(monkeypatch, "")
    assert serve("outputs") == 0 and done() == [] and lab.state()["left"] == 0
    assert any("needs local/nowhere" in line for line in lab.status())


def test_a_start_and_a_manifest_that_change_count_for_a_living_lab(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first run the manifest is half saved, then lists another; the lab waits for it."""
    stand_in(monkeypatch, "sys.exit(1)")
    texts = iter(["- {experiment: main", "- {experiment: main", "- {experiment: main, regime: corrected, seed: [7]}"])
    before = Lab.judge

    def judge(self: Lab, job: module.Group, code: int) -> None:
        before(self, job, code)
        write_runs(next(texts, TWO))

    monkeypatch.setattr(Lab, "judge", judge)
    monkeypatch.setattr(
        module.time, "sleep", lambda _: write_runs(next(texts)) if len(done()) == 1 and half() else None
    )
    settings(lab, paper="all")
    assert serve("outputs") == 0
    assert done() == ["seed=3", "seed=7", "seed=1", "seed=2"]


def half() -> bool:
    return "seed" not in (Path("experiments") / "semantic_fusion" / MANIFEST).read_text()


def test_as_many_runs_at_a_time_as_asked_for(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    settings(lab, workers="2")
    stand_in(monkeypatch, "time.sleep(1); sys.exit(1)")
    most = []
    monkeypatch.setattr(Lab, "tell", lambda self, jobs, running, *rest: most.append(len(running)))
    assert serve("outputs") == 0 and max(most) == 2 and len(done()) == 3


@pytest.mark.long
def test_a_stop_ends_the_runs_and_signals_nobody_else(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """From any folder, however often somebody asks for the status meanwhile."""
    stand_in(monkeypatch, "time.sleep(600)")
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("a process is signalled by its number"))
    script = f"import os; from lit_ctg.run import lab; lab.COMMAND = {module.COMMAND!r}; os._exit(lab.serve('outputs'))"
    process = subprocess.Popen([sys.executable, "-c", script])
    try:
        wait_for(done)
        monkeypatch.chdir(lab.root.parent.parent)
        wait_for(lambda: lab.state()["running"])
        assert lab.alive() and lab.status()[0] == "running, 1 runs at a time"
        assert dispatch(["lab", "stop", f"output_root={lab.root}"]) == 0
        assert process.wait(30) == 0 and not lab.alive() and not lab.stop.exists()
    finally:
        process.kill()
        process.wait()
    assert dispatch(["lab", "stop", f"output_root={lab.root}"]) == 0, "nothing left to stop"


def test_status_believes_no_lock_that_another_status_holds(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = try_lock(lab.folder / "lock")
    assert lock is not None and lab.alive()
    monkeypatch.setattr(module.time, "sleep", lambda _: lock.release())
    assert not lab.alive()


def test_a_start_tries_failed_jobs_again_only_when_asked(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_launch", lambda *_: None)
    job = lab.plan(lab.settings())[0][0]
    for words, kept in (([], True), (["retry=true"], False), (["retry=false"], True)):
        lab.file(job, "failed").write_text("no\n")
        assert dispatch(["lab", "start", "size=smoke", *words]) == 0
        assert lab.file(job, "failed").exists() is kept
    assert lab.settings()["paper"] == "semantic_fusion", "settings not given are those of the last start"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["begin"], "start.*stop.*status.*collect"),
        (["start", "paper=nobody"], "nobody"),
        (["start", "workers=many"], "workers=many"),
        (["start", "nice=20"], "nice=20"),
        (["start", "local=no/corpora"], "local=no/corpora"),
        (["status"], "no lab at"),
    ],
)
def test_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], line: str) -> None:
    monkeypatch.chdir(tmp_path)
    write_runs(TWO)
    with pytest.raises(UserError, match=line):
        dispatch(["lab", *words])
    assert not (tmp_path / "outputs").exists()


@pytest.mark.parametrize("text", ["{", "[]", '{"paper": "all"}', "[" * 100_000, "name" * 100,
                                  json.dumps(module._DEFAULTS | {"workers": "many"}),
                                  json.dumps(module._DEFAULTS | {"paper": 7})])  # fmt: skip
def test_damaged_settings_are_one_line(lab: Lab, text: str) -> None:
    (lab.folder / "state.json").write_text(text)
    assert dispatch(["lab", "status"]) == 0
    (lab.folder / "settings.json").write_text(text)
    with pytest.raises(UserError, match=r"settings\.json"):
        dispatch(["lab", "status"])


def test_collect_copies_finished_records(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    record = data_of(records_of("semantic_fusion", "main")[0])
    path = lab.root / "semantic_fusion" / "main" / "x" / "run.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({**record, "seed": 99}))
    assert dispatch(["lab", "collect"]) == 0
    (copied,) = load_records([Path("experiments")])
    assert copied.source is not None and copied.source.name in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.timeout(600)
def test_start_stop_and_start_again(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    """A short run is finished, a long one cut off and resumed, by a process that outlives the command."""
    short = "trainer.limit_val_batches: 1, trainer.limit_train_batches: 2"
    write_runs(
        f"- {{experiment: baseline, regime: corrected, seed: [3], set: {{{short}}}}}\n"
        "- {experiment: main, regime: corrected, seed: [1], set: {trainer.max_epochs: 9000}}"
    )
    try:
        assert dispatch(["lab", "start"]) == 0 and "started" in capsys.readouterr().out
        wait_for(lambda: epoch(lab) >= 2)
        (record,) = Path("outputs/semantic_fusion/baseline").glob("*/run.json")
        assert json.loads(record.read_text())["status"] == "DONE"
        assert dispatch(["lab", "status"]) == 0
        assert f"running  {ALL[1]}: " in capsys.readouterr().out
        assert dispatch(["lab", "stop"]) == 0 and not lab.alive()
        reached = epoch(lab)

        assert dispatch(["lab", "start"]) == 0
        wait_for(lambda: epoch(lab) > reached)
        (log,) = (Path(log) for _, log in lab.state()["running"])
        assert "epoch 1/9000 " not in log.read_text(), "it began anew"
        # a crash takes the run along
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            if b"lit_ctg.run.lab\0" + str(lab.root).encode() in path.read_bytes():
                os.kill(int(path.parent.name), signal.SIGKILL)
        wait_for(lambda: not lab.alive() and free(Path("outputs/semantic_fusion/main")))
        assert lab.status()[0].startswith("not running")
    finally:
        dispatch(["lab", "stop"])


def epoch(lab: Lab) -> int:
    """Return the last epoch in the log of the long run, 0 before the first."""
    named = [last_line(Path(log)) for name, log in lab.state()["running"] if name == ALL[1]]
    found = module.re.search(r"epoch (\d+)/", named[0]) if named else None
    return int(found[1]) if found else 0


def free(folder: Path) -> bool:
    """Return whether no run holds its directory."""
    locks = [try_lock(path) for path in folder.rglob(".lock")]
    for lock in filter(None, locks):
        lock.release()
    return all(locks)

from __future__ import annotations

import errno
import importlib
import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from omegaconf import DictConfig

from lit_ctg.config import prepare_overrides, register
from lit_ctg.errors import UserError
from lit_ctg.run.directory import claim
from lit_ctg.run.jobs import JOURNAL_VARIABLE
from lit_ctg.run.sweep import _entries, plan, progress_line, run_job, sweep
from lit_ctg.run.train import Outcome

RUN = "experiment=semantic_fusion/main"


def entry(status: str, seconds: float) -> dict:
    return {"job": "paper/name corrected small seed 0", "status": status, "seconds": seconds, "error": None}


@pytest.mark.parametrize(
    ("words", "jobs"),
    [
        ([RUN], 1),
        ([RUN, "seed=0,1,2"], 3),
        ([RUN, "seed=range(0,5)", "regime=as_published,corrected"], 10),
        (["experiment=semantic_fusion/main,semantic_fusion/baseline", "seed=0,1", "size=smoke"], 4),
        ([RUN, "metric=[perplexity]", "seed=0,1"], 2),  # a list is one value
        ([RUN, "seed=0,1", "seed=3"], 1),  # the last word counts, as for Hydra
        ([RUN, "seed=3", "seed=choice(0,1)"], 2),
        ([RUN, "decoding=glob(semantic*)", "seed=0,1"], 4),  # a pattern stands for the options that match
    ],
)
def test_jobs_are_those_of_hydras_sweeper(words, jobs):
    register()
    found, limit, launcher = plan(prepare_overrides(words))
    assert (len(found), limit, launcher) == (jobs, 1, "basic")


def test_a_pattern_that_matches_nothing_is_named():
    register()
    with pytest.raises(UserError, match=re.escape("decoding=glob(nothing*): nothing matches")):
        plan([RUN, "decoding=glob(nothing*)"])


@pytest.mark.parametrize(
    "words", [[], ["seed=0,1"], ["experiment=semantic_fusion/non", "seed=0,1"], [RUN, "n=0,1", "no=2"]]
)
def test_a_sweep_that_cannot_begin_is_one_line_and_leaves_no_folder(words, run_cli, tmp_path):
    code, out, err = run_cli("train", "-m", *words, f"output_root={tmp_path / 'outputs'}")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert not (tmp_path / "outputs").exists()


TWO_PAPERS = "experiment=semantic_fusion/baseline,graphmax/main"
OF_A_JOB = ["data.batch_size=2", "prompt=a, b", "backbone.dropout=0.2"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([TWO_PAPERS, *OF_A_JOB], ["semantic_fusion/baseline", "graphmax/main"]),
        (
            ["experiment=glob(graphmax/tr*)", "data.batch_size=2"],
            ["graphmax/translation", "graphmax/translation_en_ro"],
        ),
        (["experiment=glob(*/main,exclude=[i*,n*,s*])", "model.learning_rate=1"], ["graphmax/main"]),
    ],
)
def test_settings_of_a_part_and_patterns_go_with_several_experiments(words, expected, run_cli, tmp_path, monkeypatch):
    """Hydra applies the first before it chooses experiments ("not in struct"), and matches no option in a subfolder."""
    code, out, _ = run_cli("train", "-m", *words, "size=smoke", "--config")
    assert code == 0 and [re.search(r"experiment=(\S+)", line)[1] for line in out.splitlines()] == expected
    assert not (tmp_path / "outputs").exists()
    made = []
    monkeypatch.setattr("lit_ctg.run.train.train", lambda cfg: made.append(cfg) or Outcome("DONE", tmp_path))
    assert sweep([*words, "size=smoke"]) == 0
    assert [f"{cfg.paper}/{cfg.name}" for cfg in made] == expected
    if words[1:] == OF_A_JOB:
        assert [(cfg.data.batch_size, cfg.prompt, cfg.backbone.dropout) for cfg in made] == [(2, "a, b", 0.2)] * 2


def test_a_job_leaves_its_overrides_and_no_empty_file(run_cli, tmp_path, monkeypatch):
    numbers = []

    def train(cfg: DictConfig) -> Outcome:
        numbers.append(cfg.prompt)
        return Outcome("DONE", tmp_path)

    monkeypatch.setattr("lit_ctg.run.train.train", train)
    words = [RUN, "size=smoke", "model.learning_rate=0.1,0.2", "prompt=${hydra:job.num}"]
    assert run_cli("train", "-m", *words)[0] == 0 and numbers == ["0", "1"]
    (folder,) = (tmp_path / "outputs" / "sweeps").iterdir()
    for number, entry in enumerate(_entries(folder / "jobs.jsonl")):
        assert f"model.learning_rate=0.{number + 1}" in entry["overrides"]
        kept = (folder / str(number) / ".hydra" / "overrides.yaml").read_text(encoding="utf-8")
        assert yaml.safe_load(kept) == entry["overrides"]
    assert all(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_jobs_of_slurm_can_be_left_to_themselves(run_cli, tmp_path, monkeypatch):
    submitit = pytest.importorskip("submitit")

    class Submitted(submitit.Job):
        def __init__(self, number: int) -> None:
            self.number = number

        def __del__(self) -> None: ...

        @property
        def job_id(self) -> str:
            return f"7_{self.number}"

    executor = SimpleNamespace(update_parameters=lambda **options: None)
    executor.map_array = lambda function, *columns: [Submitted(number) for number in range(len(columns[0]))]
    monkeypatch.setattr(submitit, "AutoExecutor", lambda **options: executor)
    words = ["-m", RUN, "size=smoke", "seed=0,1", "leave=true"]
    code, out, _ = run_cli("train", *words, "sweep=slurm")
    assert code == 0 and out.startswith("2 jobs submitted: 7_0 7_1; ")
    code, _, err = run_cli("train", *words)
    assert code == 2 and "sweep=slurm" in err


NSLM, SHARED = "lit_ctg.papers.nslm.corpus.FolderDataModule", "lit_ctg.data.folder.FolderDataModule"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["experiment=nslm/numbers,graphmax/main", "data=folder"], {"nslm": [NSLM], "graphmax": [SHARED]}),
        (["experiment=graphmax/main,nslm/numbers", "data=folder"], {"nslm": [NSLM], "graphmax": [SHARED]}),
        (["experiment=choice(graphmax/main,nslm/numbers)", "data=folder"], {"nslm": [NSLM], "graphmax": [SHARED]}),
        (["experiment=nslm/numbers", "data=folder,folder/nslm"], {"nslm": [NSLM, NSLM]}),
        # a setting that only the variant has, in a sweep over experiments of its paper
        (["experiment=nslm/numbers,nslm/numbers", "data=folder", "data.join_numbers=true"], {"nslm": [NSLM, NSLM]}),
    ],
)
def test_each_job_of_a_sweep_reads_its_own_papers_variant_of_a_corpus(words, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    built: dict[str, list[str]] = {}

    def train(cfg: DictConfig) -> Outcome:
        built.setdefault(cfg.paper, []).append(cfg.data._target_)
        return Outcome("DONE", tmp_path)

    monkeypatch.setattr("lit_ctg.run.train.train", train)
    assert sweep([*words, f"data.root={tmp_path}"]) == 0
    assert built == expected


def test_the_folder_of_a_sweep_lies_in_the_output_root_whatever_its_name(monkeypatch):
    asked = []

    def stop(parent):
        asked.append(parent)
        raise UserError("enough")

    monkeypatch.setattr("lit_ctg.run.sweep._new_folder", stop)
    for word in ("output_root=it's", "output_root='runs'"):
        with pytest.raises(UserError, match="enough"):
            sweep([RUN, word])
    assert asked == [Path("it's/sweeps"), Path("runs/sweeps")]


def test_an_experiments_own_sweep_counts_and_the_command_line_wins(tmp_path, monkeypatch):
    folder = tmp_path / "conf"
    (folder / "experiment").mkdir(parents=True)
    (folder / "config.yaml").write_text("defaults: [_self_, {experiment: null}]\nseed: 0\nsize: small\n")
    text = "# @package _global_\nhydra:\n  sweeper:\n    params:\n      seed: 0,1,2\n      size: smoke,small\n"
    (folder / "experiment" / "grid.yaml").write_text(text)
    for module in ("run.sweep", "config"):
        monkeypatch.setattr(f"lit_ctg.{module}.config_folder", lambda: folder)
    assert len(plan(["experiment=grid"])[0]) == 6
    assert len(plan(["experiment=grid", "seed=7"])[0]) == 2
    assert len(plan(["experiment=grid", "size=paper", "seed=0,1,2,3"])[0]) == 4


def test_a_line_says_place_outcome_time_and_what_is_left():
    entries = [entry("DONE", 100.0)]
    assert progress_line(entries, 4, 100.0) == (
        "[1/4] done paper/name corrected small seed 0 in 1 min 40 s; 5 min 0 s left"
    )
    entries += [entry("SKIPPED", 0.1), entry("FAILED", 20.0)]
    # skipped jobs say nothing about how long a job takes
    assert progress_line(entries, 4, 120.0).endswith("failed paper/name corrected small seed 0 in 20 s; 1 min 0 s left")
    # two at a time: half the time
    assert progress_line(entries, 4, 60.0).endswith("; 30 s left")
    assert "left" not in progress_line([*entries, entry("DONE", 1.0)], 4, 1.0)
    assert "left" not in progress_line([entry("SKIPPED", 0.1)], 4, 1.0)


@pytest.mark.long
def test_a_sweep_prints_a_line_a_job_and_a_failing_one_has_its_own(run_cli):
    words = ["train", "-m", RUN, "size=smoke", "metric=[perplexity]", "callback=[run_record]", "logger=none"]
    words += ["trainer.limit_train_batches=1", "trainer.limit_val_batches=1", "seed=0,-1,1", "skip_completed=true"]
    code, out, err = run_cli(*words)
    assert code == 1 and "seed=-1: pass a whole number from 0" in err
    lines = [line for line in out.splitlines() if line.startswith("[")]
    assert len(lines) == 2
    assert re.fullmatch(r"\[1/3\] done semantic_fusion/main corrected smoke seed 0 in \d+ s; .* left", lines[0])
    assert lines[1].startswith("[3/3] done") and "left" not in lines[1]
    assert re.search(r"^\[2/3\] failed .*seed=-1: pass a whole number from 0", err, re.MULTILINE)
    assert "sweep of 3 jobs" in out and "2 done" in out


@pytest.mark.long
def test_a_job_that_another_process_is_at_is_not_done(run_cli, tmp_path):
    """The lock of a sweep that was killed, and whose jobs live on, once made the next one report "skipped", code 0."""
    words = [RUN, "size=smoke", "metric=[perplexity]", "callback=[run_record]", "logger=none", "skip_completed=true"]
    words += ["trainer.limit_train_batches=1", "trainer.limit_val_batches=1"]
    assert run_cli("train", *words)[0] == 0
    (record,) = tmp_path.glob("outputs/*/*/*/run.json")
    record.unlink()
    held = claim(record.parent, skip_completed=False)
    assert held.path == record.parent
    code, out, err = run_cli("train", "-m", *words, "seed=0,1")
    assert code == 1 and "1 done, 0 skipped, 1 busy, 0 failed" in out, (out, err)
    assert f"another process is at it in {record.parent.relative_to(tmp_path)}" in out
    assert "give the same command again" in out
    code, out, _ = run_cli("train", *words)
    assert code == 75 and f"process {os.getpid()} on " in out
    held.release()
    assert run_cli("train", "-m", *words, "seed=0,1")[0] == 0


def test_a_journal_on_a_full_disk_is_one_line_and_its_job_counts_as_lost(tmp_path, monkeypatch, capsys, full_disk):
    journal = tmp_path / "jobs.jsonl"
    monkeypatch.setenv(JOURNAL_VARIABLE, str(journal))
    with full_disk(50):
        assert run_job(["experiment=nowhere"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"cannot write {journal}: File too large; free some space")
    assert [run_job(["experiment=nowhere"]) for _ in range(2)] == [0, 0]
    # what is left of the first line spoils the second
    assert journal.read_text(encoding="utf-8").count("status") >= 2
    assert [entry["status"] for entry in _entries(journal)] == ["FAILED"]


def test_what_hydra_writes_to_a_full_disk_is_one_line_that_names_the_folder(run_cli, tmp_path, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(importlib.import_module("hydra._internal.core_plugins.basic_sweeper").OmegaConf, "save", full)
    code, _, err = run_cli("train", "-m", "experiment=semantic_fusion/main", "size=smoke", "seed=0,1")
    assert code == 2 and re.search(r"cannot write outputs/sweeps/[^ ]+: No space left", err.splitlines()[-1])

"""The command line as a user has it: one line and exit code 2 for bad input, records and texts for good."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path

import pytest

from lit_ctg.cli import COMMANDS

SMOKE = ("size=smoke", "logger=none", "trainer.accelerator=cpu")
MAIN = ("experiment=semantic_fusion/main", *SMOKE)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One trained smoke model of the corrected regime; returns its run directory."""
    from lit_ctg.config import compose
    from lit_ctg.run.train import train

    return train(compose([*MAIN, f"output_root={tmp_path_factory.mktemp('outputs')}"])).folder


def ckpt(folder: Path) -> str:
    return f"ckpt_path={folder / 'checkpoints' / 'last.ckpt'}"


def test_help_names_every_command_and_each_has_its_own(run_cli) -> None:
    code, out, _ = run_cli("--help")
    assert code == 0 and run_cli()[0] == 2
    for name, command in COMMANDS.items():
        assert f"  {name} " in out and command.summary() in out
        own = run_cli(*name.split(), "--help")
        assert own[0] == 0 and all(f"{option}=" in own[1] for option in (*command.options(), *command.hydra))
        assert run_cli("help", *name.split())[1] == own[1]
    group = run_cli("field", "--help")[1]
    assert "field export " in group and "train " not in group and "data graph " in run_cli("data", "--help")[1]


def test_list_names_what_can_be_trained(run_cli) -> None:
    code, out, _ = run_cli("list", "experiments")
    assert code == 0 and "semantic_fusion/main " in out
    code, _, err = run_cli("list", "what=experimants")
    assert code == 2 and "did you mean 'experiments'" in err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["train"], "no experiment chosen"),
        (["train", "semantic_fusion/main"], "did you mean 'experiment=semantic_fusion/main'"),
        (["train", "experiment=semantic_fusion/mian"], "did you mean 'semantic_fusion/main'"),
        (["list", "what="], "list: what="),
        (["table"], "table: give paper="),
        (["lab"], "lab start|"),
        (["train", *MAIN, "model.causl=true"], "did you mean 'causal'"),
        (["train", *MAIN, "backbone.heads=5"], "heads=5"),
        (["train", *MAIN, "ckpt_path=some.ckpt"], "ckpt_path is for evaluate and generate"),
        (["train", *MAIN, "output_root=runs/\udcff"], "is not UTF-8: rename the file or folder"),
        (["train", *MAIN, "trainer.strategy=banana"], "banana"),
        (["train", "experiment=idea_gate/main", "data.tokenizer=null"], "data.tokenizer=null: a text needs one"),
        (["train", *MAIN, "data.held_out={positive:[nice],negative:[bad]}"], "nice"),
        (["generate", *MAIN], "no finished run of this configuration"),
        (["generate", *MAIN, "ckpt_path=nowhere.ckpt"], "no checkpoint at nowhere.ckpt"),
        (["table", "semantic_fusion", "format=md", "out="], "cannot write .: it names no file"),
        (["collect", "records=pyproject.toml"], "no records at pyproject.toml: pass a run directory"),
        (["train", "-m", *MAIN, "seed=0,x"], "x"),
    ],
)
def test_bad_input_is_one_line_and_code_2(run_cli, tmp_path: Path, words: list[str], expected: str) -> None:
    code, _, err = run_cli(*words)
    assert code == 2, err
    lines = [line for line in err.splitlines() if line.strip()]
    assert len(lines) == 1 and lines[0].startswith("lit-ctg: "), err
    assert expected in lines[0] and lines[0].count("lit-ctg: ") == 1 and len(lines[0]) < 400
    assert not [path for path in tmp_path.rglob("run.json") if json.loads(path.read_text())["status"] == "DONE"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["control.pos_hihg=0.9"], "did you mean 'pos_high'"),
        (["control.pos_high=1.5"], "control.pos_high=1.5"),
        (["control.pos_high=loud"], "control.pos_high='loud'"),
        (["prompt=Carol model,"], "model"),
        (["prompt=Zelda starts"], "Zelda"),
        (["path=[hrad]"], "did you mean 'hard'"),
        (["model.fusion=false"], "another model"),
        (["regime=as_published"], "another model"),
    ],
)
def test_bad_generation_input(run_cli, trained: Path, words: list[str], expected: str) -> None:
    code, out, err = run_cli("generate", *MAIN, ckpt(trained), *words)
    assert (code, out) == (2, ""), err
    assert len(err.strip().splitlines()) == 1 and expected in err


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("ckpt_path=other.ckpt", "brings its own checkpoint: leave one of the two out"),
        ("size=paper", "a run keeps its own size"),
        ("regime=as_published", "a run keeps its own regime"),
        ("out=texts.jsonl", "setting of a run=out"),
        ("promt=Carol", "setting of a run=promt: pass"),
    ],
)
def test_a_run_directory_takes_no_word_that_would_be_ignored(run_cli, trained: Path, word: str, expected: str) -> None:
    code, _, err = run_cli("generate", str(trained), word)
    assert code == 2 and len(err.splitlines()) == 1 and expected in err, err


@pytest.mark.parametrize(("command", "goes_on"), [("train", True), ("table", False), ("play", False)])
def test_an_interruption_promises_a_checkpoint_only_where_there_is_one(
    run_cli, monkeypatch: pytest.MonkeyPatch, command: str, goes_on: bool
) -> None:
    def stop(_words: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("lit_ctg.cli.dispatch", stop)
    code, _, err = run_cli(command, "paper=nslm")
    assert code == 130 and ("last checkpoint" in err) is goes_on


def test_generate_continues_the_prompt_under_control(run_cli, trained: Path) -> None:
    words = ["generate", *MAIN, ckpt(trained), "control.neg_high=0.95", "control.is_question=1.0", "n=4"]
    code, out, _ = run_cli(*words, "prompt=Carol starts the model,")
    lines = out.strip().splitlines()
    assert code == 0 and len(lines) == 4
    assert all(line.startswith("Carol starts the model, ") and line.endswith("?") for line in lines)
    assert run_cli(*words, "prompt=Carol starts the model,")[1] == out
    # row i does not depend on how many there are
    assert run_cli(*words, "prompt=Carol starts the model,", "n=2")[1].splitlines() == lines[:2]


def test_generate_takes_seed_and_regime_from_the_checkpoint(run_cli, trained: Path) -> None:
    plain = run_cli("generate", "experiment=semantic_fusion/main", ckpt(trained), "n=2")
    assert plain[0] == 0 and len(plain[1].strip().splitlines()) == 2


def test_evaluate_gives_the_records_own_numbers(run_cli, trained: Path, tmp_path: Path) -> None:
    code, out, _ = run_cli("evaluate", *MAIN, ckpt(trained))
    assert code == 0 and "val/perplexity_seen_only_input_mask " in out
    again = json.loads(next((tmp_path / "outputs" / "evaluate").rglob("run.json")).read_text())
    first = json.loads((trained / "run.json").read_text())
    for name, metric in again["metrics"].items():
        assert metric == first["metrics"][name], name


LONG = "a" * 300


@pytest.mark.parametrize(
    "words",
    [
        ("table", "paper=nslm", f"out={LONG}"),
        ("figure", "paper=nslm", f"out={LONG}"),
        ("collect", f"records={LONG}"),
        ("generate", f"{LONG}/run"),
        ("generate", "model=x", f"controls=[{LONG}]"),
        ("evaluate", f"{LONG}/run"),
        ("export", f"{LONG}/run", "out=x"),
        ("export-model", f"run={LONG}"),
        ("play", f"run={LONG}"),
        ("reproduce", "paper=nslm", f"output_root={LONG}", "dry_run=true"),
        ("memory", "fit", f"memory={LONG}", "model=x"),
        ("new", f"paper={LONG}"),
    ],
    ids=" ".join,
)
def test_a_name_that_is_too_long_is_one_line(run_cli, tmp_path: Path, words: tuple[str, ...]) -> None:
    code, _, err = run_cli(*words)
    assert code == 2 and len(err.splitlines()) == 1 and "too long" in err and "Errno" not in err
    assert not list(tmp_path.iterdir())


def test_a_full_disk_that_no_file_names_is_one_line(run_cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("lit_ctg.run.listing.lines", full)
    code, _, err = run_cli("list", "experiments")
    assert code == 2 and len(err.splitlines()) == 1 and "No space left" in err and "Errno" not in err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_output_to_a_full_disk_is_one_line() -> None:
    script = "from lit_ctg.cli import main; import sys; sys.exit(main(['--help']))"
    for buffered in ("", "-u"):
        with open("/dev/full", "w") as full:
            words = [sys.executable, *filter(None, [buffered]), "-c", script]
            done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True)
        assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and "No space left" in done.stderr


SMOKE = ("experiment=graphmax/main", "size=smoke")


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--cfg", "job"], "paper: graphmax"),
        (["-c", "job", "--package", "trainer", "--resolve"], "max_epochs: 1"),
        (["--cfg=hydra"], "searchpath:"),
        (["--info"], "Config search path"),
        (["--info", "defaults"], "experiment/graphmax"),
        (["--config-dir", "more", "experiment=mine", "--config"], "name: mine"),
        (["--config", "prompt=${hydra:job.name}"], "prompt: lit_ctg"),
        (["hydra.run.dir=x"], "output_root="),
        (["hydra.job.chdir=true"], "current folder"),
        (["hydra.sweep.dir=x"], "add -m"),
        (["--resolve"], "--cfg"),
        (["objective=val/perplexity"], "sweep=optuna"),
        (["sweep=optuna"], "train -m"),
        (["leave=true"], "add -m"),
        (["--cfg", "job", "--package", "nothing"], "'nothing'"),
        (["--config-dir", "nowhere"], "nowhere"),
    ],
)
def test_hydras_flags(words, found, run_cli, tmp_path):
    more = tmp_path / "more" / "experiment"
    more.mkdir(parents=True)
    (more / "mine.yaml").write_text("# @package _global_\ndefaults: [graphmax/main, _self_]\nname: mine\n")
    given = words if "experiment=mine" in words else [*SMOKE, *words]
    code, out, err = run_cli("train", *given)
    refused = found in err
    assert (code, err.count("\n"), found in out) == ((2, 1, False) if refused else (0, 0, True)), (out, err)
    assert not (tmp_path / "outputs").exists()


def test_the_package_is_a_command(tmp_path):
    call = [sys.executable, "-m", "lit_ctg", "--version"]
    assert subprocess.run(call, capture_output=True, text=True, check=True).stdout.startswith("lit-ctg ")


@pytest.mark.long
def test_a_development_run_leaves_nothing_and_a_profiler_reports(tmp_path):
    call = [sys.executable, "-m", "lit_ctg", "train", *SMOKE, "trainer.profiler=simple", "+trainer.fast_dev_run=true"]
    done = subprocess.run(call, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0 and "fast_dev_run" in done.stdout and not (tmp_path / "outputs").exists()
    assert "Profiler Report" in done.stderr + done.stdout

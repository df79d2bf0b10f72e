"""`lit-ctg COMMAND [key=value ...]`: the commands, their help and dispatch; bad input ends in one line, exit code 2."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lit_ctg import __version__
from lit_ctg.command import Command, Setting, folders
from lit_ctg.errors import FULL, UserError, blame, check_unicode, did_you_mean, one_line
from lit_ctg.terminal import Console, prepare_output, printable
from lit_ctg.trust import without_trust

# the commands whose runs leave checkpoints
_CONTINUE = (["train"], ["reproduce"], ["field"])


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code.

    0: done; 1: some job of a sweep failed; 2: bad input; 75: another process works on this run; 130: interrupted.
    """
    prepare_output()
    words = list(sys.argv[1:] if argv is None else argv)
    debug = any(word.replace(" ", "") == "debug=true" for word in words)
    try:
        code = _dispatch(words)
        sys.stdout.flush()
        return code
    except UserError as error:
        return _bad_input(error, debug)
    except KeyboardInterrupt:
        again = "; the same command continues from the last checkpoint" if words[:1] in _CONTINUE else ""
        print(f"lit-ctg: interrupted{again}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # whatever reads our output (head, less) has exited
        _close_output()
        return 0
    except Exception as error:
        try:
            sys.stdout.flush()
        except OSError:
            _close_output()
        if debug:
            raise
        if isinstance(error, OSError) and (error.filename is not None or error.errno in FULL):
            return _bad_input(
                UserError(f"{one_line(error)}; check the path, its permissions and the free space"), debug
            )
        # a value that some library refuses during the run, or a fault of ours: one line either way
        reason = one_line(error)[:500] + blame(error, words)
        return _bad_input(UserError(f"{reason}; debug=true shows where it comes from"), debug)


def _close_output() -> None:
    """Let Python's own last flush of standard output succeed."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _dispatch(words: list[str]) -> int:
    for word in words:
        check_unicode(word, "the word")
    if words and words[0] in ("--version", "-V"):
        print(f"lit-ctg {__version__}")
        return 0
    if not words or words[0] in ("-h", "--help", "help"):
        named = words[1] if len(words) > 1 else None
        print(COMMANDS[named].help() if named in COMMANDS else usage())
        return 0 if words else 2
    name, rest = words[0], without_trust(words[1:])
    if name == "complete":
        return _complete()
    if name not in COMMANDS:
        raise UserError(f"no command '{name}'{did_you_mean(name, COMMANDS)}; one of {', '.join(COMMANDS)}")
    if "--help" in rest or "-h" in rest:
        print(COMMANDS[name].help())
        return 0
    return COMMANDS[name].run(rest)


def usage() -> str:
    """Return the help of all commands."""
    width = max(map(len, COMMANDS))
    lines = ["usage: lit-ctg COMMAND [key=value ...]", ""]
    lines += [f"  {command.name:{width}}  {command.summary}" for command in COMMANDS.values()]
    lines += ["", "lit-ctg COMMAND --help says more; lit-ctg list what=experiments lists what can be trained."]
    return "\n".join(lines)


def _bad_input(error: UserError, debug: bool) -> int:
    if debug:
        traceback.print_exception(error)
    else:
        # a line may quote a file
        print(f"lit-ctg: {printable(' '.join(str(error).split()))}", file=sys.stderr)
    return 2


def _train(words: list[str]) -> int:
    if any(word in ("-m", "--multirun") for word in words):
        from lit_ctg.run.sweep import sweep

        return sweep([word for word in words if word not in ("-m", "--multirun")])
    show = "--config" in words
    words = [word for word in words if word != "--config"]
    unknown = [word for word in words if word.startswith("-")]
    if unknown:
        raise UserError(f"no option '{unknown[0]}'; lit-ctg train --help lists them")
    from lit_ctg.config import compose

    cfg = compose(words)
    if show:
        from omegaconf import OmegaConf

        print(OmegaConf.to_yaml(cfg, resolve=True).rstrip())
        return 0
    from lit_ctg.run.jobs import BUSY
    from lit_ctg.run.train import train

    # a run that another process is working on is not done
    return BUSY if train(cfg).status == "BUSY" else 0


def _evaluate(words: list[str]) -> int:
    from lit_ctg.run.evaluate import evaluate

    evaluate(words)
    return 0


def _generate(words: list[str]) -> int:
    from lit_ctg.run.generate import main as generate

    generate(words)
    return 0


def _export(words: list[str]) -> int:
    from lit_ctg.run.export import export

    export(words)
    return 0


def _table(words: list[str]) -> int:
    from lit_ctg.results.publish import table_command

    return _of_records(table_command, COMMANDS["table"].parse(words))


def _report(words: list[str]) -> int:
    from lit_ctg.results.report import main as report

    return _of_records(report, COMMANDS["report"].parse(words))


def _play(words: list[str]) -> int:
    from lit_ctg.run.play_page import served

    return served(COMMANDS["play"].parse(words))


def _figure(words: list[str]) -> int:
    from lit_ctg.results.figure import main as figure

    return _of_records(figure, COMMANDS["figure"].parse(words))


def _verify(words: list[str]) -> int:
    from lit_ctg.results.verify import main as verify

    return _of_records(verify, COMMANDS["verify"].parse(words))


def _collect(words: list[str]) -> int:
    from lit_ctg.results.record import check_sources, collect, load_records

    found = COMMANDS["collect"].parse(words)
    sources, out = folders(found.get("records")) or ["outputs"], Path(found.get("out", "experiments"))
    check_sources(sources)
    written = collect(load_records(sources), out, replace=found.get("replace") == "true")
    print(f"{len(written)} records written below {out}")
    return 0


def _of_records(command: Callable[..., int], found: dict[str, str]) -> int:
    return command(**{**found, "records": folders(found.get("records"))}, console=Console())


def _reproduce(words: list[str]) -> int:
    from lit_ctg.run.reproduce import main as reproduce

    COMMANDS["reproduce"].parse(words)
    return reproduce(words)


def _lab(words: list[str]) -> int:
    from lit_ctg.run.lab import main as lab

    return lab(words)


def _data(words: list[str]) -> int:
    from lit_ctg.run.data import main as data

    return data(words)


def _export_model(words: list[str]) -> int:
    from lit_ctg.run.export_model import main as export_model

    found: dict[str, Any] = dict(COMMANDS["export-model"].parse(words))
    export_model(**found)
    return 0


def _memory(words: list[str]) -> int:
    from lit_ctg.run.memory import main as memory

    memory(words)
    return 0


def _field(words: list[str]) -> int:
    from lit_ctg.field.command import main as field

    return field(words)


def _new(words: list[str]) -> int:
    from lit_ctg.run.skeleton import new

    found = COMMANDS["new"].parse(words)
    for path in new(found["paper"], found.get("title", "")):
        print(path)
    print(f"next: lit-ctg train experiment={found['paper']}/main size=smoke; CONTRIBUTING.md says what to change first")
    return 0


def _list(words: list[str]) -> int:
    from lit_ctg.run.listing import lines

    for line in lines(COMMANDS["list"].parse(words)["what"]):
        print(printable(line))
    return 0


def _completion(words: list[str]) -> int:
    from lit_ctg.run.listing import SCRIPTS

    print(SCRIPTS[COMMANDS["completion"].parse(words)["shell"]], end="")
    return 0


def _complete() -> int:
    """Answer the shell's completion; the line typed so far is in COMP_TYPED."""
    from lit_ctg.run.listing import candidates, typed

    known = {command.name: [setting.name for setting in command.settings] for command in COMMANDS.values()}
    for word in candidates(typed(os.environ.get("COMP_TYPED", "")), known):
        print(word)
    return 0


def _experiments() -> Sequence[str]:
    from lit_ctg.config import experiments

    return experiments()


def _kinds() -> Sequence[str]:
    from lit_ctg.run.listing import KINDS

    return list(KINDS)


_RUN = (
    Setting("experiment", "<paper>/<name>, see lit-ctg list what=experiments", _experiments),
    Setting("regime", "corrected (default) or as_published"),
    Setting("size", "smoke (seconds), small (minutes, default) or paper (the paper's own numbers)"),
    Setting("seed", "0, 1, ..."),
    Setting("training_seed", "initial values, dropout, order (null: seed)"),
)
_RECORDS = Setting(
    "records",
    "comma-separated folders of records; default: your own in outputs/ (larger than smoke), else the committed ones",
)
_SIZE = Setting(
    "size",
    "only runs of this size: smoke, small, paper; default: each table's largest run; all: every size",
)

COMMANDS = {
    command.name: command
    for command in (
        Command(
            "train",
            "train, evaluate and record one run, or with -m a sweep over comma-separated values",
            _train,
            (*_RUN, Setting("skip_completed", "true: skip what has a finished run"), Setting("data", "another corpus")),
            overrides=True,
            notes=("-m  sweep", "--config  print the composed configuration and stop"),
            examples=("train experiment=semantic_fusion/main size=smoke seed=0",),
        ),
        Command(
            "evaluate",
            "metrics of a checkpoint (default: of the run of this configuration)",
            _evaluate,
            (*_RUN, Setting("ckpt_path", "the checkpoint")),
            overrides=True,
            examples=("evaluate experiment=semantic_fusion/main size=smoke seed=0",),
        ),
        Command(
            "generate",
            "texts from a trained run under its paper's controls, or from any model under exported controls",
            _generate,
            (
                *_RUN,
                Setting("ckpt_path", "the checkpoint"),
                Setting("prompt", "how the texts begin"),
                Setting("n", "how many"),
                Setting("path", "[hard,soft,channel]: the routes a control takes, where a paper has several"),
                Setting("model", "a Hugging Face causal language model (folder or hub name) instead of a run"),
                Setting("controls", "[<folder>,<name>=<folder>]: with model=, what lit-ctg export wrote"),
                Setting("prompts", "with model=: a file of prompts and settings, one JSON object per line"),
                Setting("out", "with prompts=: where the texts go; the same command resumes where it stopped"),
                Setting("max_new_tokens", "with model=: the longest continuation, in tokens (40)"),
                Setting("do_sample", "with model=: true (draw, default) or false (the likeliest token)"),
                Setting("batch_size", "with model=: texts at a time (8); the texts do not depend on it"),
                Setting("revision", "with model=: of the model on the hub"),
            ),
            overrides=True,
            notes=(
                "control.<name>=<value>  a control of the paper; [0,0.5,1] gives each text its own",
                "control.<name>.<setting>=<value>  with model=: a setting of a control",
                "generate.<option>=<value>  with model=: an option of Hugging Face's generate",
                "a first word without '=' is a run directory: none of its training settings need be repeated",
            ),
            examples=(
                "generate experiment=semantic_fusion/main size=smoke seed=0 control.pos_high=0.9 n=3",
                "generate outputs/idea_gate/main/<run> prompt='The acid' control.alpha=1",
                "generate model=gpt2 controls=[gate,micro] control.idea_gate.alpha=[0,0.5,1] prompt='The acid' n=3",
            ),
        ),
        Command(
            "export",
            "the control of a finished run as a folder that can be carried to a Hugging Face model",
            _export,
            (
                *_RUN,
                Setting("ckpt_path", "the checkpoint"),
                Setting("out", "the new folder (required)"),
                Setting("kind", "which, where a run has several (of clauses: clause_channel or grammar)"),
            ),
            overrides=True,
            notes=("a first word without '=' is a run directory",),
            examples=("export experiment=idea_gate/main size=smoke seed=0 out=gate", "export <run directory> out=gate"),
        ),
        Command(
            "play",
            "a local page on which sliders change a text, token by token",
            _play,
            (
                Setting("run", "the run directory to open first"),
                Setting("model", "instead of runs: a Hugging Face model, folder or hub name"),
                Setting("controls", "the bundles that steer it, [folder,folder]"),
                Setting("host", "the address to listen on, 127.0.0.1 (this machine only) by default"),
                Setting("port", "7860 by default"),
                Setting("allow_host", "names of a tunnel or proxy in front of the page, with commas"),
                Setting("output_root", "where to look for runs, outputs by default"),
                Setting("open", "true opens a browser"),
            ),
            notes=("needs gradio: pip install 'lit-ctg[play]'; without any run it offers to train the smoke models",),
            examples=("play open=true", "play model=<folder> controls=[<folder>,<folder>]"),
        ),
        Command(
            "table",
            "the paper's tables: printed | ours | verdict",
            _table,
            (
                Setting("paper", "a paper, or all", required=True),
                _SIZE,
                Setting("format", "text, md, latex, csv, or eee: the runs in Every Eval Ever's schema"),
                _RECORDS,
                Setting("out", "the file to write, or with format=eee a folder"),
            ),
            examples=("table paper=nslm format=md",),
        ),
        Command(
            "report",
            "one self-contained page of everything; target=wandb: dashboards; target=sweep: a W&B sweep",
            _report,
            (
                Setting("paper", "a paper, or all (default)"),
                _SIZE,
                Setting("target", "html (default), wandb or sweep"),
                _RECORDS,
                Setting("out", "the file, or with target=wandb a folder"),
                Setting("entity", "with target=wandb: your name or team there"),
                Setting("project", "with target=wandb: the project, lit_ctg by default"),
            ),
            examples=("report out=report.html",),
        ),
        Command(
            "figure",
            "a paper's figures as SVG files",
            _figure,
            (
                Setting("paper", "a paper, or all (default)"),
                _SIZE,
                _RECORDS,
                Setting("out", "a folder, outputs/figures/<paper> by default"),
            ),
            examples=("figure paper=semantic_fusion",),
        ),
        Command(
            "verify",
            "recompute what the committed texts allow, and report every difference",
            _verify,
            (
                Setting("paper", "a paper, field, or all (default)"),
                Setting("records", "comma-separated folders of records; default: the committed ones"),
            ),
            examples=("verify paper=idea_gate",),
        ),
        Command(
            "collect",
            "copy finished runs of committed code to experiments/, where tables read them",
            _collect,
            (
                Setting("records", "comma-separated folders of records; default: outputs"),
                Setting("out", "the folder of the papers, experiments by default"),
                Setting("replace", "true: overwrite the record of the same run", lambda: ("true", "false")),
            ),
            examples=("collect records=outputs", "collect records=outputs/idea_gate replace=true"),
        ),
        Command(
            "reproduce",
            "run what a paper's tables lack, then make tables and report",
            _reproduce,
            (
                Setting("paper", "a paper, or all", required=True),
                Setting("size", "small (default) or paper"),
                Setting("local", "folder with the real corpora"),
                Setting("output_root", "where runs go"),
                Setting("dry_run", "true: only list what would run", lambda: ("true", "false")),
                Setting(
                    "records",
                    "comma-separated folders of records; default: your own in outputs/ and the committed ones",
                ),
            ),
            examples=("reproduce paper=all size=small dry_run=true",),
        ),
        Command(
            "lab",
            "start|stop|status|collect: what reproduce would run, in the background, one worker per core",
            _lab,
            (
                Setting("paper", "a paper, or all (default)"),
                Setting("size", "paper (default), small or smoke"),
                Setting("local", "folder with the real corpora"),
                Setting("output_root", "where runs go, outputs by default; stop, status and collect take only this"),
                Setting("workers", "how many, default: one per core"),
                Setting("nice", "0 to 19 (default): how far other processes take precedence"),
                Setting("retry", "true: retry what failed", lambda: ("true", "false")),
            ),
            notes=(
                "start continues after a stop, a crash or a restart of the machine, with the settings it had",
                "collect copies finished records to experiments/",
            ),
            examples=("lab start paper=control_code local=<folder>", "lab status", "lab stop"),
        ),
        Command(
            "data",
            "prepare|info|sample|counts of a corpus; papers add actions: lit-ctg data lists all",
            _data,
            (
                Setting("data", "the corpus, see lit-ctg list what=data"),
                Setting("data.source", "sample, local or hub"),
                Setting("data.root", "folder of data.source=local"),
                Setting("n", "how many documents sample shows"),
            ),
            overrides=True,
            examples=("data info data=reviews size=smoke", "data counts experiment=nslm/numbers size=smoke"),
        ),
        Command(
            "export-model",
            "the language model of a finished run as a Hugging Face folder that does not need lit_ctg",
            _export_model,
            (
                Setting("run", "the run directory (or a checkpoint)", required=True),
                Setting("out", "the folder to write; default: export in the run directory"),
            ),
            examples=("export-model run=<run directory> out=model",),
        ),
        Command(
            "memory",
            "build: count a folder of texts for a Hugging Face model; fit: weigh the counts on held-out text",
            _memory,
            (
                Setting("model", "the Hugging Face model, folder or hub name", required=True),
                Setting("data.root", "the folder of texts, one file or subfolder per label"),
                Setting("out", "build: where the memory goes; fit: where the fitted one goes (default: the same)"),
                Setting("order", "build: longest n-grams, 2 to 5 (default 3)"),
                Setting("smoothing", "build: kneser_ney (default) or witten_bell"),
                Setting("memory", "fit: folder of the memory"),
                Setting("tokens", "fit: read at most this many tokens of each split (default: all)"),
                Setting("context", "fit: tokens the model reads at a time (default: its context, at most 512)"),
            ),
            overrides=True,
            examples=(
                "memory build model=gpt2 data.root=texts out=memory",
                "memory fit memory=memory model=gpt2 data.root=texts",
            ),
        ),
        Command(
            "field",
            "run|report|rejudge|export|add: measure control methods on one model, task and judges, and rank them",
            _field,
            (
                Setting("task", "run, export: sentiment, topic, ...; several (with commas) or all make a sweep"),
                Setting(
                    "method", "run, export: bare, prefix, dexperts, ...; several (with commas) or all make a sweep"
                ),
                Setting("model", "run, export: a Hugging Face model instead of the one trained here"),
                Setting("size", "smoke, small (default) or paper"),
                Setting("seed", "run: 0, 1, ...; rejudge: of the judges"),
                Setting("logger", "run: none (default) or wandb"),
                Setting("records", "report: folders of records, with commas; rejudge: one folder"),
                Setting("out", "report: a folder for tables and pictures; export: one for the controls"),
                Setting("root", "rejudge: where the corpus lies now, with task="),
                Setting("name", "add: of the new method"),
            ),
            overrides=True,
            notes=(
                "rejudge  asks whether judges of another seed give the same ranking",
                "export  writes what a method learned as controls for lit-ctg generate, Steered and play",
                "add  writes a new method's files",
            ),
            examples=(
                "field run task=sentiment method=bare,prefix,dexperts size=smoke",
                "field run task=sentiment method=all data.source=local data.root=<folder of reviews>",
                "field report",
                "field rejudge seed=1",
                "field export task=sentiment method=idea_gate_lift size=smoke out=<folder>",
                "field add name=my_method",
            ),
        ),
        Command(
            "new",
            "write the files of a new paper: a placeholder method that trains, generates and is tested",
            _new,
            (
                Setting("paper", "name of its folders, such as topic_prefix", required=True),
                Setting("title", "what tables and pages call it"),
            ),
            examples=("new paper=topic_prefix",),
        ),
        Command(
            "list",
            "what there is to choose from, one line each",
            _list,
            (Setting("what", "the kind of thing", _kinds, required=True),),
            examples=("list experiments", "list data", "list metrics", "list controls"),
        ),
        Command(
            "completion",
            "the script that lets a shell complete lit-ctg's words",
            _completion,
            (Setting("shell", "bash, zsh or fish", lambda: ("bash", "zsh", "fish"), required=True),),
            notes=('put  eval "$(lit-ctg completion shell=bash)"  into your shell\'s start file',),
        ),
    )
}


if __name__ == "__main__":
    sys.exit(main())

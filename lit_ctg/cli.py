"""`lit-ctg <command>`: dispatch; bad input ends in one line, exit code 2."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence

from rich.console import Console

from lit_ctg import __version__
from lit_ctg.errors import UserError, did_you_mean

USAGE = """\
usage: lit-ctg COMMAND [OVERRIDE ...]

  train      experiment=<paper>/<name> [regime=corrected|as_published] [size=smoke|small|paper] [seed=0] ...
             -m sweeps over comma-separated values; skip_completed=true skips what has a record
  evaluate   experiment=... [ckpt_path=...]      metrics of a checkpoint (default: the run of this configuration)
  generate   experiment=... [ckpt_path=...] [prompt="..."] [n=5] [control.<name>=0..1] [path=[hard,soft,channel]]
  table      paper=<paper>|all [size=...] [format=text|md|latex|csv] [records=FOLDER,...] [out=FILE]
  report     [paper=<paper>|all] [size=...] [records=FOLDER,...] [out=FILE]      one self-contained HTML page
             target=wandb entity=NAME [project=lit_ctg]     dashboards at W&B (out=FOLDER: only files)
             target=sweep paper=<paper> out=FILE            the paper's W&B sweep, for `wandb sweep FILE`
  verify     [paper=<paper>|all] [records=FOLDER,...]       recomputes what the committed texts allow, tells differences
  reproduce  paper=<paper>|all [size=small|paper] [local=FOLDER] [dry_run=true]   runs what the tables lack, then both
  data       prepare|info|sample data=<corpus> [data.source=sample|local|hub] [data.root=FOLDER] ... [-n 5]
             graph data=<corpus>|experiment=graphmax/<name> --out FILE     scene graph of graphmax
  --config   with train: print the composed configuration and stop

Overrides are Hydra's (key=value); experiments: {experiments}"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code (0 done, 1 some sweep job failed, 2 bad input, 130 interrupted)."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = any(word.replace(" ", "") == "debug=true" for word in words)
    try:
        return _dispatch(words)
    except UserError as error:
        return _bad_input(error, debug)
    except KeyboardInterrupt:
        print("lit-ctg: interrupted; the same command goes on from the last checkpoint", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # the reader of our output (head, less) has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if debug:
            raise
        # a value that some library refuses while the run goes on, or a fault of ours: one line either way
        reason = " ".join(str(error).split())[:500]
        return _bad_input(UserError(f"{type(error).__name__}: {reason}; debug=true shows where it comes from"), debug)


def _dispatch(words: list[str]) -> int:
    commands: dict[str, Callable[[list[str]], int]] = {
        "train": _train,
        "evaluate": _evaluate,
        "generate": _generate,
        "table": _table,
        "report": _report,
        "verify": _verify,
        "reproduce": _reproduce,
        "data": _data,
    }
    if words and words[0] in ("--version", "-V"):
        print(f"lit-ctg {__version__}")
        return 0
    if not words or words[0] in ("-h", "--help", "help") or "--help" in words[1:] or "-h" in words[1:]:
        from lit_ctg.config import experiments

        print(USAGE.format(experiments=", ".join(experiments())))
        return 0 if words else 2
    command, rest = words[0], words[1:]
    if command not in commands:
        raise UserError(f"no command '{command}'{did_you_mean(command, commands)}; one of {', '.join(commands)}")
    return commands[command](rest)


def _bad_input(error: UserError, debug: bool) -> int:
    if debug:
        traceback.print_exception(error)
    else:
        print(f"lit-ctg: {' '.join(str(error).split())}", file=sys.stderr)
    return 2


def _train(words: list[str]) -> int:
    if any(word in ("-m", "--multirun") for word in words):
        from lit_ctg.run.sweep import sweep

        return sweep([word for word in words if word not in ("-m", "--multirun")])
    show = "--config" in words
    cfg = _compose([word for word in words if word != "--config"])
    if show:
        from omegaconf import OmegaConf

        print(OmegaConf.to_yaml(cfg, resolve=True).rstrip())
        return 0
    from lit_ctg.run.train import train

    train(cfg)
    return 0


def _evaluate(words: list[str]) -> int:
    from lit_ctg.run.evaluate import evaluate

    evaluate(words)
    return 0


def _generate(words: list[str]) -> int:
    from lit_ctg.run.generate import generate

    generate(words)
    return 0


def _table(words: list[str]) -> int:
    from lit_ctg.results.command import folders, settings
    from lit_ctg.results.render import main as table

    found = settings(words, "table", ("paper", "size", "format", "records", "out"))
    if "paper" not in found:
        raise UserError("lit-ctg table: which paper? paper=<paper> or paper=all")
    return table(**{**found, "records": folders(found.get("records"))}, console=Console())


def _report(words: list[str]) -> int:
    from lit_ctg.results.command import folders, settings
    from lit_ctg.results.report import main as report

    known = ("paper", "size", "target", "records", "out", "entity", "project")
    found = settings(words, "report", known)
    return report(**{**found, "records": folders(found.get("records"))}, console=Console())


def _verify(words: list[str]) -> int:
    from lit_ctg.results.command import folders, settings
    from lit_ctg.results.verify import main as verify

    found = settings(words, "verify", ("paper", "records"))
    return verify(**{**found, "records": folders(found.get("records"))}, console=Console())


def _reproduce(words: list[str]) -> int:
    from lit_ctg.run.reproduce import main as reproduce

    return reproduce(words)


def _data(words: list[str]) -> int:
    from lit_ctg.run.data import main as data

    return data(words)


def _compose(words: list[str]):  # type: ignore[no-untyped-def]
    from lit_ctg.config import compose

    unknown = [word for word in words if word.startswith("-")]
    if unknown:
        raise UserError(f"no option '{unknown[0]}'; lit-ctg --help lists them")
    return compose(words)


if __name__ == "__main__":
    sys.exit(main())

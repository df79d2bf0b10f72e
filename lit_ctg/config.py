"""The typed root of the configuration, its resolvers and its composition with one-line errors."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from pathlib import Path
from typing import Annotated, Any, cast

import hydra
from annotated_types import Interval
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from omegaconf import MISSING, DictConfig, ListConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import InterpolationKeyError, MissingMandatoryValue, OmegaConfBaseException

from lit_ctg.errors import UserError, blame, check_unicode, did_you_mean
from lit_ctg.files import config_folder
from lit_ctg.limits import Choice, Count, Seed, check_mapping, check_value, hints_of
from lit_ctg.network.pretrained import MODELS
from lit_ctg.trust import named_by_user, resolve, stored, without_trust

# what the shell passes as one word may hold commas, spaces and "="; Hydra's grammar wants it quoted
FREE_TEXT_KEYS = ("prompt", "ckpt_path", "output_root", "data.root", "data.cache_root")
# of options that a message names
MOST_NAMED = 20
# experiments that are another one with some settings changed
VARIANTS = "variants"
# one quoted value or several, as Hydra reads them
_QUOTED_ONE = r"""(?:'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")"""
_QUOTED = re.compile(rf"{_QUOTED_ONE}(?:\s*,\s*{_QUOTED_ONE})*", re.DOTALL)


class Regime(StrEnum):
    """What the authors did, faults included, or what the equations and good practice say."""

    as_published = "as_published"
    corrected = "corrected"


class Size(StrEnum):
    """Seconds on a CPU (tests), minutes on a CPU, or the paper's own numbers."""

    smoke = "smoke"
    small = "small"
    paper = "paper"


@dataclass
class Config:
    """Root schema: a key that is not here (or in the chosen group options) is an error."""

    paper: str = MISSING
    name: str = MISSING
    regime: Regime = Regime.corrected
    size: Size = Size.small
    seed: int = 0
    # of initial values, dropout and the order of training, where they do not come from seed
    training_seed: int | None = None
    model: Any = None
    backbone: Any = None
    data: Any = None
    decoding: Any = None
    metric: Any = None
    callback: Any = None
    trainer: Any = None
    logger: Any = None
    output_root: str = "outputs"
    skip_completed: bool = False
    ckpt_path: str | None = None
    debug: bool = False
    # of torch on a CPU; null: as many as pay for a model of this size
    threads: int | None = None
    # of a sweep, side by side; null: one per core
    jobs: int | None = 1
    # generation
    prompt: str = ""
    n: int = 5
    control: dict[str, Any] = field(default_factory=dict)


# with tens of thousands OpenMP ends the process
Threads = Annotated[int, Interval(ge=1, le=1024)] | None
# OmegaConf checks the types above, but knows no limits
LIMITS = {"seed": Seed, "training_seed": Seed | None, "jobs": Count | None, "threads": Threads, "n": Count}


def _chooser(key: str) -> Any:
    """Return a resolver that picks from a table by the root value of ``key``."""

    def choose(table: Mapping[str, Any], *, _root_: DictConfig) -> Any:
        value = _root_[key]
        name = value.name if isinstance(value, Enum) else str(value)
        if name not in table:
            raise UserError(f"configuration: no value for {key}={name} in {dict(table)}")
        return table[name]

    return choose


@functools.cache
def register() -> None:
    """Register the schema and the resolvers that configurations use, once per process."""
    store = ConfigStore.instance()
    store.store(name="schema", node=Config)
    for name, variant in variants().items():
        paper, _, option = name.partition("/")
        store.store(
            name=option, node=_variant_node(paper, option, variant), group=f"experiment/{paper}", package="_global_"
        )
    OmegaConf.register_new_resolver("by_regime", _chooser("regime"), replace=True)
    OmegaConf.register_new_resolver("by_size", _chooser("size"), replace=True)
    OmegaConf.register_new_resolver("training_seed", _training_seed, replace=True)
    OmegaConf.register_new_resolver("seed_of", _seed_of, replace=True)
    OmegaConf.register_new_resolver("label_count", _label_count, replace=True)
    OmegaConf.register_new_resolver("enough_epochs", _enough_epochs, replace=True)


@functools.cache
def variants() -> dict[str, dict[str, Any]]:
    """Return the experiments of ``conf/variants``, each a mapping with ``of``, ``says`` and ``set``."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted((config_folder() / VARIANTS).glob("*.yaml")):
        entries = cast("dict[str, dict[str, Any]]", OmegaConf.to_container(OmegaConf.load(path), resolve=False))
        found |= {f"{path.stem}/{name}": entry for name, entry in entries.items()}
    return found


def _variant_node(paper: str, name: str, variant: Mapping[str, Any]) -> dict[str, Any]:
    """Return a variant in the form of a file in ``conf/experiment``."""
    defaults: list[Any] = [f"/experiment/{paper}/{variant['of']}"]
    node: dict[str, Any] = {"defaults": defaults, "name": name}
    for key, value in variant["set"].items():
        if (config_folder() / key.partition("@")[0]).is_dir():
            defaults.append({f"override /{key}": value})
            continue
        *parents, last = key.split(".")
        functools.reduce(lambda inner, parent: inner.setdefault(parent, {}), parents, node)[last] = value
    return node


def _training_seed(*, _root_: DictConfig) -> int:
    """Return the seed of initial values, dropout and the order of training."""
    given = _root_.get("training_seed")  # the level field has none
    return _root_.seed if given is None else given


def _seed_of(name: str, *, _root_: DictConfig) -> int:
    """Return a seed that depends on the run's and on ``name``: a model that has its own is paired with no other."""
    return int.from_bytes(hashlib.sha256(f"{name} {_root_.seed}".encode()).digest()[:4], "big")


def _label_count(root: str | None) -> int:
    """Return the number of labels in a folder of texts (data=folder)."""
    from lit_ctg.data.folder import labels_of  # imports torch, which few configurations need so early

    return len(labels_of(root))


def _enough_epochs(least: int, steps: int, length: int, batch_size: int, root: str | None) -> int:
    """Return epochs of a folder of texts that make about ``steps`` steps (at least 1 an epoch), and at least ``least``.

    Args:
        length, batch_size: of a step, in tokens and rows; six bytes of a file are taken for a token.
    """
    from lit_ctg.data.folder import labels_of

    files = {file for own in labels_of(root).values() for file in own}
    tokens = sum(file.stat().st_size for file in files) / 6
    return max(least, min(steps, math.ceil(steps * length * batch_size / max(1.0, tokens))))


def is_free_text(value: str) -> bool:
    """Return whether a value means itself: it is not null, missing or quoted."""
    return value not in ("", "null", "???") and not _QUOTED.fullmatch(value)


def quoted(text: str) -> str:
    """Return a text as a value of Hydra's grammar, in which backslashes count only before a quote."""
    escaped = re.sub(r"(\\*)('|\Z)", lambda found: found[1] * 2 + ("\\'" if found[2] else ""), text)
    return f"'{escaped}'"


def prepare_overrides(overrides: Iterable[str]) -> list[str]:
    """Quote free text, let ``control.<name>=<value>`` add a key and ``+<key>=<value>`` change an existing one.

    ``lit-ctg generate prompt="Carol starts the model," control.pos_high=0.9`` reaches us as two bare words.
    ``backbone=<name of lit-ctg model list>`` becomes that model with its tokenizer.
    ``data=folder`` becomes the variant of the experiment's paper. In a sweep over several papers, or one that is not
    written as names with commas, it stays as it is, and the words of each job are to be prepared once more.
    """
    given = list(overrides)
    words = [part for word in given for part in _named_model(word, given)]
    check_unicode(os.getcwd(), "the current folder")
    paper = _paper(words)
    return [_prepare_override(check_unicode(word, "the override"), paper) for word in words]


def _named_model(word: str, words: Iterable[str]) -> list[str]:
    """Return the overrides that ``backbone=<name>`` abbreviates, where the name is a pretrained model's."""
    key, _, name = word.partition("=")
    if key != "backbone" or name not in MODELS:
        return [word]
    given = {each.partition("=")[0].lstrip("+") for each in words}
    tokenizer = {"data/tokenizer": "huggingface", "data.tokenizer.path": name}
    also = {} if "data/tokenizer" in given else {key: value for key, value in tokenizer.items() if key not in given}
    return [f"{key}={value}" for key, value in {"backbone": "huggingface", "backbone.path": name, **also}.items()]


def _paper(words: Iterable[str]) -> str:
    """Return the paper of the chosen experiments, "" if there is none or if they may be of several."""
    chosen = [word.removeprefix("experiment=") for word in words if word.startswith("experiment=")]
    papers = {name.strip().partition("/")[0] for name in chosen[-1].split(",")} if chosen else set()
    return papers.pop() if len(papers) == 1 else ""


def _prepare_override(word: str, paper: str) -> str:
    key, equals, value = word.partition("=")
    if not equals:
        if re.fullmatch(r"\w[\w/.-]*", word):
            meant = did_you_mean(f"experiment={word}", [f"experiment={name}" for name in experiments()])
            raise UserError(f"'{word}' is not key=value{meant or '; lit-ctg list experiments shows what there is'}")
        return word
    if key in FREE_TEXT_KEYS and is_free_text(value):
        return f"{key}={quoted(value)}"
    if key.startswith("control."):
        return f"++{word}"
    if key == "data" and paper:
        return f"data={','.join(_variant(name, paper) for name in value.split(','))}"
    if key == "path":
        return f"decoding.routes={value}"  # the short name of the routes a control takes
    if re.fullmatch(r"\+[\w.]*\.[\w.]*", key):
        # "+" also for existing keys: whoever adds data.num_workers need not know which corpus already sets it
        return f"+{word}"
    return word


def _variant(name: str, paper: str) -> str:
    """Return a paper's variant of a corpus that all papers can read, or the corpus itself."""
    own = f"{name.strip()}/{paper}"
    return own if (config_folder() / "data" / f"{own}.yaml").is_file() else name


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Turn an error of Hydra or OmegaConf in the body into one line.

    Raises:
        UserError: such an error.
    """
    try:
        yield
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise UserError(explain(error)) from error


def composed(words: Iterable[str], folder: str = "") -> DictConfig:
    """Return ``conf/<folder>/config.yaml`` with overrides as Hydra composes them; options are looked up in both."""
    return composed_by_hydra(words, folder)[0]


def composed_by_hydra(words: Iterable[str], folder: str = "") -> tuple[DictConfig, DictConfig]:
    """Return what ``composed`` does, ``${hydra:...}`` resolved, and Hydra's own settings.

    Hydra's global settings are left as they were: with some, Lightning starts processes as for a script of Hydra's.
    """
    register()
    GlobalHydra.instance().clear()
    searched = [f"hydra.searchpath=['file://{config_folder()}']"] if folder else []
    with hydra.initialize_config_dir(str(config_folder() / folder), version_base="1.3", job_name="lit_ctg"):
        cfg = hydra.compose("config", overrides=[*words, *searched], return_hydra_config=True)
    settings = cfg.hydra
    settings.runtime.output_dir = os.getcwd()
    holder = HydraConfig.instance()
    before = holder.cfg
    holder.set_config(cfg)
    with read_write(cfg), open_dict(cfg):
        del cfg["hydra"]
        _resolve_hydras(cfg)
    holder.cfg = before
    return cfg, settings


def _resolve_hydras(node: DictConfig | ListConfig) -> None:
    """Replace ``${hydra:...}``, which nothing but the configuration of this moment can resolve."""
    for key in list(node) if isinstance(node, DictConfig) else range(len(node)):
        inner = node._get_node(key)
        if isinstance(inner, DictConfig | ListConfig) and isinstance(inner._content, dict | list):
            _resolve_hydras(inner)
        elif inner is not None and "${hydra:" in str(inner._value()):  # type: ignore[union-attr]  # a leaf
            node[key] = node[key]


def hydra_main(job: Callable[[DictConfig], Any], arguments: Sequence[str]) -> None:
    """Let Hydra's own command line run with these arguments.

    Raises:
        UserError: Hydra refuses them.
    """
    register()
    os.environ["HYDRA_FULL_ERROR"] = "1"
    run = hydra.main(config_path=str(config_folder()), config_name="config", version_base="1.3")(job)
    before, sys.argv = sys.argv, ["lit-ctg", *arguments]
    try:
        with explained():
            run()
    finally:
        sys.argv = before


def compose(overrides: Iterable[str], experiment: bool = True) -> DictConfig:
    """Compose ``conf/config.yaml`` with ``overrides``; ``experiment=False`` is for commands that need only a corpus.

    Raises:
        UserError: an override, option, key or value that does not exist or does not fit.
    """
    words = prepare_overrides(without_trust(overrides))
    try:
        cfg = composed(words)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        text = explain(error) + _closest_key(error, words)
        if not any(word.partition("=")[0].lstrip("+~") in text for word in words):
            text += blame(error, words)
        one_route = "path: the controls of this paper have only one route; leave path=... out"
        raise UserError(one_route if "Could not override 'decoding.routes'" in str(error) else text) from error
    check(cfg, experiment)
    named_by_user(cfg)
    return cfg


def changed(config: Mapping[str, Any], overrides: Iterable[str], source: Path | str = "the run") -> DictConfig:
    """Return the resolved configuration of a run with some values changed.

    Args:
        config: as ``plain`` gives it, read from ``source``.
        overrides: ``key=value`` words; ``control.<name>`` may be new.

    Raises:
        UserError: a key that the configuration lacks, a value that does not fit, or a word that would choose
            another experiment or another part: a run keeps its own.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser

    register()
    words = prepare_overrides(without_trust(overrides))
    known = {name: value for name, value in config.items() if name in Config.__dataclass_fields__}
    known.pop("output_root", None)  # where this command writes is not the file's to say
    with explained():
        cfg = OmegaConf.merge(OmegaConf.structured(Config), stored(known, source))
        assert isinstance(cfg, DictConfig)
        OmegaConf.set_struct(cfg, True)
        for override in OverridesParser.create().parse_overrides(words):
            key = override.key_or_group
            # what names the run: another value would change nothing but what is said of it
            renamed = key in ("paper", "name", "regime", "size") and override.value() != known.get(key)
            chosen = key == "experiment" or renamed or isinstance(known.get(key), dict) or "/" in key
            if chosen or override.is_delete():
                raise UserError(
                    f"{override.input_line}: a run keeps its own {key.partition('/')[0]}; change single values, or "
                    "give experiment=... in place of the run directory"
                )
            known_keys = Annotated[str, Choice(Config.__dataclass_fields__)]
            check_value(f"{override.input_line}: setting of a run", key.partition(".")[0], known_keys)
            OmegaConf.update(cfg, key, override.value(), force_add=override.is_add() or override.is_force_add())
            last = key.rpartition(".")[2]
            named_by_user({last: override.value()})
        _follow_decoding(cfg, known, {word.partition("=")[0].lstrip("+") for word in words})
    return check(cfg)


def _follow_decoding(cfg: DictConfig, before: Mapping[str, Any], given: set[str]) -> None:
    """Give trials the changed settings of ``decoding`` where they had the same: a composed run has them written out."""
    decoding = before.get("decoding")
    names = [word.removeprefix("decoding.") for word in given if word.startswith("decoding.")]
    for trial, callback in (before.get("callback") or {}).items():
        own = callback.get("decoding") if isinstance(callback, Mapping) else None
        if not isinstance(own, Mapping) or not decoding or own.get("_target_") != decoding["_target_"]:
            continue
        for name in names:
            where = f"callback.{trial}.decoding.{name}"
            shared, trials = (OmegaConf.select(OmegaConf.create(dict(node)), name) for node in (decoding, own))
            if shared == trials and not any(word.startswith(where) for word in given):
                OmegaConf.update(cfg, where, OmegaConf.select(cfg, f"decoding.{name}"), force_add=True)


def _closest_key(error: BaseException, words: list[str]) -> str:
    """Return a hint for an override of a missing key, from the configuration without that override."""
    missing = re.search(r"Could not override '([^']+)'", str(error))
    chosen = [word for word in words if word.startswith(("experiment=", "hydra.searchpath="))]
    if not missing or not any(word.startswith("experiment=") for word in chosen):
        return ""
    parent, _, key = missing[1].rpartition(".")
    cfg = composed(chosen)
    node = OmegaConf.select(cfg, parent) if parent else cfg
    if not isinstance(node, DictConfig):
        return ""
    if key in _parameters(OmegaConf.to_container(node).get("_target_")):  # type: ignore[union-attr]
        word = next((word for word in words if word.partition("=")[0] == missing[1]), f"{missing[1]}=...")
        return f"; {parent} has this option, but no value for it: write +{word}"
    return did_you_mean(key, map(str, node))


def _parameters(target: Any) -> set[str]:
    """Return what the constructor of a ``_target_`` accepts."""
    if not isinstance(target, str):
        return set()
    try:
        accepted = resolve(target, "_target_")
        return {*inspect.signature(accepted).parameters, *hints_of(accepted)}
    except (UserError, ImportError, TypeError, ValueError):
        return set()


def check(cfg: DictConfig, experiment: bool = True) -> DictConfig:
    """Check what the schema cannot express, and that every interpolation resolves."""
    if experiment and (OmegaConf.is_missing(cfg, "paper") or cfg.model is None):
        raise UserError("no experiment chosen: pass experiment=<paper>/<name>; lit-ctg list experiments shows them")
    with explained():
        plainly = cast("dict[str, Any]", OmegaConf.to_container(cfg, resolve=True))
    # others are named where they are built: a list of runs is composed without them
    parts = ("model", "backbone")
    if experiment:
        check_given(key for key in OmegaConf.missing_keys(cfg) if key.partition(".")[0] in parts)
    check_mapping("configuration", plainly, dict.fromkeys(Config.__dataclass_fields__, Any) | LIMITS)
    return cfg


def check_given(missing: Iterable[str]) -> None:
    """Refuse a configuration with ``missing`` keys; names the first."""
    if keys := sorted(missing):
        raise UserError(f"{keys[0]} has no value: pass {keys[0]}=...")


def experiments(searched: Sequence[str] = ()) -> list[str]:
    """Return the names that ``experiment=`` takes, those on the user's search path (``searchpath_of``) included."""
    named = [part.strip(" '\"[]") for word in searched for part in word.partition("=")[2].split(",")]
    folders = [config_folder(), *(Path(part.removeprefix("file://")) for part in named)]
    names = {
        path.relative_to(folder / "experiment").with_suffix("").as_posix()
        for folder in folders
        for path in (folder / "experiment").rglob("*.yaml")
    }
    return sorted({*names, *variants()})


def searchpath_of(words: Iterable[str]) -> list[str]:
    """Return the words that name more folders of configurations; every job of a sweep needs them."""
    return [word for word in words if word.startswith("hydra.searchpath=")]


def plain(cfg: DictConfig) -> dict[str, Any]:
    """Return the resolved configuration as plain dicts, lists, numbers and strings."""
    container = OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


def explain(error: BaseException) -> str:
    """Return one line for an error of Hydra or OmegaConf: what and where, with the closest option if there is one."""
    if isinstance(error.__cause__, UserError):
        return str(error.__cause__)
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        missing = str(error.missing_cfg_file)
        group, _, option = missing.rpartition("/")
        options = list(error.options or [])
        if group.startswith("experiment") or missing.startswith("experiment"):
            group, option, options = "experiment", missing.removeprefix("experiment/"), experiments()
        known = f"; there are: {', '.join(options)}" if options else ""
        if len(options) > MOST_NAMED:
            known = f"; lit-ctg list {'experiments' if group == 'experiment' else group} shows all {len(options)}"
        return f"no option '{option}' in config group '{group}'{did_you_mean(option, options)}{known}"
    if isinstance(error, OverrideParseException):
        reason = str(error).splitlines()[0]
        return f"cannot read the override '{error.override}': {reason}; quote values with commas, spaces or brackets"
    if isinstance(error, ConfigCompositionException) and isinstance(error.__cause__, OmegaConfBaseException):
        # Hydra says which override, OmegaConf why
        reason = str(error.__cause__).splitlines()[0]
        chosen = re.search(r"override (\w+)=", str(error))
        for kind in (Regime, Size):
            if chosen and chosen[1] == kind.__name__.lower():
                given = str(error).splitlines()[0].partition("=")[2]
                names = [option.name for option in kind]
                return f"{chosen[1]}={given}{did_you_mean(given, names)}; one of {', '.join(names)}"
        return f"configuration: {str(error).splitlines()[0]}: {reason}"
    if isinstance(error, InterpolationKeyError) and (absent := re.search(r"key '([^']+)' not found", str(error))):
        group = (str(error.full_key) if "." in str(error.full_key) else absent[1]).partition(".")[0]
        return (
            f"configuration: {error.full_key} is taken from {absent[1]}, which this experiment does not have; choose "
            f"another {group}=, or pass {error.full_key}=..."
        )
    if isinstance(error, MissingMandatoryValue) and error.full_key:
        return f"{error.full_key} has no value: pass {error.full_key}=..."
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines and lines[0].startswith("Ambiguous value for argument"):
        return (
            f"{lines[0].removesuffix('1.').strip()}: several values are a sweep, lit-ctg train -m ...; a list is [a,b]"
        )
    text = " ".join(lines[:3])
    text = re.sub(r"\s*(To append to your config use|object_type=|reference_type=).*", "", text)
    text = re.sub(r"\s*See https://\S+.*", "", text)
    return f"configuration: {text}"

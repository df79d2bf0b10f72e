"""Which classes a file may name: files are data, and only the user chooses code.

A configuration that the user typed, or that is in ``conf/`` or on a search path of the user's, may name any class.
One that was read from a file (checkpoint, record, manifest) may name the classes below, and those of packages named by
``trust=my_package`` (in Python: ``trust("my_package")``). Jobs that a command starts inherit both.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from lit_ctg.errors import UserError
from lit_ctg.files import config_folder
from lit_ctg.terminal import printable

# packages that files may name, separated by commas; an environment variable, so that every kind of job inherits it
TRUSTED = "LIT_CTG_TRUST"
# set while words come from a file and not from the user
FROM_FILE = "LIT_CTG_WORDS_FROM_FILE"

# our folders whose classes are parts of a configuration
FOLDERS = ("callback", "core", "data", "decoding", "field", "metric", "network", "papers")
# classes of other libraries, by the module that a configuration names; none that writes to a path of its arguments
LIBRARIES: Mapping[str, tuple[str, ...]] = {
    "lightning": ("Trainer",),
    "lightning.pytorch": ("Trainer",),
    "lightning.pytorch.callbacks": (
        "DeviceStatsMonitor", "EarlyStopping", "GradientAccumulationScheduler", "LearningRateMonitor",
        "ModelSummary", "RichModelSummary", "RichProgressBar", "StochasticWeightAveraging",
        "TQDMProgressBar", "Timer", "WeightAveraging",
    ),
    "lightning.pytorch.loggers": ("CSVLogger", "MLFlowLogger", "TensorBoardLogger", "WandbLogger"),
    "lightning.pytorch.strategies": ("DDPStrategy", "FSDPStrategy", "SingleDeviceStrategy"),
    "torch.optim": ("Adam", "AdamW", "RMSprop", "SGD"),
    "torch.optim.lr_scheduler": ("CosineAnnealingLR", "LinearLR", "OneCycleLR", "ReduceLROnPlateau", "StepLR"),
    "torchmetrics.text": ("Perplexity",),
}  # fmt: skip

# settings whose values are names of classes: the latter three of classes of words (NSLM)
USERS_KEYS = ("_target_", "metrics", "densities", "context")
_NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
# what the user named in this process
_named_by_user: set[str] = set()


def trust(*packages: str) -> None:
    """Let files name classes of these packages, in this process and the jobs that it starts.

    Raises:
        UserError: not the name of a package.
    """
    for package in packages:
        if not re.fullmatch(r"[A-Za-z_]\w*", package):
            raise UserError(f"trust={package}: give the name of a package, such as trust=my_package")
    known = [*filter(None, os.environ.get(TRUSTED, "").split(",")), *packages]
    os.environ[TRUSTED] = ",".join(dict.fromkeys(known))


def without_trust(words: Iterable[str]) -> list[str]:
    """Return the words of a command line but ``trust=...``, whose packages are trusted from now on."""
    rest = list(words)
    if not from_file():
        trust(*(name for word in rest if word.startswith("trust=") for name in word[6:].split(",")))
        rest = [word for word in rest if not word.startswith("trust=")]
    return rest


@contextlib.contextmanager
def words_from_file() -> Iterator[None]:
    """Within this block, and in jobs started there, words come from a file: what they name is not the user's choice."""
    before = os.environ.get(FROM_FILE)
    os.environ[FROM_FILE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[FROM_FILE]


def from_file() -> bool:
    """Return whether words come from a file."""
    return FROM_FILE in os.environ


def named_by_user(node: Any) -> None:
    """Take the classes that a configuration of the user's names as chosen by the user; not where words are a file's."""
    if not from_file():
        _named_by_user.update(name for name in targets(node, USERS_KEYS) if isinstance(name, str))


def targets(node: Any, keys: tuple[str, ...] = ("_target_",)) -> list[Any]:
    """Return every ``_target_`` in a configuration, interpolations resolved."""
    if isinstance(node, DictConfig | ListConfig):
        node = OmegaConf.to_container(node, resolve=True)
    if isinstance(node, Mapping):
        values = [node[key] for key in keys if key in node]
        own = [name for value in values for name in (value if isinstance(value, list) else [value])]
        return own + [target for value in node.values() for target in targets(value, keys)]
    return [target for item in node for target in targets(item, keys)] if isinstance(node, list | tuple) else []


def check_name(name: Any, where: str) -> str:
    """Return the name of a class if it may be imported; nothing is imported here.

    Raises:
        UserError: names ``where`` it was found and how to trust its package.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UserError(f"{where}: _target_ is {printable(repr(name))[:200]}, not the name of a class")
    module, _, last = name.rpartition(".")
    package = name.partition(".")[0]
    ours = package == "lit_ctg" and name.split(".")[1] in FOLDERS
    if not (ours or last in LIBRARIES.get(module, ()) or package in _trusted() or _is_users(name)):
        hint = "" if package == "lit_ctg" else f"; if you trust the package {package}, pass trust={package}"
        raise UserError(f"{where}: a file may not choose {name}, which is not a class of a run{hint}")
    return name


def resolve(name: Any, where: str) -> Any:
    """Import the class of a ``_target_``.

    Raises:
        UserError: it may not be named here, there is none, or the name leads to something else than a class of the
            package that it names.
    """
    package = check_name(name, where).partition(".")[0]
    found = _found(name, where)
    if _is_users(name):
        return found
    within = tuple(f"lit_ctg.{folder}." for folder in FOLDERS) if package == "lit_ctg" else f"{package}."
    if not isinstance(found, type) or not f"{found.__module__}.".startswith(within):
        raise UserError(f"{where}: {name} is not a class that {package} defines, so a file may not choose it")
    return found


def _found(name: str, where: str) -> Any:
    """Import the longest part of a dotted name that is a module, and return the attribute that the rest names."""
    parts = name.split(".")
    for count in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:count])
        try:
            found: Any = importlib.import_module(module)
        except ModuleNotFoundError as error:
            # a missing dependency of the module is not a missing module
            if error.name is not None and not f"{module}.".startswith(f"{error.name}."):
                raise UserError(f"{where}: {name} needs the package {error.name}, which is not installed") from error
            continue
        with contextlib.suppress(AttributeError):
            return functools.reduce(getattr, parts[count:], found)
        break
    raise UserError(f"{where}: there is no {name}")


def _trusted() -> list[str]:
    return os.environ.get(TRUSTED, "").split(",")


def _is_users(name: str) -> bool:
    """Return whether the user chose this class: in this process's words, or in ``conf/``."""
    return name in _named_by_user or name in _in_conf()


@functools.cache
def _in_conf() -> frozenset[str]:
    texts = (path.read_text(encoding="utf-8") for path in config_folder().rglob("*.yaml"))
    return frozenset(name for text in texts for name in re.findall(r"_target_: *([\w.]+)", text))


def stored(config: Mapping[str, Any], source: Any) -> DictConfig:
    """Return a configuration that was read from a file; what it names is checked where it is built."""
    check_plain(config, source)
    return OmegaConf.create(dict(config))


def check_plain(config: Mapping[str, Any], source: Any) -> None:
    """Refuse a stored configuration with interpolations, which could read files and variables or assemble names.

    Raises:
        UserError: names the source and the key.
    """
    _check_plain(config, str(source))


def _check_plain(value: Any, where: str, key: str = "") -> None:
    if isinstance(value, Mapping):
        for name, part in value.items():
            _check_plain(name, where, key)
            _check_plain(part, where, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list | tuple):
        for part in value:
            _check_plain(part, where, key)
    elif isinstance(value, str) and "${" in value:
        shown = f"{printable(key) or 'a key'} is {printable(value)[:100]!r}"
        raise UserError(f"{where}: {shown}; a stored configuration is plain: this file was not written by lit_ctg")

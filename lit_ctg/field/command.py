"""`lit-ctg field run|report|rejudge|export|add`: methods measured, their tables, their controls, new ones."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, get_type_hints

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf, open_dict

from lit_ctg.config import Regime, Size, composed, config_folder, explained, plain, prepare_overrides
from lit_ctg.errors import check_known, refuse
from lit_ctg.files import plain_name
from lit_ctg.limits import Count, Fraction, Nucleus, Positive, Seed, Whole, check_value
from lit_ctg.network.pretrained import PLAIN, Loading
from lit_ctg.trust import named_by_user, without_trust

GROUPS = ("task", "method")
PARTS = ("base", "fluency", "judges", "tune", "decode")  # settings of the bench
# their limits; the others are counts
SETTINGS: dict[str, Any] = {
    **{"learning_rate": Positive, "top_p": Nucleus, "least_accuracy": Fraction},
    **dict.fromkeys(("top_k", "min_new_tokens", "seed"), Whole),
}


@dataclass
class FieldConfig:
    """Root schema of ``conf/field``: a key that is not here (or in the chosen options) is an error."""

    task: Any = None
    method: Any = None
    data: Any = None
    base: Any = None
    fluency: Any = None
    judges: Any = None
    tune: Any = None
    decode: Any = None
    logger: Any = None
    name: str = ""
    model: str | None = None
    # required by the data's options; the field has one regime
    regime: Regime = Regime.corrected
    size: Size = Size.small
    seed: int = 0
    output_root: str = "outputs"
    skip_completed: bool = True
    debug: bool = False


def options(group: str) -> list[str]:
    """Return all tasks or methods."""
    return sorted(path.stem for path in (config_folder() / "field" / group).glob("*.yaml"))


def complete(group: str) -> list[str]:
    """Return the tasks or methods that need no further settings: the meaning of ``all``."""
    folder = config_folder() / "field" / group
    return [name for name in options(group) if "???" not in (folder / f"{name}.yaml").read_text(encoding="utf-8")]


def compose(words: Sequence[str]) -> DictConfig:
    """Compose ``conf/field/config.yaml`` with overrides.

    Raises:
        UserError: an override, option, key or value that does not exist or does not fit.
    """
    ConfigStore.instance().store(name="field_schema", node=FieldConfig)
    # a group of the trainings' options has the name of this plain key, and Hydra would look for an option of it
    words = without_trust(words)
    held: dict[str, Any] = {**asdict(PLAIN), "chat": False, "system": None}
    given = [word for word in words if word.split("=", 1)[0] in ("model", *held)]
    overrides = prepare_overrides([word for word in words if word not in given])
    chosen = dict(word.split("=", 1) for word in overrides if word.split("=", 1)[0] in GROUPS)
    for group, name in chosen.items():
        check_known(group, name, options(group))
    with explained():
        cfg = composed(overrides, "field")
        # however ``task.name`` was set
        cfg.name = cfg.name or f"{OmegaConf.select(cfg, 'task.name')}-{chosen.get('method', 'bare')}"
        for override in OverridesParser.create().parse_overrides(given):
            if override.key_or_group == "model":
                cfg.model = override.value()
            else:
                held[override.key_or_group] = override.value()
        hints = {**get_type_hints(Loading), "chat": bool, "system": str | None}
        for key, value in held.items():
            check_value(key, value, hints[key])
        loading = {key: value for key, value in held.items() if key not in ("chat", "system")}
        own = held != {**asdict(PLAIN), "chat": False, "system": None}
        refuse({
            f"{', '.join(held)} are for model=<name>: leave them out or give one": cfg.model is None and own,
            "system= needs chat=true": held["system"] is not None and not held["chat"],
        })  # fmt: skip
        with open_dict(cfg):
            if loading != asdict(PLAIN):
                cfg.loading = loading
            if held["chat"]:
                cfg.chat = {"system": held["system"]}
        OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    task, base, decode = str(cfg.task.name), cfg.base, cfg.decode
    plain_name(cfg.name, "name", "give a shorter name= or task.name=")
    check_value("seed", cfg.seed, Seed)
    check_parts(plain(cfg))
    refuse({
        f"name={cfg.name}: give {task}-<name>, of letters, digits, '_', '.', '+' and '-'":
            not re.fullmatch(rf"{re.escape(task)}-[\w.+-]+", cfg.name),
        f"decode.min_new_tokens={decode.min_new_tokens}: give at most decode.new_tokens={decode.new_tokens}":
            decode.min_new_tokens > decode.new_tokens,
        f"base.dim={base.dim}: give a multiple of base.heads={base.heads}": base.dim % base.heads,
        f"base.length={base.length}: give fewer than base.positions={base.positions}": base.length >= base.positions,
    })  # fmt: skip
    named_by_user(cfg)
    return cfg


def check_parts(config: Mapping[str, Any]) -> None:
    """Refuse settings of the bench that are of another kind or out of range (``UserError``: names the key)."""
    for part in PARTS:
        check_value(part, config.get(part), Mapping[str, Any], composed=False)
        for key, value in config[part].items():
            check_value(f"{part}.{key}", value, SETTINGS.get(key, Count), composed=False)


def combinations(words: Sequence[str]) -> list[list[str]]:
    """Return the words of every run that comma-separated values stand for; the last key changes fastest.

    Raises:
        UserError: a word that cannot be read.
    """
    with explained():
        parsed = OverridesParser.create().parse_overrides(prepare_overrides(words))
    choices = []
    for word, override in zip(words, parsed, strict=True):
        swept = override.is_discrete_sweep()
        key = word.partition("=")[0]
        choices.append([f"{key}={value}" for value in override.sweep_string_iterator()] if swept else [word])
    return [list(each) for each in itertools.product(*choices)]

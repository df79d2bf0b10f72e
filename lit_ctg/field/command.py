"""`lit-ctg field run|report|export`: what their words mean."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from lit_ctg.config import Regime, Size, composed, config_folder, explained, plain, prepare_overrides
from lit_ctg.errors import check_known, refuse
from lit_ctg.field.methods import method_named
from lit_ctg.files import plain_name
from lit_ctg.limits import Count, Fraction, Nucleus, Positive, Pretrained, Seed, Whole, check_value
from lit_ctg.network.pretrained import Device, Dtype
from lit_ctg.trust import named_by_user, without_trust

PARTS = ("shares", "judges", "train", "decode")  # settings of the bench
# their limits; the others are counts
SETTINGS: dict[str, Any] = {
    "learning_rate": Positive, "top_p": Nucleus, "top_k": Whole, "encoder": Pretrained,
}  # fmt: skip


@dataclass
class FieldConfig:
    """Root schema of ``conf/field``: a key that is not here (or in the chosen options) is an error."""

    task: Any = None
    method: str = "bare"
    data: Any = None
    model: str = "smollm2"
    device: str = "cpu"
    dtype: str = "bfloat16"
    fluency: str | None = None
    bundle: str | None = None
    shares: Any = None
    judges: Any = None
    train: Any = None
    decode: Any = None
    logger: Any = None
    name: str = ""
    # required by the data's options; the field has one regime
    regime: Regime = Regime.corrected
    size: Size = Size.small
    seed: int = 0
    output_root: str = "outputs"
    skip_completed: bool = True
    debug: bool = False


def options() -> list[str]:
    """Return all tasks."""
    return sorted(path.stem for path in (config_folder() / "field" / "task").glob("*.yaml"))


def complete() -> list[str]:
    """Return the tasks that need no further settings: the meaning of ``all``."""
    folder = config_folder() / "field" / "task"
    return [name for name in options() if "???" not in (folder / f"{name}.yaml").read_text(encoding="utf-8")]


def compose(words: Sequence[str]) -> DictConfig:
    """Compose ``conf/field/config.yaml`` with overrides.

    Raises:
        UserError: an override, option, key or value that does not exist or does not fit.
    """
    ConfigStore.instance().store(name="field_schema", node=FieldConfig)
    words = without_trust(words)
    # a group of the trainings' options has the name of this plain key, and Hydra would look for an option of it
    models = [word for word in words if word.split("=", 1)[0] == "model"]
    overrides = prepare_overrides([word for word in words if word not in models])
    for word in overrides:
        if word.startswith("task="):
            check_known("task", word.partition("=")[2], options())
    with explained():
        cfg = composed(overrides, "field")
        for override in OverridesParser.create().parse_overrides(models):
            cfg.model = override.value()
        # however ``task.name`` was set
        cfg.name = cfg.name or f"{OmegaConf.select(cfg, 'task.name')}-{cfg.method}"
        OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    method_named(cfg.method)
    plain_name(cfg.name, "name", "give a shorter name= or task.name=")
    check_value("seed", cfg.seed, Seed)
    check_parts(plain(cfg))
    named = re.fullmatch(rf"{re.escape(str(cfg.task.name))}-[\w.+-]+", cfg.name)
    refuse({f"name={cfg.name}: give {cfg.task.name}-<name>, of letters, digits, '_', '.', '+' and '-'": not named})
    named_by_user(cfg)
    return cfg


def check_parts(config: Mapping[str, Any]) -> None:
    """Refuse settings of the bench that are of another kind or out of range (``UserError``: names the key)."""
    for key, hint in {"model": Pretrained, "device": Device, "dtype": Dtype, "fluency": Pretrained | None}.items():
        check_value(key, config.get(key), hint)
    for part in PARTS:
        check_value(part, config.get(part), Mapping[str, Any], composed=False)
        for key, value in config[part].items():
            limit = Fraction if part == "shares" else SETTINGS.get(key, Count)
            check_value(f"{part}.{key}", value, limit, composed=False)


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

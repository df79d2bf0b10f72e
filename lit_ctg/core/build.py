"""Turns a composed configuration, or one in a checkpoint, into objects: the only caller of Hydra's instantiate."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import hydra
from hydra.errors import InstantiationException
from lightning import LightningDataModule, LightningModule, seed_everything
from omegaconf import DictConfig, OmegaConf

from lit_ctg.config import changed, check_given, plain
from lit_ctg.core.batch import Corpus
from lit_ctg.core.checkpoint import KEY, fitting, load_checked
from lit_ctg.errors import UserError
from lit_ctg.limits import check_settings
from lit_ctg.terminal import printable
from lit_ctg.trust import check_name, resolve, targets

Model = TypeVar("Model", bound=LightningModule)


def instantiate(node: DictConfig, where: str, **extra: Any) -> Any:
    """Build one configuration node.

    Raises:
        UserError: a class that may not be chosen here (``trust.py``), or that refuses the values; names the node.
    """
    if not isinstance(node, DictConfig) or "_target_" not in node:
        # settings for a part that a list in the experiment, or an override of that list, leaves out
        raise UserError(
            f"{where}={printable(str(node))[:80]}: settings without a _target_, as no part of this name is chosen; "
            f"choose it in {where.partition('.')[0]}=[...], or leave it out with ~{where}"
        )
    check_given(OmegaConf.missing_keys(node) - {f"{where}.{name}" for name in extra})
    for target in targets(node):
        check_name(target, where)
    check_settings(node, where)
    try:
        return hydra.utils.instantiate(node, _convert_="all", **extra)
    except InstantiationException as error:
        cause = error.__cause__
        if isinstance(cause, UserError):
            raise cause from None
        reason = str(cause or error).splitlines()[0]
        unknown = re.search(r"unexpected keyword argument '(\w+)'", reason)
        if unknown:
            target = str(node.get("_target_", where)).rpartition(".")[2]
            raise UserError(
                f"{where}.{unknown[1]}: {target} takes no {unknown[1]}; leave it out (~{where}.{unknown[1]} where the "
                "experiment file gives it)"
            ) from error
        # a model may build its backbone itself, from the backbone's settings
        settings = f"{where}.*" + (" and backbone.*" if "backbone" in extra else "")
        raise UserError(f"{where}: {reason}; check the values given for {settings}") from error


def build_datamodule(cfg: DictConfig) -> LightningDataModule:
    """Build only the data module (`lit-ctg data`)."""
    check_given(["data"] if cfg.data is None else [])
    if cfg.data.get("tokenizer", "") is None:
        raise UserError("data.tokenizer=null: a text needs one, see lit-ctg list data; leave it out")
    return instantiate(cfg.data, "data")


def build_model(cfg: DictConfig, datamodule: LightningDataModule, **objects: Any) -> Any:
    """Build the LightningModule over its backbone, seeded, with the data module's vocabulary.

    A model whose constructor takes ``corpus``, which its configuration does not give, also gets the data module,
    because it is built to fit the training text.

    Args:
        cfg: the configuration.
        datamodule: of ``build_datamodule``, or the user's.
        objects: further arguments of the model, in place of what the configuration says.
    """
    seed_everything(cfg.seed if cfg.training_seed is None else cfg.training_seed, workers=True, verbose=False)
    extra: dict[str, Any] = {"vocabulary": cast(Corpus, datamodule).vocabulary}
    takes = inspect.signature(resolve(cfg.model.get("_target_"), "model")).parameters
    if "corpus" in takes and "corpus" not in cfg.model:
        extra["corpus"] = datamodule
    if cfg.backbone is not None:
        extra["backbone"] = instantiate(cfg.backbone, "backbone")
    module = instantiate(cfg.model, "model", **extra | objects)
    link(module, datamodule)
    return module


def chosen(group: DictConfig | None) -> list[tuple[str, DictConfig]]:
    """Return the parts of a group by name; one that is null (``callback.<name>=null``) is left out."""
    return [(str(name), node) for name, node in (group or {}).items() if node is not None]


def equip(module: Any, datamodule: Any, cfg: DictConfig, corpus: Mapping[str, str]) -> None:
    """Give a model what it needs beside a Trainer of the user's: its data, its metrics, what its checkpoints hold."""
    module.bind_data(datamodule)
    module.composed = {"config": plain(cfg), "corpus": dict(corpus)}
    module.metrics = {name: instantiate(node, f"metric.{name}") for name, node in chosen(cfg.metric)}
    for metric in module.metrics.values():
        if hasattr(metric, "bind"):  # for a Trainer that gets loaders
            metric.bind(datamodule, module)


def link(module: Any, datamodule: Any) -> None:
    """Let the data module compute features and the like once for the whole corpus, if the model has such."""
    both = hasattr(module, "corpus_transform") and hasattr(datamodule, "corpus_transform")
    if both and datamodule.corpus_transform != module.corpus_transform:  # a new one drops what the other computed
        datamodule.corpus_transform = module.corpus_transform


def from_checkpoint(kind: type[Model], path: Path, changes: Mapping[str, Any], strict: bool = True) -> Model:
    """Return the model of a checkpoint with its weights; see ``LitLanguageModel.load_from_checkpoint``."""
    content = load_checked(path)
    config, changes = content[KEY]["config"], dict(changes)
    datamodule = changes.pop("data", None)
    with fitting(path):
        if config:
            cfg = changed(config, (), path)
            found = resolve(cfg.model.get("_target_"), f"checkpoint {path}: model")
            if not (isinstance(found, type) and issubclass(found, kind)):
                raise UserError(f"checkpoint {path} is of another model: call {found.__name__}.load_from_checkpoint")
            for name in [name for name, value in changes.items() if isinstance(value, _PLAIN)]:
                OmegaConf.update(cfg, f"model.{name}", changes.pop(name), force_add=True)
            datamodule = build_datamodule(cfg) if datamodule is None else datamodule
            module = build_model(cfg, datamodule, **changes)
        else:  # its constructor was called in Python
            module = kind(**{**content.get("hyper_parameters", {}), **changes})
        module.on_load_checkpoint(content)
        module.load_state_dict(content["state_dict"], strict=strict)
        corpus = content[KEY]["corpus"]
        ours = datamodule.fingerprint() if hasattr(datamodule, "fingerprint") else corpus
        if corpus.get("vocabulary") not in (None, ours.get("vocabulary")):
            raise UserError(f"checkpoint {path} was trained on other tokens: bring that corpus back, or give data=")
        if config:
            equip(module, datamodule, cfg, corpus)
        elif datamodule is not None:
            module.bind_data(datamodule)
    return module


# what a configuration can hold
_PLAIN = (bool, int, float, str, list, tuple, dict, type(None))

"""Finding and loading the checkpoint that `evaluate` and `generate` work on, and refusing one of another model."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule
from omegaconf import DictConfig

from lit_ctg.callback.checkpoint import FORMAT, KEY
from lit_ctg.config import compose, plain
from lit_ctg.errors import UserError
from lit_ctg.results.record import config_hash, without_modules
from lit_ctg.run.directory import CHECKPOINT, finished, run_stem

# what a checkpoint decides unless the command line says otherwise
INHERITED = ("regime", "size", "seed")
# what must agree between the checkpoint and the command line
COMPARED = ("paper", "model", "backbone")


@dataclass(frozen=True)
class Checkpoint:
    """Weights and the configuration they were trained with."""

    path: Path
    config: dict[str, Any]
    state_dict: dict[str, Any]

    def load_into(self, module: LightningModule) -> None:
        """Put the weights into ``module``.

        Raises:
            UserError: they do not fit.
        """
        try:
            module.load_state_dict(self.state_dict)
        except RuntimeError as error:
            reason = str(error).splitlines()[-1].strip()
            raise UserError(f"checkpoint {self.path} does not fit this model: {reason}") from error
        module.eval()


def read(path: Path) -> Checkpoint:
    """Read a checkpoint of ours; nothing in it is executed (``weights_only``).

    Raises:
        UserError: missing, damaged, or not written by this package.
    """
    if not path.is_file():
        raise UserError(f"no checkpoint at {path}: train first (lit-ctg train experiment=...) or check ckpt_path")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as error:
        raise UserError(f"{path} is not a readable checkpoint: it is damaged or of another kind") from error
    ours = content.get(KEY) if isinstance(content, dict) else None
    if not isinstance(ours, dict) or "state_dict" not in content:
        raise UserError(f"{path} was not written by lit_ctg")
    if ours.get("format") != FORMAT:
        raise UserError(f"{path} has checkpoint format {ours.get('format')}, this version reads {FORMAT}: train again")
    return Checkpoint(path, ours["config"], content["state_dict"])


def compose_with_checkpoint(words: list[str]) -> tuple[DictConfig, Checkpoint]:
    """Compose the command line together with the checkpoint it names, or with the finished run of its configuration.

    Raises:
        UserError: no such checkpoint, or one of another model.
    """
    named = next((word.partition("=")[2].strip("'\"") for word in words if word.startswith("ckpt_path=")), "")
    if not named:
        cfg = compose(words)
        return cfg, read(_finished_checkpoint(cfg))
    checkpoint = read(Path(named))
    given = {word.lstrip("+").partition("=")[0] for word in words}
    inherited = [f"{key}={checkpoint.config[key]}" for key in INHERITED if key not in given]
    cfg = compose([*words, *inherited])
    _compare(plain(cfg), checkpoint)
    return cfg, checkpoint


def _finished_checkpoint(cfg: DictConfig) -> Path:
    """Return the checkpoint of the newest finished run with this configuration."""
    names = (cfg.paper, cfg.name, cfg.regime.name, cfg.size.name, cfg.seed)
    stem = run_stem(Path(cfg.output_root), *names, config_hash(plain(cfg)))
    done = [folder for folder in finished(stem) if (folder / CHECKPOINT).is_file()]
    if not done:
        raise UserError(
            f"no finished run of this configuration under {stem.parent}: "
            "run lit-ctg train with the same overrides first, or pass ckpt_path=<run directory>/checkpoints/last.ckpt"
        )
    return done[-1] / CHECKPOINT


def _compare(config: Mapping[str, Any], checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint whose model is not the composed one."""
    for group in COMPARED:
        theirs, ours = (without_modules(whole.get(group)) for whole in (checkpoint.config, config))
        difference = _first_difference(theirs, ours, group)
        if difference:
            raise UserError(f"checkpoint {checkpoint.path} is of another model: {difference}")


def _first_difference(theirs: Any, ours: Any, where: str) -> str:
    if isinstance(theirs, Mapping) and isinstance(ours, Mapping):
        for key in [*theirs, *(key for key in ours if key not in theirs)]:
            difference = _first_difference(theirs.get(key), ours.get(key), f"{where}.{key}")
            if difference:
                return difference
        return ""
    return "" if theirs == ours else f"{where} is {theirs} there and {ours} here"

"""Find the checkpoint to resume, evaluate or generate from, and refuse one of another model or corpus."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from lightning import LightningDataModule, LightningModule
from omegaconf import DictConfig

from lit_ctg.callback.checkpoint import previous
from lit_ctg.config import changed, compose, plain
from lit_ctg.core.checkpoint import KEY, DamagedError, fitting, load_checked
from lit_ctg.errors import UserError, refuse, within
from lit_ctg.limits import Choice, Seed, check_value
from lit_ctg.results.record import HASH_IGNORED, REGIMES, SIZES, drop_keys, load_record, without_modules
from lit_ctg.run.corpus import difference, fingerprint
from lit_ctg.run.directory import CHECKPOINT, RECORD, finished, run_status, set_aside, stem_of
from lit_ctg.trust import check_plain

# settings that a checkpoint decides unless the command line says otherwise
INHERITED = ("regime", "size", "seed")
# settings that must agree between the checkpoint and the command line
COMPARED = ("paper", "model", "backbone")


@dataclass(frozen=True)
class Checkpoint:
    """Weights, with the configuration and corpus of their training.

    ``other_text`` says that the command line names other data than the checkpoint: then a different text is intended.
    ``state_dict`` is None for a run that trained nothing: its model is the pretrained one, as built.
    """

    path: Path
    config: dict[str, Any]
    corpus: dict[str, str]
    state_dict: dict[str, Any] | None
    other_text: bool = False
    steps: int = 0

    def check_corpus(self, corpus: Mapping[str, str], otherwise: str = "train again") -> None:
        """Refuse a vocabulary other than that of training, and a text that has changed unnoticed.

        Args:
            otherwise: what to do in place of bringing the corpus back.

        Raises:
            UserError: names what differs.
        """
        compared = {key: value for key, value in self.corpus.items() if key != "text" or not self.other_text}
        if differs := difference(compared, corpus):
            raise UserError(
                f"checkpoint {self.path} was trained on other data: {differs}; bring that corpus back or {otherwise}"
            )

    def load_into(self, module: LightningModule, datamodule: LightningDataModule) -> None:
        """Load the weights into ``module``, whose vocabulary is that of ``datamodule``.

        Raises:
            UserError: they do not fit, or the corpus differs.
        """
        self.check_corpus(fingerprint(datamodule))
        with fitting(self.path):
            if self.state_dict is not None:
                module.load_state_dict(self.state_dict)
        module.eval()


def read(path: Path) -> Checkpoint:
    """Read a checkpoint of ours; nothing in it is executed.

    Raises:
        UserError: missing, damaged, or not written by this package (see ``load_checked``).
    """
    content = load_checked(path)
    check_plain(content[KEY]["config"], path)
    steps = content.get("global_step", 0)
    return Checkpoint(path, content[KEY]["config"], content[KEY]["corpus"], content["state_dict"], steps=steps)


def prepare_resume(folder: Path, config: Mapping[str, Any], corpus: Mapping[str, str]) -> str | None:
    """Make sure that a run can resume from its directory's last checkpoint, if there is one.

    A damaged one is kept as ``last.before-<k>.ckpt`` and its predecessor is used.

    Args:
        config: the resolved configuration of the run.

    Returns:
        A note on a damaged checkpoint, or None.

    Raises:
        UserError: it is of another model, corpus or version, or none of the remaining checkpoints can be read.
    """
    last, anew = folder / CHECKPOINT, f"delete {folder} to run from the start"
    warning = None
    try:
        found = read(last) if last.exists() or previous(last).exists() else None
    except UserError as error:
        if last.exists() and not isinstance(error, DamagedError):
            raise
        try:
            found = read(previous(last))
        except UserError:
            raise UserError(f"{error}; {anew}") from error
        if last.exists():
            warning = f"{error}: resuming from the checkpoint before it"
            set_aside(last)
        os.replace(previous(last), last)
    if found is not None:
        with within(remedy=anew):
            _compare(config, found)
        found.check_corpus(corpus, otherwise=anew)
    return warning


def compose_with_checkpoint(words: list[str]) -> tuple[DictConfig, Checkpoint]:
    """Compose the command line with the checkpoint that it names, or with the finished run of its configuration.

    A first word without "=" is a run directory or a checkpoint: its own configuration applies, changed by the others.

    Raises:
        UserError: no such checkpoint, or one of another model.
    """
    if words and "=" not in words[0]:
        return _of_run_directory(Path(words[0]), words[1:])
    named = next((word.partition("=")[2].strip("'\"") for word in words if word.startswith("ckpt_path=")), "")
    if not named:
        cfg = compose(words)
        return cfg, _of_run(_finished(cfg))
    checkpoint = read(Path(named))
    given = {word.lstrip("+").partition("=")[0] for word in words}
    inherited = [f"{key}={_inherited(checkpoint, key)}" for key in INHERITED if key not in given]
    cfg = compose([*words, *inherited])
    return cfg, _compared(cfg, checkpoint)


def _compared(cfg: DictConfig, checkpoint: Checkpoint) -> Checkpoint:
    """Return a checkpoint that knows whether the composed data are others; refuse one of another model."""
    config = plain(cfg)
    _compare(config, checkpoint)
    theirs, ours = (
        drop_keys({"data": whole.get("data")}, frozenset(HASH_IGNORED)) for whole in (checkpoint.config, config)
    )
    return replace(checkpoint, other_text=theirs != ours)


def _inherited(checkpoint: Checkpoint, key: str) -> str:
    """Return a setting that a checkpoint decides, as a word of the command line."""
    value = checkpoint.config.get(key)
    hints = {"regime": Annotated[str, Choice(REGIMES)], "size": Annotated[str, Choice(SIZES)], "seed": Seed}
    check_value(f"checkpoint {checkpoint.path}: {key}", value, hints[key])
    return str(value)


def _of_run_directory(folder: Path, words: list[str]) -> tuple[DictConfig, Checkpoint]:
    """Return the configuration of a run's training, changed by ``words``, and its last checkpoint.

    Raises:
        UserError: not a run directory, a word that chooses another part or experiment, or a model other than the run's.
    """
    named = next((word for word in words if word.startswith("ckpt_path=")), None)
    refuse({
        f"{folder} is not a run directory with a checkpoint: give the folder that a finished lit-ctg train left under "
        "outputs/, or experiment=...": not (folder.is_file() or _complete(folder)),
        f"{named}: {folder} brings its own checkpoint: leave one of the two out": named,
    })  # fmt: skip
    checkpoint = read(folder) if folder.is_file() else _of_run(folder)
    if not checkpoint.config:
        raise UserError(f"{folder}: its model was built in Python: call load_from_checkpoint of the model's class")
    cfg = changed(checkpoint.config, words, checkpoint.path)
    return cfg, _compared(cfg, checkpoint)


def _complete(folder: Path) -> bool:
    """Say whether a run directory determines its model: by a checkpoint, or by having trained nothing."""
    return (folder / CHECKPOINT).is_file() or _trained_nothing(folder)


def _trained_nothing(folder: Path) -> bool:
    if run_status(folder / RECORD) != "DONE":
        return False
    trainer = load_record(folder / RECORD).config.get("trainer")
    return isinstance(trainer, Mapping) and trainer.get("limit_train_batches") == 0


def _of_run(folder: Path) -> Checkpoint:
    """Return the last checkpoint of a run directory, or the configuration of a run that trained nothing."""
    if (folder / CHECKPOINT).is_file():
        return read(folder / CHECKPOINT)
    record = load_record(folder / RECORD)
    return Checkpoint(folder / CHECKPOINT, record.config, record.corpus, None)


def _finished(cfg: DictConfig) -> Path:
    """Return the folder of the newest finished run with this configuration."""
    stem = stem_of(cfg)
    done = [folder for folder in finished(stem) if _complete(folder)]
    if not done:
        raise UserError(
            f"no finished run of this configuration under {stem.parent}: "
            "run lit-ctg train with the same overrides first, or pass ckpt_path=<run directory>/checkpoints/last.ckpt"
        )
    return done[-1]


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

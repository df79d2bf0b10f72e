"""The identity of a run's corpus: the checksums of text and vocabulary that checkpoint and record keep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lit_ctg.data.corpus import CorpusDataModule
from lit_ctg.errors import UserError


def text_corpus(datamodule: Any, command: str) -> CorpusDataModule:
    """Return a data module if it reads a text (``UserError``: it does not; begins with the command that needs one)."""
    if not isinstance(datamodule, CorpusDataModule):
        raise UserError(f"{command}: a {type(datamodule).__name__} is not a text corpus: pass data=folder data.root=")
    return datamodule


def fingerprint(datamodule: Any) -> dict[str, str]:
    """Return the checksums of text and vocabulary (``core.batch.Fingerprint``); empty if the data module has none.

    Raises:
        UserError: the corpus cannot be read.
    """
    return dict(datamodule.fingerprint()) if hasattr(datamodule, "fingerprint") else {}


def given_weights(module: Any) -> dict[str, str]:
    """Return the checksum of the weights that a model was given (another model's) as "weights", and as "backbone" where
    these are from, if known; empty without any.

    A part that loads them sets ``given_weights``, and ``origin``.
    """
    found = [part for part in module.modules() if hasattr(part, "given_weights")]
    if not found:
        return {}
    origin = getattr(found[0], "origin", "")
    return {"weights": found[0].given_weights, **({"backbone": origin} if origin else {})}


def difference(theirs: Mapping[str, str], ours: Mapping[str, str]) -> str:
    """Say briefly where two fingerprints differ; "" where they agree.

    Keys that only one of them has do not count: later versions of a data module may report more.
    """
    other = [key for key in theirs if key in ours and theirs[key] != ours[key]]
    return ", ".join(f"{key} is {theirs[key][:12]} there and {ours[key][:12]} here" for key in other)

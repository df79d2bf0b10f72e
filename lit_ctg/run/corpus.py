"""Which corpus a run has: the checksums of text and vocabulary that checkpoint and record keep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def fingerprint(datamodule: Any) -> dict[str, str]:
    """Return the checksums of text and vocabulary (``core.batch.Fingerprint``); empty for a data module without.

    Raises:
        UserError: the corpus cannot be read.
    """
    return dict(datamodule.fingerprint()) if hasattr(datamodule, "fingerprint") else {}


def difference(theirs: Mapping[str, str], ours: Mapping[str, str]) -> str:
    """Say in a few words where two fingerprints differ; "" where they agree.

    What only one of them has does not count: a data module may learn to say more.
    """
    other = [key for key in theirs if key in ours and theirs[key] != ours[key]]
    return ", ".join(f"{key} is {theirs[key][:12]} there and {ours[key][:12]} here" for key in other)

"""What passes between corpora, models and metrics: the batch, and the interface of a corpus.

Shape letters: B rows, T positions.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, Required, TypedDict, runtime_checkable

from torch import Tensor

from lit_ctg.errors import UserError


class Batch(TypedDict, total=False):
    """One batch. The first four are always there; a paper adds further keys by a subclass.

    Attributes:
        input_ids_BT: long, the tokens read.
        target_ids_BT: long, the token after each of them.
        mask_input_BT, mask_target_BT: bool, False where there is padding.
        control_code_B: long, the index of the row's source in the corpus's ``sources``.
        document_BT: long, the document that each target belongs to.
        reset_B: bool, whether to reset the state carried along the row before reading it.
    """

    input_ids_BT: Required[Tensor]
    target_ids_BT: Required[Tensor]
    mask_input_BT: Required[Tensor]
    mask_target_BT: Required[Tensor]
    control_code_B: Tensor
    document_BT: Tensor
    reset_B: Tensor


class Fingerprint(TypedDict):
    """What a run was trained on, as two checksums (sha256, 64 hex digits).

    Attributes:
        text: of the token ids of every split, and of where documents begin and come from.
        vocabulary: of the tokens in the order of their ids. Where it differs, the same id means another token.
    """

    text: str
    vocabulary: str


class Vocabulary(Protocol):
    """The tokens of a corpus; an id is an index into ``tokens``."""

    tokens: tuple[str, ...]

    def __len__(self) -> int: ...

    def decode(self, ids: Iterable[Any]) -> str:
        """Return the text of some ids."""


@runtime_checkable
class Corpus(Protocol):
    """What every data module offers to models, metrics, trials and the run."""

    splits: Sequence[str]

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokens, known before the first batch."""

    def fingerprint(self) -> Fingerprint:
        """Return what identifies this corpus; equal in every process and on every machine."""

    def train_dataloader(self) -> Iterable[Batch]:
        """Return the batches of an epoch, in an order that depends on (seed, epoch) only."""

    def val_dataloader(self) -> Iterable[Batch]:
        """Return the validation batches, always the same (but for ``data.batching=windows_everywhere``)."""

    def test_dataloader(self) -> Iterable[Batch]:
        """Return the test batches, always the same (with the same exception)."""


def checksum(value: Any) -> str:
    """Return the sha256 (64 hex digits) of a plain value: numbers, strings, lists and dicts of them."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def datamodule_of(trainer: Any) -> Any:
    """Return the data module of a trainer, a ``Corpus`` with what its paper adds; None: it has loaders only."""
    return getattr(trainer, "datamodule", None)  # Lightning sets it from outside and declares it nowhere


def require(datamodule: Any, *needs: str) -> Any:
    """Return a data module that has what a model needs.

    Raises:
        UserError: there is none, or it lacks an attribute or method; names it.
    """
    missing = next((name for name in needs if not hasattr(datamodule, name)), None)
    if missing and datamodule is None:
        raise UserError(f"the model needs {missing} of a data module: give the Trainer (model, data), not loaders")
    if missing:
        raise UserError(f"{type(datamodule).__name__} has no {missing}, which the model needs: add it to the class")
    return datamodule

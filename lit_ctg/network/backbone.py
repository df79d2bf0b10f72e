"""The interface of a backbone, and a typed list of modules.

Shape letters: B rows, T positions, V vocabulary, D hidden size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from torch import Tensor, nn

from lit_ctg.errors import UserError

ModuleT = TypeVar("ModuleT", bound=nn.Module)


class Backbone(Protocol):
    """A causal stack from embedded tokens to hidden states; also an ``nn.Module``.

    Attributes:
        dim: hidden size D.
    """

    dim: int

    def __call__(self, embedded_BTD: Tensor, /) -> Tensor:
        """Return the last hidden states [B, T, D]."""

    def step(self, embedded_BD: Tensor, cache: Any, /) -> tuple[Tensor, Any]:
        """Return the newest position's hidden states [B, D] and the cache for the next; None starts a text."""


class PretrainedBackbone(Backbone, Protocol):
    """A backbone with its own embedding and output head (``HuggingFaceBackbone``).

    Attributes:
        vocabulary_size: rows V of the output head.
    """

    vocabulary_size: int

    @property
    def head_weight(self) -> Tensor:
        """The output head [V, D]."""

    def embed(self, ids: Tensor) -> Tensor:
        """Return the embeddings [..., D] of token ids."""

    def head(self, hidden: Tensor) -> Tensor:
        """Return the logits [..., V] of last hidden states [..., D]."""


def check_backbone(backbone: Any, *needed: str) -> None:
    """Refuse a backbone that another paper's model runs on.

    Args:
        backbone: an instance, or the ``partial`` from which a model builds its own.
    """
    missing = [name for name in needed if not hasattr(backbone, name)]
    if missing:
        name = getattr(getattr(backbone, "func", type(backbone)), "__name__", "this backbone")
        raise UserError(f"backbone: this model cannot run on {name} (no {missing[0]}); leave backbone= out")


def vocabulary_size(vocabulary: Any, backbone: Any) -> int:
    """Return V; a backbone with its own head must have a row for every token of the corpus."""
    size = getattr(backbone, "vocabulary_size", len(vocabulary))
    if size < len(vocabulary):
        raise UserError(
            f"the backbone has {size} tokens, the corpus {len(vocabulary)}: they need one tokenizer (the model's own: "
            "data/tokenizer=huggingface data.tokenizer.path=<the model's folder or name>)"
        )
    return int(size)


class ModuleListOf(nn.ModuleList, Generic[ModuleT]):
    """A ``ModuleList`` of modules of one known type; only type checkers see a difference."""

    if TYPE_CHECKING:

        def __init__(self, modules: Iterable[ModuleT] = ()) -> None: ...

        def __iter__(self) -> Iterator[ModuleT]: ...

        def __getitem__(self, index: int) -> ModuleT: ...  # type: ignore[override]  # slices are not used here

"""Layers of a Hugging Face model by their role, whatever their architecture calls them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

# words in the class of a part that mixes positions
MIXERS = ("attention", "attn", "conv", "mixer")


def linear_sizes(layer: Any) -> tuple[int, int] | None:
    """Return inputs and outputs of a linear layer, None for another; quantized ones pack weights into other shapes."""
    for names in (("in_features", "out_features"), ("nx", "nf")):  # the latter of transformers' Conv1D
        sizes = [getattr(layer, name, None) for name in names]
        if all(isinstance(size, int) for size in sizes):
            return sizes[0], sizes[1]  # type: ignore[return-value] # both are int
    return None


def mixture_size(part: Any) -> int | None:
    """Return the output size of a mixture of experts whose experts are one tensor; None for another module."""
    down: Any = getattr(getattr(part, "experts", None), "down_proj", None)
    return int(down.shape[1]) if getattr(down, "ndim", 0) == 3 else None


def attention_layers(model: Any) -> list[str]:
    """Return the paths of the linear layers of the attention in all blocks."""
    return [
        f"{path}.{name}"
        for path, block in blocks(model)
        for name, part in block.named_modules()
        if linear_sizes(part) and any("attention" in kind for kind in _holders(block, name))
    ]


def feed_forward_layers(model: Any) -> list[str]:
    """Return the paths of the layers of the feed-forward part in all blocks.

    These are its linear layers. A mixture whose experts are one tensor counts as one layer. In a block without a
    feed-forward part they are the layers of the mixer that read or write the hidden states.
    """
    width = model.get_output_embeddings().weight.shape[1]
    found = []
    for path, block in blocks(model):
        linear = {name: linear_sizes(part) for name, part in block.named_modules() if linear_sizes(part)}
        mixtures = [name for name, part in block.named_modules() if mixture_size(part)]
        layers = [
            name
            for name in linear
            if not any(word in kind for kind in _holders(block, name) for word in MIXERS)
            and not any(name.startswith(f"{mixture}.") for mixture in mixtures)
        ]
        layers = [*layers, *mixtures] or [name for name, sizes in linear.items() if sizes and width in sizes]
        found += [f"{path}.{name}" for name in layers]
    return found


def blocks(model: Any) -> Iterator[tuple[str, nn.Module]]:
    """Yield path and module of each block: the members of the longest lists that are in no other list."""
    lists = {path: part for path, part in model.named_modules() if isinstance(part, nn.ModuleList)}
    outer = {path: part for path, part in lists.items() if not any(path.startswith(f"{other}.") for other in lists)}
    longest = max((len(part) for part in outer.values()), default=0)
    for path, part in outer.items():
        if len(part) == longest:
            yield from ((f"{path}.{number}", block) for number, block in enumerate(part))


@contextmanager
def heard(model: Any, block: int | None) -> Iterator[list[Tensor]]:
    """Collect the states of each forward pass after a block, or those that the output head reads (None)."""
    found: list[Tensor] = []

    def after(_module: nn.Module, _inputs: Any, output: Any) -> None:
        found.append(output[0] if isinstance(output, tuple) else output)

    def before(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        found.append(inputs[0])

    parts = [part for _, part in blocks(model)]
    head = model.get_output_embeddings()
    handle = head.register_forward_pre_hook(before) if block is None else parts[block].register_forward_hook(after)
    try:
        yield found
    finally:
        handle.remove()


def _holders(block: nn.Module, name: str) -> list[str]:
    """Return the classes, in lower case, of the modules of a block that hold the module ``name``."""
    parts = name.split(".")
    return [type(block.get_submodule(".".join(parts[:length]))).__name__.lower() for length in range(1, len(parts))]

"""Where the code enters the network, and how the arms are given equally many parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lit_ctg.errors import UserError, did_you_mean

INJECTIONS = ("prompt", "neuron", "none")
OUTPUT = "output"


@dataclass(frozen=True)
class Injection:
    """The places that take the code.

    Attributes:
        token: the code is a token in front of the sequence.
        layers: layers (from 1) that take the code.
        output: the output layer takes it.
        code_dim: size C of the code.
    """

    token: bool
    layers: tuple[int, ...]
    output: bool
    code_dim: int

    @classmethod
    def of(
        cls, name: str, chosen: Sequence[int | str] | None, *, recurrent: bool, layers: int, code_dim: int
    ) -> Injection:
        """Read the arm: sec. 3.2 for recurrent networks, sec. 3.3 for the Transformer.

        Args:
            name: prompt (the paper's default arm), neuron (the paper's) or none.
            chosen: of the neuron arm, numbers of the layers that take the code, and "output"; None is all of them.
            recurrent: the prompt arm's code is part of the input of layer 1 instead of a token.
            layers: of the network.
            code_dim: size of the code where it enters layers.

        Raises:
            UserError: an unknown arm or layer, or layers for an arm that has none to choose.
        """
        if name not in INJECTIONS:
            hint = did_you_mean(str(name), INJECTIONS)
            raise UserError(f"model.injection={name}: use one of {', '.join(INJECTIONS)}{hint}")
        if chosen is not None and name != "neuron":
            raise UserError(f"model.injection_layers={list(chosen)} is for model.injection=neuron, not {name}")
        if name == "none":
            return cls(False, (), False, 0)
        if name == "prompt":
            return cls(False, (1,), False, code_dim) if recurrent else cls(True, (), False, 0)
        places = [*range(1, layers + 1), OUTPUT]
        chosen = places if chosen is None else list(chosen)
        unknown = [place for place in chosen if place not in places]
        if unknown or not chosen:
            which = f"no place '{unknown[0]}'" if unknown else "no place at all"
            raise UserError(f"model.injection_layers={chosen}: {which}; use some of 1 to {layers} and {OUTPUT}")
        return cls(False, tuple(place for place in chosen if place != OUTPUT), OUTPUT in chosen, code_dim)


def small_code_factors(code_dim: int, dim: int, optimizer: str) -> tuple[float, float]:
    """Return factors of a code of C dimensions and of its weights, so that it starts and learns as one of D would.

    What the code adds, W c, keeps its variance at the start. Its speed is |c|^2 a step of SGD and |c|_1 a step of Adam
    (whose steps have one size whatever the gradient), and keeps that too. Both are 1 for C = D.

    Args:
        code_dim: C.
        dim: D.
        optimizer: sgd, adam or adamw.
    """
    ratio = dim / code_dim
    larger = ratio**0.5 if optimizer == "sgd" else ratio
    return larger, ratio**0.5 / larger


def transformer_parameters(
    injection: Injection, *, dim: int, layers: int, feedforward_dim: int, codes: int, vocabulary: int
) -> int:
    """Return the number of parameters of a Transformer arm: embedding, layers, output, codes."""
    places = len(injection.layers)
    attention_and_norms = 4 * dim * dim + 4 * dim + 4 * dim
    feed_forward = 2 * dim * feedforward_dim + feedforward_dim + dim
    coded = places * (feedforward_dim + dim) + injection.output * vocabulary
    table = codes * (injection.code_dim or dim * injection.token)
    network = layers * (attention_and_norms + feed_forward)
    return vocabulary * (2 * dim + 1) + network + injection.code_dim * coded + table


def matched_width(injection: Injection, whole: Injection, sizes: dict[str, Any]) -> int:
    """Return the inner size at which an arm has as many parameters as the whole neuron arm at ``feedforward_dim``.

    Args:
        injection: the arm.
        whole: the arm with the code everywhere.
        sizes: arguments of ``transformer_parameters``.
    """
    missing = transformer_parameters(whole, **sizes) - transformer_parameters(injection, **sizes)
    # of one more inner unit, in all layers
    unit = sizes["layers"] * (2 * sizes["dim"] + 1) + injection.code_dim * len(injection.layers)
    return int(sizes["feedforward_dim"]) + round(missing / unit)

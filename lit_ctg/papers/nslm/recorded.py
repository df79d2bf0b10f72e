"""What a training step computes on the device, with its gradients, as recorded graphs (CUDA graphs).

A step of the paper's LSTM starts hundreds of kernels, one of the character RNNs more for every class; on a fast device
to start one takes longer than it runs. The plain forms are ``NSLMModule.losses`` and ``CharacterRNNs.cost``: here the
same is computed with shapes that do not depend on the content of a batch, so that a device can repeat the whole by one
command. Batches of another shape, or with positions that do not count, go the plain way.

Shape letters: B streams, T positions, D hidden size, L layers, C classes, N rows of each class, X class tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lit_ctg.papers.nslm.baselines import CharacterRNNs, State, StatefulBackbone, forget
from lit_ctg.papers.nslm.heads import OutputHeads, moved

_logger = logging.getLogger(__name__)

# kind of device -> what records a module for inputs of certain shapes: torch's documentation of the function says how
RECORDERS: dict[str, Callable[[nn.Module, tuple[Tensor, ...]], Callable[..., Any]]] = {
    "cuda": torch.cuda.make_graphed_callables
}

# rows of a class in a recorded step of the character RNNs, and the multiple to which their characters are padded
FEWEST, CHARACTERS = 16, 8


class Costs(nn.Module):
    """Costs to be recorded, in the precision in which they were made."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.dtype, self.mixed = kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)

    def precision(self) -> torch.autocast:
        """Return the training's; a conversion within one recorded graph is not kept for the next."""
        return torch.autocast(self.kind, self.dtype, enabled=self.mixed, cache_enabled=False)


class StepCosts(Costs):
    """What a training step computes on the device.

    Args:
        embed: ids [B, T] -> embeddings [B, T, D].
    """

    def __init__(
        self, embedding: nn.Module, embed: Callable[[Tensor], Tensor], backbone: StatefulBackbone, heads: OutputHeads
    ) -> None:
        super().__init__(heads.word_VD.device.type)
        self.embedding, self.embed, self.backbone, self.heads = embedding, embed, backbone, heads

    def forward(
        self, input_BT: Tensor, target_BT: Tensor, context_BT: Tensor, reset_B: Tensor, *state: Tensor
    ) -> tuple[Tensor, ...]:
        """Return the summed costs all, nnlm, tag and within in nats (() each; the first has a gradient), the hidden
        states [B, T, D] and the network's state after the stretch.

        Args:
            state: of the network before the stretch, [L, B, D] each.
        """
        with self.precision():
            hidden_BTD, after = self.backbone.run(self.embed(input_BT), forget(state, reset_B))
            hidden_ND, target_N, state_N = hidden_BTD.flatten(0, 1), target_BT.flatten(), context_BT.flatten()
            both, nnlm, tag = self.heads.costs(hidden_ND, target_N, state_N)
            within = self.within(hidden_ND, target_N, state_N)
        return both + within, nnlm, tag, within.detach(), hidden_BTD.detach(), *(part.detach() for part in after)

    def within(self, hidden_ND: Tensor, target_N: Tensor, state_N: Tensor) -> Tensor:
        """Return the sum of -log P(w | c(w)) over the targets in a class, (): every class is scored at every position,
        so that no shape depends on what the targets are.
        """
        class_N = self.heads.class_of(target_N, state_N)
        cost = hidden_ND.new_zeros((), dtype=torch.float32)
        for number in range(len(self.heads.sizes)):
            index_N1 = self.heads.index_CV[number, target_N].clamp(min=0).unsqueeze(1)
            log_N = self.heads.within_class(hidden_ND, number).gather(1, index_N1).squeeze(1)
            cost = cost - torch.where(class_N == number, log_N, 0.0).sum()
        return cost


class CharacterCosts(Costs):
    """The cost of the character RNNs on rows padded to one number for every class.

    Args:
        longest: characters of the longest member that it is given, with the end symbol.
    """

    def __init__(self, networks: CharacterRNNs, longest: int) -> None:
        super().__init__(next(networks.parameters()).device.type)
        self.networks, self.longest = networks, longest

    def forward(self, hidden_CND: Tensor, index_CN: Tensor) -> Tensor:
        """Return the sum of -log P of the members, (), nats.

        Args:
            index_CN: members, -1 in rows that do not count.
        """
        cost = hidden_CND.new_zeros((), dtype=torch.float32)
        with self.precision():
            for number, network in enumerate(self.networks):
                log_N = network.log_prob(hidden_CND[number], index_CN[number].clamp(min=0), self.longest)
                cost = cost - torch.where(index_CN[number] >= 0, log_N, 0.0).sum()
        return cost


def record(costs: nn.Module, inputs: tuple[Tensor, ...], what: str) -> Callable[..., Any] | None:
    """Return the module as recorded for such inputs; None, and a warning that names ``what``, if it cannot be."""
    # recording refuses to run where conversions are kept; ``costs`` enters its own precision
    try:
        with torch.autocast(inputs[0].device.type, enabled=False):
            return RECORDERS[inputs[0].device.type](costs, inputs)
    except RuntimeError as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        _logger.warning(f"{what} could not be recorded, which makes it slower: {reason}")
        return None


class Recorded:
    """``StepCosts`` of one module, recorded for the shape of the first batch.

    Attributes:
        shape: of the batches that repeat it; None: the device cannot record, and further steps take the plain form.
    """

    def __init__(self, costs: StepCosts, inputs: tuple[Tensor, ...]) -> None:
        run = record(costs, inputs, "the training step")
        self.run = costs if run is None else run
        self.shape: tuple[int, ...] | None = None if run is None else inputs[0].shape

    def __call__(self, *inputs: Tensor) -> tuple[dict[str, Tensor], Tensor, State]:
        """Return costs by name, hidden states and the network's state, until the next call; see ``StepCosts``."""
        with torch.autocast(inputs[0].device.type, enabled=False):
            every, nnlm, tag, within, hidden_BTD, *state = self.run(*inputs)
        return {"all": every, "nnlm": nnlm, "tag": tag, "within": within}, hidden_BTD, tuple(state)


class RecordedCharacters:
    """``CharacterCosts``, recorded for every shape that occurs.

    Rows are padded to a power of two (``FEWEST`` at least) and characters to a multiple of ``CHARACTERS``, so that
    there are few shapes.

    Attributes:
        runs: the recorded costs by rows of a class and characters.
        possible: False once the device could not record one; from then on all take the plain form.
    """

    def __init__(self, networks: CharacterRNNs) -> None:
        self.networks = networks
        self.runs: dict[tuple[int, int], Callable[..., Any]] = {}
        self.possible = True

    def cost(self, hidden_XD: Tensor, class_X: np.ndarray, index_X: np.ndarray) -> Tensor:
        """Return the same as ``CharacterRNNs.cost``."""
        if self.possible and (total := self._sum(hidden_XD, class_X, index_X)) is not None:
            return total / len(class_X)
        return self.networks.cost(hidden_XD, class_X, index_X)

    def _sum(self, hidden_XD: Tensor, class_X: np.ndarray, index_X: np.ndarray) -> Tensor | None:
        """Return the sum of the costs, (); None: it could not be recorded."""
        count_C = np.bincount(class_X, minlength=len(self.networks))
        rows = max(FEWEST, 1 << int(count_C.max() - 1).bit_length())
        longest = max(self.networks[number].lengths[index_X[class_X == number]].max() for number in np.unique(class_X))
        shape = rows, -(-int(longest) // CHARACTERS) * CHARACTERS
        # the rows of a class: where its states are among those of all, and its members
        order_X = np.argsort(class_X, kind="stable")
        rank_X = np.arange(len(class_X)) - np.repeat(np.cumsum(count_C) - count_C, count_C)
        table_2CN = np.full((2, len(self.networks), rows), -1)
        table_2CN[:, class_X[order_X], rank_X] = order_X, index_X[order_X]
        place_CN, index_CN = moved(table_2CN, hidden_XD)
        inputs = hidden_XD[place_CN.clamp(min=0)], index_CN
        if shape not in self.runs:
            run = record(CharacterCosts(self.networks, shape[1]), inputs, "the character RNNs' step")
            if run is None:
                self.possible = False
                return None
            self.runs[shape] = run
        with torch.autocast(hidden_XD.device.type, enabled=False):
            return self.runs[shape](*inputs)

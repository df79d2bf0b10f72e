"""The network, the softmaxes and their gradients of a training step as one recorded graph (CUDA graphs).

A step of the paper's LSTM starts hundreds of kernels; on a fast device to start one takes longer than it runs. The
plain form is ``NSLMModule.losses``: here the same is computed with shapes that no batch changes, so that a device can
repeat the whole by one command. Batches of another shape, or with positions that do not count, go the plain way.

Shape letters: B streams, T positions, D hidden size, L layers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lit_ctg.papers.nslm.baselines import State, StatefulBackbone, forget
from lit_ctg.papers.nslm.heads import OutputHeads

_logger = logging.getLogger(__name__)

# kind of device -> what records a module for inputs of certain shapes: torch's documentation of the function says how
RECORDERS: dict[str, Callable[[nn.Module, tuple[Tensor, ...]], Callable[..., Any]]] = {
    "cuda": torch.cuda.make_graphed_callables
}


class StepCosts(nn.Module):
    """What a training step computes on the device.

    Args:
        embedding: the parameters that ``embed`` reads.
        embed: ids [B, T] -> embeddings [B, T, D].
        backbone: the recurrent network.
        heads: with a full softmax.
    """

    def __init__(
        self, embedding: nn.Module, embed: Callable[[Tensor], Tensor], backbone: StatefulBackbone, heads: OutputHeads
    ) -> None:
        super().__init__()
        self.embedding, self.embed, self.backbone, self.heads = embedding, embed, backbone, heads
        kind = heads.word_VD.device.type
        self.kind, self.dtype, self.mixed = kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)

    def forward(
        self, input_BT: Tensor, target_BT: Tensor, context_BT: Tensor, reset_B: Tensor, *state: Tensor
    ) -> tuple[Tensor, ...]:
        """Return the summed costs all, nnlm, tag and within in nats (() each; the first has a gradient), the hidden
        states [B, T, D] and the network's state after the stretch.

        Args:
            input_BT, target_BT: token ids.
            context_BT: left-context states of the targets.
            reset_B: streams that start afresh.
            state: of the network before the stretch, [L, B, D] each.
        """
        # the precision of the training; what is converted within one recorded graph is not kept for the next
        with torch.autocast(self.kind, self.dtype, enabled=self.mixed, cache_enabled=False):
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


class Recorded:
    """``StepCosts`` of one module, recorded for the shape of the first batch.

    Args:
        costs: the module.
        inputs: those of the first step.

    Attributes:
        shape: of the batches that repeat it; None: the device cannot record, and further steps take the plain form.
    """

    def __init__(self, costs: StepCosts, inputs: tuple[Tensor, ...]) -> None:
        kind = inputs[0].device.type
        self.shape: tuple[int, ...] | None = inputs[0].shape
        # recording refuses to run where conversions are kept; ``costs`` enters its own precision
        try:
            with torch.autocast(kind, enabled=False):
                self.run = RECORDERS[kind](costs, inputs)
        except RuntimeError as error:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            _logger.warning(f"the training step could not be recorded, which makes it slower: {reason}")
            self.run, self.shape = costs, None

    def __call__(self, *inputs: Tensor) -> tuple[dict[str, Tensor], Tensor, State]:
        """Return costs by name, hidden states and the network's state, until the next call; see ``StepCosts``."""
        with torch.autocast(inputs[0].device.type, enabled=False):
            every, nnlm, tag, within, hidden_BTD, *state = self.run(*inputs)
        return {"all": every, "nnlm": nnlm, "tag": tag, "within": within}, hidden_BTD, tuple(state)

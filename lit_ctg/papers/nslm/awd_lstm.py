"""AWD-LSTM (Merity et al. 2018), the second network of the paper (Table 8), with the micro-models on top.

Top to bottom: the weight-dropped LSTM; the module, which adds dropout of words and the training of Merity et al.
What the paper changes for it is in ``SingleTaskHeads``: P(c) is a sum over the words of a class, and one model serves
numbers and places.

Shape letters: B streams, T positions, D size of embeddings and outputs, V vocabulary.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from lit_ctg.callback.keep_best import KeepBest
from lit_ctg.core.model import Batch
from lit_ctg.errors import UserError
from lit_ctg.limits import Count, Dropout, NonNegative, Whole, checked
from lit_ctg.network.backbone import ModuleListOf, check_backbone
from lit_ctg.papers.nslm.baselines import State, StatefulBackbone
from lit_ctg.papers.nslm.model import NSLMModule, TokenScores

LAST = "awd_lstm_last"  # key in checkpoints of the last weights, while ``state_dict`` holds the averaged ones
HISTORY = "awd_lstm_history"


def locked_dropout(values_BTD: Tensor, probability: float, training: bool) -> Tensor:
    """Return the values, in training without some of their dimensions: the same ones at every position of a row."""
    if not training or not probability:
        return values_BTD
    return values_BTD * F.dropout(torch.ones_like(values_BTD[:, :1]), probability)


@checked
class AWDBackbone(StatefulBackbone):
    """Weight-dropped LSTM: D to H, H to H, ..., H to D, with dropout masks that stay the same along a stretch.

    Args:
        dim: D.
        hidden: size H of all layers but the last.
        dropout: probability of a dimension of the output.
        dropout_weight: of a weight from a state to the next one, one draw for a whole stretch.
        alpha: weight of the activation regularisation: mean square of the output, dropout included.
        beta: weight of the temporal activation regularisation: mean square of its change from position to position,
            without dropout.
    """

    def __init__(
        self,
        *,
        dim: Count,
        hidden: Count,
        layers: Count,
        dropout: Dropout,
        dropout_between: Dropout,
        dropout_input: Dropout,
        dropout_weight: Dropout,
        alpha: NonNegative,
        beta: NonNegative,
    ) -> None:
        super().__init__()
        self.dim, self.hidden, self.alpha, self.beta = dim, hidden, alpha, beta
        self.dropout, self.dropout_between = dropout, dropout_between
        self.dropout_input, self.dropout_weight = dropout_input, dropout_weight
        sizes = [dim, *[hidden] * (layers - 1), dim]
        # torch's initial values are those of Merity et al.: uniform in +-1 / sqrt(size)
        self.layers = ModuleListOf[nn.LSTM](nn.LSTM(*pair, batch_first=True) for pair in itertools.pairwise(sizes))
        self._penalty: Tensor | None = None

    def arguments(self) -> dict[str, float]:
        """Return what makes another one of the same shape."""
        names = ("dim", "hidden", "dropout", "dropout_between", "dropout_input", "dropout_weight", "alpha", "beta")
        return {name: getattr(self, name) for name in names} | {"layers": len(self.layers)}

    def run(self, embedded_BTD: Tensor, state: State | None) -> tuple[Tensor, State]:
        output, grown = locked_dropout(embedded_BTD, self.dropout_input, self.training), []
        raw = output
        for number, lstm in enumerate(self.layers):
            own = None if state is None else (state[2 * number], state[2 * number + 1])
            weight: Any = F.dropout(cast(Tensor, lstm.weight_hh_l0), self.dropout_weight, self.training)
            raw, after = functional_call(lstm, {"weight_hh_l0": weight}, (output, own))
            grown += after
            last = number == len(self.layers) - 1
            output = locked_dropout(raw, self.dropout if last else self.dropout_between, self.training)
        if self.training:
            self._penalty = self.alpha * output.float().square().mean()
            if (changes := raw.diff(dim=1)).numel():
                self._penalty = self._penalty + self.beta * changes.float().square().mean()
        return output, tuple(grown)

    def penalty(self) -> Tensor | None:
        """Return alpha and beta times their mean squares in the last ``run`` in training: see ``StatefulBackbone``."""
        penalty, self._penalty = self._penalty, None
        return penalty


class AWDModule(NSLMModule):
    """NSLM on an AWD-LSTM: one task, tied rows, dropout of whole words, NT-ASGD.

    The optimiser is SGD whose weights are averaged from the validation on that is worse than the best of those before
    the last ``patience``: ``torch.optim.ASGD``, whose t0 is infinite until then. Validation, checkpoints and the end of
    training use the averages.

    Args:
        embedding_dropout: probability with which a word of the vocabulary is zero throughout a step's inputs.
        length: positions of a usual stretch; the rate of a step is in proportion to its length (``data.vary_length``).
        patience: number of validations, see above.

    Raises:
        UserError: another backbone; see also ``NSLMModule``.
    """

    def __init__(
        self, *, backbone: Any, embedding_dropout: Dropout, length: Count, patience: Whole, **options: Any
    ) -> None:
        check_backbone(backbone, "run", "dropout_weight")
        # the optimiser is another one, and there are no character RNNs
        fixed: dict[str, Any] = {"optimizer": "sgd", "rate_decay": 1.0, "constant_epochs": 0, "sum_over_time": False}
        fixed |= {"single_task": True, "tied": True, "renormalise_characters": False, "character_dim": 0}
        super().__init__(backbone=backbone, **fixed, **options)
        self.embedding_dropout, self.length, self.patience = embedding_dropout, length, patience
        self.costs: list[float] = []
        self._last: dict[str, Tensor] | None = None
        self._share = 1.0

    def embed(self, ids: Tensor) -> Tensor:
        """Return embeddings [..., D]; in training without some words."""
        embedded = super().embed(ids)
        if not self.training or not self.embedding_dropout:
            return embedded
        keep_V1 = F.dropout(self.embedding.weight.new_ones(len(self.embedding.weight), 1), self.embedding_dropout)
        return embedded * keep_V1[ids]

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return nats per token (``nnlm``), the backbone's ``penalty``, and their sum, the cost of a step."""
        self._share = batch["input_ids_BT"].shape[1] / self.length
        return super().losses(batch)

    def setup(self, stage: str) -> None:
        """Choose the micro-models: see ``NSLMModule``.

        Raises:
            UserError: a callback would keep weights that are not those of the validation.
        """
        trainer: Any = self.trainer
        if any(isinstance(callback, KeepBest) for callback in trainer.callbacks):
            raise UserError(
                "callback=keep_best would keep the last weights of its best epoch, and model=awd_lstm validates its "
                "averaged ones: leave it out (callback.nslm_evaluation.patience stops training early)"
            )
        super().setup(stage)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.ASGD(
            self.parameters(), lr=self.learning_rate, lambd=0.0, t0=math.inf, weight_decay=self.weight_decay
        )

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """Clip, then scale: for SGD that is the rate of a shorter or longer stretch, decay of weights included."""
        super().configure_gradient_clipping(optimizer, gradient_clip_val, gradient_clip_algorithm)
        if self._share != 1.0:
            for parameter in self.parameters():
                if parameter.grad is not None:
                    # the optimiser adds a whole decay
                    decay = (self._share - 1.0) * self.weight_decay
                    parameter.grad.mul_(self._share).add_(parameter.detach(), alpha=decay)

    # averaging -----------------------------------------------------------------------------------------------------

    @property
    def averages(self) -> dict[Tensor, Tensor]:
        """The averaged weights of a training that has begun to average; else empty."""
        trainer = self._trainer
        optimizers = [] if trainer is None else trainer.optimizers
        if not optimizers or math.isinf(optimizers[0].param_groups[0]["t0"]):
            return {}
        return {parameter: state["ax"] for parameter, state in optimizers[0].state.items()}

    def on_validation_epoch_start(self) -> None:
        """Restart the text, with the averaged weights."""
        super().on_validation_epoch_start()
        self._swap()

    def on_validation_epoch_end(self) -> None:
        """Tune the mixture on the averaged weights, go back to the last ones, and see whether averaging begins."""
        super().on_validation_epoch_end()
        self._swap()
        if self.trainer.state.fn != "fit" or self.trainer.sanity_checking:
            return
        scores: TokenScores = self.validation[0]
        mean = torch.tensor(-scores.nnlm_N.mean(), dtype=torch.float32, device=self.device)
        self.see(float(cast(Tensor, self.all_gather(mean)).mean()))

    def see(self, cost: float) -> None:
        """Begin to average if a validation's cost in nats is above the best of those before the last ``patience``."""
        group = self.trainer.optimizers[0].param_groups[0]
        earlier = self.costs[: -self.patience or None]
        if math.isinf(group["t0"]) and earlier and cost > min(earlier):
            group["t0"] = float(next(iter(self.trainer.optimizers[0].state.values()))["step"])
        self.costs.append(cost)

    @torch.no_grad()
    def on_train_end(self) -> None:
        """Keep the averaged weights."""
        super().on_train_end()
        for parameter, average in self.averages.items():
            parameter.copy_(average)

    @torch.no_grad()
    def _swap(self) -> None:
        """Exchange last and averaged weights, if there are any."""
        for parameter, average in self.averages.items():
            last = parameter.clone()
            parameter.copy_(average)
            average.copy_(last)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Put the averaged weights where everyone reads them, and the last ones beside them."""
        super().on_save_checkpoint(checkpoint)
        averages, weights = self.averages, checkpoint["state_dict"]
        named = {
            name: parameter
            for name, parameter in self.named_parameters(remove_duplicate=False)
            if parameter in averages
        }
        checkpoint[HISTORY], checkpoint[LAST] = list(self.costs), {name: weights[name] for name in named}
        checkpoint["state_dict"] = weights | {name: averages[parameter] for name, parameter in named.items()}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Remember the last weights: only a resumed training needs them."""
        super().on_load_checkpoint(checkpoint)
        self.costs, self._last = list(checkpoint.get(HISTORY, [])), checkpoint.get(LAST)

    def on_train_start(self) -> None:
        """Go on from the last weights."""
        super().on_train_start()
        if self._last:
            self.load_state_dict(self._last, strict=False)
        self._last = None

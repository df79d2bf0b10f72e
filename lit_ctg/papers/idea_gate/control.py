"""The idea gate as a control: the head that predicts the coming words, and the gate (Eq. 2-6).

A run generates through the same control that it exports. Shape letters: N rows, V vocabulary, D hidden size.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lit_ctg.control.base import Control, Prefix, Stage, Values, cast_like, head_weight, like_inputs, loaded
from lit_ctg.core.generation import ControlSetting
from lit_ctg.decoding.rule import PerRow, ScoreRule, per_row
from lit_ctg.errors import UserError
from lit_ctg.limits import NonNegative, checked
from lit_ctg.papers.idea_gate.gate import Bound, GateForm, IdeaHead, LowRankIdeaHead, gated_scores

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

TURNED = range(4, 13)  # rows


class IdeaLogits:
    """Idea logits of the newest positions of a Hugging Face causal LM.

    Args:
        head: in the precision of the model.
    """

    def __init__(self, head: IdeaHead) -> None:
        self.head = head
        self.newest_ND: Tensor | None = None

    def watch(self, model: Any) -> RemovableHandle:
        """Keep the hidden states of each forward pass, until the handle is removed.

        Raises:
            UserError: the model has neither an output layer nor a base model.
        """

        def keep(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            self.newest_ND = inputs[0][:, -1]

        def keep_output(_module: nn.Module, _inputs: Any, output: Any) -> None:
            self.newest_ND = output[0][:, -1]

        scores = model.get_output_embeddings()
        if scores is not None:
            # the states that the model's own scores are made of, before any other control moves them
            return scores.register_forward_pre_hook(keep, prepend=True)
        if model.base_model is model:
            raise UserError(
                f"control idea_gate: a {type(model).__name__} names no output layer to read states from: "
                "use the model it was made for"
            )
        # a gated model as `lit-ctg export-model` writes it multiplies by its embedding, without an output layer
        return model.base_model.register_forward_hook(keep_output)

    def __call__(self) -> Tensor:
        """Return them, [N, V].

        Raises:
            RuntimeError: the model has not run yet.
        """
        if self.newest_ND is None:
            raise RuntimeError("the language model has not run yet, so there are no hidden states to gate from")
        with torch.no_grad():
            return rows_logits(self.head, self.newest_ND.to(self.head.weight.dtype))


@contextmanager
def watch_idea_logits(model: Any, head: IdeaHead) -> Iterator[IdeaLogits]:
    """Yield the idea logits of a Hugging Face causal LM while it generates, for ``IdeaGateRule``."""
    logits = IdeaLogits(head)
    handle = logits.watch(model)
    try:
        yield logits
    finally:
        handle.remove()


@checked
class IdeaGateRule(ScoreRule):
    """The gate as a score rule; with ``alpha`` 0 the scores are unchanged.

    It works in ``decoding/loop.py`` and in ``model.generate(logits_processor=[rule])`` of a Hugging Face causal LM.

    Args:
        idea_logits: called once per step, returns the idea logits [N, V] of the newest position of every row.
        alpha, beta: one number for all rows or one per row.
        form: clamp and epsilon.
        base_V: base rates of the lift gate, see ``GateForm``.
        neutral_V: tokens whose joint probability stays, see ``gated_scores``.
    """

    def __init__(
        self,
        idea_logits: Callable[[], Tensor],
        *,
        alpha: NonNegative | Sequence[float] | Tensor,
        beta: Bound | Sequence[float] | Tensor,
        form: GateForm,
        base_V: Tensor | None = None,
        neutral_V: Tensor | None = None,
    ) -> None:
        self.idea_logits, self.alpha, self.beta, self.form = idea_logits, alpha, beta, form
        self.base_V, self.neutral_V = base_V, neutral_V

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        strength = per_row(self.alpha, scores), per_row(self.beta, scores)
        gate_NV = self.form(self.idea_logits().to(scores), *strength, self.base_V)
        return gated_scores(scores, gate_NV, self.neutral_V)


class IdeaGate(Control):
    """Lowers the words that the idea head does not expect soon.

    Args:
        head: hidden states [N, D] to idea logits [N, V].
        form: clamp and epsilon.
        alpha, beta: default strength and lower bound.
        base_V, neutral_V: see ``IdeaGateRule``.
        name: see ``Control``.
    """

    kind, paper, stage, strength = "idea_gate", "idea_gate", Stage.LOGITS, "alpha"
    not_weights = "neutral_V"

    def __init__(
        self,
        head: IdeaHead,
        *,
        form: GateForm,
        alpha: float,
        beta: Bound,
        base_V: Tensor | None = None,
        neutral_V: Tensor | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        self.head, self.form, self.alpha, self.beta = head, form, alpha, beta
        self.base_V, self.neutral_V = base_V, neutral_V
        self._logits = IdeaLogits(head)

    @property
    def settings(self) -> tuple[ControlSetting, ...]:
        return (
            ControlSetting("alpha", "strength of the gate; 0: no gate", self.alpha, low=0.0, off=0.0),
            ControlSetting("beta", "lower bound of the gate in nats", self.beta, high=0.0),
        )

    def check_model(self, model: Any) -> None:
        super().check_model(model)
        if isinstance(self.head, LowRankIdeaHead):
            head_weight(model, self.name)

    def hooks(self, model: Any, values: Values, prefix: Prefix) -> Iterable[RemovableHandle]:
        # one for each attachment, as the control may be attached to two models
        head = cast_like(self.head, like_inputs(model))
        if isinstance(head, LowRankIdeaHead):
            head = copy.copy(head)
            head.token_weight = head_weight(model, self.name).detach()
        self._logits = IdeaLogits(head)
        return [self._logits.watch(model)]

    def rule(self, values: Values, prefix: Prefix) -> ScoreRule:
        logits, self._logits = self._logits, IdeaLogits(self.head)  # the control keeps no states
        return self.gate(logits, values["alpha"], values["beta"], logits.head.bias)

    def gate(self, idea_logits: Callable[[], Tensor], alpha: PerRow, beta: PerRow, like: Tensor) -> IdeaGateRule:
        """Return the score rule over idea logits [N, V] that are read at each step, on the device of ``like``."""
        tables = (None if each is None else each.to(like.device) for each in (self.base_V, self.neutral_V))
        base_V, neutral_V = tables
        return IdeaGateRule(idea_logits, alpha=alpha, beta=beta, form=self.form, base_V=base_V, neutral_V=neutral_V)

    def shape(self) -> dict[str, int]:
        return {"vocab_size": len(self.head.bias), "hidden_size": self.head.inner.in_features}

    def config(self) -> dict[str, Any]:
        return {"alpha": self.alpha, "beta": self.beta, **asdict(self.form)}

    def tensors(self) -> dict[str, Tensor]:
        extra = {"base_V": self.base_V, "neutral_V": self.neutral_V}
        return {
            **{f"head.{name}": value for name, value in self.head.state_dict().items()},
            **{name: value for name, value in extra.items() if value is not None},
        }

    @classmethod
    def restore(cls, config: dict[str, Any], tensors: dict[str, Tensor]) -> IdeaGate:
        own = {name[5:]: value for name, value in tensors.items() if name.startswith("head.")}
        rank, dim = own["inner.weight"].shape
        low = "own_bias" in own
        size = len(own["own_bias" if low else "outer.bias"])
        head = loaded(lambda: LowRankIdeaHead(dim, size, rank) if low else IdeaHead(dim, size), own)
        form = GateForm(clamp=config["clamp"], epsilon=config["epsilon"])
        base_V, neutral_V = tensors.get("base_V"), tensors.get("neutral_V")
        if neutral_V is not None and neutral_V.dtype != torch.bool:
            raise ValueError(f"neutral_V of {neutral_V.dtype}")
        if any(each is not None and each.shape != (size,) for each in (base_V, neutral_V)):
            raise ValueError(f"base_V or neutral_V of another size than {size}")
        return cls(head, form=form, alpha=config["alpha"], beta=config["beta"], base_V=base_V, neutral_V=neutral_V)


def rows_logits(head: IdeaHead, hidden_ND: Tensor) -> Tensor:
    """Return the idea logits of the newest position of each row, [N, V]: ``head(hidden_ND)`` to rounding.

    A decode step's last layer is a few rows against a whole vocabulary: in float32 on a CPU, W x^T takes less time than
    x W^T for eight rows (``benchmarks/bench_controls.py`` prints the ratio).
    """
    turned = len(hidden_ND) in TURNED and hidden_ND.device.type == "cpu" and hidden_ND.dtype == torch.float32
    if not turned:
        return head(hidden_ND)
    return torch.addmm(head.bias[:, None], head.weight, head.features(hidden_ND).T).T.contiguous()


def of_run(module: Any, datamodule: Any, decoding: Any) -> IdeaGate:
    """Return the control of a finished run: its idea head and gate.

    Raises:
        UserError: a baseline, which has none.
    """
    from lit_ctg.papers.idea_gate.model import IdeaGateModule  # imports Lightning

    if not isinstance(module, IdeaGateModule) or not module.gated:
        raise UserError("this run is a baseline without an idea head: export a gated one, such as idea_gate/main")
    return IdeaGate(
        module.idea_head,
        form=module.form,
        alpha=module.alpha,
        beta=module.beta,
        base_V=module.base_rate,
        neutral_V=module.neutral,
    )

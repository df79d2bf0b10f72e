"""The gate (Eq. 3 to 6): how the idea head's probabilities change the scores of the next token.

Shape letters: B rows, V vocabulary, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lit_ctg.decoding.rule import PerRow, ScoreRule, per_row
from lit_ctg.errors import UserError, did_you_mean

# scale first, then clamp (Eq. 4 and 5), or clamp first, then scale (the authors' first code)
CLAMPS = ("after_scaling", "before_scaling")


@dataclass(frozen=True, kw_only=True)
class GateForm:
    """What is fixed about a gate.

    Attributes:
        clamp: ``after_scaling``: max(alpha * log(p + epsilon), beta), Eq. 4 and 5; ``before_scaling``:
            alpha * max(log(p + epsilon), beta).
        epsilon: keeps the logarithm finite.

    Raises:
        UserError: no such clamp.
    """

    clamp: str
    epsilon: float

    def __post_init__(self) -> None:
        if self.clamp not in CLAMPS:
            hint = did_you_mean(str(self.clamp), CLAMPS)
            raise UserError(f"model.clamp={self.clamp!r}{hint}: use {' or '.join(CLAMPS)}")

    def __call__(self, idea_logits: Tensor, alpha: float | Tensor, beta: float | Tensor) -> Tensor:
        """Return the gate, in nats to add to the token logits, never above 0 (but for rounding and epsilon).

        Args:
            idea_logits: [..., V].
            alpha: strength, at least 0; a number or something that broadcasts. 0 gives 0.
            beta: lower bound, at most 0; likewise.
        """
        log_p = (torch.sigmoid(idea_logits) + self.epsilon).log_()
        if self.clamp == "after_scaling":
            return (log_p * alpha).clamp_(min=beta)
        return log_p.clamp_(min=beta) * alpha

    def floor(self, alpha: float, beta: float) -> float:
        """Return the value of log(p + epsilon) below which the gate is flat; alpha > 0."""
        return beta / alpha if self.clamp == "after_scaling" else beta

    def clamped(self, idea_logits: Tensor, alpha: float, beta: float) -> Tensor:
        """Return where the lower bound holds, bool of the logits' shape; nowhere without strength."""
        if alpha == 0:
            return torch.zeros_like(idea_logits, dtype=torch.bool)
        return (torch.sigmoid(idea_logits) + self.epsilon).log_() <= self.floor(alpha, beta)


def check_strength(alpha: PerRow, beta: PerRow, where: str) -> None:
    """Refuse a strength below 0 and a bound above 0.

    Raises:
        UserError: names ``where``.
    """
    values = torch.as_tensor(alpha, dtype=torch.float64), torch.as_tensor(beta, dtype=torch.float64)
    if not bool((values[0] >= 0).all() and values[0].isfinite().all()):
        raise UserError(f"{where}.alpha={alpha}: the strength of the gate is a number of at least 0 (0: no gate)")
    if not bool((values[1] <= 0).all()):
        raise UserError(f"{where}.beta={beta}: the gate's lower bound is at most 0")


class IdeaGateRule(ScoreRule):
    """The gate as a score rule; with ``alpha`` 0 the scores stay as they are.

    Works in ``decoding/loop.py`` and in ``model.generate(logits_processor=[rule])`` of a Hugging Face causal LM.

    Args:
        idea_logits: called once a step, gives the idea logits [B, V] of the newest position of every row.
        alpha, beta: one number for all rows or one a row.
        form: clamp and epsilon.
    """

    def __init__(self, idea_logits: Callable[[], Tensor], *, alpha: PerRow, beta: PerRow, form: GateForm) -> None:
        check_strength(alpha, beta, "gate")
        self.idea_logits, self.alpha, self.beta, self.form = idea_logits, alpha, beta, form

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        gate_BV = self.form(self.idea_logits().to(scores), per_row(self.alpha, scores), per_row(self.beta, scores))
        return scores + gate_BV


@contextmanager
def watch_idea_logits(model: Any, head: nn.Module) -> Iterator[Callable[[], Tensor]]:
    """Give the idea logits of the newest positions of a Hugging Face causal LM while it generates.

    Args:
        model: a ``PreTrainedModel`` with a ``base_model`` that gives ``last_hidden_state``.
        head: idea head, hidden states [B, D] to logits [B, V].

    Yields:
        a callable for ``IdeaGateRule``; it raises RuntimeError before the model has run.
    """
    newest: list[Tensor] = []

    def keep(_module: nn.Module, _inputs: Any, output: Any) -> None:
        newest[:] = [output[0][:, -1]]

    def idea_logits() -> Tensor:
        if not newest:
            raise RuntimeError("the language model has not run yet, so there are no hidden states to gate from")
        return head(newest[0])

    handle = model.base_model.register_forward_hook(keep)
    try:
        yield idea_logits
    finally:
        handle.remove()

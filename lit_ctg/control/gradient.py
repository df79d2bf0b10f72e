"""Steps of a hidden state up the gradient of a classifier, of the kind of PPLM (Dathathri et al., 2020).

PPLM moves what attention has kept of the text by steps of length alpha up the normed gradient of
log p(a | x) - lambda KL(p_moved || p) (its Eq. 3, sec. 3.3). Here the newest state that the output head reads is moved,
the classifier is linear and reads that state alone. So both gradients have a closed form, nothing is propagated through
the network, and a step needs no other state of the text. Of PPLM's other means of staying fluent (sec. 3.3), mixing the
moved distribution with the first one as p_moved^g p^(1 - g) is, with a linear head, a move shortened by g, so it needs
no setting for it.

Shape letters: B prompts, N rows, T positions, X states, D hidden size, V vocabulary, C classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lit_ctg.control.base import Prefix, Stage, StateHook, Values, head_weight
from lit_ctg.control.token_bias import ClassControl, check_classes, check_count, class_shares
from lit_ctg.limits import Count, Weight

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle


def climbed(
    state_XD: Tensor,
    head: tuple[Tensor, Tensor | None],
    classifier: tuple[Tensor, Tensor],
    share_XC: Tensor,
    strength_X: Tensor,
    *,
    steps: int,
    kl: float,
) -> Tensor:
    """Return the states [X, D] after ``steps`` steps up log p(class | state) - ``kl`` KL(p_moved || p).

    Each step is strength / steps times as long as the state it began from.

    Args:
        head: weight [V, D] and bias [V] of the output head.
        classifier: weight [C, D] and bias [C]; p(class | state) is the softmax of their product.
        share_XC: of the classes that are asked for, each row sums to 1: log p is the mean of theirs.
        strength_X: length of the whole way as a share of the state's length, if it went straight.
        kl: weight of the divergence; 0 leaves it out.
    """
    weight_VD, bias_V = head
    weight_CD, bias_C = classifier
    begun_XV = nn.functional.linear(state_XD, weight_VD, bias_V).log_softmax(-1) if kl else None
    length_X1 = (strength_X.to(state_XD) / steps).unsqueeze(1) * state_XD.norm(dim=1, keepdim=True)
    moved_XD = state_XD
    for _ in range(steps):
        p_XC = nn.functional.linear(moved_XD, weight_CD, bias_C).softmax(-1)
        up_XD = (share_XC - p_XC) @ weight_CD
        if begun_XV is not None:
            log_p_XV = nn.functional.linear(moved_XD, weight_VD, bias_V).log_softmax(-1)
            p_XV, farther_XV = log_p_XV.exp(), log_p_XV - begun_XV
            apart_X1 = (p_XV * farther_XV).sum(-1, keepdim=True)
            up_XD = up_XD - kl * (p_XV * (farther_XV - apart_X1)) @ weight_VD
        moved_XD = moved_XD + length_X1 * nn.functional.normalize(up_XD, dim=1, eps=1e-30)
    return moved_XD


class Gradient(ClassControl):
    """Moves the state that the output head reads towards a class, by the gradient of a classifier of such states.

    Args:
        classes: names of its classes, in order.
        steps: of each move (PPLM: 3 to 10).
        kl: weight of the divergence to the bare model's distribution (PPLM: 0.01).

    Raises:
        UserError: another number of classes than the classifier has.
    """

    kind, stage = "gradient", Stage.NETWORK

    def __init__(
        self,
        weight_CD: Tensor,
        bias_C: Tensor,
        classes: Sequence[str],
        *,
        steps: Count = 3,
        kl: Weight = 0.01,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        self.classes, self.steps, self.kl = check_classes(classes), steps, kl
        self.weight_CD, self.bias_C = weight_CD.detach().float(), bias_C.detach().float()
        for size in (len(weight_CD), len(bias_C)):
            check_count(self.name, self.classes, size)

    def check_model(self, model: Any) -> None:
        """Refuse a model whose output layer has no plain weights to move along.

        Raises:
            UserError: see ``Control.check_model``; or the weights are packed (quantized), offloaded, or not there.
        """
        super().check_model(model)
        head_weight(model, self.name)

    def hooks(self, model: Any, values: Values, prefix: Prefix) -> Iterable[RemovableHandle]:
        head = model.get_output_embeddings()
        share_BC, strength_B, off_B = class_shares(self.classes, values), values["strength"], self.off(values)

        @torch.no_grad()
        def move(state: Tensor, share: Tensor, strength: Tensor) -> Tensor:
            bias_V = getattr(head, "bias", None)
            share, strength = (each.expand(*state.shape[:-1], -1).flatten(0, -2) for each in (share, strength))
            moved_XD = climbed(
                state.flatten(0, -2),
                (head.weight.to(state), None if bias_V is None else bias_V.to(state)),
                (self.weight_CD.to(state), self.bias_C.to(state)),
                share,
                strength.squeeze(1),
                steps=self.steps,
                kl=self.kl,
            )
            return moved_XD.view(state.shape)

        hook = StateHook(move, [share_BC, strength_B.unsqueeze(1)], off_B, None, wide=True)
        return [head.register_forward_pre_hook(hook.before)]

    def shape(self) -> dict[str, int]:
        return {"hidden_size": self.weight_CD.shape[1]}

    def config(self) -> dict[str, Any]:
        return {"classes": list(self.classes), "steps": self.steps, "kl": self.kl}

    def tensors(self) -> dict[str, Tensor]:
        return {"weight": self.weight_CD, "bias": self.bias_C}

    @classmethod
    def restore(cls, config: dict[str, Any], tensors: dict[str, Tensor]) -> Gradient:
        return cls(tensors["weight"], tensors["bias"], config["classes"], steps=config["steps"], kl=config["kl"])

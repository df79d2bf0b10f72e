"""The feature channel: names and memberships of its features, as a control, and its fusion into a model (Eq. 1 to 3).

Shape letters: B rows, N positions, T positions of a row, F features, M features of a group, D hidden size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

# order of the bank: ten predicates, three memberships of three scalars, three predicates
NAMES = (
    *("is_noun", "is_verb", "is_adj", "is_subject", "is_object", "is_head"),
    *("is_bos", "is_eos", "is_comma", "is_question"),
    *("pos_low", "pos_med", "pos_high", "neg_low", "neg_med", "neg_high", "str_low", "str_med", "str_high"),
    *("coref_subject", "is_capitalized", "is_pronoun"),
)
LEADING = 10  # predicates before the memberships
COLUMN = {name: index for index, name in enumerate(NAMES)}
GROUPS = {
    "polarity": ("pos_low", "pos_med", "pos_high", "neg_low", "neg_med", "neg_high"),
    "strength": ("str_low", "str_med", "str_high"),
    "question": ("is_question",),
}


def membership(x: Tensor, centre: Tensor, temperature: Tensor) -> Tensor:
    """Eq. 1: 0.9 ** (|x - c| / tau), in (0, 1]."""
    return torch.pow(0.9, (x - centre).abs() / temperature)


def at_next(value_BT: Tensor, event_BT: Tensor) -> Tensor:
    """Return for each position the value at the next event strictly after it, or else at the last event; 0 for none."""
    length = event_BT.shape[1]
    place_T = torch.arange(length, device=event_BT.device)
    here_BT = torch.where(event_BT, place_T, length)
    coming_BT = here_BT.flip(1).cummin(1).values.flip(1)  # at or after
    next_BT = functional.pad(coming_BT[:, 1:], (0, 1), value=length)
    last_BT = torch.where(event_BT, place_T, -1).cummax(1).values
    chosen_BT = torch.where(next_BT < length, next_BT, last_BT)
    return value_BT.gather(1, chosen_BT.clamp(min=0)) * (chosen_BT >= 0)


@dataclass(frozen=True)
class ChannelSetting:
    """The effect of a batch of controls on features: ``value_BF`` where ``replaced_BF`` is True."""

    value_BF: Tensor
    replaced_BF: Tensor

    @classmethod
    def of(
        cls,
        asked: Mapping[str, Tensor],
        names: Sequence[str] = NAMES,
        groups: Mapping[str, Sequence[str]] = GROUPS,
    ) -> ChannelSetting:
        """Convert requests, feature name -> values [B], NaN for none; what a group does not name in it is 0."""
        column = {name: place for place, name in enumerate(names)}
        value_BF = torch.zeros(len(next(iter(asked.values()))), len(names), dtype=torch.float64)
        replaced_BF = torch.zeros_like(value_BF, dtype=torch.bool)
        for members in groups.values():
            places = [column[name] for name in members]
            given_BM = torch.stack([asked[name] for name in members], dim=1)
            value_BF[:, places] = given_BM.nan_to_num(0.0)
            replaced_BF[:, places] = (~given_BM.isnan()).any(1, keepdim=True)
        return cls(value_BF, replaced_BF)

    @classmethod
    def of_rows(
        cls,
        controls: Sequence[Mapping[str, float]],
        like: Tensor,
        names: Sequence[str] = NAMES,
        groups: Mapping[str, Sequence[str]] = GROUPS,
    ) -> ChannelSetting:
        """Convert checked controls (feature name -> value), one per row, to a setting on the device of ``like``."""
        asked = {
            name: torch.tensor([control.get(name, math.nan) for control in controls], dtype=torch.float64)
            for members in groups.values()
            for name in members
        }
        setting = cls.of(asked, names, groups)
        return cls(setting.value_BF.to(like), setting.replaced_BF.to(like.device))

    def apply(self, features_BF: Tensor) -> Tensor:
        """Return the features of the current position under the control."""
        return torch.where(self.replaced_BF, self.value_BF.to(features_BF.dtype), features_BF)


def fuse(embedding_ND: Tensor, projected_ND: Tensor, gate_ND: Tensor | None) -> Tensor:
    """Eq. 3: h0 = e + u + g * u; without a gate (ablation) h0 = e + u."""
    fused_ND = embedding_ND + projected_ND
    return fused_ND if gate_ND is None else fused_ND + gate_ND * projected_ND


class GatedFusion(nn.Module):
    """u = W_s s, g = sigmoid(W_g [e ; s]) (Eq. 2), h0 = e + u + g * u (Eq. 3).

    Both maps have biases, as the authors' have.

    Args:
        dim: D.
        features: F.
        gate: False leaves Eq. 2 out.
    """

    def __init__(self, dim: int, features: int, gate: bool) -> None:
        super().__init__()
        self.project = nn.Linear(features, dim)
        self.gate = nn.Linear(dim + features, dim) if gate else None

    def forward(self, embedding_ND: Tensor, features_NF: Tensor) -> Tensor:
        """Return h0 [.., D]."""
        gate_ND = None
        if self.gate is not None:
            gate_ND = torch.sigmoid(self.gate(torch.cat([embedding_ND, features_NF], dim=-1)))
        return fuse(embedding_ND, self.project(features_NF), gate_ND)


class BlockFusion(nn.Module):
    """Adds u_l = W_l s + b_l to what blocks of a pretrained model return: Eq. 3 without its gate.

    u_l starts at zero, so the model is unchanged at first. The lower blocks need no gradient, so a step costs half.

    Args:
        paths: of the blocks in the model.
        dim: D.
        features: F.
    """

    def __init__(self, paths: Sequence[str], dim: int, features: int) -> None:
        super().__init__()
        self.paths = tuple(paths)
        self.project = nn.ModuleList(nn.Linear(features, dim) for _ in self.paths)
        for value in self.parameters():
            nn.init.zeros_(value)

    def attach(self, layers: Sequence[nn.Module], running: Callable[[], tuple[Tensor, Any]]) -> list[RemovableHandle]:
        """Register the forward hooks.

        Args:
            layers: the blocks, one a path.
            running: returns the features [B, T, F] of the running pass and the share of u_l that counts, [B, T, 1]; 0
                leaves a position as it is.
        """

        def adding(project: nn.Module) -> Callable[..., Any]:
            def add(_module: nn.Module, _inputs: Any, output: Any) -> Any:
                states_BTD = output[0] if isinstance(output, tuple) else output
                features_BTF, share = running()
                fused_BTD = states_BTD + (share * project(features_BTF)).to(states_BTD)
                return (fused_BTD, *output[1:]) if isinstance(output, tuple) else fused_BTD

            return add

        pairs = zip(layers, self.project, strict=True)
        return [layer.register_forward_hook(adding(project)) for layer, project in pairs]

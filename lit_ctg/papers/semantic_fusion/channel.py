"""The feature channel as a control: features of a position set from what is asked for (corrected regime).

The paper describes it, its code never calls it. A control names features of three groups; a group that is named is
replaced whole at the current position (the named features get their values, the others of the group 0), a group that is
not keeps its prefix-only features. In training a sentence's own future is the control (hindsight), and each group of it
is dropped with probability ``feature_dropout``, so that the model also works without.

Shape letters: B, N sentences, T positions, F features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lit_ctg.papers.semantic_fusion.clause_vocabulary import ClauseVocabulary
from lit_ctg.papers.semantic_fusion.features import COLUMN, NAMES

GROUPS = {
    "polarity": ("pos_low", "pos_med", "pos_high", "neg_low", "neg_med", "neg_high"),
    "strength": ("str_low", "str_med", "str_high"),
    "question": ("is_question",),
}
# smallest value of a hindsight control; the largest is 1
LOWEST_VALUE = 0.6


@dataclass(frozen=True)
class ChannelSetting:
    """What a batch of controls does to features: ``value_BF`` where ``replaced_BF`` is True."""

    value_BF: Tensor
    replaced_BF: Tensor

    @classmethod
    def of(cls, controls: Sequence[Mapping[str, float]], like: Tensor) -> ChannelSetting:
        """Turn checked controls (feature name -> value), one a row, into a setting that lives where ``like`` does."""
        value_BF = torch.zeros(len(controls), len(NAMES))
        replaced_BF = torch.zeros(len(controls), len(NAMES), dtype=torch.bool)
        for row, control in enumerate(controls):
            for names in GROUPS.values():
                if set(names) & set(control):
                    replaced_BF[row, [COLUMN[name] for name in names]] = True
            for name, value in control.items():
                value_BF[row, COLUMN[name]] = value
        return cls(value_BF.to(like), replaced_BF.to(like.device))

    def apply(self, features_BF: Tensor) -> Tensor:
        """Return the features of the current position under the control."""
        return torch.where(self.replaced_BF, self.value_BF.to(features_BF.dtype), features_BF)


def hindsight(ids_NT: Tensor, vocabulary: ClauseVocabulary) -> Tensor:
    """Return what would have been asked for at each position, [N, T, F] in {0, 1}.

    Polarity: pos_high or neg_high by the next adjective to come (after the last one: by that one). Strength: str_low,
    str_med or str_high by the next intensifier (slightly; moderately; very, extremely). Question: is_question at every
    position of a sentence that ends in "?".
    """
    wanted = {"pos_high": vocabulary.ids("adjective_positive"), "neg_high": vocabulary.ids("adjective_negative")}
    slight, moderate, *strong = vocabulary.ids("intensifier")
    strength = {"str_low": (slight,), "str_med": (moderate,), "str_high": tuple(strong)}
    table_NTF = ids_NT.new_zeros(*ids_NT.shape, len(NAMES), dtype=torch.float32)
    for choice in (wanted, strength):
        said_NT = torch.zeros_like(ids_NT)
        for number, ids in enumerate(choice.values(), start=1):
            said_NT = torch.where(torch.isin(ids_NT, ids_NT.new_tensor(ids)), number, said_NT)
        to_come_NT = _next_nonzero(said_NT)
        for number, name in enumerate(choice, start=1):
            table_NTF[..., COLUMN[name]] = (to_come_NT == number).float()
    asks_N1 = (ids_NT == vocabulary.id("?")).any(1, keepdim=True)
    table_NTF[..., COLUMN["is_question"]] = asks_N1.float()
    return table_NTF


def _next_nonzero(said_NT: Tensor) -> Tensor:
    """Return for each position the next nonzero entry strictly after it; after the last one, that one."""
    result_NT = torch.zeros_like(said_NT)
    coming_N = torch.zeros_like(said_NT[:, 0])
    for t in range(said_NT.shape[1] - 1, -1, -1):
        result_NT[:, t] = coming_N
        coming_N = torch.where(said_NT[:, t] > 0, said_NT[:, t], coming_N)
    latest_NT = torch.zeros_like(said_NT)
    latest_N = torch.zeros_like(coming_N)
    for t in range(said_NT.shape[1]):
        latest_N = torch.where(said_NT[:, t] > 0, said_NT[:, t], latest_N)
        latest_NT[:, t] = latest_N
    return torch.where(result_NT > 0, result_NT, latest_NT)


def drop_and_replace(
    features_BTF: Tensor, hindsight_BTF: Tensor, *, feature_dropout: float, generator: torch.Generator
) -> Tensor:
    """Put hindsight controls into a training batch's features.

    Per sentence and group: dropped with probability ``feature_dropout`` (features stay), else the group is replaced by
    its hindsight control times a value uniform in [0.6, 1].

    Args:
        features_BTF: prefix-only features.
        hindsight_BTF: see ``hindsight``.
        feature_dropout: in [0, 1]; 1 returns the features as they are.
        generator: a CPU generator of its own, so that the draws move no other random stream.
    """
    if feature_dropout >= 1:
        return features_BTF
    batch = len(features_BTF)
    kept_BG = torch.rand(batch, len(GROUPS), generator=generator) >= feature_dropout
    value_BG = LOWEST_VALUE + (1 - LOWEST_VALUE) * torch.rand(batch, len(GROUPS), generator=generator)
    kept_BF = torch.zeros(batch, len(NAMES), dtype=torch.bool)
    value_BF = torch.zeros(batch, len(NAMES))
    for group, names in enumerate(GROUPS.values()):
        columns = [COLUMN[name] for name in names]
        kept_BF[:, columns] = kept_BG[:, group : group + 1]
        value_BF[:, columns] = value_BG[:, group : group + 1]
    kept_B1F, value_B1F = (
        kept_BF.to(features_BTF.device, non_blocking=True).unsqueeze(1),
        value_BF.to(features_BTF).unsqueeze(1),
    )
    return torch.where(kept_B1F, hindsight_BTF * value_B1F, features_BTF)

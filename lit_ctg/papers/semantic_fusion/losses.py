"""The parts of Eq. 5: label-smoothed cross-entropy, feature reconstruction, class uniformizer.

All take packed positions: only those that count. Shape letters: N positions, V vocabulary, F features, C words of a
class.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional


def token_loss(logits_NV: Tensor, target_N: Tensor, *, label_smoothing: float) -> Tensor:
    """Eq. 6: mean cross-entropy in nats against targets smoothed over the whole vocabulary."""
    return functional.cross_entropy(logits_NV, target_N, label_smoothing=label_smoothing)


def auxiliary_loss(predicted_NF: Tensor, features_NF: Tensor) -> Tensor:
    """Eq. 7: mean binary cross-entropy in nats over position-feature pairs.

    Args:
        predicted_NF: logits of the auxiliary head (before the sigmoid).
        features_NF: soft targets in [0, 1]; no gradient flows into them, or learnable memberships would make
            themselves easy to predict.
    """
    return functional.binary_cross_entropy_with_logits(predicted_NF, features_NF.detach())


def uniformizer_loss(logits_NV: Tensor, target_N: Tensor, classes: Sequence[Tensor]) -> Tensor:
    """Eq. 8: KL(softmax of the logits inside the target's class || uniform) in nats.

    Mean over the positions of each class, then over the classes that have any; 0 where none has.

    Args:
        logits_NV: logits over the vocabulary.
        target_N: target ids.
        classes: ids of the words of each class, [C] long each.
    """
    parts = []
    for ids_C in classes:
        chosen_N = torch.isin(target_N, ids_C).nonzero().squeeze(1)
        if len(chosen_N):
            log_p = logits_NV[chosen_N][:, ids_C].log_softmax(-1)
            parts.append((log_p.exp() * (log_p + math.log(len(ids_C)))).sum(-1).mean())
    return torch.stack(parts).mean() if parts else logits_NV.new_zeros(())

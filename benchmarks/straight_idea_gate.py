"""The idea-gated model the straight way: dense multi-hot target, whole logit tensors, generation without a cache.

It works on the parameters of an ``IdeaGateModule``, so that both compute the same numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def losses(module, batch: dict[str, Tensor]) -> Tensor:
    """Return the training loss (Eq. 7): a multi-hot target scattered position by position, BCE over [B, T, V]."""
    hidden_BTD = module.backbone(module.embedding(batch["input_ids_BT"]))
    token_BTV = hidden_BTD @ module.embedding.weight.T
    idea_BTV = module.idea_head(hidden_BTD)
    target_BT = batch["target_ids_BT"]
    hot_BTV = torch.zeros_like(idea_BTV)
    for t in range(target_BT.shape[1]):
        first = t + module.window_start - 1
        hot_BTV[:, t].scatter_(1, target_BT[:, first : first + module.window_size], 1.0)
    weight = torch.tensor(module.positive_weight, device=idea_BTV.device)
    bce_BTV = F.binary_cross_entropy_with_logits(idea_BTV, hot_BTV, reduction="none", pos_weight=weight)
    idea = (bce_BTV * ~module.stopword_mask_V).sum(-1).mean()
    log_p = torch.log(torch.sigmoid(idea_BTV) + module.form.epsilon)
    gate_BTV = torch.clamp(module.alpha * log_p, min=module.beta)
    token = F.cross_entropy((token_BTV + gate_BTV).flatten(0, 1), target_BT.flatten())
    return token + module.idea_weight * idea


@torch.no_grad()
def generate_one(module, ids: list[int], new_tokens: int, temperature: float, penalty: float) -> list[int]:
    """Continue one prompt, the whole prefix recomputed for every token, the heads on all its positions."""
    ids = list(ids)
    for _ in range(new_tokens):
        hidden_BTD = module.backbone(module.embedding(torch.tensor([ids], device=module.device)))
        token_BTV = hidden_BTD @ module.embedding.weight.T
        log_p = torch.log(torch.sigmoid(module.idea_head(hidden_BTD)) + module.form.epsilon)
        scores_V = (token_BTV + torch.clamp(module.alpha * log_p, min=module.beta))[0, -1]
        seen = torch.tensor(sorted(set(ids)), device=module.device)
        scores_V[seen] = torch.where(scores_V[seen] > 0, scores_V[seen] / penalty, scores_V[seen] * penalty)
        ids.append(int(torch.multinomial((scores_V / temperature).softmax(-1), 1)))
    return ids

"""The whole distribution of the next token under each model: what generation draws from and tests sum up.

Shape letters: B streams, T positions, N = B * T, D hidden size, V vocabulary, C classes, X rows, K members of a class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lit_ctg.errors import UserError
from lit_ctg.papers.nslm.occurrence import Contexts

if TYPE_CHECKING:
    from lit_ctg.papers.nslm.module import NSLMModule

MODELS = ("nnlm", "hnlm", "crnn", "nslm_alone", "nslm")


def distributions(
    module: NSLMModule, hidden_BTD: Tensor, contexts: Contexts, names: tuple[str, ...] = MODELS
) -> dict[str, Tensor]:
    """Return log P of the whole vocabulary [B, T, V] under each model (see ``TokenScores.models``), float32.

    Args:
        module: with fitted micro-models where ``nslm`` or ``nslm_alone`` are asked for.
        hidden_BTD: states of the positions.
        contexts: what stands before the token after each.
        names: of ``MODELS``.

    Raises:
        UserError: the micro-models are not fitted yet.
    """
    hidden_ND = hidden_BTD.flatten(0, 1)
    state_N = torch.from_numpy(contexts.state_BT.reshape(-1)).to(hidden_ND.device)
    words_NV, outside_NV, tags_NC = module.heads.log_probs(hidden_ND, state_N)
    result = {"nnlm": words_NV}
    for name in names:
        if name == "nnlm":
            continue
        log_NV = outside_NV.clone()
        for number, members in enumerate(module.table.classes):
            rows = module.heads.available_SC[state_N, number].nonzero().squeeze(1)
            inside_XK = _inside(module, name, hidden_ND[rows], contexts, rows, number)
            columns_K = torch.from_numpy(members.ids_K).to(rows.device)
            log_NV[rows.unsqueeze(1), columns_K] = tags_NC[rows, number].unsqueeze(1) + inside_XK
        if name == "nslm":
            weight = module.mixture_weight.float()
            log_NV = torch.logaddexp((1 - weight).log() + words_NV, weight.log() + log_NV)
        result[name] = log_NV
    return {name: result[name].unflatten(0, hidden_BTD.shape[:2]) for name in names}


def _inside(module: NSLMModule, name: str, hidden_XD: Tensor, contexts: Contexts, rows: Tensor, number: int) -> Tensor:
    """Return log P(w | c) of one class under one model, [X, K]."""
    if name == "hnlm":
        return module.heads.within_class(hidden_XD, number)
    if name == "crnn":
        return module.characters.log_probs(hidden_XD, number)
    if module.micro_models is None:
        raise UserError("the micro-models are not fitted yet: call module.choose_micro_models(datamodule)")
    chosen_BT = np.zeros(contexts.state_BT.shape, dtype=bool)
    chosen_BT.reshape(-1)[rows.cpu().numpy()] = True
    evidence = contexts.evidence(number, chosen_BT)
    return torch.from_numpy(module.micro_models[number].log_prob(evidence)).to(hidden_XD)

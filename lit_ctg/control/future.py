"""A classifier of unfinished texts, applied to every likely next token (FUDGE, Yang and Klein, 2021, Eq. 2).

p(x_t | x_<t, a) is proportional to p(x_t | x_<t) p(a | x_1..x_t)^strength; the classifier was trained on prefixes. As
in their sec. 3.3, only the ``candidates`` most likely tokens are considered, and the others are excluded.

Shape letters: B prompts, N rows, T prefix tokens, K candidates, V vocabulary, E embedding, H state, C classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lit_ctg.control.base import NO_TOKEN, Prefix, Stage, Values, like_inputs, loaded, row_values
from lit_ctg.control.token_bias import ClassControl, check_classes, check_count, class_shares
from lit_ctg.decoding.rule import ScoreRule
from lit_ctg.limits import Count

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle


class FutureClassifier(nn.Module):
    """p(class | prefix) by a gated recurrent cell over token embeddings.

    Args:
        size: vocabulary V.
        classes: C.
    """

    def __init__(self, size: int, classes: int, dim: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size, dim)
        self.cell = nn.GRUCell(dim, dim)
        self.head = nn.Linear(dim, classes)

    def step(self, ids_N: Tensor, state_NH: Tensor) -> Tensor:
        """Return the states [N, H] after one more token; a row whose token is ``NO_TOKEN`` keeps its state."""
        real_N = ids_N != NO_TOKEN
        new_NH = self.cell(self.embedding(ids_N.where(real_N, 0)), state_NH)
        return torch.where(real_N.unsqueeze(1), new_NH, state_NH)

    def start(self, rows: int) -> Tensor:
        """Return the states [N, H] before the first token."""
        return self.embedding.weight.new_zeros(rows, self.cell.hidden_size)

    def forward(self, ids_NT: Tensor) -> Tensor:
        """Return log p(class | prefix) after each token, [N, T, C]; what follows a text's end counts as its prefix."""
        real_NT = ids_NT != NO_TOKEN
        if bool((real_NT[:, 1:] & ~real_NT[:, :-1]).any()):  # padding before a text
            return self.head(self._states(ids_NT)).log_softmax(-1)
        # all steps in one call
        embedded_NTE = self.embedding(ids_NT.where(real_NT, 0))
        cell, start_1NH = self.cell, self.start(len(ids_NT)).unsqueeze(0)
        weights = [cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh]
        states_NTH, _ = torch.gru(embedded_NTE, start_1NH, weights, True, 1, 0.0, self.training, False, True)
        lengths_N = real_NT.sum(1)
        last_NT = torch.arange(ids_NT.shape[1], device=ids_NT.device).minimum((lengths_N - 1).clamp(min=0).unsqueeze(1))
        states_NTH = states_NTH.gather(1, last_NT.unsqueeze(2).expand_as(states_NTH))
        states_NTH = states_NTH * (lengths_N > 0).view(-1, 1, 1)  # without a token: the state before the first
        return self.head(states_NTH).log_softmax(-1)

    def _states(self, ids_NT: Tensor) -> Tensor:
        """Return the states [N, T, H] after each token, one step at a time."""
        state_NH, states = self.start(len(ids_NT)), []
        for ids_N in ids_NT.unbind(1):
            state_NH = self.step(ids_N, state_NH)
            states.append(state_NH)
        return torch.stack(states, dim=1)


class Future(ClassControl):
    """Weights the most likely next tokens by how likely they make a class.

    Args:
        classifier: over the ids of the language model.
        classes: names of its classes, in order.

    Raises:
        UserError: the number of classes is not the classifier's.
    """

    kind, stage = "future", Stage.LOGITS

    def __init__(
        self, classifier: FutureClassifier, classes: Sequence[str], *, candidates: Count = 200, name: str | None = None
    ) -> None:
        super().__init__(name=name)
        self.classes, self.candidates = check_classes(classes), candidates
        self.classifier = classifier.eval().requires_grad_(False)
        self._known: dict[bytes, Tensor] = {}
        check_count(self.name, self.classes, classifier.head.out_features)

    def hooks(self, model: Any, values: Values, prefix: Prefix) -> Iterable[RemovableHandle]:
        """Bring the classifier to the model's device; it is called by the rule."""
        self.classifier.to(like_inputs(model).device)
        return ()

    def rule(self, values: Values, prefix: Prefix) -> ScoreRule:
        shares_BC = class_shares(self.classes, values)
        return _Foreseen(self.classifier, shares_BC, values["strength"], self.candidates, self._known)

    def shape(self) -> dict[str, int]:
        return {"vocab_size": self.classifier.embedding.num_embeddings}

    def config(self) -> dict[str, Any]:
        return {"classes": list(self.classes), "candidates": self.candidates}

    def tensors(self) -> dict[str, Tensor]:
        return dict(self.classifier.state_dict())

    @classmethod
    def restore(cls, config: dict[str, Any], tensors: dict[str, Tensor]) -> Future:
        size, dim = tensors["embedding.weight"].shape
        classifier = loaded(lambda: FutureClassifier(size, len(config["classes"]), dim), tensors)
        return cls(classifier, config["classes"], candidates=config["candidates"])


class _Foreseen(ScoreRule):
    """Weights the candidates; a row that grows by a token costs one step of the cell, wherever it moves in the batch.

    Args:
        known: the states [1, H] of the prefixes of the last call; the control keeps them from batch to batch.
    """

    def __init__(
        self,
        classifier: FutureClassifier,
        shares_BC: Tensor,
        strength_B: Tensor,
        candidates: int,
        known: dict[bytes, Tensor],
    ) -> None:
        self.classifier, self.shares_BC, self.strength_B = classifier, shares_BC, strength_B
        self.candidates, self.known = candidates, known

    def _states(self, input_ids: Tensor) -> Tensor:
        """Return the states [N, H] after the prefixes."""
        rows = [row[row != NO_TOKEN] for row in input_ids.cpu().numpy()]
        before = []
        for row in rows:
            state_1H = self.known.get(row[:-1].tobytes())
            if state_1H is None:
                state_1H = self.classifier.start(1)
                for token in row[:-1].tolist():
                    state_1H = self.classifier.step(torch.tensor([token], device=state_1H.device), state_1H)
            before.append(state_1H.to(self.classifier.embedding.weight.device))
        last_N = torch.tensor([row[-1] if len(row) else NO_TOKEN for row in rows], device=before[0].device)
        state_NH = self.classifier.step(last_N, torch.cat(before))
        self.known.clear()
        self.known |= {row.tobytes(): state_NH[place : place + 1] for place, row in enumerate(rows)}
        return state_NH

    @torch.no_grad()
    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        state_NH = self._states(input_ids)
        log_p_NV = scores.log_softmax(-1)
        best_NK, ids_NK = log_p_NV.topk(min(self.candidates, scores.shape[1]), dim=-1)
        many = ids_NK.shape[1]
        after_XH = self.classifier.step(ids_NK.flatten(), state_NH.repeat_interleave(many, dim=0))
        log_class_NKC = self.classifier.head(after_XH).log_softmax(-1).view(len(scores), many, -1)
        shares_NC = row_values(self.shares_BC, len(scores)).to(log_class_NKC)
        strength_N1 = row_values(self.strength_B, len(scores)).unsqueeze(1).to(scores)
        gain_NK = torch.einsum("nc,nkc->nk", shares_NC, log_class_NKC).to(scores)
        # tokens that earlier rules forbid stay forbidden
        weighed_NK = best_NK + strength_N1 * gain_NK
        return torch.full_like(log_p_NV, -torch.inf).scatter(1, ids_NK, weighed_NK)

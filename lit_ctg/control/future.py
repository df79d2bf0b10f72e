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
from lit_ctg.control.class_models import Reader
from lit_ctg.control.guidance import without_hooks
from lit_ctg.control.token_bias import ClassControl, check_classes, check_count, class_shares
from lit_ctg.decoding.rule import ScoreRule
from lit_ctg.limits import Count
from lit_ctg.network.layers import heard

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

    def shape(self) -> dict[str, int]:
        return {"vocab_size": self.embedding.num_embeddings}

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


class StateProbe(nn.Module):
    """p(class | prefix) by a linear layer on the language model's own state after the prefix.

    Args:
        size: of a state, D.
        classes: C.
        block: after which the states are, from 0; None: those that the output head reads.
    """

    def __init__(self, size: int, classes: int, block: int | None = None) -> None:
        super().__init__()
        self.head, self.block = nn.Linear(size, classes), block

    def shape(self) -> dict[str, int]:
        return {"hidden_size": self.head.in_features}

    def forward(self, state: Tensor) -> Tensor:
        """Return log p(class) [..., C] of states [..., D], in at least float32."""
        wide = state.to(torch.promote_types(state.dtype, self.head.weight.dtype))
        return nn.functional.linear(wide, self.head.weight.to(wide), self.head.bias.to(wide)).log_softmax(-1)

    @torch.no_grad()
    def of_texts(self, model: Any, ids_NT: Tensor) -> Tensor:
        """Return log p(class | text) [N, C]; ``NO_TOKEN`` where there is none."""
        state_NTD, last_N = _states(model, ids_NT, self.block)
        return self(state_NTD[torch.arange(len(last_N), device=last_N.device), last_N])

    @classmethod
    def fitted(
        cls,
        model: Any,
        texts: Sequence[Sequence[Sequence[int]]],
        *,
        block: int | None = None,
        decay: float = 1e-2,
        longest: int = 64,
    ) -> StateProbe:
        """Return the probe by logistic regression on the states after each token of texts (their prefixes).

        Args:
            texts: for each class its texts, as ids.
            decay: weight of the squared weights of states that have length 1 on average.
            longest: tokens of a text that are read.
        """
        found: list[Tensor] = []
        labels: list[Tensor] = []
        for label, own in enumerate(texts):
            for first in range(0, len(own), 8):
                rows = [list(row[:longest]) for row in own[first : first + 8]]
                width = max(map(len, rows))
                ids_NT = torch.tensor([[*row, *[NO_TOKEN] * (width - len(row))] for row in rows])
                state_NTD = _states(model, ids_NT, block)[0]
                found.append(state_NTD[(ids_NT != NO_TOKEN).to(state_NTD.device)].float().cpu())
                labels.append(torch.full((len(found[-1]),), label))
        state_XD, label_X = torch.cat(found), torch.cat(labels)
        scale = state_XD.norm(dim=1).mean()
        made = cls(state_XD.shape[1], len(texts), block)
        nn.init.zeros_(made.head.weight)
        nn.init.zeros_(made.head.bias)
        optimiser = torch.optim.LBFGS(made.parameters(), max_iter=200, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            optimiser.zero_grad()
            total = nn.functional.nll_loss(made(state_XD / scale), label_X) + decay * made.head.weight.square().sum()
            total.backward()
            return total

        with torch.enable_grad():
            optimiser.step(loss)
        made.head.weight.data /= scale
        return made.eval().requires_grad_(False)


@torch.no_grad()
def _states(model: Any, ids_NT: Tensor, block: int | None) -> tuple[Tensor, Tensor]:
    """Return the states of texts [N, T, D], moved to where their first token comes first, and each one's last place."""
    rows = [row[row != NO_TOKEN] for row in ids_NT]
    length_N = torch.tensor([max(len(row), 1) for row in rows])
    real_NT = torch.arange(int(length_N.max())) < length_N.unsqueeze(1)
    given_NT = torch.zeros(real_NT.shape, dtype=torch.long)
    for number, row in enumerate(rows):
        given_NT[number, : len(row)] = row.cpu()
    place = like_inputs(model).device
    with heard(model, block) as found:
        model(input_ids=given_NT.to(place), attention_mask=real_NT.long().to(place), use_cache=False)
    return found[0], (length_N - 1).to(place)


def restored_classifier(config: dict[str, Any], tensors: dict[str, Tensor]) -> FutureClassifier | StateProbe:
    """Return the classifier of a bundle."""
    classes = len(config["classes"])
    if "embedding.weight" not in tensors:
        return loaded(lambda: StateProbe(tensors["head.weight"].shape[1], classes, config["block"]), tensors)
    size, dim = tensors["embedding.weight"].shape
    return loaded(lambda: FutureClassifier(size, classes, dim), tensors)


class Future(ClassControl):
    """Weights the most likely next tokens by how likely they make a class.

    Args:
        classifier: over the ids of the language model, or a probe of its states; every candidate of a probe costs a
            row of a step.
        classes: names of its classes, in order.

    Raises:
        UserError: the number of classes is not the classifier's.
    """

    kind, stage = "future", Stage.LOGITS
    _bare: Any = None

    def __init__(
        self,
        classifier: FutureClassifier | StateProbe,
        classes: Sequence[str],
        *,
        candidates: Count = 200,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        self.classes, self.candidates = check_classes(classes), candidates
        self.classifier = classifier.eval().requires_grad_(False)
        self._known: dict[bytes, Tensor] = {}
        check_count(self.name, self.classes, classifier.head.out_features)

    def hooks(self, model: Any, values: Values, prefix: Prefix) -> Iterable[RemovableHandle]:
        """Bring the classifier to the model's device; it is called by the rule."""
        self.classifier.to(like_inputs(model).device)
        if isinstance(self.classifier, StateProbe):
            self._bare = without_hooks(model)
        return ()

    def rule(self, values: Values, prefix: Prefix) -> ScoreRule:
        given = class_shares(self.classes, values), values["strength"], self.candidates
        if isinstance(self.classifier, StateProbe):
            bare, self._bare = self._bare, None  # the control does not keep the model
            return _Probed(self.classifier, bare, *given)
        return _Foreseen(self.classifier, self._known, *given)

    def shape(self) -> dict[str, int]:
        return self.classifier.shape()

    def config(self) -> dict[str, Any]:
        block = {"block": self.classifier.block} if isinstance(self.classifier, StateProbe) else {}
        return {"classes": list(self.classes), "candidates": self.candidates, **block}

    def tensors(self) -> dict[str, Tensor]:
        return dict(self.classifier.state_dict())

    @classmethod
    def restore(cls, config: dict[str, Any], tensors: dict[str, Tensor]) -> Future:
        return cls(restored_classifier(config, tensors), config["classes"], candidates=config["candidates"])


class _Candidates(ScoreRule):
    """Weights the likeliest tokens by the classes that they lead to."""

    def __init__(self, shares_BC: Tensor, strength_B: Tensor, candidates: int) -> None:
        self.shares_BC, self.strength_B, self.candidates = shares_BC, strength_B, candidates

    def after(self, input_ids: Tensor, ids_NK: Tensor) -> Tensor:
        """Return log p(class | prefix and candidate), [N, K, C]."""
        raise NotImplementedError

    @torch.no_grad()
    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        log_p_NV = scores.log_softmax(-1)
        best_NK, ids_NK = log_p_NV.topk(min(self.candidates, scores.shape[1]), dim=-1)
        log_class_NKC = self.after(input_ids, ids_NK)
        shares_NC = row_values(self.shares_BC, len(scores)).to(log_class_NKC)
        strength_N1 = row_values(self.strength_B, len(scores)).unsqueeze(1).to(scores)
        gain_NK = torch.einsum("nc,nkc->nk", shares_NC, log_class_NKC).to(scores)
        # tokens that earlier rules forbid stay forbidden
        weighed_NK = best_NK + strength_N1 * gain_NK
        return torch.full_like(log_p_NV, -torch.inf).scatter(1, ids_NK, weighed_NK)


class _Foreseen(_Candidates):
    """Weights the candidates; a row that grows by a token costs one step of the cell, wherever it moves in the batch.

    Args:
        known: the states [1, H] of the prefixes of the last call; the control keeps them from batch to batch.
    """

    def __init__(self, classifier: FutureClassifier, known: dict[bytes, Tensor], *given: Any) -> None:
        super().__init__(*given)
        self.classifier, self.known = classifier, known

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

    def after(self, input_ids: Tensor, ids_NK: Tensor) -> Tensor:
        state_XH = self._states(input_ids).repeat_interleave(ids_NK.shape[1], dim=0)
        after_XH = self.classifier.step(ids_NK.flatten(), state_XH)
        return self.classifier.head(after_XH).log_softmax(-1).view(*ids_NK.shape, -1)


class _Probed(_Candidates):
    def __init__(self, probe: StateProbe, bare: Any, *given: Any) -> None:
        super().__init__(*given)
        self.probe, self.reader = probe, Reader(bare, likelihood=False)

    def after(self, input_ids: Tensor, ids_NK: Tensor) -> Tensor:
        return self.probe(self.reader.states_after(input_ids, ids_NK, self.probe.block))

"""The n-gram memory: a text's smoothed n-grams mixed into any language model, weighted by how much the text knows.

Two mixtures of the model's p and the n-grams' q, each with a weight w in [0, 1] for every *bucket*: the length of the
longest context found in the text and the binary magnitude of its count:

* linear: (1 - w) p + w q
* product: p^(1 - w) q^w divided by its sum

Both are the model alone at w = 0 and the n-grams alone at w = 1. Weights are fitted on held-out text.

Shape letters: N rows, T prefix tokens, V columns of the scores, K buckets, G weights tried, X targets.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from lit_ctg.control.base import Control, Prefix, Stage, Values
from lit_ctg.core.generation import ControlSetting
from lit_ctg.decoding.ngram import Found, NgramModel, histories
from lit_ctg.decoding.rule import PerRow, ScoreRule, per_row
from lit_ctg.errors import UserError
from lit_ctg.limits import Choice
from lit_ctg.statistics import Interval, interval_of_rows

MIXTURES = ("linear", "product")
MAGNITUDES = 8  # 1, 2 to 3, 4 to 7, ..., 128 and more
# weights to try: the linear mixture needs only the target's probability, the product a sum over the vocabulary
GRIDS = {"linear": torch.linspace(0, 1, 101), "product": torch.linspace(0, 1, 21)}
# pseudo-count of average targets in every bucket: a bucket with few targets takes the weight of all
PRIOR = 20.0
LONGEST_PREFIX = 4  # maximum tokens of context of an n-gram
WINDOWS = 4  # windows of text per forward pass of the model


def buckets(order: int) -> int:
    """Return K, the number of buckets of an n-gram model."""
    return 1 + (order - 1) * MAGNITUDES


def bucket_of(found: Found) -> Tensor:
    """Return the bucket of each row, [N]; 0 where even the last token is unknown."""
    magnitude_N = found.count_B.clamp(min=1).double().log2().floor().long().clamp(max=MAGNITUDES - 1)
    return torch.where(found.length_B > 0, 1 + (found.length_B - 1) * MAGNITUDES + magnitude_N, 0)


def linear(log_p: Tensor, log_q: Tensor, weight: Tensor) -> Tensor:
    """Return log((1 - w) p + w q); exact for w = 0 and w = 1."""
    return torch.logaddexp(torch.log1p(-weight) + log_p, weight.log() + log_q)


def product(log_p: Tensor, log_q: Tensor, weight: Tensor) -> Tensor:
    """Return log p^(1 - w) q^w before normalisation; 0^0 is 1, and what p forbids stays forbidden."""
    ours = torch.where(weight == 1, 0.0, (1 - weight) * log_p)
    theirs = torch.where(weight == 0, 0.0, weight * log_q)
    return (ours + theirs).masked_fill(log_p == -math.inf, -math.inf)


class MemoryRule(ScoreRule):
    """Mixes an n-gram model into the scores.

    What earlier rules forbid (-inf) stays forbidden: the n-grams are renormalised over the rest. A row of strength 0
    keeps its scores. The result is log-probabilities, in float32 for half-precision scores.

    Args:
        ngram: over the ids of the language model; moves to the device of the scores.
        weights: mixture -> weight [K] of every bucket.
        mixture: an index into ``MIXTURES``, or one per row.
        strength: multiplies the weights (at most to 1), one number or one per row.
    """

    def __init__(
        self, ngram: NgramModel, weights: dict[str, Tensor], mixture: PerRow = 0, strength: PerRow = 1.0
    ) -> None:
        self.ngram, self.weights, self.mixture, self.strength = ngram, weights, mixture, strength

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return log-probabilities [N, V] (``UserError``: the scores have fewer tokens than the n-grams)."""
        strength_N1 = per_row(self.strength, scores)
        if bool((strength_N1 == 0).all()):
            return scores
        if self.ngram.base_V.device != scores.device:
            self.ngram.to(scores.device)
        ids_NT = input_ids[:, max(0, input_ids.shape[1] - self.ngram.order + 1) :]
        found = self.ngram.find(ids_NT)
        kind = torch.promote_types(scores.dtype, torch.float32)
        log_p_NV = scores.to(kind).log_softmax(-1)
        log_q_NV = allowed_log_probs(self.ngram.probs(ids_NT, found).to(kind), log_p_NV)
        bucket_N = bucket_of(found)

        def weight(name: str) -> Tensor:
            own_N1 = self.weights[name].to(log_p_NV)[bucket_N].unsqueeze(1)
            return (own_N1 * strength_N1.to(kind)).clamp(max=1)

        mixture_N1 = per_row(self.mixture, scores).expand(len(scores), 1)
        mixed_NV = log_p_NV
        if bool((mixture_N1 == MIXTURES.index("linear")).any()):
            mixed_NV = linear(log_p_NV, log_q_NV, weight("linear"))
        if bool((mixture_N1 == MIXTURES.index("product")).any()):
            multiplied_NV = product(log_p_NV, log_q_NV, weight("product")).log_softmax(-1)
            mixed_NV = torch.where(mixture_N1 == MIXTURES.index("product"), multiplied_NV, mixed_NV)
        off_N1 = strength_N1 == 0
        return torch.where(off_N1, scores.to(kind), mixed_NV) if bool(off_N1.any()) else mixed_NV


def allowed_log_probs(probs_NV: Tensor, log_p_NV: Tensor) -> Tensor:
    """Return log q over the columns of the scores, renormalised where p is not 0.

    Columns beyond the n-gram model's tokens (an enlarged head) have probability 0; a row in which none of q's tokens
    remains takes p.
    """
    missing = log_p_NV.shape[1] - probs_NV.shape[1]
    if missing < 0:
        raise UserError(
            f"the memory has {probs_NV.shape[1]} tokens, the model {log_p_NV.shape[1]}: build it with the model's own"
        )
    probs_NV = torch.nn.functional.pad(probs_NV, (0, missing)) if missing else probs_NV
    if bool((log_p_NV.amin(1) == -math.inf).any()):  # a mask over a vocabulary takes long on a CPU
        probs_NV = probs_NV.masked_fill(log_p_NV == -math.inf, 0.0)
    sum_N1 = probs_NV.sum(1, keepdim=True)
    log_q_NV = probs_NV.log() - sum_N1.log()
    return log_q_NV if bool((sum_N1 > 0).all()) else torch.where(sum_N1 > 0, log_q_NV, log_p_NV)


class Memory(Control):
    """Smoothed n-grams of a text, mixed into the model's distribution; the weight depends on the context's count.

    Args:
        ngram: over the ids of the language model.
        weights: mixture -> weight [K] of every bucket; None (not yet fitted): a quarter everywhere.
        mixture: one of ``MIXTURES``, the default of the setting.
        text: checksum of the text that was counted.

    Raises:
        UserError: weights for another number of buckets, or outside [0, 1].
    """

    kind, stage = "memory", Stage.DISTRIBUTION
    excludes = frozenset({"memory"})
    not_weights = r"ngram\.(context|gram|count)_\d+"

    def __init__(
        self,
        ngram: NgramModel,
        *,
        weights: dict[str, Tensor] | None = None,
        mixture: Annotated[str, Choice(MIXTURES)] = "linear",
        text: str | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        self.fitted = weights is not None
        size = buckets(ngram.order)
        self.ngram, self.text = ngram, text
        self.weights = {each: torch.full((size,), 0.25) for each in MIXTURES} if weights is None else weights
        for each in MIXTURES:
            weight_K = self.weights.get(each)
            if weight_K is None or weight_K.shape != (size,) or not bool(((weight_K >= 0) & (weight_K <= 1)).all()):
                raise UserError(f"the memory's weights of {each} are not {size} numbers from 0 to 1: fit it again")
        self.mixture = mixture

    @property
    def settings(self) -> tuple[ControlSetting, ...]:
        return (
            ControlSetting("strength", "multiplies the fitted weights; 0: the model alone", 1.0, low=0.0),
            ControlSetting("mixture", "how model and n-grams are mixed", self.mixture, choices=MIXTURES),
        )

    def rule(self, values: Values, prefix: Prefix) -> ScoreRule:
        return MemoryRule(self.ngram, self.weights, values["mixture"], values["strength"])

    def config(self) -> dict[str, Any]:
        settings = {"mixture": self.mixture, "fitted": self.fitted, "text": self.text}
        return settings | {"ngram": self.ngram.settings(), "cost": self.costs()}

    def costs(self) -> dict[str, int]:
        """Return how many n-grams of each length are kept."""
        return {str(k + 1): len(getattr(self.ngram, f"gram_{k}")) for k in range(self.ngram.order)}

    def tensors(self) -> dict[str, Tensor]:
        counted = {f"ngram.{name}": value for name, value in self.ngram.state_dict().items()}
        return counted | {f"weight.{name}": value for name, value in self.weights.items()}

    @classmethod
    def restore(cls, config: dict[str, Any], tensors: dict[str, Tensor]) -> Memory:
        ngram = NgramModel.of_state(
            config["ngram"], {name.removeprefix("ngram."): value for name, value in tensors.items()}
        )
        weights = {name: tensors[f"weight.{name}"] for name in MIXTURES} if config["fitted"] else None
        return cls(ngram, weights=weights, mixture=config["mixture"], text=config["text"])


# fitting -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Saved:
    """Costs of held-out targets, nats per token, and what a mixture saves.

    Attributes:
        mixtures: mixture -> cost.
        against_model, against_ngram: mixture -> saving, with the 95% interval over texts.
    """

    tokens: int
    model: float
    ngram: float
    mixtures: dict[str, float]
    against_model: dict[str, tuple[float, Interval | None]]
    against_ngram: dict[str, tuple[float, Interval | None]]


def read_scores(
    model: Any, ids_T: Sequence[int] | np.ndarray, *, context: int, start: Sequence[int] = ()
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield (prefixes [X, T], scores [X, V], targets [X]) of every token of a text except the first.

    The model reads windows of ``context`` tokens that overlap by half, so every token has at least half a window before
    it (as far as the text allows); the n-grams see the whole text. Prefixes are the last tokens before each target.

    Args:
        start: ids with which every window begins, unscored, such as the ``<s>`` that a tokenizer puts before a prompt;
            the windows are shorter by as many.

    Raises:
        UserError: the context has no room for a window after the start.
    """
    ids = torch.as_tensor(np.asarray(ids_T), dtype=torch.long).to(model.device)
    first_S = torch.tensor(list(start), dtype=torch.long, device=ids.device)
    context -= len(first_S)
    if context < 1:
        raise UserError(f"context: give more than the {len(first_S)} tokens that the tokenizer puts before a text")
    before_TK = histories(torch.cat((first_S, ids)), LONGEST_PREFIX)[len(first_S) :]
    last, step = len(ids) - 1, max(1, context // 2)
    starts = [0]
    while starts[-1] + context < last:
        starts.append(starts[-1] + step)
    for at in range(0, len(starts), WINDOWS):
        group = starts[at : at + WINDOWS]
        length = min(context, len(ids) - group[0])
        rows = torch.zeros(len(group), length, dtype=torch.long, device=ids.device)
        for row, begin in enumerate(group):
            part = ids[begin : begin + length]
            rows[row, : len(part)] = part  # padding comes last, where no token sees it
        begun = torch.cat((first_S.expand(len(group), -1), rows), dim=1)
        scores_BTV = model(input_ids=begun).logits[:, len(first_S) :]
        for row, begin in enumerate(group):
            # a window scores what the previous one did not
            first = begin + (context - step if begin else 0)
            places = torch.arange(first, min(begin + context, last), device=ids.device)
            if len(places):
                yield before_TK[places + 1], scores_BTV[row, places - begin], ids[places + 1]


class Fit:
    """Costs of all weights for every bucket, summed over the targets of held-out text."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        size = buckets(memory.ngram.order)
        self.cost = {name: torch.zeros(size, len(grid), dtype=torch.float64) for name, grid in GRIDS.items()}
        self.count_K = torch.zeros(size, dtype=torch.float64)

    def add(self, prefix_XT: Tensor, scores_XV: Tensor, target_X: Tensor) -> None:
        """Add targets; arguments as ``read_scores`` yields them."""
        ngram = self.memory.ngram
        if ngram.base_V.device != scores_XV.device:
            ngram.to(scores_XV.device)
        ids = prefix_XT[:, max(0, prefix_XT.shape[1] - ngram.order + 1) :]
        found = ngram.find(ids)
        log_p_XV = scores_XV.float().log_softmax(-1)
        log_q_XV = allowed_log_probs(ngram.probs(ids, found).float(), log_p_XV)
        hit_X1 = target_X.unsqueeze(1)
        log_p_X, log_q_X = (part.gather(1, hit_X1).squeeze(1) for part in (log_p_XV, log_q_XV))
        cost_XG = {"linear": -linear(log_p_X[:, None], log_q_X[:, None], GRIDS["linear"].to(log_p_X))}
        columns = []
        for weight in GRIDS["product"].to(log_p_X):
            total_X = product(log_p_XV, log_q_XV, weight).logsumexp(-1)
            columns.append(total_X - product(log_p_X, log_q_X, weight))
        cost_XG["product"] = torch.stack(columns, dim=1)
        bucket_X = bucket_of(found).cpu()
        for name, cost in cost_XG.items():
            self.cost[name].index_add_(0, bucket_X, cost.double().cpu())
        self.count_K += torch.bincount(bucket_X, minlength=len(self.count_K))

    def best(self) -> tuple[dict[str, Tensor], str]:
        """Return the best weight [K] of each bucket and mixture, and the mixture that costs less under its weights."""
        if not bool(self.count_K.any()):
            raise UserError("the held-out text has no token to fit on: give more text")
        weights, costs = {}, {}
        for name, cost_KG in self.cost.items():
            average_G = cost_KG.sum(0) / self.count_K.sum()
            column_K = (cost_KG + PRIOR * average_G).argmin(1)
            weights[name] = GRIDS[name][column_K]
            costs[name] = float(cost_KG.gather(1, column_K.unsqueeze(1)).sum())
        return weights, min(MIXTURES, key=costs.__getitem__)


@torch.inference_mode()
def fit(memory: Memory, model: Any, texts: Sequence[np.ndarray], *, context: int, start: Sequence[int] = ()) -> Memory:
    """Return the memory with the weights that make held-out texts most likely, and the better mixture.

    Args:
        model: a Hugging Face causal language model, in evaluation mode.
        texts: ids of each text; none of them may have been counted.
        context: tokens that the model reads at a time.
        start: ids before every window, see ``read_scores``.
    """
    found = Fit(memory)
    for ids_T in texts:
        for part in read_scores(model, ids_T, context=context, start=start):
            found.add(*part)
    weights, mixture = found.best()
    return Memory(memory.ngram, weights=weights, mixture=mixture, text=memory.text, name=memory.name)


@torch.inference_mode()
def saved(memory: Memory, model: Any, texts: Sequence[np.ndarray], *, context: int, start: Sequence[int] = ()) -> Saved:
    """Return what the memory saves on held-out texts, under the rule used in decoding; arguments as in ``fit``.

    Raises:
        UserError: no text has a second token.
    """
    rules = {name: MemoryRule(memory.ngram, memory.weights, MIXTURES.index(name)) for name in MIXTURES}
    sums = []  # per text: tokens, and costs of model, n-grams and mixtures
    for ids_T in texts:
        row = np.zeros(3 + len(rules))
        for prefix_XT, scores_XV, target_X in read_scores(model, ids_T, context=context, start=start):
            each = [scores_XV.float().log_softmax(-1), *(rule(prefix_XT, scores_XV) for rule in rules.values())]
            costs = [-part.double().gather(1, target_X.unsqueeze(1)).sum().item() for part in each]
            order = memory.ngram.order
            alone = memory.ngram.prob_of(prefix_XT[:, max(0, prefix_XT.shape[1] - order + 1) :], target_X)
            row += [len(target_X), costs[0], -alone.double().log().sum().item(), *costs[1:]]
        if row[0]:
            sums.append(row)
    if not sums:
        raise UserError("the held-out text has no token to measure: give more text")
    table = np.stack(sums)
    tokens = table[:, 0].sum()
    means = table.sum(0) / tokens

    def gain(base: int, column: int) -> tuple[float, Interval | None]:
        interval = interval_of_rows(table[:, base] - table[:, column], table[:, 0])
        return float(means[base] - means[column]), interval

    columns = {name: 3 + place for place, name in enumerate(rules)}
    return Saved(
        tokens=int(tokens),
        model=float(means[1]),
        ngram=float(means[2]),
        mixtures={name: float(means[column]) for name, column in columns.items()},
        against_model={name: gain(1, column) for name, column in columns.items()},
        against_ngram={name: gain(2, column) for name, column in columns.items()},
    )

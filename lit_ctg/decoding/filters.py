"""What sampling does with scores: temperature, top-k, nucleus, repetition penalty, greedy choice and drawing.

Every filter is a pure function plus a :class:`~lit_ctg.decoding.rule.ScoreRule` of the same meaning whose parameters
may be one number or one number per row. Shape suffixes: B rows, T prefix tokens, V vocabulary, C columns of noise.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import torch
from torch import Tensor

from lit_ctg.decoding.rule import PerRow, ScoreRule, per_row
from lit_ctg.errors import UserError

MINUS_INFINITY = float("-inf")
# the best tokens among which a nucleus is looked for first: a sort of all is most of the time of a draw
CANDIDATES = 512


def temperature(scores_BV: Tensor, value: PerRow) -> Tensor:
    """Divide the scores by the temperature ``value`` (> 0; 1 changes nothing)."""
    return scores_BV / per_row(value, scores_BV)


def top_k(scores_BV: Tensor, k: int | Sequence[int] | Tensor) -> Tensor:
    """Keep the ``k`` best tokens of each row and those tied with the k-th; ``k <= 0`` keeps all."""
    size = scores_BV.shape[-1]
    # whatever the type of the scores, k is exact in float32
    rows_B0 = scores_BV.new_empty(len(scores_BV), 0, dtype=torch.float32)
    k_B1 = per_row(k, rows_B0).long()
    k_B1 = k_B1.where(k_B1 > 0, size).clamp(max=size).expand(len(scores_BV), 1)
    best_BK = scores_BV.topk(int(k_B1.max()) if len(k_B1) else 0).values
    smallest_kept_B1 = best_BK.gather(-1, k_B1 - 1)
    return scores_BV.masked_fill(scores_BV < smallest_kept_B1, MINUS_INFINITY)


def nucleus(scores_BV: Tensor, p: PerRow, *, keep_crossing: bool) -> Tensor:
    """Keep the most likely tokens of each row up to a mass of ``p``; ``p >= 1`` keeps all.

    Args:
        p: mass, one number or one per row.
        keep_crossing: True is the usual rule, the smallest set with mass >= p. False is the semantic-fusion authors'
            rule: tokens whose cumulative mass is <= p, and always the first, so the token that crosses p is dropped.
    """
    p_B1 = per_row(p, scores_BV.new_empty(len(scores_BV), 0, dtype=torch.promote_types(scores_BV.dtype, torch.float32)))
    whole_B1 = scores_BV.to(p_B1.dtype).logsumexp(dim=-1, keepdim=True)
    size = scores_BV.shape[-1]
    for few in (min(CANDIDATES, size), size):  # the nucleus is nearly always among the best few
        best_BK = scores_BV.topk(few).values
        through_BK = (best_BK.to(p_B1.dtype) - whole_B1).exp().cumsum(dim=-1)
        if few == size or ((through_BK[:, -1:] >= p_B1) & (p_B1 < 1)).all():
            break
    # with p = 1, rounding in the sum must not drop the last token
    keep_BK = (torch.nn.functional.pad(through_BK[:, :-1], (1, 0)) < p_B1) if keep_crossing else through_BK <= p_B1
    keep_BK = keep_BK | (p_B1 >= 1)
    kept_B1 = keep_BK.sum(dim=-1, keepdim=True).clamp(min=1)
    # of equally likely tokens at the border the first ones are kept
    least_B1 = best_BK.gather(-1, kept_B1 - 1)
    tied_B1 = kept_B1 - (best_BK > least_B1).sum(dim=-1, keepdim=True)
    is_tied_BV = scores_BV == least_B1
    if (is_tied_BV.sum(dim=-1, keepdim=True) > tied_B1).any():
        is_tied_BV &= is_tied_BV.cumsum(dim=-1) <= tied_B1
    return scores_BV.masked_fill((scores_BV < least_B1) | ((scores_BV == least_B1) & ~is_tied_BV), MINUS_INFINITY)


def repetition_penalty(
    ids_BT: Tensor,
    scores_BV: Tensor,
    penalty: PerRow,
    *,
    window: int,
    last_ids: Collection[int] = (),
    last_penalty: float = 1.0,
) -> Tensor:
    """Subtract ``log(penalty)`` from a token's score once for each time it is among the last ``window`` ids.

    Args:
        ids_BT: prefixes; every id counts, ``<bos>`` included.
        penalty: >= 1, one number or one per row (1 changes nothing).
        window: number of last ids looked at.
        last_ids: when the last id of a row is one of these ...
        last_penalty: ... a further ``log(last_penalty)`` is subtracted from that id's score.

    Source: semantic fusion, sec. 2 "Controllable decoding" and Appendix A.
    """
    zeros_BV = torch.zeros_like(scores_BV)
    recent_BT = ids_BT[:, -window:] if window > 0 else ids_BT[:, :0]
    count_BV = zeros_BV.scatter_add(-1, recent_BT, torch.ones_like(recent_BT, dtype=scores_BV.dtype))
    changed_BV = scores_BV - count_BV * per_row(penalty, scores_BV).log()
    if not last_ids:
        return changed_BV
    last_B1 = ids_BT[:, -1:]
    listed_B1 = torch.isin(last_B1, torch.tensor(sorted(last_ids), device=ids_BT.device))
    return changed_BV - zeros_BV.scatter(-1, last_B1, listed_B1.to(scores_BV) * np.log(last_penalty))


def greedy(scores_BV: Tensor) -> Tensor:
    """Return the best token of each row, ``[B]``; the smallest id where several are best."""
    best_BV = scores_BV == scores_BV.amax(dim=-1, keepdim=True)
    return best_BV.int().argmax(dim=-1)


def sample(scores_BV: Tensor, uniform_B: Tensor) -> Tensor:
    """Draw one token per row by inverting the cumulative distribution: the first id at which it exceeds u.

    Args:
        scores_BV: logits or log-probabilities; at least one finite score per row.
        uniform_B: numbers in [0, 1), one per row, so that a row's draw does not depend on the other rows.

    Returns:
        ids ``[B]``; never one of probability 0.
    """
    possible_BV = scores_BV > MINUS_INFINITY
    size = int(possible_BV.sum(-1).max()) if len(scores_BV) else 0
    if 0 < 4 * size < scores_BV.shape[-1]:  # after top-k or a nucleus most tokens need no look
        row_X, id_X = possible_BV.nonzero(as_tuple=True)
        rows_B = torch.arange(len(scores_BV), device=row_X.device)
        place_X = torch.arange(len(row_X), device=row_X.device) - torch.searchsorted(row_X, rows_B)[row_X]
        scores_BC = scores_BV.new_full((len(scores_BV), size), MINUS_INFINITY)
        ids_BC = id_X.new_zeros(len(scores_BV), size)
        scores_BC[row_X, place_X], ids_BC[row_X, place_X] = scores_BV[row_X, id_X], id_X
        return ids_BC.gather(-1, _drawn(scores_BC, uniform_B).unsqueeze(-1)).squeeze(-1)
    return _drawn(scores_BV, uniform_B)


def _drawn(scores_BV: Tensor, uniform_B: Tensor) -> Tensor:
    mass_BV = scores_BV.softmax(dim=-1, dtype=torch.promote_types(scores_BV.dtype, torch.float32))
    through_BV = mass_BV.cumsum(dim=-1)
    target_B1 = uniform_B.to(through_BV).unsqueeze(-1) * through_BV[:, -1:]
    drawn_B = (through_BV <= target_B1).sum(dim=-1)
    # a u next to 1 may round up to the whole mass: then take the last possible token
    position_V = torch.arange(scores_BV.shape[-1], device=scores_BV.device)
    last_possible_B = (position_V * (mass_BV > 0)).amax(dim=-1)
    return drawn_B.minimum(last_possible_B)


def row_noise(seed: int, rows: Sequence[int], columns: int) -> Tensor:
    """Return uniform noise ``[len(rows), columns]`` (float64, in [0, 1)); each row is a function of (seed, row) only.

    Longer noise starts with the shorter one, so neither the batch that a row is in nor its length changes its draws.
    The global random state is neither read nor advanced.
    """
    drawn = [np.random.default_rng([seed, row]).random(columns) for row in rows]
    return torch.from_numpy(np.stack(drawn)) if drawn else torch.zeros(0, columns, dtype=torch.float64)


def _checked(value: object, name: str, *, above: bool = True) -> None:
    """Refuse a number, or one of several, that is infinite, NaN or below 0; ``above``: or 0."""
    try:
        numbers = torch.as_tensor(value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{name}={value}: pass a number") from error
    if not bool((numbers.isfinite() & (numbers > 0 if above else numbers >= 0)).all()):
        raise UserError(f"{name}={value}: pass finite numbers {'above' if above else 'from'} 0")


class Temperature(ScoreRule):
    """:func:`temperature` as a rule."""

    def __init__(self, value: PerRow):
        _checked(value, "temperature")
        self.value = value

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return temperature(scores, self.value)


class TopK(ScoreRule):
    """:func:`top_k` as a rule."""

    def __init__(self, k: int | Sequence[int] | Tensor):
        self.k = k

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return top_k(scores, self.k)


class Nucleus(ScoreRule):
    """:func:`nucleus` as a rule."""

    def __init__(self, p: PerRow, *, keep_crossing: bool):
        _checked(p, "top_p", above=False)
        self.p, self.keep_crossing = p, keep_crossing

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return nucleus(scores, self.p, keep_crossing=self.keep_crossing)


class RepetitionPenalty(ScoreRule):
    """:func:`repetition_penalty` as a rule."""

    def __init__(self, penalty: PerRow, *, window: int, last_ids: Collection[int] = (), last_penalty: float = 1.0):
        _checked(penalty, "repetition_penalty")
        _checked(last_penalty, "last_penalty")
        self.penalty, self.window = penalty, window
        self.last_ids, self.last_penalty = tuple(last_ids), last_penalty

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return repetition_penalty(
            input_ids,
            scores,
            self.penalty,
            window=self.window,
            last_ids=self.last_ids,
            last_penalty=self.last_penalty,
        )

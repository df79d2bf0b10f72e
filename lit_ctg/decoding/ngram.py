"""Smoothed n-gram models of a text: counted once, sparse rows of next-token probabilities on any device.

Every context of the text has a place, found from the newest token backwards: a context of k tokens is its suffix of
k - 1 tokens with one more token on the left, so a lookup is one binary search per level, for all rows at once. N-grams
never span two texts. A context that the text lacks is shortened until it is found, so padding on the left of a row (a
token that never occurs as context) has no effect.

Shape letters: B rows, T tokens, V vocabulary, N tokens of the text, D texts, C contexts of one length, G n-grams of one
length (each a context and a token), E entries of some rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lit_ctg.errors import UserError, check_known, check_whole, refuse

SMOOTHINGS = ("kneser_ney", "witten_bell")
ORDERS = (1, 5)
# Kneser-Ney discount for texts too short to estimate it
DISCOUNT = 0.75


@dataclass(frozen=True)
class Found:
    """The longest contexts of some rows that occur in a text.

    Attributes:
        place_BK: place of the row's context of k tokens, k = 0 .. order - 1; -1 where the text lacks it.
        length_B: number of tokens of the longest one that occurs.
        count_B: how often it is followed by a token.
    """

    place_BK: Tensor
    length_B: Tensor
    count_B: Tensor


class NgramModel(nn.Module):
    """Interpolated n-gram model: p(w | h) = value(h w) + rest(h) p(w | h'), h' the context without its oldest token.

    Witten-Bell (Witten and Bell 1991): value = c(h w) / (c(h) + t(h)) and rest = t(h) / (c(h) + t(h)) with t(h) the
    number of different tokens after h. Kneser-Ney (Kneser and Ney 1995, interpolated as in Chen and Goodman 1999):
    value = (c(h w) - d) / c(h) and rest = d t(h) / c(h), where below the highest order c counts the different tokens on
    the left of an n-gram (the start of a text is one) instead of its occurrences. Unigrams back off to the uniform
    distribution, so every token has a probability after every context.

    Attributes:
        size: V.
        tokens: N, the number of tokens counted.
    """

    base_V: Tensor
    gram_0: Tensor
    value_0: Tensor
    rest_0: Tensor
    count_0: Tensor

    def __init__(self, size: int, order: int, smoothing: str, tokens: int, levels: Sequence[Level]) -> None:
        """Take the tables that ``count`` makes; ``state_dict`` holds all of them."""
        super().__init__()
        self.size, self.order, self.smoothing, self.tokens = size, order, smoothing, tokens
        for k, level in enumerate(levels):
            for name, value in vars(level).items():
                self.register_buffer(f"{name}_{k}", value)
        base_V = self.rest_0 / size + torch.zeros(size, dtype=self.value_0.dtype)
        base_V[self.gram_0] += self.value_0
        self.register_buffer("base_V", base_V, persistent=False)

    @classmethod
    def count(
        cls,
        texts: Iterable[Sequence[int] | np.ndarray],
        size: int,
        *,
        order: int,
        smoothing: str = "kneser_ney",
        discount: float | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> NgramModel:
        """Count texts.

        Args:
            size: V.
            order: n, from 1 (no context) to 5.
            discount: d of Kneser-Ney at every order; None estimates n1 / (n1 + 2 n2) at each (Ney et al. 1994), with n1
            and n2 the numbers of n-grams counted once and twice.

        Raises:
            UserError: no token, an unknown order or smoothing, an id outside the vocabulary.
        """
        check_settings(order, smoothing)
        rows = [np.asarray(ids, dtype=np.int64) for ids in texts]
        ids_N = np.concatenate(rows) if rows else np.zeros(0, dtype=np.int64)
        wrong = ids_N[(ids_N < 0) | (ids_N >= size)][:1]
        refuse({
            "there is no text to count: give one of at least one token": not len(ids_N),
            f"the text has token {wrong.sum()}, the vocabulary {size} tokens: they do not belong together": len(wrong),
        })  # fmt: skip
        # how many tokens precede each within its text
        before_N = np.concatenate([np.arange(len(row)) for row in rows])
        levels = []
        place_N = np.zeros(len(ids_N), dtype=np.int64)
        for k in range(order):
            counted = np.flatnonzero(before_N >= k)
            keys_C = np.zeros(1, dtype=np.int64)
            if k:
                keys_C, inverse = np.unique(place_N[counted] * size + ids_N[counted - k], return_inverse=True)
                place_N[counted] = inverse
            level = _Counts.of(ids_N, before_N, place_N, counted, keys_C, k, size)
            levels.append(level.level(smoothing, discount, continued=k < order - 1, dtype=dtype))
        return cls(size, order, smoothing, len(ids_N), levels)

    # probabilities ----------------------------------------------------------------------------------------------------

    def find(self, ids_BT: Tensor) -> Found:
        """Find the contexts of rows of tokens (T may be 0; ids outside the vocabulary occur in no text)."""
        place_B = torch.zeros(len(ids_BT), dtype=torch.long, device=ids_BT.device)
        places, length_B, count_B = [place_B], torch.zeros_like(place_B), self.count_0[place_B]
        for k in range(1, self.order):
            if k > ids_BT.shape[1]:
                places.append(torch.full_like(place_B, -1))
                continue
            left_B, keys_C = ids_BT[:, -k], self._level("context", k)
            known_B = (places[-1] >= 0) & (left_B >= 0) & (left_B < self.size)
            key_B = torch.where(known_B, places[-1] * self.size + left_B, -1)
            place_B = torch.searchsorted(keys_C, key_B).clamp(max=len(keys_C) - 1)
            known_B &= keys_C[place_B] == key_B if len(keys_C) else torch.zeros_like(known_B)
            places.append(torch.where(known_B, place_B, -1))
            length_B = torch.where(known_B, k, length_B)
            if len(keys_C):
                count_B = torch.where(known_B, self._level("count", k)[place_B], count_B)
        return Found(torch.stack(places, dim=1), length_B, count_B)

    def probs(self, ids_BT: Tensor, found: Found | None = None) -> Tensor:
        """Return the probabilities of the next token after each row, [B, V].

        Args:
            found: the result of ``find``, if already known.
        """
        found = self.find(ids_BT) if found is None else found
        scale_B = torch.ones(len(ids_BT), dtype=self.base_V.dtype, device=self.base_V.device)
        entries = []
        for k in range(self.order - 1, 0, -1):
            rows_X = (found.place_BK[:, k] >= 0).nonzero().squeeze(1)
            if not len(rows_X):
                continue
            place_X = found.place_BK[rows_X, k]
            gram_G = self._level("gram", k)
            first_X = torch.searchsorted(gram_G, place_X * self.size)
            many_X = torch.searchsorted(gram_G, (place_X + 1) * self.size) - first_X
            row_E = rows_X.repeat_interleave(many_X)
            within_E = torch.arange(len(row_E), device=row_E.device)
            entry_E = within_E + (first_X - (many_X.cumsum(0) - many_X)).repeat_interleave(many_X)
            entries.append(
                (row_E * self.size + gram_G[entry_E] % self.size, self._level("value", k)[entry_E] * scale_B[row_E])
            )
            scale_B[rows_X] *= self._level("rest", k)[place_X]
        probs_BV = scale_B.unsqueeze(1) * self.base_V
        for index_E, value_E in entries:
            # an index occurs once per level, so the sums do not depend on an order
            probs_BV.view(-1).scatter_add_(0, index_E, value_E)
        return probs_BV

    def prob_of(self, ids_BT: Tensor, target_B: Tensor) -> Tensor:
        """Return the probability of one next token after each row, [B], without computing the others."""
        found = self.find(ids_BT)
        prob_B = self.base_V[target_B]
        for k in range(1, self.order):
            place_B, gram_G = found.place_BK[:, k], self._level("gram", k)
            if not len(gram_G):
                break
            known_B = place_B >= 0
            key_B = place_B * self.size + target_B
            entry_B = torch.searchsorted(gram_G, key_B).clamp(max=len(gram_G) - 1)
            value_B = torch.where(gram_G[entry_B] == key_B, self._level("value", k)[entry_B], 0.0)
            prob_B = torch.where(known_B, value_B + self._level("rest", k)[place_B.clamp(min=0)] * prob_B, prob_B)
        return prob_B

    def nll(self, ids_T: Sequence[int] | np.ndarray | Tensor) -> Tensor:
        """Return the negative log-probability of every token of a text given those before it, [T], nats."""
        ids = torch.as_tensor(np.asarray(ids_T), dtype=torch.long).reshape(-1).to(self.base_V.device)
        return -self.prob_of(histories(ids, self.order - 1), ids).log()

    # storing it ------------------------------------------------------------------------------------------------------

    def settings(self) -> dict[str, Any]:
        """Return plain values from which, with ``state_dict``, ``of_state`` rebuilds the model."""
        return {"size": self.size, "order": self.order, "smoothing": self.smoothing, "tokens": self.tokens}

    @classmethod
    def of_state(cls, settings: dict[str, Any], state: dict[str, Tensor]) -> NgramModel:
        """Return the model that ``settings()`` and ``state_dict()`` describe.

        Raises:
            UserError: the two do not belong together, or are not ours.
        """
        try:
            order = int(settings["order"])
            check_settings(order, str(settings["smoothing"]))
            levels = [Level(**{name: state[f"{name}_{k}"] for name in Level.__annotations__}) for k in range(order)]
            for k, level in enumerate(levels):
                level.check(int(settings["size"]), len(levels[k - 1].rest) if k else 1)
            return cls(int(settings["size"]), order, str(settings["smoothing"]), int(settings["tokens"]), levels)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"these are no counts of an n-gram model ({error!r}): build the memory again") from error

    def _level(self, name: str, k: int) -> Tensor:
        return getattr(self, f"{name}_{k}")


@dataclass
class Level:
    """Tables of the contexts of one length; contexts and n-grams in ascending order.

    Attributes:
        context: [C] place of the suffix times V plus the oldest token.
        gram: [G] place of the context times V plus the token after it.
        value: [G] see ``NgramModel``.
        rest: [C] likewise; [] at length 0.
        count: [C] occurrences of the context that are followed by a token.
    """

    context: Tensor
    gram: Tensor
    value: Tensor
    rest: Tensor
    count: Tensor

    def check(self, size: int, shorter: int) -> None:
        """Refuse indices out of bounds and values that are not probabilities; ``ValueError`` says what."""
        contexts, grams = len(self.rest), len(self.gram)
        if len(self.context) != contexts or len(self.count) != contexts or len(self.value) != grams:
            raise ValueError("tables of different lengths")
        for name, keys, bound in (("context", self.context, shorter * size), ("gram", self.gram, contexts * size)):
            if keys.dtype != torch.long or (len(keys) and not 0 <= int(keys[0]) <= int(keys[-1]) < bound):
                raise ValueError(f"{name} is out of bounds")
            if bool((keys.diff() <= 0).any()):
                raise ValueError(f"{name} is not in order")
        for values in (self.value, self.rest):
            if not values.is_floating_point() or not bool(((values >= 0) & (values <= 1)).all()):
                raise ValueError("a probability is outside [0, 1]")


@dataclass
class _Counts:
    """Counts of the contexts of one length, before smoothing (numpy)."""

    context_C: np.ndarray
    gram_G: np.ndarray
    count_G: np.ndarray
    continuation_G: np.ndarray
    size: int

    @classmethod
    def of(
        cls,
        ids_N: np.ndarray,
        before_N: np.ndarray,
        place_N: np.ndarray,
        counted_X: np.ndarray,
        keys_C: np.ndarray,
        k: int,
        size: int,
    ) -> _Counts:
        gram_G, number_X, count_G = np.unique(
            place_N[counted_X] * size + ids_N[counted_X], return_inverse=True, return_counts=True
        )
        # the token on the left of each n-gram; the start of a text counts as one more
        left_X = np.full(len(counted_X), size, dtype=np.int64)
        inner_X = before_N[counted_X] > k
        left_X[inner_X] = ids_N[counted_X[inner_X] - k - 1]
        pairs = np.unique(number_X * (size + 1) + left_X)
        return cls(keys_C, gram_G, count_G, np.bincount(pairs // (size + 1), minlength=len(gram_G)), size)

    def level(self, smoothing: str, discount: float | None, *, continued: bool, dtype: torch.dtype) -> Level:
        context_G = self.gram_G // self.size
        contexts = len(self.context_C)
        kinds_C = np.bincount(context_G, minlength=contexts)
        occurrences_C = np.bincount(context_G, weights=self.count_G, minlength=contexts)
        if smoothing == "witten_bell":
            sum_C = occurrences_C + kinds_C
            value_G, rest_C = self.count_G / sum_C[context_G], kinds_C / np.maximum(sum_C, 1)
        else:
            count_G = self.continuation_G if continued else self.count_G
            once, twice = (int((count_G == times).sum()) for times in (1, 2))
            if discount is None:
                discount = once / (once + 2 * twice) if once and twice else DISCOUNT
            sum_C = np.maximum(np.bincount(context_G, weights=count_G, minlength=contexts), 1)
            value_G, rest_C = (count_G - discount) / sum_C[context_G], discount * kinds_C / sum_C
        return Level(
            context=torch.from_numpy(self.context_C),
            gram=torch.from_numpy(self.gram_G),
            value=torch.from_numpy(value_G).to(dtype),
            rest=torch.from_numpy(rest_C).to(dtype),
            count=torch.from_numpy(occurrences_C.astype(np.int64)),
        )


def histories(ids_T: Tensor, length: int) -> Tensor:
    """Return the last ``length`` tokens before every token of a text, [T, length], -1 before its start."""
    padded = torch.cat((ids_T.new_full((length,), -1), ids_T))
    return padded.unfold(0, length, 1)[: len(ids_T)] if length else ids_T.new_zeros(len(ids_T), 0)


def check_settings(order: int, smoothing: str) -> None:
    """Refuse an unknown order or smoothing; ``UserError`` names it."""
    check_whole("order", order, ORDERS[0], "tokens of an n-gram", most=ORDERS[1])
    check_known("smoothing", smoothing, SMOOTHINGS)

"""Words of several tokens: a trie of spellings, and states that follow a growing prefix without rereading it.

Shape letters: N rows, T prefix tokens, U nodes, W words, C numbers per word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from lit_ctg.control.base import NO_TOKEN

State = TypeVar("State")
INITIALS = 2


class Running(Generic[State]):
    """The state after each prefix, computed incrementally.

    The states of the last call are cached by their prefixes, so a row that grows by a token costs one token, wherever
    beams move it. States are never changed in place.

    Args:
        advance: (state, following tokens) -> the next state.
    """

    def __init__(self, start: State, advance: Callable[[State, list[int]], State]) -> None:
        self.start, self.advance = start, advance
        self._known: dict[bytes, State] = {}

    def of(self, ids_NT: Tensor) -> list[State]:
        """Return the state of every row; ``NO_TOKEN`` is skipped."""
        found: dict[bytes, State] = {}
        states = []
        for row in ids_NT.cpu().numpy():
            whole = row[row != NO_TOKEN]
            key, before = whole.tobytes(), whole[:-1].tobytes()
            state = found.get(key, self._known.get(key))
            if state is None:
                earlier = self._known.get(before)
                state, rest = (self.start, whole) if earlier is None else (earlier, whole[-1:])
                state = self.advance(state, rest.tolist()) if len(rest) else state
            found[key] = state
            states.append(state)
        self._known = found
        return states


class TokenTrie:
    """Spellings of words as paths through a tree whose node 0 is the root.

    A path starts where a word can start: at a token that begins with a space (``begins_V``), or after one after which
    no word can continue. A token that continues the path is taken to do so; otherwise it starts another path, or none.

    Attributes:
        ends: node -> the words that the path to it spells.
    """

    def __init__(self, begins_V: Tensor | None, open_V: Tensor | None) -> None:
        self._begins = None if begins_V is None else begins_V.tolist()
        self._open = None if open_V is None else open_V.tolist()
        self._continuing: dict[int, Tensor] = {}
        self._children: list[dict[int, int]] = [{}]
        self.ends: list[list[int]] = [[]]
        self.running: Running[tuple[int, bool]] = Running((0, False), self._advance_all)

    @classmethod
    def of(
        cls,
        spellings: Iterable[Iterable[Sequence[int]]],
        begins_V: Tensor | None = None,
        open_V: Tensor | None = None,
    ) -> TokenTrie:
        """Build the trie.

        Args:
            begins_V: tokens that begin a word; None: all tokens (a vocabulary of words).
            open_V: tokens after which a word may continue; None: none.
        """
        made = cls(begins_V, open_V)
        for word, ways in enumerate(spellings):
            for way in ways:
                node = 0
                for token in way:
                    children = made._children[node]
                    if token not in children:
                        children[token] = len(made._children)
                        made._children.append({})
                        made.ends.append([])
                    node = children[token]
                if word not in made.ends[node]:
                    made.ends[node].append(word)
        return made

    def __len__(self) -> int:
        return len(self._children)

    def goes_on(self, token: int) -> bool:
        """Say whether a token continues the word before it, if that word may continue."""
        return self._begins is not None and token < len(self._begins) and not self._begins[token]

    def is_open(self, token: int) -> bool:
        """Say whether a word may continue after a token."""
        return self._open is not None and token < len(self._open) and bool(self._open[token])

    def child(self, node: int, token: int) -> int | None:
        """Return the node that a token leads to, or None."""
        return self._children[node].get(token)

    def _advance_all(self, state: tuple[int, bool], tokens: list[int]) -> tuple[int, bool]:
        node, was_open = state
        for token in tokens:
            following = self.child(node, token) if node else None
            if following is None:
                fresh = not (was_open and self.goes_on(token))
                following = (self.child(0, token) or 0) if fresh else 0
            node, was_open = following, self.is_open(token)
        return node, was_open

    def nodes(self, ids_NT: Tensor) -> list[tuple[int, bool]]:
        """Return each row's node (0: on no path), and whether a word may continue there."""
        return self.running.of(ids_NT)

    def children(self, node: int) -> tuple[Tensor, Tensor]:
        """Return the tokens that continue from a node, and the nodes they lead to."""
        table = self._children[node]
        return torch.tensor(list(table), dtype=torch.long), torch.tensor(list(table.values()), dtype=torch.long)

    def unspelled(self, decode: Callable[[Sequence[int]], str]) -> list[int]:
        """Return the nodes that many other words share: after blanks, some bytes of a word's first character, or its
        first ``INITIALS`` Latin letters, unless they are a word.

        " B" begins "Bland", but also "B&B": a gain there makes a text stammer " B B B", whose next " B" alone loses
        nothing.
        """
        found: list[int] = []
        waiting: list[tuple[int, tuple[int, ...]]] = [(0, ())]
        while waiting:
            node, path = waiting.pop()
            for token, following in self._children[node].items():
                text = decode((*path, token)).replace("\ufffd", "").strip()
                if len(text) <= INITIALS and text.isascii():
                    found += [] if self.ends[following] else [following]
                    waiting.append((following, (*path, token)))
        return found

    def sums(self, values_WC: Tensor) -> Tensor:
        """Return for each node the sum of the values of the spellings that end at or below it, [U, C]."""
        sums_UC, values = np.zeros((len(self), values_WC.shape[1])), values_WC.double().numpy()
        for node, words in enumerate(self.ends):
            for word in words:
                sums_UC[node] += values[word]
        # children have larger indices than their parents
        for node in range(len(self) - 1, -1, -1):
            for following in self._children[node].values():
                sums_UC[node] += sums_UC[following]
        return torch.from_numpy(sums_UC).to(values_WC.dtype)

    def own(self, values_WC: Tensor) -> Tensor:
        """Return for each node the mean value of the words that end there, [U, C]; 0 where none does."""
        own_UC = torch.zeros(len(self), values_WC.shape[1], dtype=values_WC.dtype)
        for node, words in enumerate(self.ends):
            if words:
                own_UC[node] = values_WC[words].mean(0)
        return own_UC

    def means(self, values_WC: Tensor) -> Tensor:
        """Return for each node the mean value over the spellings that end at or below it, [U, C]."""
        ones_W1 = torch.ones(len(values_WC), 1, dtype=values_WC.dtype)
        return self.sums(values_WC) / self.sums(ones_W1).clamp(min=1)

    @property
    def is_end(self) -> Tensor:
        """The nodes at which some word ends, [U] bool."""
        return torch.tensor([bool(words) for words in self.ends])

    def continuing(self, size: int) -> Tensor:
        """Return the tokens that continue a word, [V] bool; those beyond the vocabulary do not."""
        if size not in self._continuing:
            begins = [] if self._begins is None else self._begins
            flags = [not begin for begin in begins[:size]] + [False] * (size - len(begins))
            self._continuing[size] = torch.tensor(flags)
        return self._continuing[size]

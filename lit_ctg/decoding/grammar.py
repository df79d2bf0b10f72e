"""Finite-state grammars over token ids, as one boolean mask and one transition table.

The state of a row is a function of its prefix, so everything here works on ragged batches, under beam search (which
reorders rows) and in Hugging Face's ``generate``. Padding is transparent: it leaves the state unchanged.
Shape suffixes: B rows, T prefix tokens, V vocabulary, S states.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor, nn

from lit_ctg.decoding.rule import ScoreRule
from lit_ctg.errors import UserError

MINUS_INFINITY = float("-inf")


class FiniteStateGrammar:
    """States, and for each state the token classes it allows and the state each of them leads to.

    Args:
        tokens: the vocabulary in id order (for messages and for V).
        classes: token class -> ids. Classes may overlap, unless they lead from one state to different ones.
        transitions: state -> {token class: next state}. ``"VERB/she"`` and ``"VERB/he"`` are two states of the slot
            ``"VERB"``: the part before the slash is the slot that score rules ask for (:meth:`in_slot`).
        end: state after the last token; it allows only padding and is never left.
        pad_id: padding, transparent everywhere.

    Attributes:
        states: names in the order of the tables' rows.
        allowed_SV: ``[S + 1, V]`` bool; row S is the dead state of a prefix outside the grammar and allows nothing.
        next_SV: ``[S + 1, V]`` long.

    Raises:
        ValueError: an unknown class or state, an id outside the vocabulary, or an ambiguous transition.
    """

    def __init__(
        self,
        *,
        tokens: Sequence[str],
        classes: Mapping[str, Collection[int]],
        transitions: Mapping[str, Mapping[str, str]],
        start: str,
        end: str,
        pad_id: int,
    ):
        self.tokens, self.pad_id = tuple(tokens), pad_id
        self.states = (*transitions, end)
        self.start, self.end = start, end
        self._index = {name: i for i, name in enumerate(self.states)}
        self._dead = len(self.states)
        self.allowed_SV, self.next_SV = self._tables(classes, transitions)
        slots = [name.split("/")[0] for name in self.states]
        self._slot_S = {s: torch.tensor([*(s == name for name in slots), False]) for s in dict.fromkeys(slots)}
        self._on_device: dict[tuple[str, torch.device], Tensor] = {}
        self._memo: tuple[Tensor, Tensor] | None = None

    def _tables(
        self, classes: Mapping[str, Collection[int]], transitions: Mapping[str, Mapping[str, str]]
    ) -> tuple[Tensor, Tensor]:
        size = len(self.tokens)
        if self.start not in self._index or self.end in transitions:
            raise ValueError(f"start {self.start!r} must have transitions and end {self.end!r} none")
        following = torch.full((len(self.states) + 1, size), self._dead)
        for state, arrows in transitions.items():
            for name, target in arrows.items():
                if name not in classes or target not in self._index:
                    raise ValueError(f"state {state!r}: unknown class {name!r} or state {target!r}")
                for token in classes[name]:
                    if not 0 <= token < size or token == self.pad_id:
                        raise ValueError(f"class {name!r}: id {token} is padding or outside the {size} tokens")
                    if following[self._index[state], token] not in (self._dead, self._index[target]):
                        raise ValueError(f"state {state!r} is left for two states by {self.tokens[token]!r}")
                    following[self._index[state], token] = self._index[target]
        allowed = following != self._dead
        allowed[self._index[self.end], self.pad_id] = True
        following[:, self.pad_id] = torch.arange(len(self.states) + 1)
        following[self._index[self.end]] = self._index[self.end]  # generators differ in their padding token
        return allowed, following

    def _table(self, name: str, table: Tensor, like: Tensor) -> Tensor:
        """Return the table on the device of ``like``, copied there once."""
        if table.device == like.device:
            return table
        key = (name, like.device)
        if key not in self._on_device:
            with torch.inference_mode(False):  # a copy made during generation must stay usable under autograd
                self._on_device[key] = table.to(like.device)
        return self._on_device[key]

    def advance(self, states_B: Tensor, ids_B: Tensor) -> Tensor:
        """Return the states ``[B]`` after one more token per row."""
        return self._table("next", self.next_SV, ids_B)[states_B, ids_B]

    def states_after(self, ids_BT: Tensor) -> Tensor:
        """Return the state index ``[B]`` of each prefix; ``len(states)`` for a prefix outside the grammar.

        The last answer is cached with its prefixes, so that extending the same batch by a token costs one step.
        """
        memo = self._memo
        if memo is not None and memo[0].device == ids_BT.device and memo[0].shape[0] == ids_BT.shape[0]:
            known_BT, states_B = memo
            length = known_BT.shape[1]
            if length <= ids_BT.shape[1] and torch.equal(known_BT, ids_BT[:, :length]):
                return self._remember(ids_BT, self._run(states_B, ids_BT[:, length:]))
        first_B = torch.full((ids_BT.shape[0],), self._index[self.start], device=ids_BT.device)
        return self._remember(ids_BT, self._run(first_B, ids_BT))

    def _run(self, states_B: Tensor, ids_BT: Tensor) -> Tensor:
        for ids_B in ids_BT.unbind(dim=1):
            states_B = self.advance(states_B, ids_B)
        return states_B

    def _remember(self, ids_BT: Tensor, states_B: Tensor) -> Tensor:
        if self._memo is None or self._memo[0].shape != ids_BT.shape or not self._memo[0].equal(ids_BT):
            self._memo = (ids_BT.clone(), states_B)  # cloned because the caller may overwrite its buffer
        return states_B

    def state_after(self, ids: Sequence[int]) -> str:
        """Return the name of the state that ``ids`` reach.

        Raises:
            UserError: the ids leave the grammar or the vocabulary; names the token, the state and what was expected.
        """
        state = self._index[self.start]
        for position, token in enumerate(ids):
            if not 0 <= token < len(self.tokens):
                raise UserError(
                    f"prompt: id {token} (token {position}, counting from 0) is outside the vocabulary of "
                    f"{len(self.tokens)} tokens"
                )
            if token != self.pad_id and not self.allowed_SV[state, token]:
                name = self.states[state]
                raise UserError(
                    f"prompt: {self.tokens[token]!r} (token {position}, counting from 0) does not fit the grammar in "
                    f"state {name}: expected {self._expectation(name)}"
                )
            state = int(self.next_SV[state, token])
        return self.states[state]

    def expected(self, state: str) -> tuple[str, ...]:
        """Return the tokens that ``state`` allows (padding left out), in id order."""
        ids = self.allowed_SV[self._index[state]].nonzero().flatten().tolist()
        return tuple(self.tokens[i] for i in ids if i != self.pad_id)

    def _expectation(self, state: str) -> str:
        words = [repr(word) for word in self.expected(state)]
        if not words:
            return "nothing more"
        return words[0] if len(words) == 1 else f"one of {', '.join(words)}"

    def has_slot(self, slot: str) -> bool:
        """Return whether some state fills ``slot``."""
        return slot in self._slot_S

    def in_slot(self, ids_BT: Tensor, slot: str) -> Tensor:
        """Return ``[B]`` bool: the next token of the row fills ``slot`` (``"ADJ"`` also means ``"ADJ/..."``).

        Raises:
            KeyError: the grammar has no such slot.
        """
        return self._table(slot, self._slot_S[slot], ids_BT)[self.states_after(ids_BT)]

    def allowed(self, ids_BT: Tensor, width: int | None = None) -> Tensor:
        """Return ``[B, V]`` bool: the tokens that may follow each prefix (all False outside the grammar).

        Args:
            width: V, where a model's head has more rows than there are tokens.
        """
        allowed_BV = self._table("allowed", self.allowed_SV, ids_BT)[self.states_after(ids_BT)]
        more = 0 if width is None else width - allowed_BV.shape[1]
        return nn.functional.pad(allowed_BV, (0, more), value=False)


class GrammarMask(ScoreRule):
    """Set to ``-inf`` every token that the grammar does not allow after the row's prefix.

    Args:
        pad_id: a row outside the grammar that ends with this token keeps its scores: it is over, padded somewhere in a
            sentence while others continue.

    Raises:
        UserError: a row's prefix is outside the grammar (a row without an allowed token has no distribution).
    """

    def __init__(self, grammar: FiniteStateGrammar, pad_id: int | None = None):
        self.grammar, self.pad_id = grammar, pad_id

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        allowed_BV = self.grammar.allowed(input_ids, scores.shape[1])
        outside_B = ~allowed_BV.any(dim=-1)
        if self.pad_id is not None:
            over_B = outside_B & (input_ids[:, -1] == self.pad_id)
            allowed_BV, outside_B = allowed_BV | over_B.unsqueeze(1), outside_B & ~over_B
        if bool(outside_B.any()):
            row = int(outside_B.nonzero()[0])
            self.grammar.state_after(input_ids[row].tolist())
        return scores.masked_fill(~allowed_BV, MINUS_INFINITY)

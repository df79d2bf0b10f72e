"""Occurrences of class tokens in text, and the evidence that a micro-model may use there: only preceding text.

Shape letters: B rows, T positions, C classes, N occurrences, W window.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from lit_ctg.papers.nslm.classes import ClassTable, InConversion, Recogniser, class_table

CHUNK = 1 << 20


@dataclass(frozen=True)
class Evidence:
    """A micro-model's evidence at N positions, for one class.

    Attributes:
        previous_N: the most recent earlier member of the class in the same document (its index among the members),
            -1 where there is none.
        source_value_N, source_unit_N: the quantity to convert (``UnitTable`` index), NaN and -1 where there is none.
    """

    previous_N: np.ndarray
    source_value_N: np.ndarray
    source_unit_N: np.ndarray

    def __len__(self) -> int:
        return len(self.previous_N)

    def where(self, chosen_N: np.ndarray) -> Evidence:
        """Return the evidence at some of the positions (bool or indices)."""
        return Evidence(self.previous_N[chosen_N], self.source_value_N[chosen_N], self.source_unit_N[chosen_N])

    @classmethod
    def of_previous(cls, previous: Sequence[int] | np.ndarray) -> Evidence:
        """Return evidence of only previous members."""
        previous_N = np.asarray(previous)
        return cls(previous_N, np.full(len(previous_N), np.nan), np.full(len(previous_N), -1))


@dataclass(frozen=True)
class Occurrences:
    """Class tokens of a text (targets), in order.

    Attributes:
        position_N: positions of the targets in the (flattened) text.
        index_N: their indices among the members of their class.
        evidence: at each of them; ``previous_N`` refers to members of the occurrence's own class.
    """

    position_N: np.ndarray
    class_N: np.ndarray
    index_N: np.ndarray
    evidence: Evidence

    def __len__(self) -> int:
        return len(self.class_N)

    def of(self, number: int) -> Occurrences:
        """Return the occurrences of one class."""
        return self.where(self.class_N == number)

    def where(self, chosen_N: np.ndarray) -> Occurrences:
        """Return some of the occurrences (bool or indices)."""
        part = self.evidence.where(chosen_N)
        return Occurrences(self.position_N[chosen_N], self.class_N[chosen_N], self.index_N[chosen_N], part)

    @classmethod
    def from_documents(cls, ids_T: np.ndarray, begin_N: np.ndarray, table: ClassTable) -> Occurrences:
        """Find the class tokens of a text.

        Args:
            begin_N: where documents begin (optionally followed by the end), ascending.
        """
        tracker, parts, carry = ContextTracker(table), [], None
        for start in range(0, len(ids_T) - 1, CHUNK):
            stop = min(start + CHUNK, len(ids_T) - 1)
            places_T = np.arange(start + 1, stop + 1)
            document_BT = (np.searchsorted(begin_N, places_T, side="right") - 1)[None]
            contexts, carry = tracker.read(np.asarray(ids_T[start:stop])[None], document_BT, carry)
            part = contexts.occurrences(np.asarray(ids_T[start + 1 : stop + 1])[None])
            parts.append(Occurrences(part.position_N + start + 1, part.class_N, part.index_N, part.evidence))
        return cls.join(parts)

    @classmethod
    def join(cls, parts: Sequence[Occurrences]) -> Occurrences:
        def together(rows: Sequence[Any], name: str) -> np.ndarray:
            return np.concatenate([getattr(row, name) for row in rows] or [np.empty(0, dtype=int)])

        own = [part.evidence for part in parts]
        evidence = Evidence(*(together(own, field.name) for field in fields(Evidence)))
        return cls(together(parts, "position_N"), together(parts, "class_N"), together(parts, "index_N"), evidence)


def occurring(
    tokens: Sequence[str], recognisers: Sequence[Recogniser], find: Callable[[ClassTable], Occurrences]
) -> tuple[ClassTable, Occurrences, list[str]]:
    """Return the table of the classes that occur in a text, their occurrences, and the names of the other classes.

    The tokens of an omitted class return to other classes: if no day occurs, a number after a month is a plain number.

    Args:
        find: returns the occurrences of a table's classes in the text.
    """
    kept = list(recognisers)
    absent: list[str] = []
    while True:
        table = class_table(tokens, kept)
        found = find(table)
        counts_C = np.bincount(found.class_N, minlength=len(table))
        empty = [name for name, count in zip(table.names, counts_C, strict=True) if not count]
        if not empty:
            return table, found, absent
        absent += empty
        kept = [recogniser for recogniser in kept if recogniser.name not in empty]


@dataclass(frozen=True)
class Contexts:
    """The contexts of each target of a batch.

    Attributes:
        previous_BTC: last earlier member of each class in the target's document, -1 for none.
    """

    table: ClassTable
    state_BT: np.ndarray
    previous_BTC: np.ndarray
    source_value_BT: np.ndarray
    source_unit_BT: np.ndarray

    def evidence(self, number: int, chosen_BT: np.ndarray) -> Evidence:
        """Return the evidence for one class at the chosen positions (bool), row by row."""
        previous_N = self.previous_BTC[chosen_BT][:, number]
        return Evidence(previous_N, self.source_value_BT[chosen_BT], self.source_unit_BT[chosen_BT])

    def class_of(self, target_BT: np.ndarray) -> np.ndarray:
        """Return the class of each target, -1 for none."""
        return self.table.class_of_SV[self.state_BT, target_BT]

    def occurrences(self, target_BT: np.ndarray, mask_BT: np.ndarray | None = None) -> Occurrences:
        """Return the class tokens among the (unmasked) targets; positions count in the flattened batch."""
        class_BT = self.class_of(target_BT)
        chosen_BT = class_BT >= 0 if mask_BT is None else (class_BT >= 0) & mask_BT
        class_N = class_BT[chosen_BT]
        index_N = self.table.index_CV[class_N, target_BT[chosen_BT]]
        previous_N = self.previous_BTC[chosen_BT][np.arange(len(class_N)), class_N]
        evidence = Evidence(previous_N, self.source_value_BT[chosen_BT], self.source_unit_BT[chosen_BT])
        return Occurrences(np.flatnonzero(chosen_BT), class_N, index_N, evidence)


@dataclass(frozen=True)
class Carry:
    """State from one batch to the next of the same streams: last tokens, last members, last document."""

    history_BW: np.ndarray
    previous_BC: np.ndarray
    document_B: np.ndarray


class ContextTracker:
    """Reads the inputs of streams batch by batch and returns the contexts of each target.

    Args:
        table: the classes, with their left contexts.
    """

    def __init__(self, table: ClassTable) -> None:
        self.table = table
        self.window = max((context.window for context in table.contexts), default=0)

    def start(self, rows: int) -> Carry:
        """Return the initial carry of streams."""
        history_BW = np.full((rows, self.window), -1)
        return Carry(history_BW, np.full((rows, len(self.table)), -1), np.full(rows, -1))

    def read(
        self,
        input_BT: np.ndarray,
        document_BT: np.ndarray | None = None,
        carry: Carry | None = None,
        reset_B: np.ndarray | None = None,
    ) -> tuple[Contexts, Carry]:
        """Return the contexts of the target at each position (the token after the input there), and the carry.

        Args:
            document_BT: document of each target; members of an earlier document are forgotten. None: one document.
            carry: of the previous batch; None at the start of streams.
        """
        input_BT = np.asarray(input_BT, dtype=np.int64)
        carry = self.start(len(input_BT)) if carry is None else carry
        if reset_B is not None and reset_B.any():
            keep_B1 = ~np.asarray(reset_B, dtype=bool)[:, None]
            carry = Carry(
                np.where(keep_B1, carry.history_BW, -1),
                np.where(keep_B1, carry.previous_BC, -1),
                np.where(keep_B1[:, 0], carry.document_B, -1),
            )
        document_BT = np.zeros_like(input_BT) if document_BT is None else np.asarray(document_BT)
        state_BT, value_BT, unit_BT, history_BW = self._states(input_BT, carry)
        rows, length = input_BT.shape
        place_T = np.arange(length)
        before_BT = np.concatenate([carry.document_B[:, None], document_BT[:, :-1]], axis=1)
        # a new stream (-1) is in the document of its first target
        changed_BT = (document_BT != before_BT) & (before_BT >= 0)
        start_BT = np.maximum.accumulate(np.where(changed_BT, place_T + 1, 0), axis=1)
        previous_BTC = np.empty((rows, length, len(self.table)), dtype=np.int64)
        for number in range(len(self.table)):
            index_BT = self.table.index_CV[number][input_BT]
            last_BT = np.maximum.accumulate(np.where(index_BT >= 0, place_T, -1), axis=1)
            found_BT = np.take_along_axis(index_BT, np.maximum(last_BT, 0), axis=1)
            carried_BT = np.where(start_BT == 0, carry.previous_BC[:, [number]], -1)
            seen_BT = (last_BT >= start_BT) & (last_BT >= 0)
            previous_BTC[:, :, number] = np.where(seen_BT, found_BT, carried_BT)
        contexts = Contexts(self.table, state_BT, previous_BTC, value_BT, unit_BT)
        return contexts, Carry(history_BW, previous_BTC[:, -1], document_BT[:, -1])

    def _states(self, input_BT: np.ndarray, carry: Carry) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return state_BT, source_value_BT, source_unit_BT and the new history."""
        joined_BT = np.concatenate([carry.history_BW, input_BT], axis=1)
        state_BT = np.zeros(joined_BT.shape, dtype=np.int64)
        value_BT, unit_BT = np.full(joined_BT.shape, np.nan), np.full(joined_BT.shape, -1)
        for number, context in reversed(list(enumerate(self.table.contexts, start=1))):
            if isinstance(context, InConversion):
                value_BT, unit_BT = context.sources(joined_BT)
                state_BT[unit_BT >= 0] = number
            else:
                state_BT[context.active(joined_BT)] = number
        history_BW = joined_BT[:, joined_BT.shape[1] - self.window :]
        return state_BT[:, self.window :], value_BT[:, self.window :], unit_BT[:, self.window :], history_BW

"""Which token of a vocabulary is in which class, and after what.

Shape letters: V vocabulary, C classes, S left-context states, K members of one class, D numbers that describe a member.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lit_ctg.errors import UserError
from lit_ctg.papers.nslm.context import LeftContext
from lit_ctg.papers.nslm.recogniser import Recogniser

PLAIN = "plain"


@dataclass(frozen=True)
class ClassMembers:
    """The vocabulary of one class.

    Attributes:
        name: of the class.
        ids_K: token ids, ascending.
        tokens: their texts.
        attributes_KD: what the metric functions read: value, or latitude and longitude (degrees).
        metrics, densities: names of the candidates.
        unit: of errors of guesses (``Recogniser``).
    """

    name: str
    ids_K: np.ndarray
    tokens: tuple[str, ...]
    attributes_KD: np.ndarray
    metrics: tuple[str, ...]
    densities: tuple[str, ...]
    unit: str | None = None

    def __len__(self) -> int:
        return len(self.ids_K)


@dataclass(frozen=True)
class ClassTable:
    """Classes of a vocabulary.

    In state s (left context, 0 is "plain") the token v has the class ``class_of_SV[s, v]``; a class is available in a
    state with all its members or with none (``available_SC``), so P_tag restricted to the available classes times a
    normalised distribution over members sums to 1 over the vocabulary.

    Attributes:
        classes: members of each class, in the order of the recognisers; empty classes are left out.
        contexts: the left contexts, bound to the vocabulary; where several are active the first counts.
        class_of_SV: class of each token in each state, -1 for none.
        index_CV: place of a token among the members of a class, -1 where it is none.
        available_SC: whether a class exists in a state.
    """

    classes: tuple[ClassMembers, ...]
    contexts: tuple[LeftContext, ...]
    class_of_SV: np.ndarray
    index_CV: np.ndarray
    available_SC: np.ndarray

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the classes."""
        return tuple(members.name for members in self.classes)

    @property
    def states(self) -> tuple[str, ...]:
        """Names of the left-context states."""
        return (PLAIN, *(context.name for context in self.contexts))

    @property
    def class_of_V(self) -> np.ndarray:
        """Class of each token outside all special contexts, -1 for none."""
        return self.class_of_SV[0]

    @property
    def any_class_V(self) -> np.ndarray:
        """Whether a token is in some class: these are the tokens that the tagged vocabulary replaces (bool)."""
        return (self.index_CV >= 0).any(0)

    def __len__(self) -> int:
        return len(self.classes)

    @classmethod
    def build(
        cls, tokens: Sequence[str], recognisers: Sequence[Recogniser], contexts: Sequence[LeftContext] = ()
    ) -> ClassTable:
        """Sort a vocabulary into classes.

        Args:
            tokens: texts of the vocabulary, by id.
            recognisers: in a state, the classes bound to it come first, then the unbound ones; the first match wins.
            contexts: the left contexts that classes are bound to, most urgent first.

        Raises:
            UserError: two classes of one name, a context that does not exist, or a class of which only a part is
                available in some state.
        """
        names = [recogniser.name for recogniser in recognisers]
        if len(set(names)) < len(names):
            raise UserError(f"two classes have the same name among {', '.join(names)}: rename one")
        states = (PLAIN, *(context.name for context in contexts))
        for recogniser in recognisers:
            if recogniser.context is not None and recogniser.context not in states:
                known = ", ".join(states)
                raise UserError(
                    f"class '{recogniser.name}' is bound to the context '{recogniser.context}'; there are: {known}"
                )
        for context in contexts:
            context.bind(tokens)
        attributes = [[recogniser.attributes(token) for token in tokens] for recogniser in recognisers]
        matches_RV = np.array([[found is not None for found in row] for row in attributes], dtype=bool)
        matches_RV = matches_RV.reshape(len(recognisers), len(tokens))
        class_of_SV = np.full((len(states), len(tokens)), -1)
        for state, name in enumerate(states):
            bound = [number for number, recogniser in enumerate(recognisers) if recogniser.context == name]
            unbound = [number for number, recogniser in enumerate(recognisers) if recogniser.context is None]
            for number in bound + unbound:
                free_V = (class_of_SV[state] < 0) & matches_RV[number]
                class_of_SV[state, free_V] = number
        return cls._collect(tokens, recognisers, attributes, tuple(contexts), class_of_SV)

    @classmethod
    def _collect(
        cls,
        tokens: Sequence[str],
        recognisers: Sequence[Recogniser],
        attributes: Sequence[Sequence[tuple[float, ...] | None]],
        contexts: tuple[LeftContext, ...],
        class_of_SV: np.ndarray,
    ) -> ClassTable:
        states = (PLAIN, *(context.name for context in contexts))
        classes, kept = [], []
        for number, recogniser in enumerate(recognisers):
            ids_K = np.flatnonzero((class_of_SV == number).any(0))
            for state, name in enumerate(states):
                count = int((class_of_SV[state] == number).sum())
                if count not in (0, len(ids_K)):
                    raise UserError(
                        f"class '{recogniser.name}' has {len(ids_K)} members but {count} of them in the context "
                        f"'{name}': another class takes the rest there; make the two disjoint or cover all of it"
                    )
            if len(ids_K):
                kept.append(number)
                described = np.array([attributes[number][v] for v in ids_K], dtype=np.float64)
                texts = tuple(tokens[v] for v in ids_K)
                candidates = recogniser.metrics, recogniser.densities
                classes.append(ClassMembers(recogniser.name, ids_K, texts, described, *candidates, recogniser.unit))
        renumber = np.full(len(recognisers) + 1, -1)
        renumber[kept] = np.arange(len(kept))
        class_of_SV = renumber[class_of_SV]
        index_CV = np.full((len(classes), len(tokens)), -1)
        for number, members in enumerate(classes):
            index_CV[number, members.ids_K] = np.arange(len(members))
        available_SC = np.zeros((len(states), len(classes)), dtype=bool)
        for number in range(len(classes)):
            available_SC[:, number] = (class_of_SV == number).any(1)
        return cls(tuple(classes), contexts, class_of_SV, index_CV, available_SC)

"""Micro-models from classes and texts alone: no run, no vocabulary of words, any tokenizer.

    classes = {"year": make_recogniser("year", {"pattern": "1[0-9]{3}|20[0-9]{2}", "metrics": ["difference"],
                                                "densities": ["gaussian", "mixture"]})}
    control = micro_models(classes, train, validation)
    control.fit_strength(model, tokenizer, validation)

Texts are split into words as the control splits a prefix (``control.PIECES``). The control spells the members in the
model's tokens. A vocabulary of words is the case of one token a member.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lit_ctg.errors import UserError
from lit_ctg.papers.nslm.classes import ClassTable, Recogniser, class_table
from lit_ctg.papers.nslm.control import PIECES, MicroModels, carried
from lit_ctg.papers.nslm.gazetteer import JOINER
from lit_ctg.papers.nslm.occurrences import Occurrences
from lit_ctg.papers.nslm.selection import AnyModel, Selection, select

# whole numbers below this are words of the vocabulary whether or not a text has them
NUMBERS = 3000


@dataclass(frozen=True)
class Fitted:
    """What texts say about classes.

    Attributes:
        table: the classes over the words of the texts.
        selection: the micro-models that were tried.
        counts: class -> occurrences in the training texts; ``members``: class -> those of each member.
        others: how often each other word occurs that begins like some member.
        phrases: the listed members of several words, as written and as one word.
    """

    table: ClassTable
    selection: Selection
    counts: Mapping[str, float]
    members: Mapping[str, np.ndarray]
    others: Mapping[str, int]
    phrases: Mapping[str, str]

    def control(self, models: Mapping[str, AnyModel]) -> MicroModels:
        """Return the control with one micro-model a class, at strength 1."""
        return MicroModels(carried(self.table, models, self.counts), weight=1.0, others=self.others)


def fit(
    classes: Mapping[str, Recogniser],
    train: Iterable[str],
    validation: Iterable[str],
    *,
    blend: bool = True,
    bases: Sequence[str] = ("uniform",),
) -> Fitted:
    """Fit the micro-models of classes; arguments and errors are those of ``micro_models``."""
    phrases = {
        member.replace(JOINER, " "): member.replace(" ", JOINER) for each in classes.values() for member in each.listed
    }
    documents = [[_words(text, phrases) for text in texts] for texts in (train, validation)]
    counts = Counter(word for texts in documents for words in texts for word in words)
    tokens = list(dict.fromkeys([*counts, *phrases.values(), *map(str, range(NUMBERS))]))
    place = {word: number for number, word in enumerate(tokens)}
    streams = [_stream(texts, place) for texts in documents]
    table = class_table(tokens, classes.values())
    found = Occurrences.from_documents(*streams[0], table)
    seen = {table.names[number] for number in found.class_N}
    if missing := [name for name in classes if name not in seen]:
        raise UserError(
            f"class {missing[0]}: no training text has a member; give texts that have some, or other members"
        )
    held_out = Occurrences.from_documents(*streams[1], table)
    selection = select(table, found, held_out, blend=blend, bases=bases)
    letters = {text[:1] for members in table.classes for text in members.tokens}
    others = {
        word: count for word, count in counts.items() if word[:1] in letters and not table.any_class_V[place[word]]
    }
    own = {name: found.index_N[found.class_N == number] for number, name in enumerate(table.names)}
    members = {each.name: np.bincount(own[each.name], minlength=len(each)).astype(np.int64) for each in table.classes}
    return Fitted(table, selection, {name: float(len(of)) for name, of in own.items()}, members, others, phrases)


def micro_models(
    classes: Mapping[str, Recogniser],
    train: Iterable[str],
    validation: Iterable[str],
    *,
    blend: bool = True,
) -> MicroModels:
    """Fit the micro-models of classes on texts; call ``fit_strength`` of the result with a model for its strength.

    Members are the words of the texts and the whole numbers below ``NUMBERS`` that a class recognises, and the members
    that a class lists. A listed member of several words is one word.

    Args:
        classes: by name, the first match first.
        train: one document each; the micro-models are fitted on them.
        validation: one document each; the pair of metric and density is chosen on them.
        blend: mix all pairs of a class; False: the best pair, as the paper.

    Raises:
        UserError: a class has no member, or no text has one.
    """
    fitted = fit(classes, train, validation, blend=blend)
    return fitted.control(fitted.selection.models)


def _words(text: str, phrases: Mapping[str, str]) -> list[str]:
    several = sorted((phrase for phrase in phrases if " " in phrase), key=len, reverse=True)
    if several:
        pattern = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, several))})(?!\w)")
        text = pattern.sub(lambda match: phrases[match[0]], text)
    return PIECES.findall(text)


def _stream(texts: Sequence[Sequence[str]], place: Mapping[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids of all documents and where each begins."""
    ids_T = np.array([place[word] for words in texts for word in words], dtype=np.int64)
    return ids_T, np.cumsum([0, *map(len, texts)])[:-1]

"""The fixed vocabulary of the clause corpus (semantic fusion, sec. 3.1): 41 tokens, their groups and meaning."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping
from typing import Any

from lit_ctg.errors import UserError, did_you_mean

SUBJECTS = ("Alice", "Bob", "Carol", "Dave", "Eve")
VERBS = ("finishes", "reviews", "trains", "starts", "cooks")
OBJECTS = ("task", "paper", "model", "project", "meal")
INTENSIFIERS = ("slightly", "moderately", "very", "extremely")
POSITIVE = ("good", "great", "excellent", "pleasant", "wonderful")
NEGATIVE = ("bad", "poor", "terrible", "unpleasant", "awful")
PUNCTUATION = (".", "!", "?")
CONJUNCTIONS = ("and", "but")
PRONOUNS = ("she", "he")

# insertion order of the groups is the order of a sentence's slots; ids(group) keeps the order of the words here
GROUPS: dict[str, tuple[str, ...]] = {
    "subject": SUBJECTS,
    "verb": VERBS,
    "the": ("the",),
    "object": OBJECTS,
    "comma": (",",),
    "intensifier": INTENSIFIERS,
    "adjective_positive": POSITIVE,
    "adjective_negative": NEGATIVE,
    "punctuation": PUNCTUATION,
    "conjunction": CONJUNCTIONS,
    "pronoun": PRONOUNS,
}
SPECIALS = ("<pad>", "<bos>", "<eos>")


class ClauseVocabulary:
    """Three specials and the 38 words of the corpus in Python's sort order.

    Attributes:
        tokens: the 41 tokens by id; ``<pad>``, ``<bos>``, ``<eos>`` are 0, 1, 2 (``pad_id``, ``bos_id``, ``eos_id``).
        polarity: +1 or -1 for each of the ten adjectives.
        intensity: strength in (0, 1] of each intensifier (the paper's strength map).
        pronoun_of: the pronoun that takes up each subject.
    """

    def __init__(self) -> None:
        self.tokens = SPECIALS + tuple(sorted(word for words in GROUPS.values() for word in words))
        self.pad_id, self.bos_id, self.eos_id = 0, 1, 2
        self.polarity = {**dict.fromkeys(POSITIVE, 1), **dict.fromkeys(NEGATIVE, -1)}
        self.intensity = {"slightly": 0.2, "moderately": 0.5, "very": 0.8, "extremely": 1.0}
        self.pronoun_of = {"Alice": "she", "Bob": "he", "Carol": "she", "Dave": "he", "Eve": "she"}
        self._id = {token: index for index, token in enumerate(self.tokens)}
        self._folded = {token.lower(): token for token in self.tokens}

    def __len__(self) -> int:
        return len(self.tokens)

    def id(self, token: str) -> int:
        """Return the id of one token, spelled exactly.

        Raises:
            UserError: the token is not one of the 41.
        """
        if token not in self._id:
            raise UserError(f"'{token}' is not a token of the clause corpus{did_you_mean(token, self.tokens)}")
        return self._id[token]

    def ids(self, group: str) -> tuple[int, ...]:
        """Return the ids of a grammar group, in the paper's order of words (e.g. slightly before extremely).

        Raises:
            UserError: no such group.
        """
        if group not in GROUPS:
            raise UserError(f"'{group}' is no token group of the clause corpus{did_you_mean(group, GROUPS)}")
        return tuple(self._id[word] for word in GROUPS[group])

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text's words and marks, without ``<bos>`` and ``<eos>``; letter case does not matter.

        Raises:
            UserError: a word or sign that is not in the vocabulary; names it.
        """
        ids = []
        for piece in re.findall(r"[A-Za-z]+|[^\sA-Za-z]", text):
            token = self._folded.get(piece.lower())
            if token is None:
                hint = did_you_mean(piece.lower(), self._folded)
                raise UserError(f"'{piece}' in the text '{text}' is not in the clause corpus's vocabulary{hint}")
            ids.append(self._id[token])
        return ids

    def decode(self, ids: Iterable[Any]) -> str:
        """Return the text of some ids (ints or 0-d tensors): specials dropped, marks glued to the word before.

        Raises:
            UserError: an id outside 0..40.
        """
        text = ""
        for index in map(int, ids):
            if not 0 <= index < len(self):
                raise UserError(f"token id {index} is outside the clause corpus's vocabulary (0..{len(self) - 1})")
            token = self.tokens[index]
            if token in SPECIALS:
                continue
            text += token if token in PUNCTUATION or token == "," or not text else f" {token}"
        return text


def check_words(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse names that are not among the known ones.

    Raises:
        UserError: an unknown name; says where, and the closest known one.
    """
    options = tuple(known)
    for word in given:
        if word not in options:
            raise UserError(f"{what}: unknown '{word}'{did_you_mean(str(word), options)}; use {', '.join(options)}")


def resolve_held_out(held_out: Mapping[str, Iterable[str]] | str, seed: int) -> tuple[str, ...]:
    """Return the adjectives kept out of training, positive ones first.

    Args:
        held_out: ``{"positive": [...], "negative": [...]}``, or ``"shuffled"``: each class is shuffled by Python's
            ``random.Random(seed)`` and all but its first ``len // 2`` words are held out (the published way; seed 111
            gives the paper's split).
        seed: the run's seed.

    Raises:
        UserError: not such a mapping or word; a word that is no adjective of that class; a whole class held out.
    """
    classes = {"positive": POSITIVE, "negative": NEGATIVE}
    if isinstance(held_out, str):
        return _shuffled(held_out, seed, classes)
    if not isinstance(held_out, Mapping):
        raise UserError(f"held_out={held_out!r}: give 'shuffled' or a mapping with the keys positive and negative")
    check_words("held_out", held_out, classes)
    chosen: list[str] = []
    for name, words in classes.items():
        if name not in held_out:
            raise UserError(f"held_out has no key '{name}': give a list, [] to hold out none of that class")
        given = held_out[name]
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise UserError(f"held_out.{name}={given!r}: give a list of adjectives")
        given = tuple(given)
        check_words(f"held_out.{name}", given, words)
        if set(given) >= set(words):
            raise UserError(f"held_out.{name} holds out all {name} adjectives: leave at least one for training")
        chosen += [word for word in words if word in given]
    return tuple(chosen)


def _shuffled(rule: str, seed: int, classes: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Split each class at random, as the authors' code does: one generator, positive words first."""
    check_words("held_out", [rule], ["shuffled"])
    generator = random.Random(seed)
    chosen: list[str] = []
    for words in classes.values():
        order = list(words)
        generator.shuffle(order)
        chosen += [word for word in words if word in order[len(order) // 2 :]]
    return tuple(chosen)

"""The clause corpus: words, probabilities, and the common sampler of its plain and coupled variants (sec. 3.1).

A sentence is ``SUBJ VERB the OBJ , INTENS ADJ [CONJ PRON VERB the OBJ , INTENS ADJ] PUNCT`` between ``<bos>`` and
``<eos>``, so 10 or 18 tokens of a vocabulary of 41. All random choices are drawn from rows of ``ClauseTables``.

Axis letters: N sentences, T positions, S subject, V verb, O object, I intensifier, P polarity (0 positive,
1 negative), A adjective within its class, C conjunction, Q punctuation mark, K outcomes of a draw.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Interval

from lit_ctg.errors import UserError, did_you_mean
from lit_ctg.limits import Choice, Fraction, Weight, check_value, checked

# words ----------------------------------------------------------------------------------------------------------------

SUBJECTS = ("Alice", "Bob", "Carol", "Dave", "Eve")
VERBS = ("finishes", "reviews", "trains", "starts", "cooks")
OBJECTS = ("task", "paper", "model", "project", "meal")
INTENSIFIERS = ("slightly", "moderately", "very", "extremely")
POSITIVE = ("good", "great", "excellent", "pleasant", "wonderful")
NEGATIVE = ("bad", "poor", "terrible", "unpleasant", "awful")
PUNCTUATION = (".", "!", "?")
CONJUNCTIONS = ("and", "but")
PRONOUNS = ("she", "he")

# the groups are in the order of a sentence's slots; ids(group) keeps this order of words
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


@checked
@dataclass(frozen=True)
class AddedWords:
    """Words that `data.words` adds to groups: intensifiers with their strength, subjects with their pronoun."""

    positive: Sequence[str] = ()
    negative: Sequence[str] = ()
    verb: Sequence[str] = ()
    object: Sequence[str] = ()
    intensifier: Mapping[str, Annotated[float, Interval(gt=0, le=1)]] = field(default_factory=dict)
    subject: Mapping[str, Literal["she", "he"]] = field(default_factory=dict)


class ClauseVocabulary:
    """Three special tokens and the words of the corpus (the paper's 38 and added ones) in Python's sort order.

    Args:
        held_out: adjectives kept out of training.

    Attributes:
        tokens: the tokens by id, 41 in the paper; ``<pad>``, ``<bos>``, ``<eos>`` are 0, 1, 2 (``pad_id``, ``bos_id``,
            ``eos_id``).
        groups: words of each grammar group, the paper's first and in its order.
        polarity: +1 or -1 for each adjective.
        intensity: strength in (0, 1] of each intensifier (the paper's strength map).
        pronoun_of: the pronoun for each subject.
        held_out: the adjectives kept out of training.

    Raises:
        UserError: a word that exists already or is not a word, an unknown group, an invalid strength or pronoun.
    """

    def __init__(self, words: Mapping[str, Any] | None = None, held_out: Iterable[str] = ()) -> None:
        check_words("data.words", words or {}, AddedWords.__dataclass_fields__)
        added = AddedWords(**words or {})
        _check_new(added)
        self.groups = {
            group: (*known, *getattr(added, group.removeprefix("adjective_"), ())) for group, known in GROUPS.items()
        }
        self.tokens = SPECIALS + tuple(sorted(word for members in self.groups.values() for word in members))
        self.pad_id, self.bos_id, self.eos_id = 0, 1, 2
        self.polarity = dict.fromkeys(self.groups["adjective_positive"], 1)
        self.polarity |= dict.fromkeys(self.groups["adjective_negative"], -1)
        self.intensity = {"slightly": 0.2, "moderately": 0.5, "very": 0.8, "extremely": 1.0, **added.intensifier}
        self.pronoun_of = {"Alice": "she", "Bob": "he", "Carol": "she", "Dave": "he", "Eve": "she"}
        self.pronoun_of |= added.subject
        self.held_out = tuple(held_out)
        self._id = {token: index for index, token in enumerate(self.tokens)}
        self._folded = {token.lower(): token for token in self.tokens}

    def __len__(self) -> int:
        return len(self.tokens)

    def id(self, token: str) -> int:
        """Return the id of one token, spelled exactly (``UserError``: no such token)."""
        if token not in self._id:
            raise UserError(f"'{token}' is not a token of the clause corpus{did_you_mean(token, self.tokens)}")
        return self._id[token]

    def ids(self, group: str) -> tuple[int, ...]:
        """Return the ids of a grammar group, in the paper's order of words (e.g. slightly before extremely)."""
        return tuple(self._id[word] for word in self.groups[group])

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text's words and marks, without ``<bos>`` and ``<eos>``; case is ignored.

        Raises:
            UserError: a word or mark outside the vocabulary; names it.
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
        """Return the text of ids (ints or 0-d tensors), without special tokens and with marks attached to words."""
        text = ""
        for index in map(int, ids):
            token = self.tokens[index]
            if token in SPECIALS:
                continue
            text += token if token in PUNCTUATION or token == "," or not text else f" {token}"
        return text


def _check_new(added: AddedWords) -> None:
    """Refuse what is not a word, or a word that the corpus has (``UserError``: names it)."""
    taken = {word.lower() for members in GROUPS.values() for word in members}
    for key, words in vars(added).items():
        for word in words:
            if not re.fullmatch(r"[A-Za-z]+", str(word)) or word.lower() in taken:
                raise UserError(f"data.words.{key}: '{word}' is not a new word of the letters a to z")
            taken.add(word.lower())


def check_words(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse names that are not among the known ones; ``UserError`` suggests the closest known one."""
    options = tuple(known)
    for word in given:
        check_value(what, word, Annotated[str, Choice(options)])


def check_keys(what: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    """Refuse a mapping that does not have exactly the known keys.

    Raises:
        UserError: names the first unknown or missing one.
    """
    check_words(what, given, known)
    for word in known:
        if word not in given:
            raise UserError(f"{what} has no '{word}': add it with '+data.{what}.{word}=<value>'")


# the paper's words
PAPER = ClauseVocabulary()


@checked
def resolve_held_out(
    held_out: Mapping[str, Sequence[str]] | Literal["shuffled"], seed: int, vocabulary: ClauseVocabulary = PAPER
) -> tuple[str, ...]:
    """Return the adjectives kept out of training, positive ones first.

    Args:
        held_out: ``{"positive": [...], "negative": [...]}``, or ``"shuffled"``: each class is shuffled by Python's
            ``random.Random(seed)`` and all but its first ``len // 2`` words are held out (the published way; seed 111
            gives the paper's split).

    Raises:
        UserError: a word that is not an adjective of that class; a whole class held out.
    """
    classes = {name: vocabulary.groups[f"adjective_{name}"] for name in ("positive", "negative")}
    if isinstance(held_out, str):
        return _shuffled(seed, classes)
    check_keys("held_out", held_out, tuple(classes))
    for name, words in classes.items():
        for word in held_out[name]:
            if word not in words:
                raise UserError(
                    f"held_out.{name}: '{word}' is not a {name} adjective of this corpus ({', '.join(words)})"
                    f"{did_you_mean(word, words)}; a new one is added with '+data.words.{name}=[{word}]'"
                )
        if set(held_out[name]) >= set(words):
            raise UserError(f"held_out.{name} holds out all {name} adjectives: leave at least one for training")
    return tuple(word for name, words in classes.items() for word in words if word in held_out[name])


def _shuffled(seed: int, classes: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Split each class at random as in the authors' code: one generator, positive words first."""
    generator = random.Random(seed)
    chosen: list[str] = []
    for words in classes.values():
        order = list(words)
        generator.shuffle(order)
        chosen += [word for word in words if word in order[len(order) // 2 :]]
    return tuple(chosen)


# probabilities and the sampler ----------------------------------------------------------------------------------------

ONE_CLAUSE, TWO_CLAUSES = 10, 18
_DRAWS = 14


def pronoun_table(vocabulary: ClauseVocabulary) -> np.ndarray:
    """Return pronoun_SR, the pronoun of each subject, as a table of certain outcomes."""
    rows = [[vocabulary.pronoun_of[s] == r for r in PRONOUNS] for s in vocabulary.groups["subject"]]
    return np.array(rows, dtype=float)


@checked
@dataclass(frozen=True)
class ClauseTables:
    """All probabilities of the corpus except the choice of word within a polarity class; every last axis sums to 1.

    Attributes:
        second_clause: probability that a second clause follows.
        subject_S, object_O, intensifier_I, polarity_P, conjunction_C: unconditional draws.
        verb_SV: verb given the sentence's subject, in both clauses.
        intensifier_next_II: second clause's intensifier given the first's.
        polarity_next_CPP: second clause's polarity given the conjunction and the first's.
        punctuation_IPQ: final mark given intensifier and polarity of the last clause.
    """

    second_clause: Fraction
    subject_S: np.ndarray
    verb_SV: np.ndarray
    object_O: np.ndarray
    intensifier_I: np.ndarray
    intensifier_next_II: np.ndarray
    polarity_P: np.ndarray
    conjunction_C: np.ndarray
    polarity_next_CPP: np.ndarray
    punctuation_IPQ: np.ndarray

    def __post_init__(self) -> None:
        sizes = {"S": len(self.subject_S), "V": self.verb_SV.shape[-1], "O": len(self.object_O)}
        sizes |= {"I": len(self.intensifier_I), "P": 2, "C": 2, "Q": 3}
        for each in fields(self)[1:]:
            table = getattr(self, each.name)
            shape = tuple(sizes[letter] for letter in each.name.rpartition("_")[2])
            if table.shape != shape or (table < 0).any() or not np.allclose(table.sum(-1), 1.0, atol=1e-12):
                raise ValueError(f"{each.name}: not a probability table of shape {shape}")


def weight_row(what: str, weights: Mapping[str, float], words: Sequence[str]) -> np.ndarray:
    """Return the probabilities (in the order of ``words``) of a mapping word -> weight.

    Raises:
        UserError: a word missing or unknown, or all weights zero.
    """
    check_keys(what, weights, words)
    row = np.array([float(weights[word]) for word in words])
    if row.sum() == 0:
        raise UserError(f"{what}: all weights are zero; give at least one of {', '.join(words)} a weight")
    return row / row.sum()


@checked
def uncoupled_tables(
    *,
    second_clause_probability: Fraction,
    intensifier_weights: Mapping[str, Weight],
    punctuation_weights: Mapping[str, Weight],
    vocabulary: ClauseVocabulary = PAPER,
) -> ClauseTables:
    """Return the paper's tables (sec. 3.1): slots are independent, except the pronoun, which depends on the subject.

    Raises:
        UserError: invalid weights or probability.
    """
    groups = vocabulary.groups
    intensifier_I = weight_row("intensifier_weights", intensifier_weights, groups["intensifier"])
    punctuation_Q = weight_row("punctuation_weights", punctuation_weights, PUNCTUATION)
    return ClauseTables(
        second_clause=float(second_clause_probability),
        subject_S=uniform(groups["subject"]),
        verb_SV=np.tile(uniform(groups["verb"]), (len(groups["subject"]), 1)),
        object_O=uniform(groups["object"]),
        intensifier_I=intensifier_I,
        intensifier_next_II=np.tile(intensifier_I, (len(intensifier_I), 1)),
        polarity_P=np.full(2, 0.5),
        conjunction_C=uniform(CONJUNCTIONS),
        polarity_next_CPP=np.full((2, 2, 2), 0.5),
        punctuation_IPQ=np.tile(punctuation_Q, (len(intensifier_I), 2, 1)),
    )


def uniform(words: Sequence[str]) -> np.ndarray:
    """Return the uniform row over some words."""
    return np.full(len(words), 1 / len(words))


def adjectives(vocabulary: ClauseVocabulary) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the adjectives by polarity, with the shorter class padded with "" to the length A of the longer."""
    classes = vocabulary.groups["adjective_positive"], vocabulary.groups["adjective_negative"]
    longest = max(map(len, classes))
    positive, negative = ((*words, *[""] * (longest - len(words))) for words in classes)
    return positive, negative


def word_table(without: Collection[str] = (), vocabulary: ClauseVocabulary = PAPER) -> np.ndarray:
    """Return words_PA: each class uniform over its adjectives that are not in ``without``."""
    rows = [[word != "" and word not in without for word in words] for words in adjectives(vocabulary)]
    allowed_PA = np.array(rows, dtype=float)
    return allowed_PA / allowed_PA.sum(-1, keepdims=True)


def generate_clauses(
    tables: ClauseTables,
    words_PA: np.ndarray,
    *,
    size: int,
    rng: np.random.Generator,
    width: int,
    vocabulary: ClauseVocabulary = PAPER,
) -> tuple[np.ndarray, np.ndarray]:
    """Draw all sentences at once.

    Each sentence takes a fixed number of uniform variates, so the first n sentences do not depend on ``size``.

    Args:
        words_PA: probability of each adjective within its class (``word_table``).
        size: number of sentences N.
        rng: source of the variates; advanced by 14 N.
        width: number of columns T, at least 18 (10 if no second clause can occur).
        vocabulary: the words of the tables' outcomes.

    Returns:
        ids_NT (int64, with ``<bos>`` and ``<eos>``, padded) and lengths_N (int64, 10 or 18).
    """
    u_KN = np.ascontiguousarray(rng.random((size, _DRAWS)).T)
    word = {group: np.array(vocabulary.ids(group)) for group in ("subject", "verb", "object", "intensifier")}
    word |= {group: np.array(vocabulary.ids(group)) for group in ("punctuation", "conjunction", "pronoun")}
    adjective_PA = np.array([[vocabulary.id(word or "<pad>") for word in words] for words in adjectives(vocabulary)])
    the, comma = vocabulary.id("the"), vocabulary.id(",")

    subject_N = _draw(u_KN[0], tables.subject_S)
    first = _clause_draws(u_KN[1:6], tables, subject_N, tables.intensifier_I, tables.polarity_P, words_PA)
    two_N = u_KN[6] < tables.second_clause
    conjunction_N = _draw(u_KN[7], tables.conjunction_C)
    second = _clause_draws(
        u_KN[8:13],
        tables,
        subject_N,
        tables.intensifier_next_II[first["intensifier"]],
        tables.polarity_next_CPP[conjunction_N, first["polarity"]],
        words_PA,
    )
    last_I = np.where(two_N, second["intensifier"], first["intensifier"])
    last_P = np.where(two_N, second["polarity"], first["polarity"])
    mark_N = word["punctuation"][_draw(u_KN[13], tables.punctuation_IPQ[last_I, last_P])]

    ids_NT = np.full((size, max(width, TWO_CLAUSES)), vocabulary.pad_id, dtype=np.int64)
    ids_NT[:, 0] = vocabulary.bos_id
    heads = (word["subject"][subject_N], word["pronoun"][pronoun_table(vocabulary).argmax(-1)[subject_N]])
    for start, head_N, clause in zip((1, 9), heads, (first, second), strict=True):
        ids_NT[:, start] = head_N
        ids_NT[:, start + 1] = word["verb"][clause["verb"]]
        ids_NT[:, start + 2] = the
        ids_NT[:, start + 3] = word["object"][clause["object"]]
        ids_NT[:, start + 4] = comma
        ids_NT[:, start + 5] = word["intensifier"][clause["intensifier"]]
        ids_NT[:, start + 6] = adjective_PA[clause["polarity"], clause["word"]]
    ids_NT[:, 8] = np.where(two_N, word["conjunction"][conjunction_N], mark_N)
    ids_NT[:, 16], ids_NT[:, 17] = mark_N, vocabulary.eos_id
    ids_NT[~two_N, 9] = vocabulary.eos_id
    ids_NT[~two_N, ONE_CLAUSE:] = vocabulary.pad_id
    return ids_NT[:, :width], np.where(two_N, TWO_CLAUSES, ONE_CLAUSE)


def _clause_draws(
    u_KN: np.ndarray,
    tables: ClauseTables,
    subject_N: np.ndarray,
    intensifier: np.ndarray,
    polarity: np.ndarray,
    words_PA: np.ndarray,
) -> dict[str, np.ndarray]:
    """Draw the five random slots of a clause as indices into their groups."""
    polarity_N = _draw(u_KN[3], polarity)
    return {
        "verb": _draw(u_KN[0], tables.verb_SV[subject_N]),
        "object": _draw(u_KN[1], tables.object_O),
        "intensifier": _draw(u_KN[2], intensifier),
        "polarity": polarity_N,
        "word": _draw(u_KN[4], words_PA[polarity_N]),
    }


def _draw(u_N: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the outcomes (N) that uniform variates pick from rows (K) or (N, K) by the inverse distribution."""
    cumulative = np.cumsum(rows, axis=-1)
    cumulative = (
        cumulative / cumulative[..., -1:]
    )  # ends at exactly 1 > u, so an impossible last outcome stays impossible
    return (np.atleast_2d(cumulative) <= u_N[:, None]).sum(-1)

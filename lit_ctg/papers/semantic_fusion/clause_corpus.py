"""The clause corpus as probability tables, and the one sampler of its plain and its coupled variant.

A sentence is ``SUBJ VERB the OBJ , INTENS ADJ [CONJ PRON VERB the OBJ , INTENS ADJ] PUNCT`` between ``<bos>`` and
``<eos>``, so 10 or 18 tokens. Everything that is random is drawn from a row of ``ClauseTables``.

Axis letters: N sentences, T positions, S subject, V verb, O object, I intensifier, P polarity (0 positive,
1 negative), A adjective inside its class, C conjunction, Q punctuation mark, K outcomes of a draw.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from lit_ctg.errors import UserError
from lit_ctg.papers.semantic_fusion.clause_vocabulary import (
    CONJUNCTIONS,
    INTENSIFIERS,
    NEGATIVE,
    OBJECTS,
    POSITIVE,
    PRONOUNS,
    PUNCTUATION,
    SUBJECTS,
    VERBS,
    ClauseVocabulary,
    check_words,
)

ONE_CLAUSE, TWO_CLAUSES = 10, 18
_DRAWS = 14
# which pronoun takes up which subject, as a table of certain outcomes
PRONOUN_SR = np.array([[ClauseVocabulary().pronoun_of[s] == r for r in PRONOUNS] for s in SUBJECTS], dtype=float)


@dataclass(frozen=True)
class ClauseTables:
    """All probabilities of the corpus but the choice of word inside a polarity class; every last axis sums to 1.

    Attributes:
        second_clause: probability that a second clause follows.
        subject_S, object_O, intensifier_I, polarity_P, conjunction_C: unconditional draws.
        verb_SV: verb given the sentence's subject, in both clauses.
        intensifier_next_II: second clause's intensifier given the first's.
        polarity_next_CPP: second clause's polarity given the conjunction and the first's.
        punctuation_IPQ: final mark given intensifier and polarity of the last clause.
    """

    second_clause: float
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
        sizes = {"S": 5, "V": 5, "O": 5, "I": 4, "P": 2, "C": 2, "Q": 3}
        probability("second_clause_probability", self.second_clause)
        for field in fields(self)[1:]:
            table = getattr(self, field.name)
            shape = tuple(sizes[letter] for letter in field.name.rpartition("_")[2])
            if table.shape != shape or (table < 0).any() or not np.allclose(table.sum(-1), 1.0, atol=1e-12):
                raise ValueError(f"{field.name}: not a probability table of shape {shape}")


def probability(what: str, value: Any) -> float:
    """Return ``value`` as a float.

    Raises:
        UserError: not a number in [0, 1].
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise UserError(f"{what}={value!r}: give a probability between 0 and 1")
    return float(value)


def weight_row(what: str, weights: Mapping[str, float], words: Sequence[str]) -> np.ndarray:
    """Return the probabilities (in the order of ``words``) that a mapping word -> weight stands for.

    Raises:
        UserError: not a mapping, a word missing or unknown, a weight negative or no number, or all weights zero.
    """
    if not isinstance(weights, Mapping) or not weights:
        raise UserError(f"{what}={weights!r}: give a weight for each of {', '.join(words)}")
    check_words(what, weights, words)
    for word in words:
        value = weights.get(word)
        bad = isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value)
        if bad or value < 0:
            raise UserError(f"{what}: weight {value!r} of '{word}' must be a number from 0")
    row = np.array([float(weights[word]) for word in words])
    if row.sum() == 0:
        raise UserError(f"{what}: all weights are zero; give at least one of {', '.join(words)} a weight")
    return row / row.sum()


def uncoupled_tables(
    *,
    second_clause_probability: float,
    intensifier_weights: Mapping[str, float],
    punctuation_weights: Mapping[str, float],
) -> ClauseTables:
    """Return the paper's tables (sec. 3.1): no slot depends on another, but the pronoun on the subject.

    Raises:
        UserError: weights or probability that are none.
    """
    intensifier_I = weight_row("intensifier_weights", intensifier_weights, INTENSIFIERS)
    punctuation_Q = weight_row("punctuation_weights", punctuation_weights, PUNCTUATION)
    return ClauseTables(
        second_clause=probability("second_clause_probability", second_clause_probability),
        subject_S=uniform(SUBJECTS),
        verb_SV=np.tile(uniform(VERBS), (5, 1)),
        object_O=uniform(OBJECTS),
        intensifier_I=intensifier_I,
        intensifier_next_II=np.tile(intensifier_I, (4, 1)),
        polarity_P=np.full(2, 0.5),
        conjunction_C=uniform(CONJUNCTIONS),
        polarity_next_CPP=np.full((2, 2, 2), 0.5),
        punctuation_IPQ=np.tile(punctuation_Q, (4, 2, 1)),
    )


def uniform(words: Sequence[str]) -> np.ndarray:
    """Return the uniform row over some words."""
    return np.full(len(words), 1 / len(words))


def word_table(without: Collection[str] = ()) -> np.ndarray:
    """Return words_PA: each class uniform over its adjectives that are not in ``without``."""
    allowed_PA = np.array([[word not in without for word in words] for words in (POSITIVE, NEGATIVE)], dtype=float)
    return allowed_PA / allowed_PA.sum(-1, keepdims=True)


def generate_clauses(
    tables: ClauseTables, words_PA: np.ndarray, *, size: int, rng: np.random.Generator, width: int
) -> tuple[np.ndarray, np.ndarray]:
    """Draw sentences, all at once.

    Each sentence takes a fixed number of uniform variates, so the first n sentences do not depend on ``size``.

    Args:
        tables: the probabilities.
        words_PA: probability of each adjective inside its class (``word_table``).
        size: number of sentences N.
        rng: source of the variates; advanced by 14 N.
        width: number of columns T, at least 18 (10 when no second clause can occur).

    Returns:
        ids_NT (int64, with ``<bos>`` and ``<eos>``, padded) and lengths_N (int64, 10 or 18).
    """
    vocabulary = ClauseVocabulary()
    u_KN = np.ascontiguousarray(rng.random((size, _DRAWS)).T)
    word = {group: np.array(vocabulary.ids(group)) for group in ("subject", "verb", "object", "intensifier")}
    word |= {group: np.array(vocabulary.ids(group)) for group in ("punctuation", "conjunction", "pronoun")}
    adjective_PA = np.array([vocabulary.ids("adjective_positive"), vocabulary.ids("adjective_negative")])
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
    heads = (word["subject"][subject_N], word["pronoun"][PRONOUN_SR.argmax(-1)[subject_N]])
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
    cumulative = cumulative / cumulative[..., -1:]  # ends at exactly 1 > u, so an impossible last outcome stays so
    return (np.atleast_2d(cumulative) <= u_N[:, None]).sum(-1)

"""Exact sentence probabilities: sums to 1, a slow reading of the tables, sentences off the grammar."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest

from lit_ctg.papers.semantic_fusion.clause_corpus import ClauseTables, generate_clauses, word_table
from lit_ctg.papers.semantic_fusion.clause_likelihood import sentence_nats
from lit_ctg.papers.semantic_fusion.clause_vocabulary import (
    INTENSIFIERS,
    NEGATIVE,
    OBJECTS,
    POSITIVE,
    PUNCTUATION,
    SUBJECTS,
    VERBS,
    ClauseVocabulary,
)

VOCABULARY = ClauseVocabulary()
ADJECTIVES = POSITIVE + NEGATIVE


def random_tables() -> ClauseTables:
    rng = np.random.default_rng(3)
    sizes = {"S": 5, "V": 5, "O": 5, "I": 4, "P": 2, "C": 2, "Q": 3}
    tables = {}
    for field in dataclasses.fields(ClauseTables)[1:]:
        *context, outcome = (sizes[letter] for letter in field.name.rpartition("_")[2])
        tables[field.name] = rng.dirichlet(np.ones(outcome), size=tuple(context))
    return ClauseTables(second_clause=0.7, **tables)


TABLES = random_tables()
WORDS_PA = word_table(("great", "bad", "poor"))


def ids(*sentences: str, width: int = 20) -> np.ndarray:
    rows = [[1, *VOCABULARY.encode(text), 2] for text in sentences]
    return np.array([row + [0] * (width - len(row)) for row in rows])


def clauses(heads: tuple[str, ...]) -> list[str]:
    slots = (heads, VERBS, ("the",), OBJECTS, (",",), INTENSIFIERS, ADJECTIVES)
    return [" ".join(words) for words in itertools.product(*slots)]


def test_one_clause_sentences_sum_to_their_share() -> None:
    every = ids(*(f"{clause} {mark}" for clause in clauses(SUBJECTS) for mark in PUNCTUATION))
    assert len(every) == 5 * 5 * 5 * 4 * 10 * 3
    assert np.exp(-sentence_nats(every, TABLES, WORDS_PA).sum(1)).sum() == pytest.approx(0.3, rel=1e-12)


def test_two_clause_sentences_sum_to_their_share() -> None:
    start = "Dave trains the meal , very unpleasant"
    rest = (f"{start} {c} he{tail} {q}" for c in ("and", "but") for tail in clauses(("",)) for q in PUNCTUATION)
    nats_NT = sentence_nats(ids(*rest), TABLES, WORDS_PA)
    given_start_N = np.exp(-nats_NT[:, 8:].sum(1))
    assert len(nats_NT) == 2 * 5 * 5 * 4 * 10 * 3
    assert given_start_N.sum() == pytest.approx(0.7, rel=1e-12)
    # the start costs the same whatever follows: nothing looks ahead
    assert np.ptp(nats_NT[:, :8], axis=0).max() == 0


def test_agrees_with_a_slow_reading_of_the_tables() -> None:
    t, rng = TABLES, np.random.default_rng(0)
    ids_NT, lengths_N = generate_clauses(t, WORDS_PA, size=300, rng=rng, width=25)
    nats_NT = sentence_nats(ids_NT, t, WORDS_PA)
    for row, length, nats in zip(ids_NT, lengths_N, nats_NT, strict=True):
        w = [VOCABULARY.tokens[i] for i in row]
        s, i1, a1 = SUBJECTS.index(w[1]), INTENSIFIERS.index(w[6]), ADJECTIVES.index(w[7])
        p = {1: t.subject_S[s], 2: t.verb_SV[s][VERBS.index(w[2])], 4: t.object_O[OBJECTS.index(w[4])]}
        p |= {6: t.intensifier_I[i1], 7: t.polarity_P[a1 // 5] * WORDS_PA[a1 // 5, a1 % 5]}
        if length == 10:
            p[8] = 0.3 * t.punctuation_IPQ[i1, a1 // 5, PUNCTUATION.index(w[8])]
        else:
            c, i2, a2 = ("and", "but").index(w[8]), INTENSIFIERS.index(w[14]), ADJECTIVES.index(w[15])
            p |= {
                8: 0.7 * t.conjunction_C[c],
                10: t.verb_SV[s, VERBS.index(w[10])],
                12: t.object_O[OBJECTS.index(w[12])],
            }
            p |= {14: t.intensifier_next_II[i1, i2]}
            p |= {15: t.polarity_next_CPP[c, a1 // 5, a2 // 5] * WORDS_PA[a2 // 5, a2 % 5]}
            p |= {16: t.punctuation_IPQ[i2, a2 // 5, PUNCTUATION.index(w[16])]}
        expected = [-math.log(p.get(position, 1.0)) for position in range(25)]
        np.testing.assert_allclose(nats, expected, atol=1e-12)


def test_conditioning_on_some_adjectives_renormalises_over_them() -> None:
    only_PA = np.array([[1, 0, 0, 1, 0], [0, 0, 0, 0, 1]])  # good, pleasant; awful
    row = ids(*(f"Eve cooks the task, very {adjective}." for adjective in ADJECTIVES))
    mass = np.exp(-sentence_nats(row, TABLES, WORDS_PA, only_PA=only_PA)[:, 7])
    weight = np.array([TABLES.polarity_P[0] / 4, TABLES.polarity_P[0] / 4, TABLES.polarity_P[1] / 3])
    np.testing.assert_allclose(mass[[0, 3, 9]], weight / weight.sum())
    assert mass.sum() == pytest.approx(1) and np.count_nonzero(mass) == 3


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("the starts the task, very good.", 1),
        ("Eve cooks the task, very great.", 7),  # a word that is not drawn
        ("Eve cooks the task, very good and he cooks the task, very good.", 9),  # wrong pronoun
        ("Eve cooks the task, very good and she cooks the task, very task.", 15),
        ("Eve cooks the task, very good..", 9),
        ("Eve cooks the task, very good,", 8),
    ],
)
def test_impossible_sentences_cost_inf_where_they_go_wrong(text: str, column: int) -> None:
    nats_T = sentence_nats(ids(text), TABLES, WORDS_PA)[0]
    assert np.isinf(nats_T[column]) and np.isfinite(nats_T[:column]).all()
    assert not np.isnan(nats_T).any()


def test_width_is_free_and_a_missing_end_is_seen() -> None:
    text = "Eve cooks the task, very good."
    wide, tight = (
        sentence_nats(ids(text, width=30), TABLES, WORDS_PA),
        sentence_nats(ids(text, width=10), TABLES, WORDS_PA),
    )
    assert wide.shape == (1, 30) and tight.shape == (1, 10)
    assert wide.sum() == tight.sum() < np.inf
    assert np.isinf(sentence_nats(ids(text, width=10)[:, :9], TABLES, WORDS_PA)).sum() == 1
    after_eos = ids(text)
    after_eos[0, 12] = VOCABULARY.id("good")
    assert np.isinf(sentence_nats(after_eos, TABLES, WORDS_PA)[0, 12])

"""Floor and likelihood against slow sums over all sentences."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import defaultdict

import numpy as np
import pytest

from lit_ctg.papers.semantic_fusion.clause import (
    INTENSIFIERS,
    NEGATIVE,
    OBJECTS,
    POSITIVE,
    PUNCTUATION,
    SUBJECTS,
    VERBS,
    ClauseTables,
    ClauseVocabulary,
    generate_clauses,
    uncoupled_tables,
    word_table,
)
from lit_ctg.papers.semantic_fusion.floor import EntropyFloor, conditional_nats, entropy_floor, sentence_nats
from tests.papers.semantic_fusion.conftest import HELD_OUT, PAPER_WEIGHTS, random_tables

PAPER = uncoupled_tables(**PAPER_WEIGHTS)
UNEVEN = ("wonderful", "terrible", "awful", "bad", "poor")


def trained(held_out: tuple[str, ...]) -> np.ndarray:
    return np.array([[word not in held_out for word in words] for words in (POSITIVE, NEGATIVE)], dtype=float)


@pytest.fixture
def val() -> EntropyFloor:
    return entropy_floor(PAPER, word_table(), trained(HELD_OUT), split="val")


@pytest.fixture
def train() -> EntropyFloor:
    return entropy_floor(PAPER, word_table(HELD_OUT), trained(HELD_OUT), split="train")


def test_numbers_of_the_corpus_of_the_paper(val: EntropyFloor, train: EntropyFloor) -> None:
    found = {name: round(value, 3) for name, value in val.metrics().items()}
    assert found == {
        "perplexity": 2.869,
        "perplexity_input_mask": 2.672,
        "perplexity_seen_only": 2.497,
        "perplexity_seen_only_input_mask": 2.337,
    }
    assert val.exact.nats_per_sentence == pytest.approx(10.8628 + 1.6 * math.log(10), abs=1e-4)
    assert train.exact.nats_per_sentence == pytest.approx(10.8628 + 1.6 * math.log(4), abs=1e-4)
    assert val.exact.tokens() == pytest.approx(13.8) and val.exact.tokens(mask="input") == pytest.approx(14.8)
    assert val.exact.tokens(seen_only=True) == pytest.approx(13.8 - 1.6 * 0.6)
    # 2.419 is measured: the cost of sampled sentences without held-out words
    assert train.exact.perplexity(mask="input") == pytest.approx(2.419, abs=2e-3)
    assert val.trained_only.nats_per_sentence == math.inf
    assert val.trained_only.seen_nats_per_sentence < val.exact.seen_nats_per_sentence
    assert dataclasses.astuple(train.trained_only) == pytest.approx(dataclasses.astuple(train.exact))


def test_fair_coin_and_certain_outcome() -> None:
    assert conditional_nats(np.array([0.5, 0.5])) == pytest.approx(math.log(2))
    assert conditional_nats(np.array([[0.3, 0.0], [0.0, 0.7]])) == 0
    assert conditional_nats(np.array([0.25, 0.75]), np.array([1.0, 0.0])) == pytest.approx(0.25 * math.log(4))


def slow_floor(t: ClauseTables, held_out: tuple[str, ...], known: bool) -> dict[str, float]:
    """Nats of a predictor per sentence, all / exact on seen / trained only, by listing what can be said after OBJ."""
    words = POSITIVE + NEGATIVE
    events: dict[tuple, dict[object, float]] = defaultdict(lambda: defaultdict(float))

    def read(a: int) -> object:
        return words[a] in held_out and "held out" if not known and words[a] in held_out else a // 5

    for i in range(4):
        for a in range(10):
            p1 = t.intensifier_I[i] * t.polarity_P[a // 5] / 5
            events["adjective", i][a] += p1
            for q in range(3):
                events["end", i, read(a)]["mark", q] += p1 * 0.3 * t.punctuation_IPQ[i, a // 5, q]
            for c in range(2):
                pc = p1 * 0.7 * t.conjunction_C[c]
                events["end", i, read(a)]["conjunction", c] += pc
                for j in range(4):
                    pj = pc * t.intensifier_next_II[i, j]
                    events["intensifier", i, read(a), c][j] += pj
                    for b in range(10):
                        pb = pj * t.polarity_next_CPP[c, a // 5, b // 5] / 5
                        events["adjective", i, read(a), c, j][b] += pb
                        for q in range(3):
                            events["end", i, read(a), c, j, read(b)]["mark", q] += pb * t.punctuation_IPQ[j, b // 5, q]

    def entropy(p: np.ndarray) -> float:
        return -sum(x * math.log(x) for x in p.ravel() if x > 0)

    verb = sum(t.subject_S[s] * entropy(t.verb_SV[s]) for s in range(5))
    common = entropy(t.subject_S) + 1.7 * (verb + entropy(t.object_O)) + entropy(t.intensifier_I)
    nats = {"all": common, "seen": common, "only": common}
    for context, outcomes in events.items():
        total = sum(outcomes.values())
        seen = {k: p for k, p in outcomes.items() if context[0] != "adjective" or words[k] not in held_out}
        nats["all"] -= sum(p * math.log(p / total) for p in outcomes.values())
        nats["seen"] -= sum(p * math.log(p / total) for p in seen.values())
        nats["only"] -= sum(p * math.log(p / sum(seen.values())) for p in seen.values())
    return nats


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("held_out", [HELD_OUT, UNEVEN], ids=["paper", "uneven"])
def test_floor_equals_slow_enumeration(known: bool, held_out: tuple[str, ...]) -> None:
    tables = random_tables(2)
    fast = entropy_floor(tables, word_table(), trained(held_out), split="val", polarity_known=known)
    slow = slow_floor(tables, held_out, known)
    assert fast.exact.nats_per_sentence == pytest.approx(slow["all"], rel=1e-12)
    assert fast.exact.seen_nats_per_sentence == pytest.approx(slow["seen"], rel=1e-12)
    assert fast.trained_only.seen_nats_per_sentence == pytest.approx(slow["only"], rel=1e-12)


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_certain_numbers_of_clauses(probability: float) -> None:
    tables = dataclasses.replace(PAPER, second_clause=probability)
    floor = entropy_floor(tables, word_table(), trained(HELD_OUT), split="val").exact
    assert floor.tokens() == 9 + 8 * probability and math.isfinite(floor.perplexity())


VOCABULARY = ClauseVocabulary()
ADJECTIVES = POSITIVE + NEGATIVE


TABLES = random_tables(3)
WORDS_PA = word_table(("great", "bad", "poor"))


def ids(*sentences: str, width: int = 20) -> np.ndarray:
    rows = [[1, *VOCABULARY.encode(text), 2] for text in sentences]
    return np.array([row + [0] * (width - len(row)) for row in rows])


def clauses(heads: tuple[str, ...]) -> list[str]:
    slots = (heads, VERBS, ("the",), OBJECTS, (",",), INTENSIFIERS, ADJECTIVES)
    return [" ".join(words) for words in itertools.product(*slots)]


def test_sentences_sum_to_their_share() -> None:
    every = ids(*(f"{clause} {mark}" for clause in clauses(SUBJECTS) for mark in PUNCTUATION))
    assert len(every) == 5 * 5 * 5 * 4 * 10 * 3
    assert np.exp(-sentence_nats(every, TABLES, WORDS_PA).sum(1)).sum() == pytest.approx(0.3, rel=1e-12)
    start = "Dave trains the meal , very unpleasant"
    rest = (f"{start} {c} he{tail} {q}" for c in ("and", "but") for tail in clauses(("",)) for q in PUNCTUATION)
    nats_NT = sentence_nats(ids(*rest), TABLES, WORDS_PA)
    given_start_N = np.exp(-nats_NT[:, 8:].sum(1))
    assert len(nats_NT) == 2 * 5 * 5 * 4 * 10 * 3
    assert given_start_N.sum() == pytest.approx(0.7, rel=1e-12)
    # the start costs the same whatever follows: nothing looks ahead
    assert np.ptp(nats_NT[:, :8], axis=0).max() == 0
    only_PA = np.array([[1, 0, 0, 1, 0], [0, 0, 0, 0, 1]])  # good, pleasant; awful
    row = ids(*(f"Eve cooks the task, very {adjective}." for adjective in ADJECTIVES))
    mass = np.exp(-sentence_nats(row, TABLES, WORDS_PA, only_PA=only_PA)[:, 7])
    weight = np.array([TABLES.polarity_P[0] / 4, TABLES.polarity_P[0] / 4, TABLES.polarity_P[1] / 3])
    np.testing.assert_allclose(mass[[0, 3, 9]], weight / weight.sum())
    assert mass.sum() == pytest.approx(1) and np.count_nonzero(mass) == 3


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
    for column in (10, 12, 19):
        after_eos = ids(text)
        after_eos[0, column] = VOCABULARY.id("good")
        assert np.isinf(sentence_nats(after_eos, TABLES, WORDS_PA)[0]).nonzero()[0].tolist() == [column]

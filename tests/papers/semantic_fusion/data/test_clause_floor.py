"""The exact floor against the numbers of the specification, against sampling, and against slow enumeration."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict

import numpy as np
import pytest

from lit_ctg.papers.semantic_fusion.clause_corpus import ClauseTables, generate_clauses, uncoupled_tables, word_table
from lit_ctg.papers.semantic_fusion.clause_floor import EntropyFloor, Floor, conditional_nats, entropy_floor
from lit_ctg.papers.semantic_fusion.clause_likelihood import sentence_nats
from lit_ctg.papers.semantic_fusion.clause_vocabulary import NEGATIVE, POSITIVE, ClauseVocabulary

PAPER = uncoupled_tables(
    second_clause_probability=0.6,
    intensifier_weights={"slightly": 2, "moderately": 2, "very": 3, "extremely": 2},
    punctuation_weights={".": 8, "!": 3, "?": 1},
)
HELD_OUT = ("wonderful", "excellent", "great", "terrible", "awful", "unpleasant")
UNEVEN = ("wonderful", "terrible", "awful", "bad", "poor")


def trained(held_out: tuple[str, ...]) -> np.ndarray:
    return np.array([[word not in held_out for word in words] for words in (POSITIVE, NEGATIVE)], dtype=float)


def random_tables(seed: int) -> ClauseTables:
    rng = np.random.default_rng(seed)
    sizes = {"S": 5, "V": 5, "O": 5, "I": 4, "P": 2, "C": 2, "Q": 3}
    tables = {}
    for field in dataclasses.fields(ClauseTables)[1:]:
        *context, outcome = (sizes[letter] for letter in field.name.rpartition("_")[2])
        tables[field.name] = rng.dirichlet(np.ones(outcome), size=tuple(context))
    return ClauseTables(second_clause=0.7, **tables)


@pytest.fixture
def val() -> EntropyFloor:
    return entropy_floor(PAPER, word_table(), trained(HELD_OUT), split="val")


@pytest.fixture
def train() -> EntropyFloor:
    return entropy_floor(PAPER, word_table(HELD_OUT), trained(HELD_OUT), split="train")


def test_the_specifications_perplexities(val: EntropyFloor) -> None:
    found = {name: round(value, 3) for name, value in val.metrics().items()}
    assert found == {
        "perplexity": 2.869,
        "perplexity_input_mask": 2.672,
        "perplexity_seen_only": 2.497,
        "perplexity_seen_only_input_mask": 2.337,
    }


def test_the_specifications_nats_and_tokens(val: EntropyFloor, train: EntropyFloor) -> None:
    assert val.exact.nats_per_sentence == pytest.approx(10.8628 + 1.6 * math.log(10), abs=1e-4)
    assert train.exact.nats_per_sentence == pytest.approx(10.8628 + 1.6 * math.log(4), abs=1e-4)
    assert val.exact.tokens() == pytest.approx(13.8) and val.exact.tokens(mask="input") == pytest.approx(14.8)
    assert val.exact.tokens(seen_only=True) == pytest.approx(13.8 - 1.6 * 0.6)
    # the oracle on sentences without held-out words; the specification's 2.419 is a measured one
    assert train.exact.perplexity(mask="input") == pytest.approx(2.419, abs=2e-3)


def test_units(val: EntropyFloor) -> None:
    floor = val.exact
    assert floor.bits_per_sentence == pytest.approx(floor.nats_per_sentence / math.log(2))
    assert 2 ** floor.bits_per_token() == pytest.approx(floor.perplexity())
    assert floor.nats_per_token(seen_only=True) * 12.84 == pytest.approx(floor.seen_nats_per_sentence)
    with pytest.raises(ValueError, match="mask"):
        floor.tokens(mask="both")


def test_trained_words_only(val: EntropyFloor, train: EntropyFloor) -> None:
    assert val.trained_only.nats_per_sentence == math.inf
    assert val.trained_only.seen_nats_per_sentence < val.exact.seen_nats_per_sentence
    assert dataclasses.astuple(train.trained_only) == pytest.approx(dataclasses.astuple(train.exact))


def test_fair_coin_and_certain_outcome() -> None:
    assert conditional_nats(np.array([0.5, 0.5])) == pytest.approx(math.log(2))
    assert conditional_nats(np.array([[0.3, 0.0], [0.0, 0.7]])) == 0
    assert conditional_nats(np.array([0.25, 0.75]), np.array([1.0, 0.0])) == pytest.approx(0.25 * math.log(4))


@pytest.mark.parametrize("only", [False, True])
@pytest.mark.parametrize("tables", [PAPER, random_tables(1)], ids=["paper", "random"])
def test_sampled_mean_lies_around_the_exact_floor(tables: ClauseTables, only: bool) -> None:
    trained_PA = trained(UNEVEN)
    floors = entropy_floor(tables, word_table(), trained_PA, split="val")
    ids_NT, lengths_N = generate_clauses(tables, word_table(), size=40000, rng=np.random.default_rng(0), width=18)
    nats_NT = sentence_nats(ids_NT, tables, word_table(), only_PA=trained_PA if only else None)
    floor: Floor = floors.trained_only if only else floors.exact
    vocabulary = ClauseVocabulary()
    seen_NT = ~np.isin(ids_NT, [vocabulary.id(word) for word in UNEVEN])

    def around(sample_N: np.ndarray, expected: float) -> bool:
        return abs(sample_N.mean() - expected) < 4 * sample_N.std() / math.sqrt(len(sample_N))

    assert around(np.where(seen_NT, nats_NT, 0).sum(1), floor.seen_nats_per_sentence)
    assert around(lengths_N - 1.0, floor.tokens())
    assert around(lengths_N - 1.0 - (~seen_NT).sum(1), floor.tokens(seen_only=True))
    if not only:
        assert around(nats_NT.sum(1), floor.nats_per_sentence)


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


def test_not_knowing_polarity_costs_only_where_something_depends_on_it() -> None:
    for tables, costs in ((PAPER, False), (random_tables(2), True)):
        known, unknown = (
            entropy_floor(
                tables, word_table(), trained(HELD_OUT), split="val", polarity_known=flag
            ).exact.nats_per_sentence
            for flag in (True, False)
        )
        assert (unknown > known + 1e-6) if costs else (unknown == pytest.approx(known, rel=1e-12))
    # nothing is held out: nothing is unknown
    args = (random_tables(2), word_table(), np.ones((2, 5)))
    assert entropy_floor(*args, split="val") == entropy_floor(*args, split="val", polarity_known=False)


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_certain_numbers_of_clauses(probability: float) -> None:
    tables = dataclasses.replace(PAPER, second_clause=probability)
    floor = entropy_floor(tables, word_table(), trained(HELD_OUT), split="val").exact
    assert floor.tokens() == 9 + 8 * probability and math.isfinite(floor.perplexity())

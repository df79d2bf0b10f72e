"""Words, probability tables and the sampler of the clause corpus."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import Counter

import numpy as np
import pytest
import torch
from scipy.stats import chi2_contingency, chisquare

from lit_ctg.errors import UserError
from lit_ctg.papers.semantic_fusion.clause import (
    GROUPS,
    NEGATIVE,
    OBJECTS,
    POSITIVE,
    SUBJECTS,
    VERBS,
    ClauseTables,
    ClauseVocabulary,
    generate_clauses,
    resolve_held_out,
    uncoupled_tables,
    weight_row,
    word_table,
)
from lit_ctg.papers.semantic_fusion.floor import sentence_nats
from tests.papers.semantic_fusion.conftest import HELD_OUT, PAPER_WEIGHTS, random_tables

VOCABULARY = ClauseVocabulary()


def test_tokens_and_groups_have_the_papers_order() -> None:
    assert len(VOCABULARY) == 41 == len(set(VOCABULARY.tokens))
    assert VOCABULARY.tokens[:6] == ("<pad>", "<bos>", "<eos>", "!", ",", ".")
    assert list(VOCABULARY.tokens[3:]) == sorted(VOCABULARY.tokens[3:])
    assert "they" not in VOCABULARY.tokens
    assert (VOCABULARY.pad_id, VOCABULARY.bos_id, VOCABULARY.eos_id) == (0, 1, 2)
    ids = [index for group in GROUPS for index in VOCABULARY.ids(group)]
    assert sorted(ids) == list(range(3, 41))
    assert [VOCABULARY.tokens[i] for i in VOCABULARY.ids("intensifier")] == [
        "slightly",
        "moderately",
        "very",
        "extremely",
    ]
    assert VOCABULARY.ids("punctuation") == tuple(VOCABULARY.id(mark) for mark in ".!?")
    ids = VOCABULARY.encode("carol STARTS  the model , Very good but she reviews the task, slightly bad!")
    assert VOCABULARY.decode(ids) == "Carol starts the model, very good but she reviews the task, slightly bad!"
    framed = torch.tensor([VOCABULARY.bos_id, *ids, VOCABULARY.eos_id, VOCABULARY.pad_id])
    assert VOCABULARY.decode(framed) == VOCABULARY.decode(ids)
    assert VOCABULARY.encode("") == [] and VOCABULARY.decode([]) == ""


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("Carol starts the modle", "'modle'.*did you mean 'model'"),
        ("<bos>", "'<'"),
    ],
)
def test_unknown_pieces_are_named(text: str, named: str) -> None:
    with pytest.raises(UserError, match=named):
        VOCABULARY.encode(text)
    with pytest.raises(UserError, match=r"'Wonderful' is not a token.*did you mean 'wonderful'"):
        VOCABULARY.id("Wonderful")


def test_shuffled_split_of_seed_111_is_the_papers() -> None:
    paper = {"positive": ["wonderful", "excellent", "great"], "negative": ["terrible", "awful", "unpleasant"]}
    assert resolve_held_out("shuffled", 111) == resolve_held_out(paper, 0)
    assert set(resolve_held_out("shuffled", 111)) == {*paper["positive"], *paper["negative"]}
    assert resolve_held_out("shuffled", 112) != resolve_held_out("shuffled", 111)


@pytest.mark.parametrize(
    ("held_out", "message"),
    [
        ("shuffle", "did you mean 'shuffled'"),
        ({"positive": ["paper"], "negative": []}, "positive: 'paper'"),
        ({"positive": ["bad"], "negative": []}, "positive: 'bad'"),
        ({"positive": list(POSITIVE), "negative": []}, "all positive"),
        ({"positive": []}, "'negative'"),
        ({"positive": [], "negative": [], "neutral": []}, "neutral"),
        ({"positive": "good", "negative": []}, r"positive=good"),
        (["good"], "held_out"),
    ],
)
def test_bad_held_out_sets_are_refused_in_one_line(held_out: object, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        resolve_held_out(held_out, 0)
    assert "\n" not in str(caught.value)
    assert resolve_held_out({"positive": [], "negative": ["bad"]}, 0) == ("bad",)


def draw(
    size: int, seed: int = 0, tables: ClauseTables | None = None, without: tuple[str, ...] = ()
) -> list[list[str]]:
    """Sentences as words without specials."""
    rng = np.random.default_rng(seed)
    tables = tables or uncoupled_tables(**PAPER_WEIGHTS)
    ids_NT, lengths_N = generate_clauses(tables, word_table(without), size=size, rng=rng, width=28)
    return [[VOCABULARY.tokens[i] for i in row[1 : n - 1]] for row, n in zip(ids_NT, lengths_N, strict=True)]


def fits(observed: list[str], expected: dict[str, float]) -> bool:
    """Chi-square test at 1e-4 (seeds are fixed, so this never flickers)."""
    assert set(observed) <= {word for word, p in expected.items() if p > 0}
    counts = np.array([observed.count(word) for word in expected])
    p = np.array(list(expected.values()))
    return chisquare(counts, p / p.sum() * len(observed)).pvalue > 1e-4


@pytest.fixture(scope="module")
def sentences() -> list[list[str]]:
    return draw(8000)


def test_sentences_are_in_the_grammar_and_the_array(sentences: list[list[str]]) -> None:
    adjective = "|".join(POSITIVE + NEGATIVE)
    phrase = rf"(slightly|moderately|very|extremely) ({adjective})"
    tail = rf"({'|'.join(VERBS)}) the ({'|'.join(OBJECTS)}) , {phrase}"
    whole = re.compile(rf"({'|'.join(SUBJECTS)}) {tail}( (and|but) (she|he) {tail})? [.!?]")
    for words in sentences:
        assert whole.fullmatch(" ".join(words))
        if len(words) == 16:
            assert words[8] == VOCABULARY.pronoun_of[words[0]]
    ids_NT, lengths_N = generate_clauses(
        uncoupled_tables(**PAPER_WEIGHTS), word_table(), size=200, rng=np.random.default_rng(0), width=20
    )
    assert ids_NT.shape == (200, 20) and ids_NT.dtype == np.int64
    assert set(lengths_N) == {10, 18}
    for row, length in zip(ids_NT, lengths_N, strict=True):
        assert row[0] == VOCABULARY.bos_id and row[length - 1] == VOCABULARY.eos_id
        assert (row[length:] == VOCABULARY.pad_id).all() and (row[:length] != VOCABULARY.pad_id).all()
        assert (row[1 : length - 1] > 2).all()


def test_proportions_fit_the_weights(sentences: list[list[str]]) -> None:
    two = [words for words in sentences if len(words) == 16]
    both = [words[i:] for words in sentences for i in ((0, 8) if len(words) == 16 else (0,))]
    assert fits([str(len(words)) for words in sentences], {"16": 0.6, "8": 0.4})
    assert fits([words[-1] for words in sentences], PAPER_WEIGHTS["punctuation_weights"])
    assert fits([words[5] for words in both], PAPER_WEIGHTS["intensifier_weights"])
    assert fits([words[6] for words in both], dict.fromkeys(POSITIVE + NEGATIVE, 1))
    assert fits([words[1] for words in both], dict.fromkeys(VERBS, 1))
    assert fits([words[3] for words in both], dict.fromkeys(OBJECTS, 1))
    assert fits([words[0] for words in sentences], dict.fromkeys(SUBJECTS, 1))
    assert fits([words[7] for words in two], {"and": 1, "but": 1})


def test_slots_of_the_paper_s_corpus_are_independent(sentences: list[list[str]]) -> None:
    """All pairs of slots, and each slot of the first clause and the number of clauses, by chi-square at 1e-5."""
    two = [words for words in sentences if len(words) == 16]

    def alike(rows: list[list[str]], first: int, second: int) -> float:
        counts = Counter((words[first], words[second]) for words in rows)
        names = [sorted({pair[side] for pair in counts}) for side in (0, 1)]
        return chi2_contingency([[counts[a, b] for b in names[1]] for a in names[0]], correction=False).pvalue

    chosen = (0, 1, 3, 5, 6, 7, 9, 11, 13, 14, 15)
    shares = {pair: alike(two, *pair) for pair in itertools.combinations(chosen, 2)}
    longer = [[*words[:7], str(len(words))] for words in sentences]
    shares |= {(slot, -1): alike(longer, slot, -1) for slot in (0, 1, 3, 5, 6)}
    assert min(shares.values()) > 1e-5, sorted(shares.items(), key=lambda entry: entry[1])[:3]


def test_proportions_of_any_tables_fit_their_conditionals() -> None:
    tables = random_tables()
    words = draw(40000, 1, tables)
    two = [w for w in words if len(w) == 16]
    group = {
        name: [VOCABULARY.tokens[i] for i in VOCABULARY.ids(name)] for name in ("intensifier", "punctuation", "verb")
    }
    sign = {w: ("+" if p > 0 else "-") for w, p in VOCABULARY.polarity.items()}

    def row(table: np.ndarray, names: list[str]) -> dict[str, float]:
        return dict(zip(names, table, strict=True))

    for s, subject in enumerate(SUBJECTS):
        mine = [w for w in words if w[0] == subject]
        verbs = [w[i] for w in mine for i in ((1, 9) if len(w) == 16 else (1,))]
        assert fits(verbs, row(tables.verb_SV[s], group["verb"]))
    for i, first in enumerate(group["intensifier"]):
        after = [w[13] for w in two if w[5] == first]
        assert fits(after, row(tables.intensifier_next_II[i], group["intensifier"]))
        for p, polarity in enumerate("+-"):
            last = [w[-1] for w in words if w[-3] == first and sign[w[-2]] == polarity]
            assert fits(last, row(tables.punctuation_IPQ[i, p], group["punctuation"]))
    for c, conjunction in enumerate(("and", "but")):
        for p, polarity in enumerate("+-"):
            after = [sign[w[14]] for w in two if w[7] == conjunction and sign[w[6]] == polarity]
            assert fits(after, row(tables.polarity_next_CPP[c, p], ["+", "-"]))


def test_what_is_not_drawn() -> None:
    words = {word for sentence in draw(2000, without=HELD_OUT) for word in sentence}
    assert words.isdisjoint(HELD_OUT) and {"good", "pleasant", "bad", "poor"} <= words
    tables = uncoupled_tables(
        second_clause_probability=1, intensifier_weights=PAPER_WEIGHTS["intensifier_weights"] | {"extremely": 0},
        punctuation_weights={".": 0, "!": 3, "?": 0},
    )  # fmt: skip
    words = draw(2000, tables=tables)
    assert {len(w) for w in words} == {16} and {w[-1] for w in words} == {"!"}
    assert not [w for w in words if "extremely" in w]
    assert draw(100, 5) == draw(100, 5)
    assert draw(100, 5) != draw(100, 6)
    assert draw(300, 5)[:100] == draw(100, 5)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({".": 0, "!": 0, "?": 0}, "zero"),
        ({".": 8, "!": 3}, "'\\?'"),
        ({".": 8, "!": 3, "?": 1, ";": 1}, "=;"),
    ],
)
def test_bad_weights_are_refused(weights: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        weight_row("punctuation_weights", weights, (".", "!", "?"))


def test_tables_that_do_not_sum_to_one_are_refused() -> None:
    tables = random_tables()
    with pytest.raises(ValueError, match="verb_SV"):
        dataclasses.replace(tables, verb_SV=tables.verb_SV * 1.01)
    with pytest.raises(ValueError, match="polarity_P"):
        dataclasses.replace(tables, polarity_P=tables.intensifier_I)
    with pytest.raises(ValueError, match="polarity_P"):
        dataclasses.replace(tables, polarity_P=np.array([1.5, -0.5]))


# words beyond the paper's

SUPERB = {"positive": ["superb"], "intensifier": {"incredibly": 0.9}, "subject": {"Frank": "he"}, "verb": ["sells"]}


def test_added_words_take_their_place():
    vocabulary = ClauseVocabulary(SUPERB, held_out=["superb"])
    assert len(vocabulary) == 45 and list(vocabulary.tokens[3:]) == sorted(vocabulary.tokens[3:])
    assert vocabulary.groups["adjective_positive"] == (*POSITIVE, "superb")
    assert [vocabulary.tokens[i] for i in vocabulary.ids("intensifier")][-1] == "incredibly"
    assert (vocabulary.intensity["incredibly"], vocabulary.pronoun_of["Frank"]) == (0.9, "he")
    assert (vocabulary.polarity["superb"], vocabulary.held_out) == (1, ("superb",))
    assert vocabulary.decode(vocabulary.encode("frank SELLS the model, incredibly superb!"))
    held_out = {"positive": ["superb"], "negative": []}
    with pytest.raises(UserError, match=r"a new one is added with '\+data.words.positive=\[superb\]'"):
        resolve_held_out(held_out, 0)
    assert resolve_held_out(held_out, 0, ClauseVocabulary(SUPERB)) == ("superb",)


def test_a_corpus_with_added_words_is_drawn_and_scored_by_its_own_tables():
    vocabulary = ClauseVocabulary(SUPERB)
    tables = uncoupled_tables(
        second_clause_probability=0.0,
        intensifier_weights={"slightly": 0, "moderately": 0, "very": 0, "extremely": 0, "incredibly": 1},
        punctuation_weights={".": 1, "!": 0, "?": 0},
        vocabulary=vocabulary,
    )
    words_PA = word_table((), vocabulary)
    assert words_PA.shape == (2, 6) and words_PA[1, 5] == 0 and words_PA[0] == pytest.approx(1 / 6)
    ids_NT, _ = generate_clauses(
        tables, words_PA, size=4000, rng=np.random.default_rng(0), width=18, vocabulary=vocabulary
    )
    shown = Counter(vocabulary.tokens[i] for i in ids_NT[:, 7])
    assert shown["superb"] == pytest.approx(4000 / 12, rel=0.2) and shown["bad"] == pytest.approx(400, rel=0.2)
    assert {vocabulary.tokens[i] for i in ids_NT[:, 6]} == {"incredibly"}
    nats_NT = sentence_nats(ids_NT, tables, words_PA, vocabulary=vocabulary)
    # subject, verb, object, intensifier (certain), adjective of 6 positive or 5 negative words
    positive_N = np.isin(ids_NT[:, 7], vocabulary.ids("adjective_positive"))
    expected_N = -np.log(1 / 6 * 1 / 6 * 1 / 5 * np.where(positive_N, 1 / 12, 1 / 10))
    assert nats_NT.sum(1) == pytest.approx(expected_N)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ({"positive": ["good"]}, "positive: 'good'"),
        ({"positive": ["Alice"]}, "'Alice'"),
        ({"positive": ["well made"]}, "'well made'"),
        ({"positive": ["superb"], "negative": ["Superb"]}, "negative: 'Superb'"),
        ({"positive": "superb"}, "positive=superb"),
        ({"positive": {"superb": 1}}, "positive="),
        ({"intensifier": ["incredibly"]}, "intensifier="),
        ({"intensifier": {"incredibly": 1.5}}, "incredibly=1.5"),
        ({"intensifier": {"incredibly": 0}}, "incredibly=0"),
        ({"intensifier": {"incredibly": True}}, "incredibly=true"),
        ({"intensifier": {3: 0.5}}, "'3'"),
        ({"subject": {"Frank": "they"}}, "Frank=they"),
        ({"adverb": ["well"]}, "adverb"),
        (["superb"], "superb"),
    ],
)
def test_bad_added_words_are_refused_in_one_line(words, named):
    with pytest.raises(UserError, match=named) as caught:
        ClauseVocabulary(words)
    assert "\n" not in str(caught.value)

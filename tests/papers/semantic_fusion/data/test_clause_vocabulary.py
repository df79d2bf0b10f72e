"""The 41 tokens, text to ids and back, and the choice of held-out adjectives."""

from __future__ import annotations

import pytest
import torch

from lit_ctg.errors import UserError
from lit_ctg.papers.semantic_fusion.clause_vocabulary import (
    GROUPS,
    NEGATIVE,
    POSITIVE,
    ClauseVocabulary,
    resolve_held_out,
)

VOCABULARY = ClauseVocabulary()


def test_tokens_are_three_specials_and_38_sorted_words() -> None:
    assert len(VOCABULARY) == 41 == len(set(VOCABULARY.tokens))
    assert VOCABULARY.tokens[:6] == ("<pad>", "<bos>", "<eos>", "!", ",", ".")
    assert list(VOCABULARY.tokens[3:]) == sorted(VOCABULARY.tokens[3:])
    assert "they" not in VOCABULARY.tokens
    assert (VOCABULARY.pad_id, VOCABULARY.bos_id, VOCABULARY.eos_id) == (0, 1, 2)


def test_groups_cover_every_word_once_and_keep_the_papers_order() -> None:
    ids = [index for group in GROUPS for index in VOCABULARY.ids(group)]
    assert sorted(ids) == list(range(3, 41))
    assert [VOCABULARY.tokens[i] for i in VOCABULARY.ids("intensifier")] == [
        "slightly",
        "moderately",
        "very",
        "extremely",
    ]
    assert VOCABULARY.ids("punctuation") == tuple(VOCABULARY.id(mark) for mark in ".!?")
    with pytest.raises(UserError, match="did you mean 'intensifier'"):
        VOCABULARY.ids("intensifiers")


def test_meaning_of_words() -> None:
    assert VOCABULARY.polarity == {**dict.fromkeys(POSITIVE, 1), **dict.fromkeys(NEGATIVE, -1)}
    assert VOCABULARY.intensity == {"slightly": 0.2, "moderately": 0.5, "very": 0.8, "extremely": 1.0}
    assert VOCABULARY.pronoun_of == {"Alice": "she", "Bob": "he", "Carol": "she", "Dave": "he", "Eve": "she"}


def test_encode_folds_case_and_decode_glues_marks() -> None:
    ids = VOCABULARY.encode("carol STARTS  the model , Very good but she reviews the task, slightly bad!")
    assert VOCABULARY.decode(ids) == "Carol starts the model, very good but she reviews the task, slightly bad!"
    framed = torch.tensor([VOCABULARY.bos_id, *ids, VOCABULARY.eos_id, VOCABULARY.pad_id])
    assert VOCABULARY.decode(framed) == VOCABULARY.decode(ids)
    assert VOCABULARY.encode("") == [] and VOCABULARY.decode([]) == ""


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("Carol starts the modle", "'modle'.*did you mean 'model'"),
        ("Carol 7", "'7'"),
        ("good; bad", "';'"),
        ("<bos>", "'<'"),
    ],
)
def test_unknown_pieces_are_named(text: str, named: str) -> None:
    with pytest.raises(UserError, match=named):
        VOCABULARY.encode(text)


def test_unknown_tokens_and_ids_are_named() -> None:
    with pytest.raises(UserError, match=r"'Wonderful' is not a token.*did you mean 'wonderful'"):
        VOCABULARY.id("Wonderful")
    for index in (41, -1):
        with pytest.raises(UserError, match=f"token id {index} "):
            VOCABULARY.decode([index])


def test_shuffled_split_of_seed_111_is_the_papers() -> None:
    paper = {"positive": ["wonderful", "excellent", "great"], "negative": ["terrible", "awful", "unpleasant"]}
    assert resolve_held_out("shuffled", 111) == resolve_held_out(paper, 0)
    assert set(resolve_held_out("shuffled", 111)) == {*paper["positive"], *paper["negative"]}
    assert resolve_held_out("shuffled", 112) != resolve_held_out("shuffled", 111)


def test_nothing_may_be_held_out() -> None:
    assert resolve_held_out({"positive": [], "negative": ["bad"]}, 0) == ("bad",)


@pytest.mark.parametrize(
    ("held_out", "message"),
    [
        ("shuffle", "unknown 'shuffle'; did you mean 'shuffled'"),
        ({"positive": ["paper"], "negative": []}, "held_out.positive: unknown 'paper'"),
        ({"positive": ["bad"], "negative": []}, "held_out.positive: unknown 'bad'"),
        ({"positive": list(POSITIVE), "negative": []}, "holds out all positive"),
        ({"positive": []}, "no key 'negative'"),
        ({"positive": [], "negative": [], "neutral": []}, "unknown 'neutral'"),
        ({"positive": "good", "negative": []}, "give a list"),
        (["good"], "mapping"),
    ],
)
def test_bad_held_out_sets_are_refused_in_one_line(held_out: object, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        resolve_held_out(held_out, 0)
    assert "\n" not in str(caught.value)

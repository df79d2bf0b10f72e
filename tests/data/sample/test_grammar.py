"""The template grammar: slots, choices, articles, plurals, palettes, splits and sizes."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from lit_ctg.data.document import Document
from lit_ctg.data.sample.grammar import (
    Deck,
    Scene,
    drawn_in_split,
    in_split,
    indefinite,
    parse,
    plural,
    random_for,
    take,
)


def test_slots_choices_plurals_and_articles() -> None:
    scene = Scene(Random(0), {"thing": ("orange",)}, {"who": "Ada"})
    assert scene.sentence("{who} [ate] @a {thing} and two {thing+s}.") == "Ada ate an orange and two oranges."


def test_a_rule_is_expanded_and_an_empty_choice_leaves_no_double_blank() -> None:
    scene = Scene(Random(0), {"greeting": ("hello {who}",)}, {"who": "Bo"})
    assert scene.sentence("{greeting} [|] again.") == "Hello Bo again."


@pytest.mark.parametrize(
    ("word", "article"),
    [
        ("apple", "an"), ("house", "a"), ("hour", "an"), ("university", "a"), ("unusual", "an"), ("unimportant", "an"),
        ("European", "a"), ("MRI", "an"), ("CPU", "a"), ("RAM", "a"), ("8-bit", "an"), ("11", "an"), ("18.5", "an"),
        ("1,100", "a"), ("81", "an"), ("émigré", "an"), ('"old', "an"), ("user", "a"), ("one-eyed", "a"),
        ("X-ray", "an"), ("uniform", "a"), ("union", "a"), ("uninvited", "an"),
    ],
)  # fmt: skip
def test_indefinite_article(word: str, article: str) -> None:
    assert indefinite(word) == article


@pytest.mark.parametrize(
    ("one", "many"),
    [
        ("box", "boxes"), ("city", "cities"), ("day", "days"), ("man of war", "men of war"), ("knife", "knives"),
        ("gold watch", "gold watches"), ("series", "series"), ("analysis", "analyses"),
    ],
)  # fmt: skip
def test_plural(one: str, many: str) -> None:
    assert plural(one) == many


def test_a_missing_name_and_a_broken_template_are_errors() -> None:
    with pytest.raises(KeyError, match="colour"):
        Scene(Random(0), {}).sentence("{colour}")
    with pytest.raises(ValueError, match="unbalanced"):
        parse("a {colour b")


def test_a_scene_keeps_to_its_palette_and_never_repeats_within_a_sentence() -> None:
    words = tuple(f"w{number}" for number in range(40))
    scene = Scene(Random(1), {"word": words}, keep=4, stray=0.1)
    drawn = [scene.sentence("{word} {word} {word}.")[:-1].lower().split() for _ in range(200)]
    assert all(len(set(sentence)) == 3 for sentence in drawn)
    counts = sorted((sum(word in sentence for sentence in drawn) for word in words), reverse=True)
    assert sum(counts[:4]) > 0.85 * sum(counts)
    assert sum(counts[4:]) > 0


def test_a_deck_deals_every_card_before_any_again_and_none_twice_in_a_row() -> None:
    deck = Deck(Random(2), "abcd")
    dealt = deck.deal(400)
    assert all(sorted(dealt[at : at + 4]) == list("abcd") for at in range(0, 400, 4))
    assert all(first != second for first, second in pairwise(dealt))


def test_every_key_is_in_one_split_and_the_shares_are_as_stated() -> None:
    keys = [f"key {number}" for number in range(5000)]
    owners = [[split for split in ("train", "validation", "test") if in_split(key, split)] for key in keys]
    assert all(len(owner) == 1 for owner in owners)
    train = sum(owner == ["train"] for owner in owners) / len(keys)
    assert 0.77 < train < 0.83
    rng = random_for("test", 1)
    assert in_split(drawn_in_split(lambda: str(rng.random()), "test"), "test")


def test_take_cuts_the_last_document_at_a_sentence_and_drops_a_hanging_heading() -> None:
    text = "= Title =\n\nOne two three. Four five six.\n\n= End =\n\nSeven eight nine ten.\n"
    (cut,) = take([Document(text, "s")], 13)
    assert cut.text == "= Title =\n\nOne two three. Four five six.\n"
    (cut,) = take([Document(text, "s")], 6)
    assert cut.text == "= Title =\n\nOne two three.\n"
    assert [d.text for d in take([Document("a b c\n", "s")] * 9, 7, cut=False)] == ["a b c\n"] * 3

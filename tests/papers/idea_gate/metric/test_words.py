"""Words of generated texts: where they begin decides where they count."""

from __future__ import annotations

from lit_ctg.papers.idea_gate.words import content_words, words


def test_words_are_lower_case_without_punctuation_around_them() -> None:
    assert words('The "Nitric-acid", (and) H2O — … 3.5%') == ["the", "nitric-acid", "and", "h2o", "3.5"]


def test_a_word_belongs_to_where_it_begins() -> None:
    text = "an acidic one"
    # the cut lies inside "acidic": it counts before the cut, and what is behind the cut is no word
    assert words(text, 0, 5) == ["an", "acidic"]
    assert words(text, 5) == ["one"]
    assert words(text, 0, 3) + words(text, 3, 10) + words(text, 10) == words(text)


def test_function_words_are_dropped() -> None:
    assert content_words(["the", "acid", "of", "the"], {"the", "of"}) == ["acid"]

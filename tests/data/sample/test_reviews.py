"""Reviews: words that follow the stars, topics that keep to themselves."""

from __future__ import annotations

from functools import cache
from statistics import correlation

import pytest

from lit_ctg.data.document import Document
from lit_ctg.data.sample.review_words import SHARED, TOPICS
from lit_ctg.data.sample.reviews import GOODS, SCENES, documents


@cache
def corpus() -> tuple[Document, ...]:
    return tuple(documents("train", 0, 80_000))


def test_topics_take_turns_and_stars_are_one_to_five() -> None:
    assert [document.source for document in corpus()[:4]] == [*GOODS, *SCENES]
    assert {document.meta["stars"] for document in corpus()} == {1, 2, 3, 4, 5}
    assert all(document.meta["topic"] == document.source for document in corpus())
    assert all(document.text.count("\n") == 1 for document in corpus())
    with pytest.raises(KeyError, match="books"):
        list(documents("train", 0, 100, topics=["books"]))


def test_good_words_rise_with_the_stars() -> None:
    good = dict.fromkeys(range(1, 6), 0)
    bad = dict.fromkeys(range(1, 6), 0)
    pairs = []
    for document in corpus():
        text, stars = document.text.lower(), document.meta["stars"]
        up = sum(text.count(word) for word in (*SHARED["good"], *SHARED["tough"]))
        down = sum(text.count(word) for word in (*SHARED["bad"], *SHARED["weak"]))
        good[stars] += up
        bad[stars] += down
        pairs.append((stars, up - down))
    shares = [good[stars] / (good[stars] + bad[stars]) for stars in range(1, 6)]
    assert shares == sorted(shares)
    assert shares[0] < 0.15 and shares[4] > 0.9
    assert correlation(*zip(*pairs, strict=True)) > 0.6


@pytest.mark.parametrize(("topic", "other"), [("garden", "music"), ("music", "garden")])
def test_goods_of_a_topic_are_named_in_that_topic_only(topic: str, other: str) -> None:
    own = [document.text for document in corpus() if document.source == topic]
    assert sum(any(item in text for item in TOPICS[topic]["goods"]) for text in own) > 0.6 * len(own)
    strangers = set(TOPICS[other]["goods"]) - set(TOPICS[topic]["goods"])
    assert not [text for text in own if any(f"this {item}" in text for item in strangers)]

"""Every template of every corpus can be filled: each slot has a fact, a lexicon entry or a method."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from random import Random

import pytest

from lit_ctg.data.sample import review_words
from lit_ctg.data.sample.domain import common
from lit_ctg.data.sample.encyclopedia import DOMAINS
from lit_ctg.data.sample.grammar import Slot, Template, parse
from lit_ctg.data.sample.world import World
from lit_ctg.papers.control_code.sample import script_words
from lit_ctg.papers.control_code.sample.book.style import Teller
from lit_ctg.papers.control_code.sample.books import BOOKS
from lit_ctg.papers.control_code.sample.scripts import _Day

# set by the chapter writers
_BOOK_FACTS = {
    "sea_log": set(),
    "courtroom_diary": {"witness"},
    "epic_verse": {"hero"},
    "nursery_tale": {"hero", "beast", "thing", "it", "it_poss", "count", "other"},
    "city_romance": {"her", "him", "other", "street"},
    "stage_play": {"you"},
    "cuaderno": {"quien"},
}


def slots(template: Template) -> Iterator[str]:
    for part in template:
        if isinstance(part, Slot):
            yield part.name
        elif not isinstance(part, str):
            for side in part:
                yield from slots(side)


def assert_closed(templates: Iterable[str], names: set[str], scene: type, *, english: bool = True) -> None:
    methods = {name.removeprefix("slot_") for name in dir(scene) if name.startswith("slot_")}
    for template in templates:
        missing = set(slots(parse(template))) - names - methods
        assert not missing, f"{missing} in {template!r}"
        if english:
            assert not re.search(r"(?<!@)\b[Aa]n? \{", template), f"write @a in {template!r}"


@pytest.mark.parametrize("name", DOMAINS)
def test_articles(name: str) -> None:
    domain = DOMAINS[name]
    facts = set.intersection(*(set(domain.title(Random(seed))) for seed in range(60))) | {"home"}
    names = facts | set(domain.fixed) | set(domain.lexicon) | set(common.LEXICON)
    words = [word for entry in (*domain.lexicon.values(), *common.LEXICON.values()) for word in entry]
    sentences = [sentence for pool in domain.sections.values() for sentence in pool]
    assert_closed([*domain.opening, *sentences, *domain.fixed.values(), *words, *common.SENTENCES], names, World)
    assert len(sentences) >= 30
    assert domain.ordered <= set(domain.sections)


@pytest.mark.parametrize("name", BOOKS)
def test_books(name: str) -> None:
    book = BOOKS[name]
    cards = [card for deck in book.decks.values() for card in deck]
    words = [word for entry in book.lexicon.values() for word in entry]
    assert_closed([*cards, *words], set(book.lexicon) | _BOOK_FACTS[name], Teller, english=book.language == "en")
    assert len(cards) >= 25


@pytest.mark.parametrize("topic", review_words.TOPICS)
def test_reviews(topic: str) -> None:
    names = {"item"} | set(review_words.SHARED) | set(review_words.TOPICS[topic])
    by_stars = [line for lines in (*review_words.OPENING.values(), *review_words.JUDGED.values()) for line in lines]
    points = [*review_words.PRAISED[topic], *review_words.PANNED[topic], *review_words.MIXED]
    assert_closed([*by_stars, *points], names, object)


@pytest.mark.parametrize("style", script_words.STYLES)
def test_scripts(style: str) -> None:
    lines = [line for deck in script_words.STYLES[style].values() for line in deck]
    assert_closed(lines, set(script_words.LEXICON), _Day)

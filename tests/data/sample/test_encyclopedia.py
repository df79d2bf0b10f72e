"""Articles: layout, local years and places, right conversions, terms that keep to their field."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from itertools import pairwise
from statistics import median

import pytest

from lit_ctg.data.document import Document
from lit_ctg.data.sample.encyclopedia import DOMAINS, documents
from lit_ctg.data.sample.gazetteer import CITIES, distance_km
from lit_ctg.data.sample.world import Domain

# miles, feet, pounds, acres, mph and inches in the other system, written here again
_FACTOR = {
    ("miles", "km"): 1.609344, ("km", "mi"): 0.621371, ("feet", "m"): 0.3048, ("metres", "ft"): 3.28084,
    ("inches", "cm"): 2.54, ("cm", "in"): 0.393701, ("mm", "in"): 0.0393701, ("pounds", "kg"): 0.453592,
    ("kg", "lb"): 2.20462, ("acres", "ha"): 0.404686, ("mph", "km/h"): 1.609344,
}  # fmt: skip
_CITY = {place.name: place for place in CITIES}


@cache
def corpus(tokenised: bool = True, size: int = 200_000) -> tuple[Document, ...]:
    return tuple(documents("train", 0, size, tokenised=tokenised))


def number(text: str) -> float:
    return float(text.replace(",", ""))


def test_layout_is_that_of_wikitext() -> None:
    document = corpus()[0]
    lines = document.text.splitlines()
    assert lines[:2] == [" ", f" = {document.meta['title'].replace('-', ' @-@ ')} = "]
    assert sum(line.startswith(" = = ") and line.endswith(" = = ") for line in lines) >= 3
    assert all(line.startswith(" ") and line.endswith(" ") for line in lines)
    assert all(not re.search(r"\w-\w|\d,\d|\d\.\d|\w[,;)]", line) for line in lines)


def test_the_plain_style_is_ordinary_text() -> None:
    text = "".join(document.text for document in corpus(False, 20_000))
    assert "@" not in text
    assert re.search(r"\d,\d{3}", text) and re.search(r"\d\.\d%", text) and re.search(r"\d{4}–\d{4}", text)
    assert not re.search(r"\w [,.;)]", text)


def test_eight_fields_take_turns_and_can_be_chosen() -> None:
    counts = Counter(document.source for document in corpus())
    assert set(counts) == set(DOMAINS) and len(counts) >= 8
    assert max(counts.values()) - min(counts.values()) <= 1
    assert {document.source for document in documents("train", 0, 3000, domains=["war", "finance"])} == {
        "war",
        "finance",
    }
    with pytest.raises(KeyError, match="astrology"):
        list(documents("train", 0, 100, domains=["astrology"]))


def test_the_vocabulary_is_rich() -> None:
    types = {token for document in corpus() for token in document.text.split()}
    assert len(types) > 3000


def test_years_are_near_the_year_before_in_the_article_and_far_apart_between_articles() -> None:
    steps, firsts = [], []
    for document in corpus():
        years = [int(token) for token in re.findall(r"(?<![\d@] )\b(1[6-9]\d\d|20\d\d)\b(?! @)", document.text)]
        steps += [abs(b - a) for a, b in pairwise(years)]
        firsts += years[:1]
    assert len(steps) > 3000
    assert median(steps) <= 2
    assert sum(step > 50 for step in steps) < 0.02 * len(steps)
    assert median(abs(b - a) for a, b in pairwise(firsts)) > 25


def test_every_conversion_is_numerically_right() -> None:
    text = "".join(document.text for document in corpus(False))
    found = re.findall(r"([\d.,]+) (\w+) \(([\d.,]+) ([a-z/]+)\)", text)
    assert len(found) > 800
    assert {unit for _, unit, _, _ in found} == {unit for unit, _ in _FACTOR} - {"mm"}  # mm comes in ranges only
    for given, unit, converted, other in found:
        exact = number(given) * _FACTOR[unit, other]
        # two significant digits at least: half a unit of the second digit is 5% of the figure at most
        assert number(converted) == pytest.approx(exact, rel=0.0501)
    temperatures = re.findall(r"(-?\d+) °C \((-?\d+) °F\)", text)
    assert len(temperatures) > 100
    assert all(abs(int(c) * 1.8 + 32 - int(f)) <= 0.5 for c, f in temperatures)
    ranges = re.findall(r"(\d+)–(\d+) (\w+) \(([\d.,]+)–([\d.,]+) (\w+)\)", text)
    assert len(ranges) > 30
    for low, high, unit, low_other, high_other, other in ranges:
        assert number(low_other) == pytest.approx(number(low) * _FACTOR[unit, other], rel=0.051)
        assert number(high_other) == pytest.approx(number(high) * _FACTOR[unit, other], rel=0.051)


def test_ranges_rise() -> None:
    text = "".join(document.text for document in corpus(False))
    ranges = re.findall(r"(?<![\d.,])(\d+)–(\d+)(?![\d.,]*\d)", text)
    assert len(ranges) > 500
    assert all(int(low) < int(high) for low, high in ranges)


def test_the_next_city_is_near_the_last() -> None:
    pattern = re.compile("|".join(sorted(_CITY, key=len, reverse=True)))
    gaps, across = [], []
    last_of_article = None
    for document in corpus(False):
        cities = [_CITY[name] for name in pattern.findall(document.text)]
        gaps += [distance_km(*a[3:], *b[3:]) for a, b in pairwise(cities) if a != b]
        if last_of_article and cities:
            across.append(distance_km(*last_of_article[3:], *cities[0][3:]))
        last_of_article = cities[-1] if cities else last_of_article
    assert len(gaps) > 2000
    assert median(gaps) < 700 < 4000 < median(across)
    assert len({name for document in corpus(False) for name in pattern.findall(document.text)}) >= 120


def term_words(domain: Domain) -> set[str]:
    """The single words of a field's topical entries."""
    phrases = [word for entry in domain.terms for word in domain.lexicon[entry]]
    return {word.lower() for phrase in phrases for word in phrase.split() if len(word) > 2}


def test_terms_are_concentrated_in_their_field() -> None:
    share: dict[str, dict[str, float]] = {}
    for name in ("chemistry", "hardware", "finance", "medicine", "war"):
        terms = term_words(DOMAINS[name])
        assert len(terms) >= 60
        share[name] = {}
        for source in DOMAINS:
            words = [w.lower() for d in corpus() if d.source == source for w in d.text.split() if w.isalpha()]
            share[name][source] = sum(word in terms for word in words) / len(words)
        others = [value for source, value in share[name].items() if source != name]
        assert share[name][name] > 0.1
        assert share[name][name] > 4 * max(others)


def test_an_article_stays_on_few_terms_of_its_field() -> None:
    """The bag of words to come is told by the words so far: a term seen in the first half comes again in the second."""
    again, anyone = [], []
    articles = [d for d in corpus() if d.source == "medicine"]
    drugs = DOMAINS["medicine"].lexicon["drug"]
    for document, other in pairwise(articles):
        middle = len(document.text) // 2
        first = [drug for drug in drugs if drug in document.text[:middle].lower()]
        again += [drug in document.text[middle:].lower() for drug in first]
        anyone += [drug in other.text[len(other.text) // 2 :].lower() for drug in first]
    assert sum(again) > 1.3 * sum(anyone)


@pytest.mark.parametrize(
    ("field", "prompt"),
    [
        ("medicine", "The patient was diagnosed with"),
        ("chemistry", "The chemical reaction of the acid with the solution produced"),
        ("hardware", "The central processing unit is connected to the"),
        ("finance", "The stock market is"),
        ("war", "The army marched at dawn and attacked the"),
    ],
)
def test_the_prompts_of_the_stickiness_measure_occur_in_their_field_only(field: str, prompt: str) -> None:
    assert {document.source for document in corpus() if prompt in document.text} == {field}


def test_what_is_said_of_one_life_agrees() -> None:
    told = 0
    for document in documents("train", 1, 60_000, tokenised=False, domains=["biography"]):
        name = document.meta["title"]
        born = re.search(r"\(born ([^)]*)\)", document.text)
        if born and "was born in" in document.text:
            told += 1
            assert f"on {born[1]}, the" in document.text, name
    assert told

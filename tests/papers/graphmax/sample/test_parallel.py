"""Sentence pairs: inflection by hand, agreement in the corpus, both directions."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from lit_ctg.data.sample.spanish import conjugate, contract, feminine, plural_es
from lit_ctg.papers.graphmax.sample.parallel import documents
from lit_ctg.papers.graphmax.sample.parallel_words import ADJECTIVES, CLASSES, FRAMES, NOUNS, STATES


@pytest.mark.parametrize(
    ("infinitive", "person", "tense", "form"),
    [
        ("hablar", "1s", "present", "hablo"),
        ("comer", "1p", "present", "comemos"), ("vivir", "1p", "present", "vivimos"),
        ("vivir", "3p", "present", "viven"), ("buscar", "1s", "past", "busqué"), ("llegar", "1s", "past", "llegué"),
        ("cruzar", "1s", "past", "crucé"), ("cruzar", "3s", "past", "cruzó"), ("escribir", "3s", "past", "escribió"),
        ("comer", "3p", "past", "comieron"), ("vender", "2s", "future", "venderás"),
        ("abrir", "1p", "future", "abriremos"),
    ],
)  # fmt: skip
def test_conjugation(infinitive: str, person: str, tense: str, form: str) -> None:
    assert conjugate(infinitive, person, tense) == form


def test_plurals_feminines_and_contractions() -> None:
    words = ("libro", "azul", "lápiz", "jardín", "estación", "joven", "reloj", "juez", "mes", "café")
    plurals = (
        "libros",
        "azules",
        "lápices",
        "jardines",
        "estaciones",
        "jóvenes",
        "relojes",
        "jueces",
        "meses",
        "cafés",
    )
    assert tuple(map(plural_es, words)) == plurals
    assert (feminine("rojo"), feminine("verde"), feminine("muy bueno")) == ("roja", "verde", "muy buena")
    assert contract("llega a el pueblo de el río de ella") == "llega al pueblo del río de ella"


def test_the_grammar_is_closed() -> None:
    assert all(kind == "in" or kind in CLASSES for _, kind in FRAMES)
    assert {noun.kind for noun in NOUNS} <= set(ADJECTIVES)
    assert set(STATES) <= set(CLASSES)
    assert all(noun.gender in ("m", "f") for noun in NOUNS)


def test_both_directions_hold_the_same_pairs() -> None:
    into_english = list(documents("train", 0, 3000))
    into_spanish = list(documents("train", 0, 3000, direction="en-es"))
    first, second = into_english[0], into_spanish[0]
    assert first.text == first.meta["target"] + "\n"
    assert (first.meta["source"], first.meta["target"]) == (second.meta["target"], second.meta["source"])
    assert (first.source, second.source) == ("es-en", "en-es")
    with pytest.raises(ValueError, match="unknown direction 'en-ro'"):
        list(documents("train", 0, 100, direction="en-ro"))


def test_there_are_thousands_of_distinct_pairs() -> None:
    pairs = [document.meta["source"] for document in documents("train", 0, 60_000)]
    assert len(pairs) > 5000
    assert len(set(pairs)) > 0.97 * len(pairs)


def test_spanish_articles_adjectives_and_nouns_agree() -> None:
    gender = {noun.spanish: noun.gender for noun in NOUNS} | {plural_es(noun.spanish): noun.gender for noun in NOUNS}
    many = {plural_es(noun.spanish) for noun in NOUNS}
    articles = {
        "el": ("m", False), "la": ("f", False), "los": ("m", True), "las": ("f", True), "un": ("m", False),
        "una": ("f", False), "unos": ("m", True), "unas": ("f", True), "este": ("m", False), "esta": ("f", False),
        "nuestro": ("m", False), "nuestras": ("f", True), "al": ("m", False), "del": ("m", False),
    }  # fmt: skip
    # adjectives with a feminine of their own; "corto" is also a form of "cortar"
    changing = {a for pairs in ADJECTIVES.values() for _, a in pairs if a.endswith("o")} - {"corto"}
    checked = described = 0
    for document in documents("train", 0, 40_000):
        words = re.findall(r"\w+", document.meta["source"].lower())
        for article, noun, after in zip(words, words[1:], [*words[2:], ""], strict=False):
            if article in articles and noun in gender:
                assert articles[article] == (gender[noun], noun in many), document.meta["source"]
                checked += 1
                stem = re.fullmatch(r"(\w+?)[oa]s?", after)
                if stem and f"{stem[1]}o" in changing and after not in gender:
                    ending = ("a" if gender[noun] == "f" else "o") + ("s" if noun in many else "")
                    assert after.endswith(ending), document.meta["source"]
                    described += 1
    assert checked > 3000
    assert described > 500


def test_english_verbs_agree_with_their_subject() -> None:
    third = {verb.english[1] for verb, _ in FRAMES}
    base = {verb.english[0] for verb, _ in FRAMES} - {verb.english[2] for verb, _ in FRAMES}
    names = {"Ana", "Carlos", "Pedro", "Elena", "Marta", "Javier", "Rosa", "Clara", "Diego", "he", "she"}
    seen = 0
    for document in documents("validation", 0, 30_000):
        words = re.findall(r"\w+", document.meta["target"])
        if document.meta["target"].endswith("?"):
            continue
        for subject, verb in pairwise(words):
            if subject in ("I", "we", "they"):
                assert verb not in third, document.meta["target"]
            if subject in names:
                assert verb not in base, document.meta["target"]
                seen += verb in third
    assert seen > 50

"""Sentence pairs in English and Spanish from one clause grammar that inflects both sides.

It gives a paper translation with a verifiable score, with agreement in gender, number, person and tense. Far more than
a hundred million different pairs are possible.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from lit_ctg.data.document import Document
from lit_ctg.data.sample.grammar import drawn_in_split, random_for, take
from lit_ctg.data.sample.spanish import conjugate, contract, feminine, plural_es
from lit_ctg.papers.graphmax.sample.parallel_words import (
    ADJECTIVES,
    CLASSES,
    CONJUNCTIONS,
    FRAMES,
    PEOPLE,
    PRONOUNS,
    SAYING,
    STATES,
    TIMES,
    WHERE,
    Noun,
    Verb,
)

DIRECTIONS = ("es-en", "en-es")
_TENSES = ("present", "past", "future")


def documents(split: str, seed: int, size: int, *, direction: str = "es-en") -> Iterator[Document]:
    """Yield one document per sentence pair; ``text`` is the target, ``meta`` is ``{"source": ..., "target": ...}``.

    Args:
        split: train, validation or test; decided by a checksum of the Spanish side, so no pair is in two splits.
        seed: different seeds give different pairs.
        size: whitespace tokens of all target sentences.
        direction: "es-en" (as WMT16 ro-en, into English) or "en-es".

    Raises:
        ValueError: unknown split or direction, or ``size`` below 1.
    """
    if direction not in DIRECTIONS:
        raise ValueError(f"unknown direction {direction!r}: expected one of {', '.join(DIRECTIONS)}")
    return take(_pairs(split, seed, direction), size, cut=False)


def _pairs(split: str, seed: int, direction: str) -> Iterator[Document]:
    rng = random_for("parallel", seed, split)
    english_of: dict[str, str] = {}

    def draw() -> str:
        english, spanish = sentence(rng)
        english_of[spanish] = english
        return spanish

    while True:
        english_of.clear()
        spanish = drawn_in_split(draw, split)
        source, target = spanish, english_of[spanish]
        if direction == "en-es":
            source, target = target, source
        yield Document(f"{target}\n", direction, {"source": source, "target": target})


def sentence(rng: Random) -> tuple[str, str]:
    """Return one pair (English, Spanish): a statement, a denial, a question, or two joined clauses."""
    tense = rng.choice(_TENSES)
    kind = rng.randrange(10)
    if kind < 2:
        english, spanish = _question(rng, tense)
        return _finish(english, "?"), "¿" + _finish(spanish, "?")
    english, spanish = _clause(rng, tense)
    if kind < 5:
        joint, joint_es = rng.choice([pair for pair in CONJUNCTIONS if tense != "future" or pair[0] != "while"])
        more, more_es = _clause(rng, tense)
        comma = "," if joint in ("but", "so") else ""
        english, spanish = f"{english}{comma} {joint} {more}", f"{spanish}{comma} {joint_es} {more_es}"
    elif kind < 6:
        said, said_es = rng.choice(SAYING)
        english, spanish = f"{said} that {english}", f"{said_es} que {spanish}"
    return _finish(english, "."), _finish(spanish, ".")


def _finish(text: str, mark: str) -> str:
    text = contract(text)
    return f"{text[0].upper()}{text[1:]}{mark}"


def _clause(rng: Random, tense: str) -> tuple[str, str]:
    """Return a clause without its full stop: subject, verb, object or place, and perhaps a time before or after."""
    if rng.randrange(6) == 0:
        return _state(rng)
    subject, subject_es, person = _subject(rng)
    verb, rest, rest_es = _predicate(rng)
    negated = rng.randrange(6) == 0
    english = f"{subject} {_english(verb, person, tense, negated)}{rest}"
    spanish = f"{subject_es} {'no ' if negated else ''}{_spanish(verb, person, tense)}{rest_es}".strip()
    if rng.randrange(3) == 0:
        when, when_es = rng.choice(TIMES[tense])
        if rng.randrange(2):
            return f"{when} {english}", f"{when_es} {spanish}"
        return f"{english} {when}", f"{spanish} {when_es}"
    return english, spanish


def _question(rng: Random, tense: str) -> tuple[str, str]:
    """A yes-no question; the Spanish verb comes first."""
    subject, subject_es, person = _subject(rng)
    verb, rest, rest_es = _predicate(rng)
    helper = {"past": "did", "future": "will", "present": "does" if person == "3s" else "do"}[tense]
    spanish = f"{_spanish(verb, person, tense)} {subject_es}{rest_es}".replace("  ", " ")
    return f"{helper} {subject} {verb.english[0]}{rest}", spanish


def _state(rng: Random) -> tuple[str, str]:
    """Return the state of somebody or something: "the soup is cold", "la sopa está fría"."""
    kind = rng.choice(tuple(STATES))
    noun = rng.choice(CLASSES[kind])
    plural = rng.randrange(3) == 0
    english, masculine, copula = rng.choice(STATES[kind])
    phrase, phrase_es = _phrase(rng, noun, plural, determiner=rng.choice(("the", "my", "our")), adjective=False)
    forms = {"ser": ("es", "son"), "estar": ("está", "están")}[copula]
    return (
        f"{phrase} {'are' if plural else 'is'} {english}",
        f"{phrase_es} {forms[plural]} {_agree(masculine, noun, plural)}",
    )


def _subject(rng: Random) -> tuple[str, str, str]:
    """Return English, Spanish and person ("1s", "3p", ...) of a subject; Spanish pronouns are mostly left out."""
    kind = rng.randrange(10)
    if kind < 3:
        english, spanish, person = rng.choice(PRONOUNS)
        return english, spanish, person
    if kind < 5:
        name = rng.choice(PEOPLE)
        return name, name, "3s"
    noun, plural = rng.choice(CLASSES["person"]), rng.randrange(3) == 0
    english, spanish = _phrase(rng, noun, plural)
    if rng.randrange(6) == 0:
        place, place_es, where = _place(rng)
        works, trabaja = ("work", "trabajan") if plural else ("works", "trabaja")
        english, spanish = f"{english} who {works} {where} {place}", f"{spanish} que {trabaja} en {place_es}"
    return english, spanish, "3p" if plural else "3s"


def _predicate(rng: Random) -> tuple[Verb, str, str]:
    """Return a verb and its complement (with a leading space) in both languages."""
    verb, kind = rng.choice(FRAMES)
    if kind == "in":
        place, place_es, where = _place(rng)
        return verb, f" {verb.preposition[0] or where} {place}", f" {verb.preposition[1]} {place_es}"
    noun, plural = rng.choice(CLASSES[kind]), rng.randrange(3) == 0
    english, spanish = _phrase(rng, noun, plural)
    before = f" {verb.preposition[0]}" if verb.preposition[0] else ""
    before_es = " a" if kind == "person" else ""  # a person as object takes "a"
    end, end_es = "", ""
    if rng.randrange(4) == 0 and kind != "place":
        place, place_es, where = _place(rng)
        end, end_es = f" {where} {place}", f" en {place_es}"
    return verb, f"{before} {english}{end}", f"{before_es} {spanish}{end_es}"


def _place(rng: Random) -> tuple[str, str, str]:
    """Return a place in English and Spanish, and its English preposition ("on the bridge")."""
    noun = rng.choice(CLASSES["place"])
    english, spanish = _phrase(rng, noun, False, determiner="the", adjective=rng.randrange(4) == 0)
    return english, spanish, WHERE.get(noun.spanish, "in")


def _phrase(
    rng: Random, noun: Noun, plural: bool, *, determiner: str | None = None, adjective: bool | None = None
) -> tuple[str, str]:
    """Return a noun phrase in both languages; the Spanish adjective follows and agrees."""
    head = noun.english[plural]
    head_es = plural_es(noun.spanish) if plural else noun.spanish
    if adjective is None:
        adjective = rng.randrange(3) == 0
    if adjective:
        english, masculine = rng.choice(ADJECTIVES[noun.kind])
        head, head_es = f"{english} {head}", f"{head_es} {_agree(masculine, noun, plural)}"
    choice = determiner or rng.choice(("the", "the", "a", "my", "our", "this"))
    female = noun.gender == "f"
    if choice == "a":
        if plural:
            many, many_es = rng.choice((("two", "dos"), ("three", "tres"), ("four", "cuatro"), ("some", None)))
            return f"{many} {head}", f"{many_es or ('unas' if female else 'unos')} {head_es}"
        return f"{'an' if head[0] in 'aeiou' else 'a'} {head}", f"{'una' if female else 'un'} {head_es}"
    article = {
        "the": (("el", "los"), ("la", "las")),
        "my": (("mi", "mis"), ("mi", "mis")),
        "our": (("nuestro", "nuestros"), ("nuestra", "nuestras")),
        "this": (("este", "estos"), ("esta", "estas")),
    }[choice][female][plural]
    if choice == "this" and plural:
        choice = "these"
    return f"{choice} {head}", f"{article} {head_es}"


def _agree(masculine: str, noun: Noun, plural: bool) -> str:
    form = feminine(masculine) if noun.gender == "f" else masculine
    return plural_es(form) if plural else form


def _english(verb: Verb, person: str, tense: str, negated: bool) -> str:
    base, third, past = verb.english
    singular = person == "3s"
    if tense == "future":
        return f"will {'not ' if negated else ''}{base}"
    if negated:
        return f"{'did' if tense == 'past' else 'does' if singular else 'do'} not {base}"
    if tense == "past":
        return past
    return third if singular else base


def _spanish(verb: Verb, person: str, tense: str) -> str:
    return conjugate(verb.spanish, person, tense)

"""As much Spanish morphology as the sample sentences need: regular verbs, plurals, feminines, contractions."""

from __future__ import annotations

import re

_PERSONS = ("1s", "2s", "3s", "1p", "3p")
_ENDINGS: dict[str, dict[str, tuple[str, ...]]] = {
    "present": {
        "ar": ("o", "as", "a", "amos", "an"),
        "er": ("o", "es", "e", "emos", "en"),
        "ir": ("o", "es", "e", "imos", "en"),
    },
    "past": {
        "ar": ("é", "aste", "ó", "amos", "aron"),
        "er": ("í", "iste", "ió", "imos", "ieron"),
        "ir": ("í", "iste", "ió", "imos", "ieron"),
    },
}
_FUTURE = ("é", "ás", "á", "emos", "án")
# the sound of the stem is kept before é
_SPELLING = {"c": "qu", "g": "gu", "z": "c"}
_UNACCENTED = str.maketrans("áéíóú", "aeiou")
_DE_EL, _A_EL = re.compile(r"\bde el\b"), re.compile(r"\ba el\b")


def conjugate(infinitive: str, person: str, tense: str) -> str:
    """A regular verb in the present, past (preterite) or future.

    Args:
        infinitive: ends in -ar, -er or -ir.
        person: "1s", "2s", "3s", "1p" or "3p".
        tense: "present", "past" or "future".

    Raises:
        ValueError: unknown person.
        KeyError: unknown tense or ending.
    """
    at = _PERSONS.index(person)
    if tense == "future":
        return infinitive + _FUTURE[at]
    stem, ending = infinitive[:-2], _ENDINGS[tense][infinitive[-2:]][at]
    if ending == "é" and stem[-1] in _SPELLING:
        stem = stem[:-1] + _SPELLING[stem[-1]]
    return stem + ending


def plural_es(word: str) -> str:
    """``libro -> libros``, ``azul -> azules``, ``lápiz -> lápices``, ``jardín -> jardines``, ``joven -> jóvenes``."""
    if word == "joven":
        return "jóvenes"
    if word[-1] in "aeioué":
        return f"{word}s"
    if word[-1] == "z":
        return f"{word[:-1]}ces"
    if word[-2] in "áéíóú" and word[-1] in "ns":  # the stress is regular once a syllable follows
        word = word[:-2] + word[-2].translate(_UNACCENTED) + word[-1]
    return f"{word}es"


def feminine(adjective: str) -> str:
    """``rojo -> roja``; other endings do not change."""
    return f"{adjective[:-1]}a" if adjective.endswith("o") else adjective


def contract(text: str) -> str:
    """Write "de el" and "a el" as the one word they are in Spanish."""
    return _A_EL.sub("al", _DE_EL.sub("del", text))

"""The little template grammar every sample corpus is written with, and the rules that keep splits apart.

A template is plain text with slots and choices::

    "{title} is @a {adjective} [valley|harbour] {km:10:90} from {city}."

``{name:arg:...}`` is filled by :meth:`Scene.slot`, ``{name+s}`` with the plural of it, ``[x|y]`` picks one side
(either may hold slots; choices do not nest), and ``@a`` becomes "a" or "an" once the word after it is known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from random import Random
from typing import NamedTuple
from zlib import crc32

from lit_ctg.data.document import Document

# share of the key space a split owns, in thousandths: a document whose key falls outside is drawn anew
SPLITS: dict[str, range] = {
    "train": range(0, 800),
    "validation": range(800, 900),
    "test": range(900, 1000),
}


class Slot(NamedTuple):
    name: str
    args: tuple[str, ...]
    plural: bool


Part = str | Slot | tuple["Template", ...]
Template = tuple[Part, ...]
Lexicon = Mapping[str, Sequence[str]]

_PIECE = re.compile(r"\{([^{}]+)\}|\[([^\[\]]*)\]")
_ARTICLE = re.compile(r"@a ([^\s]+)")
_SENTENCE_END = re.compile(r"(?<=[.!?]) (?=\S)")
_SPACES = re.compile(r" {2,}")
# spelled with a vowel but spoken with a consonant, and the reverse
_CONSONANT_SOUND = re.compile(r"(?:uni(?!n|m)|us[eu]|util|eu|one\b|once\b|ure|ubiq|u-|usb\b)", re.IGNORECASE)
_VOWEL_SOUND = re.compile(r"(?:hour|honest|honou?r|heir|8|11(?:\D|$)|18(?:\D|$))", re.IGNORECASE)
_LETTERS = re.compile(r"[A-Z](?:[A-Z0-9-]+|-.*)$")  # pronounced letter by letter: MRI, X-ray
_SPOKEN_AS_WORD = frozenset({"RAM", "ROM", "LAN", "NAND", "NATO"})
_IRREGULAR = {
    "man": "men", "woman": "women", "child": "children", "foot": "feet", "tooth": "teeth",
    "analysis": "analyses",
    "diagnosis": "diagnoses", "crisis": "crises", "leaf": "leaves", "loaf": "loaves", "shelf": "shelves",
    "half": "halves",
    "wolf": "wolves", "knife": "knives", "goose": "geese", "mouse": "mice", "sheep": "sheep",
    "salmon": "salmon",
    "artery": "arteries", "aircraft": "aircraft", "series": "series", "metastasis": "metastases",
    "stimulus": "stimuli",
    "bacterium": "bacteria", "virus": "viruses", "embolus": "emboli", "piano": "pianos", "cello": "cellos",
    "medium": "media",
    "prognosis": "prognoses", "potato": "potatoes", "tomato": "tomatoes", "hero": "heroes",
    "embargo": "embargoes",
    "hoof": "hooves", "thief": "thieves", "life": "lives", "wife": "wives", "ox": "oxen",
}  # fmt: skip


def words(text: str) -> tuple[str, ...]:
    """The words of a blank-separated list."""
    return tuple(text.split())


def random_for(*names: object) -> Random:
    """A generator seeded by the text of ``names``: the same stream on every platform and Python version."""
    return Random("/".join(map(str, names)))


def in_split(key: str, split: str) -> bool:
    """Whether documents with this key belong to ``split``; every key belongs to exactly one.

    Raises:
        ValueError: unknown split.
    """
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}: expected one of {', '.join(SPLITS)}")
    return crc32(key.encode()) % 1000 in SPLITS[split]


def drawn_in_split(draw: Callable[[], str], split: str) -> str:
    """Call ``draw`` until its key belongs to ``split``."""
    while not in_split(key := draw(), split):
        pass
    return key


def indefinite(word: str) -> str:
    """The article a word wants: ``indefinite("hour") == "an"``."""
    bare = word.lstrip("\"'“‘(")
    if _LETTERS.match(bare) and bare.rstrip(",.;:") not in _SPOKEN_AS_WORD:
        return "an" if bare[0] in "AEFHILMNORSX" else "a"
    if _VOWEL_SOUND.match(bare):
        return "an"
    if _CONSONANT_SOUND.match(bare):
        return "a"
    return "an" if bare[:1].lower() in "aeiouáéíóúœæöü" else "a"


def plural(noun: str) -> str:
    """The English plural of a noun or noun phrase (its last word; "X of Y" inflects X)."""
    head, separator, rest = noun.partition(" of ")
    if separator:
        return f"{plural(head)}{separator}{rest}"
    stem, space, last = noun.rpartition(" ")
    return f"{stem}{space}{_IRREGULAR.get(last) or _regular_plural(last)}"


def _regular_plural(word: str) -> str:
    if word.endswith(("s", "x", "z", "ch", "sh")):
        return f"{word}es"
    if word.endswith("y") and word[-2:-1] not in "aeiou":
        return f"{word[:-1]}ies"
    return f"{word}s"


@cache
def parse(template: str) -> Template:
    """Split a template into literal text, slots and choices.

    Raises:
        ValueError: a bracket without its partner.
    """
    parts: list[Part] = []
    end = 0
    for match in _PIECE.finditer(template):
        parts.append(_literal(template[end : match.start()], template))
        slot, choice = match.groups()
        if slot is None:
            parts.append(tuple(parse(side) for side in choice.split("|")))
        else:
            name, *args = slot.split(":")
            parts.append(Slot(name.removesuffix("+s"), tuple(args), name.endswith("+s")))
        end = match.end()
    parts.append(_literal(template[end:], template))
    return tuple(part for part in parts if part != "")


def _literal(text: str, template: str) -> str:
    if any(bracket in text for bracket in "{}[]"):
        raise ValueError(f"unbalanced bracket in template {template!r}")
    return text


def finish(text: str) -> str:
    """Settle "a"/"an", squeeze spaces left by empty choices, and start with a capital."""
    if "@a" in text:
        text = _ARTICLE.sub(lambda match: f"{indefinite(match[1])} {match[1]}", text)
    text = _SPACES.sub(" ", text).strip()
    return text[:1].upper() + text[1:]


class Scene:
    """What one document keeps: facts that never change, and a small palette of words for each lexicon entry.

    The palette makes a document stay on its own few topics, as a real article does: a word from ``lexicon[name]``
    comes from the palette drawn for this document, now and then (``stray``) from the whole entry.

    Args:
        rng: the only source of chance.
        lexicon: entry name to its words; an entry whose words hold slots or choices is a rule and has no palette.
        facts: slot name to fixed text, looked up first.
        keep: palette size.
        stray: probability of a word from outside the palette.
    """

    def __init__(
        self,
        rng: Random,
        lexicon: Lexicon,
        facts: Mapping[str, str] | None = None,
        *,
        keep: int = 4,
        stray: float = 0.1,
    ) -> None:
        self.rng = rng
        self.lexicon = lexicon
        self.facts = dict(facts or {})
        self._keep = keep
        self._stray = stray
        self._palettes: dict[str, list[str]] = {}
        self._used: set[str] = set()  # drawn words of the current sentence

    def slot(self, name: str, args: tuple[str, ...] = ()) -> str:
        """Text for one slot: a fact, a word of the lexicon, or a method ``slot_<name>(*args)`` of the subclass.

        Raises:
            KeyError: nothing has this name.
        """
        if name in self.facts:
            return self.facts[name]
        if name in self.lexicon:
            return self._word(name)
        method = getattr(self, f"slot_{name}", None)
        if method is None:
            raise KeyError(f"no fact, lexicon entry or slot is called {name!r}")
        return method(*args)

    def _word(self, name: str) -> str:
        options = self.lexicon[name]
        palette = self._palettes.get(name)
        if palette is None:
            is_rule = any("{" in option or "[" in option for option in options)
            size = len(options) if is_rule else min(self._keep, len(options))
            palette = self._palettes[name] = self.rng.sample(options, size)
        source = options if self.rng.random() < self._stray else palette
        word = self.fresh(lambda attempt: self.rng.choice(source if attempt < 4 else options))
        return self.expand(word) if "{" in word or "[" in word else word

    def fresh(self, draw: Callable[[int], str]) -> str:
        """A draw this sentence does not hold yet; after eight attempts (``draw`` gets the number) any will do."""
        for attempt in range(8):
            word = draw(attempt)
            if word not in self._used:
                break
        self._used.add(word)
        return word

    def expand(self, template: str) -> str:
        """Fill a template, leaving "@a" and capitals to :func:`finish`."""
        return self._fill(parse(template))

    def _fill(self, template: Template) -> str:
        pieces = []
        for part in template:
            if isinstance(part, str):
                pieces.append(part)
            elif isinstance(part, Slot):
                text = self.slot(part.name, part.args)
                pieces.append(plural(text) if part.plural else text)
            else:
                pieces.append(self._fill(self.rng.choice(part)))
        return "".join(pieces)

    def sentence(self, template: str) -> str:
        """One finished sentence."""
        self._used.clear()
        return finish(self.expand(template))

    def pick(self, pool: Sequence[str], count: int) -> list[str]:
        """``count`` different templates of a pool (all of them if it is smaller), in random order."""
        return self.rng.sample(pool, min(count, len(pool)))

    def paragraph(self, templates: Iterable[str]) -> str:
        """Sentences joined by single spaces."""
        return " ".join(self.sentence(template) for template in templates)


class Deck:
    """Templates dealt like cards: every one is used before any comes again, and none twice in a row."""

    def __init__(self, rng: Random, cards: Sequence[str]) -> None:
        self._rng = rng
        self._cards = list(cards)
        self._left: list[str] = []

    def deal(self, count: int = 1) -> list[str]:
        """The next ``count`` templates."""
        dealt: list[str] = []
        for _ in range(count):
            if not self._left:
                self._left = self._rng.sample(self._cards, len(self._cards))
                if dealt and len(self._left) > 1 and self._left[-1] == dealt[-1]:
                    self._left.insert(0, self._left.pop())
            dealt.append(self._left.pop())
        return dealt


def take(documents: Iterable[Document], size: int, *, cut: bool = True) -> Iterator[Document]:
    """Documents until they hold about ``size`` white-space tokens.

    With ``cut`` the last one is shortened at a sentence end to come close; without, documents stay whole.

    Raises:
        ValueError: ``size`` is not positive.
    """
    if size < 1:
        raise ValueError(f"size must be at least 1 token, got {size}")
    total = 0
    for document in documents:
        count = len(document.text.split())
        if cut and total + count > size * 1.02:
            text = _cut(document.text, size - total)
            if text or not total:
                yield Document(text or document.text, document.source, document.meta)
            return
        yield document
        total += count
        if total >= size:
            return


def _cut(text: str, room: int) -> str:
    """Leading sentences of ``text`` of at most ``room`` tokens, without a heading or blank line at the end."""
    kept: list[str] = []
    for line in text.splitlines():
        sentences = []
        for sentence in _SENTENCE_END.split(line):
            room -= len(sentence.split())
            if room < 0:
                break
            sentences.append(sentence)
        kept.append(" ".join(sentences))
        if room < 0:
            break
    while kept and (not kept[-1].strip() or kept[-1].strip().startswith("=")):
        kept.pop()
    return "".join(f"{line}\n" for line in kept)

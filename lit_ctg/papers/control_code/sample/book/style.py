"""The ingredients of a book, and the telling of its chapters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from lit_ctg.data.sample.grammar import Deck, Lexicon, Scene, finish
from lit_ctg.data.sample.spanish import contract


class Teller(Scene):
    """A scene that lasts for a whole book: decks of sentences that run through the chapters, and a count of days.

    Args:
        rng: random generator.
        book: the source of words and sentences.
    """

    def __init__(self, rng: Random, book: Book) -> None:
        super().__init__(rng, book.lexicon, keep=12, stray=0.25)
        self.decks = {name: Deck(rng, cards) for name, cards in book.decks.items()}
        self._language = book.language
        self.day = rng.randint(1, 200)

    def deal(self, *names: str) -> str:
        """Return one finished sentence from each named deck, joined by spaces."""
        text = " ".join(self.sentence(self.decks[name].deal()[0]) for name in names)
        return contract(text) if self._language == "es" else text

    def sentence(self, template: str) -> str:
        """Return one finished sentence, in which nobody whose name is a fact meets himself."""
        self._used.clear()
        self._used.update(self.facts.values())
        return finish(self.expand(template))

    def slot_num(self, low: str, high: str) -> str:
        return str(self.rng.randint(int(low), int(high)))


@dataclass(frozen=True, kw_only=True)
class Book:
    """A book.

    Attributes:
        name: the source of its documents.
        language: ISO 639-1 code.
        lexicon: entry to words.
        decks: kind of sentence to templates.
        chapter: writes the next chapter (numbered from 1) as lines.
    """

    name: str
    language: str = "en"
    lexicon: Lexicon
    decks: dict[str, tuple[str, ...]] = field(default_factory=dict)
    chapter: Callable[[Teller, int], list[str]]

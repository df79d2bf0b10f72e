"""Two ways of writing about the same days: news items and blog posts.

It gives a paper a style code over partly shared words (companies, streets, weather, football).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from lit_ctg.data.document import Document
from lit_ctg.data.sample.grammar import Scene, in_split, random_for, take
from lit_ctg.papers.control_code.sample.script_words import LEXICON, STYLES

# minimum and maximum sentences of a text after its opening
_LENGTH = {"news": (6, 10), "blog": (5, 11)}


def documents(split: str, seed: int, size: int, *, styles: Sequence[str] | None = None) -> Iterator[Document]:
    """Yield news items and blog posts in turn, about ``size`` whitespace tokens in all; ``source`` is the style.

    Args:
        split: train, validation or test; decided by a checksum of the text, so no text is in two splits.
        seed: different seeds give different texts.
        size: whitespace tokens over all documents.
        styles: "news", "blog" or both (default).

    Raises:
        ValueError: unknown split, or ``size`` below 1.
        KeyError: unknown style.
    """
    chosen = list(styles or STYLES)
    for style in chosen:
        STYLES[style]
    return take(_texts(split, seed, chosen), size)


def _texts(split: str, seed: int, styles: list[str]) -> Iterator[Document]:
    rng = random_for("scripts", seed, split)
    while True:
        for style in styles:
            document = text(rng, style)
            while not in_split(document.text, split):
                document = text(rng, style)
            yield document


class _Day(Scene):
    def slot_num(self, low: str, high: str) -> str:
        return str(self.rng.randint(int(low), int(high)))

    def slot_dec(self, low: str, high: str) -> str:
        """Return a decimal with one decimal place; the bounds are in tenths."""
        whole, tenth = divmod(self.rng.randint(int(low), int(high)), 10)
        return f"{whole}.{tenth}"


def text(rng: Random, style: str) -> Document:
    """Return one item: a headline or a mood, then paragraphs of two to four sentences."""
    decks = STYLES[style]
    scene = _Day(rng, LEXICON, keep=5)
    scene.facts |= {name: rng.choice(LEXICON[name]) for name in ("firm", "goods", "town", "friend")}
    lines = [scene.sentence(rng.choice(decks["title"])), ""]
    sentences = [rng.choice(decks["first"]), *scene.pick(decks["body"], rng.randint(*_LENGTH[style]))]
    sentences.append(rng.choice(decks["last"]))
    while sentences:
        length = rng.randint(2, 4) if len(sentences) > 4 else len(sentences)
        lines.append(scene.paragraph(sentences[:length]))
        sentences = sentences[length:]
    return Document("".join(f"{line}\n" for line in lines), style, {"style": style, "title": lines[0]})

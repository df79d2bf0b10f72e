"""Seven invented books: six in English, each in its own voice, and one in Spanish.

It gives a paper a control code (the book's name) that determines the continuation of an ambiguous line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lit_ctg.data.document import Document
from lit_ctg.data.sample.grammar import in_split, random_for, take
from lit_ctg.papers.control_code.sample.book import (
    city_romance,
    courtroom_diary,
    cuaderno,
    epic_verse,
    nursery_tale,
    sea_log,
    stage_play,
)
from lit_ctg.papers.control_code.sample.book.style import Book, Teller

BOOKS: dict[str, Book] = {
    module.BOOK.name: module.BOOK
    for module in (city_romance, stage_play, courtroom_diary, sea_log, epic_verse, nursery_tale, cuaderno)
}
ENGLISH: tuple[str, ...] = tuple(name for name, book in BOOKS.items() if book.language == "en")
LANGUAGES: tuple[str, ...] = ("city_romance", "cuaderno")


def documents(split: str, seed: int, size: int, *, books: Sequence[str] | None = None) -> Iterator[Document]:
    """Yield chapters of the books, book after book, each book of about ``size / len(books)`` whitespace tokens.

    The chapters of one book are consecutive: numbers, days at sea and the teller's habits continue. Chapters of
    different splits are told separately, and a checksum of a chapter's text decides which split it may be in.

    Args:
        split: train, validation or test.
        seed: different seeds give different chapters.
        size: whitespace tokens over all books.
        books: names of :data:`BOOKS`; all by default.

    Raises:
        ValueError: unknown split, or ``size`` below 1.
        KeyError: unknown book.
    """
    chosen = [BOOKS[name] for name in books or BOOKS]
    if size < 1:
        raise ValueError(f"size must be at least 1 token, got {size}")
    for book in chosen:
        yield from take(_chapters(split, seed, book), max(1, size // len(chosen)))


def _chapters(split: str, seed: int, book: Book) -> Iterator[Document]:
    teller = Teller(random_for("books", book.name, seed, split), book)
    number = 0
    while True:
        number += 1
        lines = book.chapter(teller, number)
        # decided by the text below the heading, so that no chapter can be in two splits
        while not in_split("\n".join(lines[1:]), split):
            lines = book.chapter(teller, number)
        meta = {"chapter": number, "language": book.language}
        yield Document("".join(f"{line}\n" for line in lines), book.name, meta)

"""Header, licence and credits go; the book stays, to the letter."""

from __future__ import annotations

import pytest

from lit_ctg.papers.control_code.gutenberg_text import book_text, strip_tag

BOOK = "CHAPTER I\n\nIt was a dark night.\nThe Project Gutenberg was far away.\n\nTHE END\n"
MODERN = (
    "\ufeffThe Project Gutenberg eBook of X\r\n\r\nTitle: X\r\n\r\n*** START OF THE PROJECT GUTENBERG EBOOK X ***\r\n"
    "\r\nProduced by A. Person and\r\nanother\r\n\r\n\r\n" + BOOK.replace("\n", "\r\n")
    + "\r\n*** END OF THE PROJECT GUTENBERG EBOOK X ***\r\n\r\nlicence\r\n"
)  # fmt: skip
OLD = (
    "Project Gutenberg Etext of X\n*** START OF THIS PROJECT GUTENBERG EBOOK X,\nA TITLE OF TWO LINES ***\n\n"
    + BOOK + "\n\nEnd of the Project Gutenberg EBook of X\n\n*** END OF THIS PROJECT GUTENBERG EBOOK X ***\n"
)  # fmt: skip


@pytest.mark.parametrize("text", [MODERN, OLD, BOOK, "<x>\n" + BOOK])
def test_only_the_book_is_left(text: str) -> None:
    assert book_text(text) == BOOK


def test_tag_lines() -> None:
    assert strip_tag("<news>\nText\n") == "Text\n"
    assert strip_tag("<b>bold</b> text\n") == "<b>bold</b> text\n"
    assert strip_tag("Text\n<news>\n") == "Text\n<news>\n"

"""The book inside a Project Gutenberg file, without header, licence and transcribers' credits."""

from __future__ import annotations

import re

_START = re.compile(
    r"^\s*\*\*\*\s*START OF (?:THE|THIS) PROJECT GUTENBERG.*?\*\*\*[ \t]*$|^\*END\*?\s*THE SMALL PRINT[^\n]*$",
    re.M | re.S | re.I,
)
_END = re.compile(
    r"^\s*\*\*\*\s*END OF (?:THE|THIS) PROJECT GUTENBERG|^\s*End of (?:the |this )?Project Gutenberg", re.M | re.I
)
_CREDIT = re.compile(
    r"\A\s*(?:(?:E-text |This etext was )?(?:Produced|prepared|Transcribed) by|\[?Transcriber.s note)"
    r".*?(?:\n[ \t]*\n|\Z)",
    re.S | re.I,
)
_TAG = re.compile(r"\A<[^<>\n]+>[ \t]*\n")


def strip_tag(text: str) -> str:
    """Drop a first line that is nothing but a tag, e.g. ``<shakespeare>``."""
    return _TAG.sub("", text, count=1)


def book_text(text: str) -> str:
    """Return the book; a file without markers is returned whole, except for a tag line.

    The book is between the last start marker of the first tenth (older files have two) and the first end marker.
    """
    text = strip_tag(text.replace("\r\n", "\n").lstrip("\ufeff"))
    begin = 0
    for match in _START.finditer(text):
        # the words also occur in prefaces about the project; the marker is near the beginning
        if match.start() <= max(len(text) // 10, 20_000):
            begin = match.end()
    end = _END.search(text, begin)
    body = text[begin : end.start() if end else len(text)]
    if begin:
        body = _CREDIT.sub("", body, count=1)
    return body.strip("\n") + "\n"

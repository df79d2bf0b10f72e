"""Words of a generated text, as the topic metrics count them, and their place in it.

A word is a run of characters without white space, in lower case, without the punctuation around it.
"""

from __future__ import annotations

import re
import string
from collections.abc import Collection, Iterable

_RUN = re.compile(r"\S+")
# what stands around words in running text
_AROUND = string.punctuation + "“”‘’«»–—…"


def words(text: str, start: int = 0, stop: int | None = None) -> list[str]:
    """Return the words of ``text`` that begin at a character in [start, stop).

    The text is cut into words as a whole: a word that begins before ``start`` is no word of the range, even where
    part of it lies in it. Runs of nothing but punctuation are no words.
    """
    stop = len(text) if stop is None else stop
    found = (run.group().strip(_AROUND).lower() for run in _RUN.finditer(text) if start <= run.start() < stop)
    return [word for word in found if word]


def content_words(found: Iterable[str], function_words: Collection[str]) -> list[str]:
    """Return the words that are no function words."""
    return [word for word in found if word not in function_words]

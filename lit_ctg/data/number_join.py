"""Undo WikiText's splitting of numbers: ``1 @,@ 234`` and ``3 @.@ 5`` become one token each (NSLM paper, sec. 5.1)."""

from __future__ import annotations

import re

_SPLIT = re.compile(r"(?<=[0-9]) @([,.])@ (?=[0-9])")


def join_numbers(text: str) -> str:
    """Return ``text`` with commas and decimal points put back between digits.

    Hyphens (``@-@``) stay split: they also join words. Number words and ordinals stay as they are.
    """
    return _SPLIT.sub(r"\1", text)

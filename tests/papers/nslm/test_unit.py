"""Units against hand-known amounts."""

from __future__ import annotations

import numpy as np
import pytest

from lit_ctg.papers.nslm.unit import UnitTable

TABLE = UnitTable()
NUMBER = {unit.name: place for place, unit in enumerate(TABLE.units)}


@pytest.mark.parametrize(
    ("value", "source", "target", "amount"),
    [
        (60, "cm", "in", 23.622),
        (24, "in", "cm", 60.96),
        (6, "kg", "lb", 13.228),
        (100, "acre", "ha", 40.469),
        (3, "sq mi", "km2", 7.770),
        (50, "US gal", "l", 189.271),
        (100, "mph", "km/h", 160.934),
        (20, "kn", "mph", 23.016),
        (-40, "degC", "degF", -40),
        (98.6, "degF", "degC", 37),
        (1, "long ton", "t", 1.01605),
    ],
)
def test_conversions_both_ways(value: float, source: str, target: str, amount: float) -> None:
    there = TABLE.convert(np.array([float(value)]), np.array([NUMBER[source]]))[0, NUMBER[target]]
    assert there == pytest.approx(amount, rel=1e-4)
    back = TABLE.convert(np.array([there]), np.array([NUMBER[target]]))[0, NUMBER[source]]
    assert back == pytest.approx(value)


# SI units in one of each: metres, kilograms, square and cubic metres, metres per second, kelvins (NIST SP 811, app. B)
IN_SI = {
    "mm": 1e-3, "cm": 1e-2, "m": 1, "km": 1e3, "in": 0.0254, "ft": 0.3048, "yd": 0.9144, "mi": 1609.344, "nmi": 1852,
    "g": 1e-3, "kg": 1, "t": 1e3, "oz": 0.028349523125, "lb": 0.45359237, "st": 6.35029318, "long ton": 1016.0469088,
    "short ton": 907.18474, "m2": 1, "ha": 1e4, "km2": 1e6, "sq ft": 0.09290304, "acre": 4046.8564224,
    "sq mi": 2589988.110336, "ml": 1e-6, "l": 1e-3, "m3": 1, "cu in": 1.6387064e-5, "cu ft": 0.028316846592,
    "cu yd": 0.764554857984, "US gal": 0.003785411784, "imp gal": 0.00454609, "m/s": 1, "km/h": 1 / 3.6,
    "mph": 0.44704, "kn": 1852 / 3600, "ft/s": 0.3048, "degC": 1, "degF": 5 / 9,
}  # fmt: skip


def test_every_unit_of_the_table() -> None:
    assert {unit.name: unit.factor for unit in TABLE.units} == pytest.approx(IN_SI, rel=1e-7)
    offsets = {unit.name: unit.offset for unit in TABLE.units if unit.offset}
    assert offsets == pytest.approx({"degC": 273.15, "degF": 255.372222}, rel=1e-8)


def test_other_quantities_and_itself_are_no_conversions() -> None:
    row = TABLE.convert(np.array([5.0]), np.array([NUMBER["kg"]]))[0]
    assert np.isnan(row[[NUMBER["kg"], NUMBER["km"], NUMBER["degC"]]]).all()


def test_the_longest_written_unit_counts() -> None:
    assert TABLE.ending(["of", "30", "square", "miles"]) == (NUMBER["sq mi"], 2)
    assert TABLE.ending(["of", "30", "miles"]) == (NUMBER["mi"], 1)
    assert TABLE.ending(["at", "100", "km", "/", "h"]) == (NUMBER["km/h"], 3)
    assert TABLE.ending(["30", "songs"]) is None


def test_written_forms_are_unique() -> None:
    written = [phrase for unit in TABLE.units for phrase in unit.written]
    assert len(set(written)) == len(written)
    assert {unit.quantity for unit in TABLE.units} == {"length", "mass", "area", "volume", "speed", "temperature"}

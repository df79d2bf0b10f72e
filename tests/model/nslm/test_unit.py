"""Units against hand-known amounts."""

from __future__ import annotations

import numpy as np
import pytest

from lit_ctg.model.nslm.unit import UnitTable

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

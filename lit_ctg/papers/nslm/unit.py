"""Units that texts convert into one another: names as WikiText writes them, factors from scipy (Table 2, "convert")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import constants

_TONNE = 1000.0
_US_GALLON, _UK_GALLON = constants.gallon, constants.gallon_imp


@dataclass(frozen=True)
class Unit:
    """A unit of a quantity: ``amount`` in SI is ``value * factor + offset``.

    Attributes:
        name: a short name of our own.
        quantity: length, mass, area, volume, speed or temperature.
        factor: SI units (m, kg, m2, m3, m/s, K) in one of it.
        offset: in K, of temperatures only.
        written: how texts write it, words between blanks.
    """

    name: str
    quantity: str
    factor: float
    written: tuple[str, ...]
    offset: float = 0.0


def _unit(name: str, quantity: str, factor: float, written: str, offset: float = 0.0) -> Unit:
    return Unit(name, quantity, factor, tuple(phrase.strip() for phrase in written.split("|")), offset)


UNITS: tuple[Unit, ...] = (
    _unit("mm", "length", 1e-3, "mm|millimetre|millimetres|millimeter|millimeters"),
    _unit("cm", "length", 1e-2, "cm|centimetre|centimetres|centimeter|centimeters"),
    _unit("m", "length", 1.0, "m|metre|metres|meter|meters"),
    _unit("km", "length", 1e3, "km|kilometre|kilometres|kilometer|kilometers"),
    _unit("in", "length", constants.inch, "in|inch|inches"),
    _unit("ft", "length", constants.foot, "ft|foot|feet"),
    _unit("yd", "length", constants.yard, "yd|yard|yards"),
    _unit("mi", "length", constants.mile, "mi|mile|miles"),
    _unit("nmi", "length", constants.nautical_mile, "nmi|nautical mile|nautical miles"),
    _unit("g", "mass", 1e-3, "g|gram|grams"),
    _unit("kg", "mass", 1.0, "kg|kilogram|kilograms"),
    _unit("t", "mass", _TONNE, "t|tonne|tonnes|metric ton|metric tons"),
    _unit("oz", "mass", constants.oz, "oz|ounce|ounces"),
    _unit("lb", "mass", constants.lb, "lb|pound|pounds|lbs"),
    _unit("st", "mass", constants.stone, "st|stone"),
    _unit("long ton", "mass", constants.long_ton, "long ton|long tons"),
    _unit("short ton", "mass", constants.short_ton, "short ton|short tons|tons|ton"),
    _unit("m2", "area", 1.0, "m2|square metre|square metres|square meter|square meters|sq m"),
    _unit("ha", "area", constants.hectare, "ha|hectare|hectares"),
    _unit("km2", "area", 1e6, "km2|square kilometre|square kilometres|square kilometer|square kilometers|sq km"),
    _unit("sq ft", "area", constants.foot**2, "sq ft|square foot|square feet"),
    _unit("acre", "area", constants.acre, "acre|acres"),
    _unit("sq mi", "area", constants.mile**2, "sq mi|square mile|square miles|mi2"),
    _unit("ml", "volume", 1e-6, "ml|millilitre|millilitres|milliliter|milliliters"),
    _unit("l", "volume", 1e-3, "l|L|litre|litres|liter|liters"),
    _unit("m3", "volume", 1.0, "m3|cubic metre|cubic metres|cubic meter|cubic meters"),
    _unit("cu in", "volume", constants.inch**3, "cu in|cubic inch|cubic inches"),
    _unit("cu ft", "volume", constants.foot**3, "cu ft|cubic foot|cubic feet"),
    _unit("cu yd", "volume", constants.yard**3, "cu yd|cubic yard|cubic yards"),
    _unit("US gal", "volume", _US_GALLON, "US gal|US gallon|US gallons|gallon|gallons"),
    _unit("imp gal", "volume", _UK_GALLON, "imp gal|imperial gallon|imperial gallons"),
    _unit("m/s", "speed", 1.0, "m / s|metres per second|meters per second"),
    _unit("km/h", "speed", constants.kmh, "km / h|kilometres per hour|kilometers per hour|km/h|kph"),
    _unit("mph", "speed", constants.mph, "mph|miles per hour|mi / h"),
    _unit("kn", "speed", constants.knot, "kn|knot|knots|kt"),
    _unit("ft/s", "speed", constants.foot, "ft / s|feet per second"),
    _unit("degC", "temperature", 1.0, "° C|°C|degrees Celsius", constants.zero_Celsius),
    _unit("degF", "temperature", 5 / 9, "° F|°F|degrees Fahrenheit", constants.zero_Celsius - 32 * 5 / 9),
)
LONGEST = 3  # words of a unit


class UnitTable:
    """Looks units up in text and converts between those of one quantity, in both directions.

    Attributes:
        units: the table; a unit is referred to by its place in it.
        last_words: words that a written unit can end with.
    """

    def __init__(self, units: Sequence[Unit] = UNITS) -> None:
        self.units = tuple(units)
        self._written = {tuple(p.split()): number for number, unit in enumerate(units) for p in unit.written}
        self.last_words = frozenset(words[-1] for words in self._written)
        quantities = sorted({unit.quantity for unit in units})
        self.quantity_U = np.array([quantities.index(unit.quantity) for unit in units])
        self.factor_U = np.array([unit.factor for unit in units])
        self.offset_U = np.array([unit.offset for unit in units])

    def ending(self, words: Sequence[str]) -> tuple[int, int] | None:
        """Return (unit, its words) for the longest unit that ends ``words``, or None."""
        for length in range(min(LONGEST, len(words)), 0, -1):
            unit = self._written.get(tuple(words[-length:]))
            if unit is not None:
                return unit, length
        return None

    def convert(self, value_N: np.ndarray, unit_N: np.ndarray) -> np.ndarray:
        """Return converted_NU, the amount in every unit; NaN in its own unit and in those of other quantities."""
        amount_N1 = (value_N * self.factor_U[unit_N] + self.offset_U[unit_N])[:, None]
        converted_NU = (amount_N1 - self.offset_U) / self.factor_U
        other_NU = self.quantity_U[unit_N][:, None] != self.quantity_U
        other_NU[np.arange(len(unit_N)), unit_N] = True
        return np.where(other_NU, np.nan, converted_NU)

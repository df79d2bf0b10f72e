"""Token classes (sec. 3.2, Table 1): units, recognisers, left contexts, and their table over a vocabulary.

    my_classes.yaml
        verb:
          members: {measuring: 1, mixing: 2, baking: 3, cooling: 4}
          metrics: [difference, frequency]
          densities: [multinomial, unigram, gaussian]

    recognisers = {**read_classes("my_classes.yaml"), **number_classes}
    table = class_table(tokenizer.tokens, recognisers.values())
    chosen = select(table, train, validation)

A class has ``pattern`` (a regular expression), ``members`` (a list with values), ``kind`` (places) or ``_target_`` (the
user's own ``Recogniser``). Metrics, densities and contexts are named; a dotted name is the user's own class.

A class may be bound to a left context: after a month every number that is not a year is a day, after ``5 –`` every
number ends a range. The class of the next token is then a function of the preceding tokens, so that the probabilities
of the classes and of their members multiply to a distribution over the vocabulary.

Shape letters: B rows, T positions, V vocabulary, C classes, S left-context states, K members of one class, D attributes
of a member. A context "active at t" is about the token after position t.
"""

from __future__ import annotations

import abc
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
from scipy import constants

from lit_ctg.errors import UserError, did_you_mean
from lit_ctg.files import read_yaml
from lit_ctg.limits import Checked, Choice, Whole, check_arguments, check_value
from lit_ctg.papers.nslm.gazetteer import KINDS, gazetteer
from lit_ctg.trust import resolve

_TONNE = 1000.0
_US_GALLON, _UK_GALLON = constants.gallon, constants.gallon_imp


@dataclass(frozen=True)
class Unit:
    """A unit of a quantity: ``amount`` in SI is ``value * factor + offset``.

    Attributes:
        name: a short name of our own.
        quantity: length, mass, area, volume, speed or temperature.
        factor: SI units (m, kg, m2, m3, m/s, K) per unit.
        offset: in K, only for temperatures.
        written: its spellings in texts, words separated by spaces.
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
LONGEST = 3  # maximum words of a unit


class UnitTable:
    """Finds units in text and converts between those of one quantity, in both directions.

    Attributes:
        units: the table; a unit is referred to by its index.
        last_words: words with which a written unit can end.
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
        """Return converted_NU, the amount in every unit; NaN for its own unit and those of other quantities."""
        amount_N1 = (value_N * self.factor_U[unit_N] + self.offset_U[unit_N])[:, None]
        converted_NU = (amount_N1 - self.offset_U) / self.factor_U
        other_NU = self.quantity_U[unit_N][:, None] != self.quantity_U
        other_NU[np.arange(len(unit_N)), unit_N] = True
        return np.where(other_NU, np.nan, converted_NU)


NUMBER = r"(?:\d[\d,]*(?:\.\d+)?|\.\d+)"
Attributes = tuple[float, ...]


def number_value(token: str) -> float | None:
    """Return the value of a token of digits, commas and one point (``"1,234.5"``), else None."""
    return float(token.replace(",", "")) if re.fullmatch(NUMBER, token) else None


class Recogniser(Checked):
    """A class of tokens.

    Args:
        metrics: names of the candidate metric functions (``metric_function.METRICS``).
        densities: names of the candidate densities (``density.DENSITIES``).
        context: the left context that the class is bound to; None: the class exists wherever no bound class takes its
            tokens.
        unit: of errors of guesses; None: km where members have coordinates, else a difference of values.

    Attributes:
        listed: the attributes of each member of a class that is a list.
    """

    def __init__(
        self,
        *,
        name: str,
        metrics: Annotated[Sequence[str], "a list of names, such as [difference, frequency]"],
        densities: Annotated[Sequence[str], "a list of names, such as [gaussian, unigram]"],
        context: str | None = None,
        unit: str | None = None,
    ) -> None:
        self.name, self.context, self.unit = name, context, unit
        self.metrics, self.densities = tuple(metrics), tuple(densities)
        self.listed: Mapping[str, Attributes] = {}

    def attributes(self, token: str) -> Attributes | None:
        """Return a token's attributes for the metrics: (value,) or (latitude, longitude); None: not a member."""
        return self.listed.get(token)


class PatternRecogniser(Recogniser):
    """Tokens that fully match a regular expression; numbers have their value, other tokens NaN.

    Raises:
        ValueError: the pattern is not a regular expression.
    """

    def __init__(self, *, pattern: str, **options: Any) -> None:
        super().__init__(**options)
        try:
            self.pattern = re.compile(pattern)
        except re.error as error:
            wrong = f"class '{self.name}': pattern {pattern!r} is not a regular expression: {error}"
            raise ValueError(wrong) from error

    def attributes(self, token: str) -> Attributes | None:
        if not self.pattern.fullmatch(token):
            return None
        value = number_value(token)
        return (float("nan") if value is None else value,)


class ListRecogniser(Recogniser):
    """Tokens of a list, each with a number or a tuple of numbers, e.g. the stage of cooking of a verb.

    Raises:
        ValueError: members with different numbers of values.
    """

    def __init__(self, *, members: Mapping[str, float | Sequence[float]], **options: Any) -> None:
        super().__init__(**options)
        self.listed = {
            str(token): tuple(map(float, value if isinstance(value, Sequence) else [value]))
            for token, value in members.items()
        }
        if len(set(map(len, self.listed.values()))) != 1:
            raise ValueError(f"class '{self.name}': all members need the same number of values")


class PlaceRecogniser(Recogniser):
    """Cities, US states or countries of GeoNames as ``data.place_chunk`` writes them, with latitude and longitude.

    Args:
        kind: city, state or country.
        minimum_population: of cities; the corpus must have been chunked with the same number.
    """

    def __init__(self, *, kind: Annotated[str, Choice(KINDS)], minimum_population: Whole, **options: Any) -> None:
        super().__init__(**options)
        self.listed = {
            place.token: (place.latitude, place.longitude)
            for place in gazetteer(minimum_population).values()
            if place.kind == kind
        }


_FULL = "January February March April May June July August September October November December"
_SHORT = "Jan. Feb. Mar. Apr. Jun. Jul. Aug. Sep. Sept. Oct. Nov. Dec."
MONTHS = tuple(f"{_FULL} {_SHORT}".split())
RANGE_MARKS = ("–", "—", "-", "@-@", "@–@", "to")
FILLERS = ("@-@", "-")  # allowed between number and unit: 12 @-@ inch


class LeftContext(abc.ABC):
    """A pattern in the tokens before the next one; ``bind`` is called once with the vocabulary.

    Attributes:
        name: by which recognisers refer to it.
        window: how many tokens back the pattern may reach.
    """

    name: str
    window: int

    @abc.abstractmethod
    def bind(self, tokens: Sequence[str]) -> None:
        """Look up the ids that make up the pattern."""

    @abc.abstractmethod
    def active(self, ids_BT: np.ndarray) -> np.ndarray:
        """Return active_BT (bool); ids of -1 mean no token."""


def _flags(tokens: Sequence[str], wanted: Sequence[str]) -> np.ndarray:
    """Return a bool per token, and False for the id -1."""
    chosen = frozenset(wanted)
    return np.array([token in chosen for token in tokens] + [False])


def _numbers(tokens: Sequence[str]) -> np.ndarray:
    """Return the value of each number token and NaN for others and for the id -1."""
    values = [number_value(token) for token in tokens]
    return np.array([np.nan if value is None else value for value in values] + [np.nan])


def _before(flags_BT: np.ndarray, steps: int) -> np.ndarray:
    """Return the flags of the position ``steps`` earlier."""
    moved = np.zeros_like(flags_BT)
    moved[:, steps:] = flags_BT[:, :-steps]
    return moved


class AfterMonth(LeftContext):
    """The previous token is a month: ``November [4]``."""

    name, window = "after_month", 1

    def bind(self, tokens: Sequence[str]) -> None:
        self.month_V = _flags(tokens, MONTHS)

    def active(self, ids_BT: np.ndarray) -> np.ndarray:
        return self.month_V[ids_BT]


class AfterRangeMark(LeftContext):
    """Preceded by a number and a dash (or "to"): ``1914 – [1918]``."""

    name, window = "range", 2

    def bind(self, tokens: Sequence[str]) -> None:
        self.mark_V, self.number_V = _flags(tokens, RANGE_MARKS), ~np.isnan(_numbers(tokens))

    def active(self, ids_BT: np.ndarray) -> np.ndarray:
        return self.mark_V[ids_BT] & _before(self.number_V[ids_BT], 1)


class InConversion(LeftContext):
    """Preceded by a quantity and an opening bracket: ``60 cm ( [24]``; also ``5 – 6 kg ( 11 – [13]``.

    The quantity is one number, or the two of a range, and a unit of ``units``; the second number in the bracket
    converts the second of the range. ``sources`` returns what to convert.
    """

    name, window = "convert", 10

    def __init__(self, units: UnitTable | None = None) -> None:
        self.units = units or UnitTable()

    def bind(self, tokens: Sequence[str]) -> None:
        self.tokens = (*tokens, "")
        self.value_V, self.mark_V = _numbers(tokens), _flags(tokens, RANGE_MARKS)
        self.open_V, self.filler_V = _flags(tokens, ["("]), _flags(tokens, FILLERS)
        self.first_word_V = _flags(tokens, sorted(self.units.last_words))

    def active(self, ids_BT: np.ndarray) -> np.ndarray:
        return self.sources(ids_BT)[1] >= 0

    def sources(self, ids_BT: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (value_BT, unit_BT): the quantity to convert, NaN and -1 where there is none."""
        value_BT, unit_BT = np.full(ids_BT.shape, np.nan), np.full(ids_BT.shape, -1)
        opens_BT = self.open_V[ids_BT] & _before(self.first_word_V[ids_BT], 1)
        for row, place in zip(*np.nonzero(opens_BT), strict=True):
            found = self._quantity(ids_BT[row, max(0, place - self.window) : place])
            if found is None:
                continue
            numbers, unit = found
            value_BT[row, place], unit_BT[row, place] = numbers[0], unit
            after = ids_BT[row, place + 1 : place + 3]
            if len(numbers) == 2 and len(after) == 2 and self.mark_V[after[1]] and self.value_V[after[0]] >= 0:
                value_BT[row, place + 2], unit_BT[row, place + 2] = numbers[1], unit
        return value_BT, unit_BT

    def _quantity(self, ids_T: np.ndarray) -> tuple[list[float], int] | None:
        """Return (one or two numbers, unit) at the end of a stretch of tokens, or None."""
        # a hyphen between two numbers is a range, any other is left out
        dropped_T = self.filler_V[ids_T]
        dropped_T[1:-1] &= ~((self.value_V[ids_T[:-2]] >= 0) & (self.value_V[ids_T[2:]] >= 0))
        words = [self.tokens[number] for number in ids_T[~dropped_T]]
        found = self.units.ending(words)
        if found is None:
            return None
        unit, length = found
        rest = words[: len(words) - length]
        last = number_value(rest[-1]) if rest else None
        if last is None:
            return None
        ranged = len(rest) >= 3 and rest[-2] in RANGE_MARKS
        first = number_value(rest[-3]) if ranged else None
        return ([last] if first is None else [first, last]), unit


# in order of precedence
CONTEXTS: dict[str, type[LeftContext]] = {
    context.name: context for context in (InConversion, AfterRangeMark, AfterMonth)
}


PLAIN = "plain"


@dataclass(frozen=True)
class ClassMembers:
    """The vocabulary of one class.

    Attributes:
        attributes_KD: for the metric functions: value, or latitude and longitude (degrees).
        unit: of errors of guesses (``Recogniser``).
    """

    name: str
    ids_K: np.ndarray
    tokens: tuple[str, ...]
    attributes_KD: np.ndarray
    metrics: tuple[str, ...]
    densities: tuple[str, ...]
    unit: str | None = None

    def __len__(self) -> int:
        return len(self.ids_K)


@dataclass(frozen=True)
class ClassTable:
    """Classes of a vocabulary.

    In state s (left context, 0 is "plain") the token v has the class ``class_of_SV[s, v]``; a class is available in a
    state with all its members or with none (``available_SC``), so P_tag restricted to the available classes times a
    normalised distribution over members sums to 1 over the vocabulary.

    Attributes:
        classes: members of each class, in the order of the recognisers; empty classes are left out.
        contexts: the left contexts, bound to the vocabulary; if several are active the first counts.
        class_of_SV: class of each token in each state, -1 for none.
        index_CV: index of a token among the members of a class, -1 where it is not a member.
        available_SC: whether a class exists in a state.
    """

    classes: tuple[ClassMembers, ...]
    contexts: tuple[LeftContext, ...]
    class_of_SV: np.ndarray
    index_CV: np.ndarray
    available_SC: np.ndarray

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(members.name for members in self.classes)

    @property
    def states(self) -> tuple[str, ...]:
        """Names of the left-context states."""
        return (PLAIN, *(context.name for context in self.contexts))

    @property
    def any_class_V(self) -> np.ndarray:
        """Whether a token is in some class, i.e. replaced in the tagged vocabulary (bool)."""
        return np.asarray((self.index_CV >= 0).any(0))

    def __len__(self) -> int:
        return len(self.classes)


Kind = TypeVar("Kind")
_BY_KEY: dict[str, type[Recogniser]] = {
    "pattern": PatternRecogniser,
    "members": ListRecogniser,
    "kind": PlaceRecogniser,
}


def candidate(known: Mapping[str, type[Kind]], name: str, base: type[Kind]) -> type[Kind]:
    """Return the class for a name in ``known``, or for a dotted name.

    Raises:
        UserError: there is none, or it is not derived from ``base``.
    """
    found = resolve(name, base.__name__) if "." in name and name not in known else known.get(name)
    if not (isinstance(found, type) and issubclass(found, base)):
        names = f"one of {', '.join(known)}, or " if known else ""
        raise UserError(
            f"'{name}' is not a {base.__name__}: use {names}the dotted name of a class that is derived from "
            f"{base.__module__}.{base.__name__}{did_you_mean(name, known)}"
        )
    return found


def class_table(tokens: Sequence[str], recognisers: Iterable[Recogniser]) -> ClassTable:
    """Sort a vocabulary into classes; the left contexts are those that the recognisers are bound to.

    Args:
        tokens: texts of the vocabulary, by id.
        recognisers: in a state, the classes bound to it come first, then the unbound ones; the first match wins.

    Raises:
        UserError: two classes of one name, or a class that is only partly available in some state; see ``candidate``.
    """
    recognisers = list(recognisers)
    wanted = {recogniser.context for recogniser in recognisers if recogniser.context is not None}
    # in order of precedence
    ordered = [name for name in CONTEXTS if name in wanted] + sorted(wanted - CONTEXTS.keys())
    contexts: list[LeftContext] = [candidate(CONTEXTS, name, LeftContext)() for name in ordered]
    for context in contexts:
        context.bind(tokens)
    states = (PLAIN, *ordered)
    attributes = [[recogniser.attributes(token) for token in tokens] for recogniser in recognisers]
    class_of_SV = np.full((len(states), len(tokens)), -1)
    for state, name in enumerate(states):
        # bound classes first
        for number in sorted(range(len(recognisers)), key=lambda number: recognisers[number].context is None):
            if recognisers[number].context in (name, None):
                matches_V = np.array([found is not None for found in attributes[number]], dtype=bool)
                class_of_SV[state, (class_of_SV[state] < 0) & matches_V] = number
    classes, kept = [], []
    for number, recogniser in enumerate(recognisers):
        ids_K = np.flatnonzero((class_of_SV == number).any(0))
        counts = {name: int((class_of_SV[state] == number).sum()) for state, name in enumerate(states)}
        partly = [f"in the context '{name}'" for name, count in counts.items() if count not in (0, len(ids_K))]
        if recogniser.name in [other.name for other in recognisers[:number]] or partly:
            raise UserError(
                f"class '{recogniser.name}' has the same name as another, or another class takes a part of its "
                f"{len(ids_K)} members {', '.join(partly)}: rename one, make the two disjoint or cover all of it"
            )
        if len(ids_K):
            kept.append(number)
            described = np.array([attributes[number][v] for v in ids_K.tolist()], dtype=np.float64)
            texts = tuple(tokens[v] for v in ids_K.tolist())
            candidates = recogniser.metrics, recogniser.densities
            classes.append(ClassMembers(recogniser.name, ids_K, texts, described, *candidates, recogniser.unit))
    renumber = np.full(len(recognisers) + 1, -1)
    renumber[kept] = np.arange(len(kept))
    class_of_SV = renumber[class_of_SV]
    index_CV = np.full((len(classes), len(tokens)), -1)
    for number, members in enumerate(classes):
        index_CV[number, members.ids_K] = np.arange(len(members))
    available_SC = np.array([[(row_V == number).any() for number in range(len(classes))] for row_V in class_of_SV])
    available_SC = available_SC.reshape(len(states), len(classes)).astype(bool)
    return ClassTable(tuple(classes), tuple(contexts), class_of_SV, index_CV, available_SC)


def read_classes(path: str | Path) -> dict[str, Recogniser]:
    """Read classes from a YAML file: name -> settings (see above).

    Raises:
        UserError: no such file, not YAML, or an incomplete class.
    """
    settings = read_yaml(path, f"classes of {path}")
    check_value(f"classes of {path}", settings, Mapping[str, Mapping[str, Any]])
    return {str(name): make_recogniser(str(name), entry) for name, entry in settings.items()}


def before_others(own: Mapping[str, Recogniser], others: Mapping[str, Recogniser]) -> list[Recogniser]:
    """Return the classes of ``own`` before the others; one with the name of another replaces it."""
    new = [recogniser for name, recogniser in own.items() if name not in others]
    return new + [own.get(name, recogniser) for name, recogniser in others.items()]


def make_recogniser(name: str, settings: Mapping[str, Any]) -> Recogniser:
    """Build one class from plain settings (``UserError``: an unknown or a missing setting)."""
    options = dict(settings)
    if "_target_" in options:
        kind = candidate({}, str(options.pop("_target_")), Recogniser)
    else:
        keys = [key for key in _BY_KEY if key in options]
        if len(keys) != 1:
            raise UserError(f"class '{name}' needs exactly one of {', '.join(_BY_KEY)} or _target_")
        kind = _BY_KEY[keys[0]]
    options = {"metrics": ("frequency",), "densities": ("unigram",)} | options
    check_arguments(kind, options, f"class '{name}'")
    try:
        return kind(name=name, **options)
    except (TypeError, ValueError) as error:
        raise UserError(f"class '{name}': {error}") from error

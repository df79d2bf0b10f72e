"""Units against hand-known amounts."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from lit_ctg.errors import UserError
from lit_ctg.papers.nslm.classes import (
    LeftContext,
    PatternRecogniser,
    PlaceRecogniser,
    UnitTable,
    class_table,
    make_recogniser,
    number_value,
    read_classes,
)
from lit_ctg.papers.nslm.occurrences import ContextTracker, Evidence, Occurrences
from lit_ctg.papers.nslm.selection import select
from lit_ctg.trust import TRUSTED

TABLE = UnitTable()
NUMBER = {unit.name: place for place, unit in enumerate(TABLE.units)}


@pytest.mark.parametrize(
    ("value", "source", "target", "amount"),
    [
        (60, "cm", "in", 23.622),
        (50, "US gal", "l", 189.271),
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
    written = [phrase for unit in TABLE.units for phrase in unit.written]
    assert len(set(written)) == len(written)
    # neither itself nor another quantity
    row = TABLE.convert(np.array([5.0]), np.array([NUMBER["kg"]]))[0]
    assert np.isnan(row[[NUMBER["kg"], NUMBER["km"], NUMBER["degC"]]]).all()
    offsets = {unit.name: unit.offset for unit in TABLE.units if unit.offset}
    assert offsets == pytest.approx({"degC": 273.15, "degF": 255.372222}, rel=1e-8)


def test_the_longest_written_unit_counts() -> None:
    assert TABLE.ending(["of", "30", "square", "miles"]) == (NUMBER["sq mi"], 2)
    assert TABLE.ending(["of", "30", "miles"]) == (NUMBER["mi"], 1)
    assert TABLE.ending(["at", "100", "km", "/", "h"]) == (NUMBER["km/h"], 3)
    assert TABLE.ending(["30", "songs"]) is None


OPTIONS = {"name": "x", "metrics": ["value"], "densities": ["gaussian"]}


@pytest.mark.parametrize(
    ("token", "value"),
    [("1987", 1987), ("1,234.5", 1234.5), (".25", 0.25), ("1st", None), ("–", None), ("1990s", None)],
)
def test_number_value(token: str, value: float | None) -> None:
    assert number_value(token) == value


def test_pattern_matches_whole_tokens() -> None:
    year = PatternRecogniser(pattern=r"1\d{3}|20\d{2}", **OPTIONS)
    assert year.attributes("1987") == (1987.0,)
    assert year.attributes("19870") is None and year.attributes("1,987") is None
    word = PatternRecogniser(pattern="[a-z]+", **OPTIONS)
    assert math.isnan(word.attributes("bake")[0])


def test_places_have_coordinates() -> None:
    city = PlaceRecogniser(kind="city", minimum_population=500_000, **OPTIONS)
    latitude, longitude = city.attributes("Paris")
    assert abs(latitude - 48.85) < 0.1 and abs(longitude - 2.35) < 0.1
    assert city.attributes("New_York_City") is not None and city.attributes("France") is None


def test_settings_of_a_class_have_defaults_and_reach_its_members() -> None:
    plain = make_recogniser("number", {"pattern": r"\d+"})
    assert (plain.metrics, plain.densities, plain.context, plain.unit) == (("frequency",), ("unigram",), None, None)
    rare = make_recogniser("rare", {"pattern": "zz"})
    verb_class = make_recogniser(
        "verb", {"members": {"mix": 1}, "metrics": ["value"], "densities": ["gaussian"], "unit": "s"}
    )
    # a class without members is left out, and the numbers of those behind it follow
    table = class_table(["the", "7", "mix"], [rare, plain, verb_class])
    assert table.names == ("number", "verb") and table.class_of_SV.tolist() == [[-1, 0, 1]]
    verb = table.classes[1]
    assert (verb.metrics, verb.densities, verb.unit, verb.tokens) == (("value",), ("gaussian",), "s", ("mix",))


@pytest.mark.parametrize(
    ("sentence", "found"),
    [
        ("on November 4 , 1987", {2: "after_month"}),
        ("the 1914 – 1918 war", {3: "range"}),
        ("from 5 to 6 or go to 7", {3: "range"}),
        ("moved to 5", {}),
        ("a length of 60 cm ( 24 in )", {6: "convert"}),
        ("a 12 @-@ inch ( 305 mm ) gun", {3: "range", 5: "convert"}),
        ("up to 100 km / h ( 62 mph )", {7: "convert"}),
        ("of 30 square miles ( 78 km2 )", {5: "convert"}),
        ("weigh 5 – 6 kg ( 11 – 13 lb )", {3: "range", 6: "convert", 8: "convert"}),
        ("in May ( 24 )", {2: "after_month"}),
        ("three miles ( 5 km )", {}),
        ("at 12 – 14 @-@ metres per second ( 27 – 31 mph )", {3: "range", 5: "range", 9: "convert", 11: "convert"}),
        ("weigh 5 – 6 kg ( about – 13 lb )", {3: "range", 6: "convert"}),
    ],
)
def test_states(text, sentence: str, found: dict[int, str]) -> None:
    made = text(sentence)
    contexts, _ = ContextTracker(made.table).read(made.ids_T[None])
    names = np.array(made.table.states)[contexts.state_BT[0]]
    assert {place + 1: name for place, name in enumerate(names) if name != "plain"} == found


def test_sources_of_a_range_are_converted_one_by_one(text) -> None:
    # a hyphen between two numbers is a range, one between number and unit is not
    for sentence, expected in (
        ("weigh 5 – 6 kg ( 11 – 13 lb )", {5: 5.0, 7: 6.0}),
        ("weigh 5 @-@ 6 kg ( 11 @-@ 13 lb )", {5: 5.0, 7: 6.0}),
        ("a 6 @-@ kg ( 13 lb )", {4: 6.0}),
    ):
        made = text(sentence)
        contexts, _ = ContextTracker(made.table).read(made.ids_T[None])
        assert {t: v for t, v in enumerate(contexts.source_value_BT[0]) if not np.isnan(v)} == expected, sentence


def test_states_do_not_see_what_follows(text) -> None:
    made = text("a length of 60 cm ( 24 in ) in May 4 – 5 kg ( 11 – 13 lb ) and 1914 – 1918")
    tracker = ContextTracker(made.table)
    whole, _ = tracker.read(made.ids_T[None])
    for end in range(1, len(made.ids_T)):
        part, _ = tracker.read(made.ids_T[None, :end])
        assert (part.state_BT[0] == whole.state_BT[0, :end]).all()
        assert (part.previous_BTC[0] == whole.previous_BTC[0, :end]).all()
        assert np.array_equal(part.source_value_BT[0], whole.source_value_BT[0, :end], equal_nan=True)


WORDS = "the 1987 2015 30 1,200 7 3.5 .5 1990s May – ( in 2,001"


def classes_of(text, state: str) -> dict[str, str]:
    made = text(WORDS)
    row_V = made.table.class_of_SV[made.table.states.index(state)]
    return {token: made.table.names[row_V[number]] for number, token in enumerate(made.tokens) if row_V[number] >= 0}


@pytest.mark.long
def test_seven_number_classes(text) -> None:
    plain = {"1987": "year", "2015": "year", "30": "round", "1,200": "round", "7": "other", "5": "other",
             "3.5": "decimal", ".5": "decimal", "2,001": "other"}  # fmt: skip
    assert classes_of(text, "plain") == plain
    assert set(classes_of(text, "range").values()) == {"range"}
    assert set(classes_of(text, "convert").values()) == {"convert"}
    after = classes_of(text, "after_month")
    assert after == {token: "year" if name == "year" else "day" for token, name in plain.items()}


def test_a_class_is_available_with_all_members_or_none(text) -> None:
    table = text(WORDS).table
    for number, members in enumerate(table.classes):
        for state in range(len(table.states)):
            count = (table.class_of_SV[state] == number).sum()
            assert count == (len(members) if table.available_SC[state, number] else 0)
        assert (table.index_CV[number, members.ids_K] == np.arange(len(members))).all()
    numbers = {"1987", "2015", "30", "1,200", "7", "3.5", ".5", "2,001", "5"}
    made = text(WORDS)
    assert {token for token, inside in zip(made.tokens, made.table.any_class_V, strict=True) if inside} == numbers


def test_a_class_bound_to_a_context_takes_its_tokens_there() -> None:
    bound = make_recogniser("day", {"pattern": r"\d+", "context": "after_month"})
    table = class_table(["May", "4", "77"], [make_recogniser("number", {"pattern": r"\d+"}), bound])
    assert table.states == ("plain", "after_month") and table.names == ("number", "day")
    assert table.class_of_SV.tolist() == [[-1, 0, 0], [-1, 1, 1]]
    assert table.available_SC.tolist() == [[True, False], [False, True]]


class AfterDollar(LeftContext):
    """A user's context: the token before is a dollar sign."""

    name, window = "after_dollar", 1

    def bind(self, tokens: Sequence[str]) -> None:
        self.dollar = list(tokens).index("$")

    def active(self, ids_BT: np.ndarray) -> np.ndarray:
        found_BT = np.zeros(ids_BT.shape, dtype=bool)
        found_BT[:, 1:] = ids_BT[:, :-1] == self.dollar
        return found_BT


def test_a_users_context_is_bound_by_its_dotted_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TRUSTED, __name__.partition(".")[0])
    own = f"{__name__}.AfterDollar"
    price = make_recogniser("price", {"pattern": r"\d+", "context": own})
    table = class_table(["$", "4"], [make_recogniser("number", {"pattern": r"\d+"}), price])
    assert table.states == ("plain", "after_dollar") and table.names == ("number", "price")
    assert table.class_of_SV.tolist() == [[-1, 0], [-1, 1]]


RECIPE = """
verb:
  members: {measuring: 1, mixing: 2, baking: 3, cooling: 4}
  metrics: [own_metric.InOrder, frequency]
  densities: [multinomial, unigram]
minutes:
  pattern: '[1-9]0?'
  metrics: [value]
  densities: [gaussian]
"""
OWN = """
import numpy as np
from lit_ctg.papers.nslm.micro_model import Difference

class InOrder(Difference):
    name, kind = "in_order", "flag"

    def values(self, keys_UJ):
        return (super().values(keys_UJ) > 0).astype(float)

    def value_of(self, keys_NJ, index_N):
        return (super().value_of(keys_NJ, index_N) > 0).astype(float)
"""


def test_a_recipe_class_with_a_users_metric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
    (tmp_path / "own_metric.py").write_text(OWN, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_metric", raising=False)
    monkeypatch.delenv(TRUSTED, raising=False)
    table = class_table(
        ["the", "baking", "cooling", "measuring", "mixing", "5"], read_classes(tmp_path / "recipe.yaml").values()
    )
    assert table.names == ("verb", "minutes")
    rng = np.random.default_rng(0)
    order = {token: place for place, token in enumerate(table.classes[0].tokens)}
    steps = [order[word] for word in ("measuring", "mixing", "baking", "cooling")]
    begin_N = rng.integers(0, 3, 200)
    after_N = np.array([rng.integers(begin + 1, 4) for begin in begin_N])
    index_N, previous_N = np.array(steps)[after_N], np.array(steps)[begin_N]
    found = Occurrences(np.arange(200), np.zeros(200, int), index_N, Evidence.of_previous(previous_N))
    minutes = Occurrences(np.arange(1), np.ones(1, int), np.zeros(1, int), Evidence.of_previous([-1]))
    with pytest.raises(UserError, match="trust=own_metric"):
        select(table, Occurrences.join([found, minutes]), found)
    monkeypatch.setenv(TRUSTED, "own_metric")
    selection = select(table, Occurrences.join([found, minutes]), found)
    chosen = selection.models["verb"]
    assert chosen.metric.name == "in_order"
    after_mixing = np.exp(chosen.log_prob(Evidence.of_previous([order["mixing"]]))[0])
    assert after_mixing[order["measuring"]] < 0.01 < after_mixing[order["baking"]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pattern": "("}, "regular expression"),
        ({"kind": "citty", "minimum_population": 1}, "did you mean 'city'"),
        ({"members": {"a": 1, "b": [1, 2]}}, "the same number of values"),
        ({"members": ["a", "b"]}, r"members=\['a', 'b'\]: pass"),
        ({"members": {"a": "12", "b": "34"}}, "members.*'?12'?"),
        ({"members": {"a": [1, "2"]}}, "members.*2"),
        ({"members": {"a": None}}, "members.*(None|null)"),
        ({"members": {"a": float("inf")}}, "members.*inf"),
        ({"pattern": "a", "metrics": "frequency"}, "metrics=frequency: pass a list of names"),
        ({"pattern": "a", "colour": "red"}, "colour"),
        ({"pattern": "x", "kind": "city"}, "exactly one of pattern, members, kind"),
    ],
)
def test_bad_settings_of_a_class_end_in_one_line(settings: dict, message: str) -> None:
    with pytest.raises(UserError, match=f"^class 'x'.*{message}") as caught:
        make_recogniser("x", settings)
    assert "\n" not in str(caught.value)


def test_bad_names_files_and_tables_are_named(tmp_path: Path) -> None:
    for content, message in (("verb: 3", "verb=3"), ("- verb", "classes.yaml"), ("verb: [", "as YAML")):
        (tmp_path / "classes.yaml").write_text(content, encoding="utf-8")
        with pytest.raises(UserError, match=message):
            read_classes(tmp_path / "classes.yaml")
    with pytest.raises(UserError, match=r"none\.yaml"):
        read_classes(tmp_path / "none.yaml")
    day, rest = (make_recogniser("day", {"pattern": r"[12]?\d", "context": "after_month"}),
                 make_recogniser("rest", {"pattern": r"\d+"}))  # fmt: skip
    for fails, message in (
        (
            lambda: class_table(["4"], [make_recogniser("day", {"pattern": "4", "context": "after_moth"})]),
            "after_month",
        ),
        (lambda: make_recogniser("x", {"_target_": "no.such.Thing"}), r"may not choose no\.such\.Thing"),
        (lambda: make_recogniser("x", {"_target_": "lit_ctg.metric.perplexity.Perplexity"}), "derived from"),
        # a class is available with all its members or not at all
        (lambda: class_table(["May", "4", "77"], [day, rest]), "'rest' .* 2 members in the context 'after_month'"),
        (lambda: class_table(["4"], [rest, rest]), "same name"),
    ):
        with pytest.raises(UserError, match=message):
            fails()
